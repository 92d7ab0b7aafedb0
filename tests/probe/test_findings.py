"""Sentences follow the numbers and can come out either way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analyses.criteria import CRITERIA
from probe.studies.effect_findings import ranks, retained, top_heads
from probe.studies.findings import findings
from probe.studies.kinds import KINDS, LOCAL, NEXT_TOKEN, OUTPUTS_ONLY, UNTRAINED
from probe.studies.sentences import Found

SEEDS = (0, 1, 2)
ABLATIONS = ("zero", "mean", "resample")


def head_rows() -> list[dict[str, object]]:
    """The head table: one anti-diagonal head a model, the first, which next token needs."""
    heads = []
    for model in KINDS:
        for seed in SEEDS:
            for head in range(3):
                best = head == 0 and model in (NEXT_TOKEN, OUTPUTS_ONLY)
                trained = model in (NEXT_TOKEN, OUTPUTS_ONLY)
                change = -1.0 if best and model == NEXT_TOKEN else 0.0
                heads.append(
                    {
                        "model": model,
                        "seed": seed,
                        "layer": 0,
                        "head": head,
                        "name": f"0.{head}",
                        "anti_diagonal": 0.98 if best else 0.05,
                        "anti_diagonal_holding": 0.01,
                        "anti_diagonal_chance": 0.042,
                        "entropy_predicting": 0.1 if best else 2.5,
                        "labelled": best,
                        **{f"loss_change_{k}": -change if trained else np.nan for k in ABLATIONS},
                        **{
                            f"exact_match_change_{k}": change if trained else np.nan
                            for k in ABLATIONS
                        },
                    }
                )
    return heads


def found() -> Found:
    """Numbers of a study in which everything that the chapter says holds."""
    models = [
        {
            "model": model,
            "seed": seed,
            "exact_match": float(model in (NEXT_TOKEN, OUTPUTS_ONLY)),
            "n": 2000,
        }
        for model in KINDS
        for seed in SEEDS
    ]
    joint = [
        {
            "model": model,
            "seed": seed,
            "mode": mode,
            "ablation": kind,
            "metric": "exact_match",
            "clean": 1.0,
            "ablated": float(mode == "keep"),
            "change": -float(mode != "keep"),
            "ci_low": np.nan,
            "ci_high": np.nan,
        }
        for model in (NEXT_TOKEN, OUTPUTS_ONLY)
        for seed in SEEDS
        for mode in ("remove", "keep", "none")
        for kind in ABLATIONS
    ]
    temperature = [
        {
            "model": NEXT_TOKEN,
            "seed": seed,
            "temperature": t,
            "exact_match": p,
            "tail": 0.4,
        }
        for seed in SEEDS
        for t, p in ((0.1, 1.0), (2.0, 0.1))
    ]
    confidence = [{"steps": s, "half_point": h} for s, h in ((100, np.nan), (300, 1.4), (1000, 2))]
    return Found(
        models=pd.DataFrame(models),
        heads=pd.DataFrame(head_rows()),
        joint=pd.DataFrame(joint),
        temperature=pd.DataFrame(temperature),
        confidence=pd.DataFrame(confidence),
    )


def by_criterion(study: Found) -> dict[str, list[bool | None]]:
    out: dict[str, list[bool | None]] = {}
    for finding in findings(study):
        out.setdefault(finding.criterion, []).append(finding.holds)
    return out


def text(study: Found, criterion: str) -> str:
    return " ".join(f.text for f in findings(study) if f.criterion == criterion)


def test_every_sentence_rests_on_a_criterion_that_exists() -> None:
    assert {finding.criterion for finding in findings(found())} <= CRITERIA.keys()


def test_numbers_as_in_the_chapter_give_its_claims() -> None:
    holds = by_criterion(found())
    assert holds["learns"] == [True, True]
    assert holds["fails"] == holds["low_entropy"] == holds["chance_like"] == [True]
    assert holds["right_when_cold"] == holds["errs_when_hot"] == holds["confident"] == [True]
    assert "In 3 of 3 seeds, the model trained on every position writes all of 2,000" in text(
        found(), "learns"
    )
    assert "of all seeds at least 29%" in text(found(), "learns")  # 0.025 ** (1 / 3)


def test_one_bad_seed_is_counted_and_the_claim_no_longer_holds() -> None:
    study = found()
    study.models.loc[
        (study.models["model"] == NEXT_TOKEN) & (study.models["seed"] == 1), "exact_match"
    ] = 0.9995
    assert by_criterion(study)["learns"] == [False, True]
    assert "In 2 of 3 seeds, the model trained on every position" in text(study, "learns")


def test_a_control_that_succeeds_is_said() -> None:
    study = found()
    study.models.loc[study.models["model"] == LOCAL, "exact_match"] = 1.0
    assert by_criterion(study)["fails"] == [False]
    assert "In 0 of 3 seeds" in text(study, "fails")


def test_the_model_needs_a_head_only_where_mean_and_resample_agree() -> None:
    study = found()
    own = (study.heads["model"] == NEXT_TOKEN) & (study.heads["head"] == 0)
    study.heads.loc[own, "exact_match_change_resample"] = 0.0
    assert by_criterion(study)["needs"][0] is False
    assert "3 depends on the ablation" in text(study, "needs")
    # zero ablation alone decides nothing
    study.heads.loc[own, "exact_match_change_resample"] = -1.0
    study.heads.loc[own, "exact_match_change_zero"] = 0.0
    assert by_criterion(study)["needs"][0] is True


def test_backup_is_more_than_the_sum_of_single_effects() -> None:
    holds = by_criterion(found())["backup"]
    # next token: the one labelled head alone already costs everything; outputs only: none does
    assert holds == [False, True]


def test_lowest_entropy_is_a_claim_that_can_fail() -> None:
    study = found()
    assert by_criterion(study)["clean"] == [True, True]
    staring = (study.heads["model"] == NEXT_TOKEN) & (study.heads["head"] == 2)
    study.heads.loc[staring, "entropy_predicting"] = 0.0
    assert by_criterion(study)["clean"] == [True, False]


def test_samples_that_disagree_are_said() -> None:
    study = found()
    study.temperature.loc[0, "tail"] = 1e-6
    assert by_criterion(study)["sampling_agrees"] == [False]
    assert "disagree" in text(study, "sampling_agrees")


def test_confidence_that_cannot_be_told_is_neither_true_nor_false() -> None:
    study = replace(found(), confidence=pd.DataFrame({"steps": [100], "half_point": [np.nan]}))
    assert by_criterion(study)["confident"] == [None]


def test_an_undefined_score_never_ranks_first() -> None:
    heads = found().heads
    heads.loc[heads["head"] == 0, "anti_diagonal"] = np.nan
    assert set(top_heads(heads)["head"]) <= {1, 2}


def test_rank_counts_the_heads_with_a_larger_effect() -> None:
    study = found()
    rival = (study.heads["model"] == NEXT_TOKEN) & (study.heads["head"] == 2)
    study.heads.loc[rival & (study.heads["seed"] == 1), "loss_change_mean"] = 5.0
    table = ranks(study).set_index(["model", "seed"])
    assert table.loc[(NEXT_TOKEN, 0), "rank_mean"] == 1
    assert table.loc[(NEXT_TOKEN, 1), "rank_mean"] == 2
    assert table.loc[(NEXT_TOKEN, 1), "n_heads"] == 3


def test_no_labelled_head_makes_the_joint_claims_untestable() -> None:
    study = found()
    study.heads["labelled"] = False
    holds = by_criterion(study)
    assert holds["needs"][-2:] == [None, None]
    assert "backup" not in holds
    assert "not testable here" in text(study, "needs")


@pytest.mark.parametrize("model", [NEXT_TOKEN, OUTPUTS_ONLY])
def test_specialisation_compares_the_heads_of_one_layer(model: str) -> None:
    study = found()
    same = study.heads["model"] == model
    study.heads.loc[same, "anti_diagonal"] = 0.97
    place = (NEXT_TOKEN, OUTPUTS_ONLY).index(model)
    assert by_criterion(study)["specialised"][place] is False


def test_a_model_that_fails_gives_no_verdict_and_no_control() -> None:
    study = found()
    study.models["exact_match"] = 0.0
    holds = by_criterion(study)
    assert holds["learns"] == [False, False]
    assert holds["fails"] == [None]
    assert "not testable here" in text(study, "fails")
    assert set(ranks(study)["verdict"]) == {"undefined"}


def test_seeds_without_a_labelled_head_count_against_the_claim() -> None:
    study = found()
    study.heads.loc[
        (study.heads["model"] == NEXT_TOKEN) & (study.heads["seed"] > 0), "labelled"
    ] = False
    assert "In 1 of 3 seeds, the next token model needs its labelled" in text(study, "needs")
    assert "no head is labelled in 2" in text(study, "needs")


def test_claims_about_removal_name_the_exact_match() -> None:
    assert "these heads suffice for the exact match of the" in text(found(), "suffices")
    assert all(
        "for the exact match" in finding.text
        for finding in findings(found())
        if finding.criterion == "needs"
    )


def test_one_form_of_a_model_s_name_is_used() -> None:
    said = " ".join(finding.text for finding in findings(found()))
    assert "the next token model" in said
    assert "next-token model" not in said


def test_near_chance_is_relative_to_chance() -> None:
    study = found()
    untrained = study.heads["model"] == UNTRAINED
    study.heads.loc[untrained, ["anti_diagonal", "anti_diagonal_chance"]] = [0.16, 0.159]
    assert by_criterion(study)["chance_like"] == [True]
    study.heads.loc[untrained, "anti_diagonal"] = 0.4
    assert by_criterion(study)["chance_like"] == [False]


def test_retained_is_measured_from_what_no_head_gives() -> None:
    joint = found().joint
    joint = joint[joint["model"] == NEXT_TOKEN].copy()
    joint.loc[joint["mode"] == "none", ["ablated", "change"]] = [0.4, -0.6]
    joint.loc[joint["mode"] == "keep", "ablated"] = 0.7
    assert retained(joint)["mean"].to_numpy() == pytest.approx(0.5)  # (0.7 - 0.4) / (1 - 0.4)
    joint.loc[joint["mode"] == "none", ["ci_low", "ci_high"]] = [-2.0, 0.8]  # error 0.7 > 0.6 / 2
    assert retained(joint).isna().all(axis=None)


def test_confidence_must_rise_with_every_longer_training() -> None:
    halves = pd.DataFrame({"steps": [100, 300, 1000], "half_point": [1.0, 9.0, 1.9]})
    assert by_criterion(replace(found(), confidence=halves))["confident"] == [False]
    assert "never after 100" in text(found(), "confident")
