"""The hypothesis of the reversal study: tested on other sequences, and it can come out as no."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analyses import hypothesis
from analyses.criteria import CRITERIA
from analyses.inputs import as_batch
from models.gpt import GPT
from probe.studies.hypotheses import (
    combined_hypotheses,
    hypothesis_findings,
    labelled_hypothesis,
)
from probe.studies.kinds import NEXT_TOKEN, OUTPUTS_ONLY

SEEDS = (0, 1, 2)


def study(
    *, share: float = 0.95, rank: int = 1, n_sets: int = 6, model: str = NEXT_TOKEN
) -> pd.DataFrame:
    """A study in which each seed's heads have this share and rank."""
    rows = [
        {
            "model": model,
            "seed": seed,
            "claim": claim,
            "ablation": kind,
            "metric": "loss",
            "share": share,
            "p": rank / n_sets,
            "n_sets": n_sets,
            "smallest_p": 1 / n_sets,
        }
        for seed in SEEDS
        for claim in ("necessary", "sufficient")
        for kind in ("zero", "mean", "resample")
    ]
    return pd.DataFrame(rows)


def holds(table: pd.DataFrame | None) -> list[tuple[str, bool | None]]:
    return [(f.criterion, f.holds) for f in hypothesis_findings(table, seeds=3)]


def both(table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table, table.assign(model=OUTPUTS_ONLY)])


def test_heads_are_tested_on_other_sequences_than_they_were_labelled_on(trained: GPT) -> None:
    found = labelled_hypothesis(trained, [(0, 1), (1, 0)], seed=4)
    table, sets = found["hypotheses"], found["hypothesis_sets"]
    assert (table["selection"] == "64 other prompts").all()
    assert (table["heads"] == "0.1 1.0").all()
    assert (table["n_sets"] == 16).all()
    expected = hypothesis.test_hypothesis(trained, heads=["0.1", "1.0"], selected_on=4, seed=4)
    pd.testing.assert_frame_equal(table, expected)
    own = sets[sets["tested"]].set_index(["claim", "ablation"])["value"]
    assert own.equals(table.set_index(["claim", "ablation"])["value"])
    assert len(as_batch(trained, None, seed=4)) == 64, "what labels are made on"


def test_without_a_labelled_head_there_is_nothing_to_test(trained: GPT) -> None:
    assert labelled_hypothesis(trained, []) == {}
    findings = hypothesis_findings(None, seeds=3)
    assert [f.holds for f in findings] == [None, None]
    assert all("no head is labelled" in f.text for f in findings)


def test_seeds_are_combined_model_by_model() -> None:
    combined = combined_hypotheses(both(study()))
    assert len(combined) == 2 * 2 * 3
    assert combined["p"].tolist() == pytest.approx([1 / 216] * 12)
    assert combined["model"].unique().tolist() == [NEXT_TOKEN, OUTPUTS_ONLY]


def test_findings_hold_when_heads_are_large_and_first() -> None:
    expected = [
        ("necessary", True),
        ("exceptional", True),
        ("sufficient", True),
        ("exceptional", True),
    ] * 2
    assert holds(both(study())) == expected
    texts = [f.text for f in hypothesis_findings(both(study()), seeds=3)]
    assert "In 3 of 3 seeds" in texts[0]
    assert "p = 0.0046 under mean ablation, alone in front in 3 of 3" in texts[1]


def test_findings_fail_when_heads_are_small_or_like_the_others() -> None:
    assert [h for _, h in holds(study(share=0.1))][:4] == [False, True, False, True]
    last = hypothesis_findings(study(rank=6), seeds=3)
    assert [f.holds for f in last][:4] == [True, False, True, False]
    assert "are not exceptional" in last[1].text
    assert hypothesis_findings(study(share=np.nan), seeds=3)[0].holds is False


def test_a_seed_without_labelled_heads_does_not_hold() -> None:
    some = study()
    finding = hypothesis_findings(some[some["seed"] > 0], seeds=3)[0]
    assert finding.holds is False
    assert "In 2 of 3 seeds" in finding.text


def test_disagreeing_ablations_and_few_sets_are_said() -> None:
    table = study()
    table.loc[table["ablation"] == "resample", "p"] = 1.0
    finding = hypothesis_findings(table, seeds=3)[1]
    assert "depends on the ablation" in finding.text
    assert finding.holds is False
    finding = hypothesis_findings(study(n_sets=2), seeds=3)[1]
    assert "is not testable here" in finding.text
    assert finding.holds is None


def test_a_set_without_another_like_it_is_compared_with_nothing() -> None:
    (_, one, _, two, *_) = hypothesis_findings(study(n_sets=1), seeds=3)
    for finding in (one, two):
        assert finding.holds is None
        assert "only one such set exists" in finding.text
        assert "in front" not in finding.text
    assert combined_hypotheses(study(n_sets=1)).empty
    table = study(n_sets=6)
    table.loc[table["seed"] == 2, ["n_sets", "p", "smallest_p"]] = [1, 1.0, 1.0]
    text = hypothesis_findings(table, seeds=3)[1].text
    assert "alone in front in 2 of 2" in text
    assert "only one such set exists in 1 more" in text


def test_a_claim_names_what_it_is_for() -> None:
    texts = [f.text for f in hypothesis_findings(study(), seeds=3)]
    assert "are necessary for the loss: " in texts[0]
    assert "are sufficient for the loss: " in texts[2]


def test_every_sentence_rests_on_a_criterion_that_exists() -> None:
    assert {f.criterion for f in hypothesis_findings(study(), seeds=3)} <= CRITERIA.keys()
