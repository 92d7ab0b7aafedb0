"""What the reversal study found, in sentences.

Every sentence rests on one criterion of `analyses.criteria`, says in how many seeds it holds,
and may come out the other way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyses.criteria import CRITERIA
from analyses.statistics import exact_lower_bound
from analyses.verdicts import verdict
from probe.studies.jobs import LOCAL, NEXT_TOKEN, OUTPUTS_ONLY, UNTRAINED

_EXACT = "exact_match"


@dataclass(frozen=True)
class Finding:
    """A sentence, the criterion it rests on, and whether it holds in every seed."""

    text: str
    criterion: str
    holds: bool | None


@dataclass(frozen=True)
class Found:
    """The study's tables, each with ``model`` and ``seed``."""

    models: pd.DataFrame
    heads: pd.DataFrame
    joint: pd.DataFrame
    temperature: pd.DataFrame
    confidence: pd.DataFrame


def findings(found: Found) -> list[Finding]:
    """All sentences, in the order of the chapter's claims."""
    parts = (
        _learning,
        _looks,
        _specialisation,
        _needs,
        _joint,
        _temperature,
        _confidence,
    )
    return [finding for part in parts for finding in part(found)]


def top_heads(heads: pd.DataFrame) -> pd.DataFrame:
    """The head with the highest anti-diagonal score of every model and seed; NaN never wins."""
    best = heads.dropna(subset=["anti_diagonal"]).groupby(["model", "seed"])["anti_diagonal"]
    return heads.loc[best.idxmax()]


def ranks(found: Found) -> pd.DataFrame:
    """Per model and seed, where the top-scoring head ranks by its effect on the loss.

    Returns:
        One row per model and seed: ``head``, ``anti_diagonal``, ``entropy_predicting`` (nats),
        per ablation ``rank_<ablation>`` (1 = largest rise of the loss; ties share the better
        rank) of ``n_heads``, ``exact_match_change_<ablation>``, ``verdict``.
    """
    rows = []
    for _, top in top_heads(found.heads[found.heads["loss_change_mean"].notna()]).iterrows():
        same = (found.heads["model"] == top["model"]) & (found.heads["seed"] == top["seed"])
        others = found.heads[same]
        kinds = ("zero", "mean", "resample")
        rank = {
            f"rank_{k}": int((others[f"loss_change_{k}"] > top[f"loss_change_{k}"]).sum()) + 1
            for k in kinds
        }
        change = {f"exact_match_change_{k}": top[f"exact_match_change_{k}"] for k in kinds}
        rows.append(
            {
                "model": top["model"],
                "seed": top["seed"],
                "head": top["name"],
                "anti_diagonal": top["anti_diagonal"],
                "entropy_predicting": top["entropy_predicting"],
                **rank,
                "n_heads": len(others),
                **change,
                "verdict": verdict({k: top[f"exact_match_change_{k}"] for k in kinds}),
            }
        )
    return pd.DataFrame(rows)


def _learning(found: Found) -> list[Finding]:
    out = []
    for model, words in ((NEXT_TOKEN, "every position"), (OUTPUTS_ONLY, "output positions only")):
        rows = found.models[found.models["model"] == model]
        yes = rows["exact_match"] >= CRITERIA["learns"].threshold
        n = int(rows["n"].iloc[0])
        out.append(
            _count(
                yes,
                f"the model trained on {words} makes no greedy error in {n:,} held-out sequences",
                "learns",
                bound=True,
            )
        )
    rows = found.models[found.models["model"] == LOCAL]
    yes = rows["exact_match"] <= CRITERIA["fails"].threshold
    text = "the same recipe fails when attention reaches back over half the input only"
    out.append(_count(yes, f"{text} (exact match {_range(rows['exact_match'])})", "fails"))
    return out


def _looks(found: Found) -> list[Finding]:
    out = []
    top = top_heads(found.heads)
    own = top[top["model"] == NEXT_TOKEN]
    out.append(
        _count(
            own["anti_diagonal"] >= CRITERIA["clean"].threshold,
            "the best head is a clean reversal head, on the alignment that predicts "
            f"(anti-diagonal score {_range(own['anti_diagonal'])}; on the alignment that holds "
            f"the letter {_range(own['anti_diagonal_holding'])})",
            "clean",
        )
    )
    low = own["entropy_predicting"] < CRITERIA["low_entropy"].threshold
    spread = _range(own["entropy_predicting"])
    out.append(_count(low, f"that head has very low entropy ({spread} nats)", "low_entropy"))
    lowest = _lowest_entropy(found.heads[found.heads["model"] == NEXT_TOKEN])
    same = lowest["anti_diagonal"] >= CRITERIA["clean"].threshold
    out.append(
        _count(
            same,
            "the head with the lowest entropy is itself a clean reversal head, so that low "
            "entropy alone would have found it",
            "clean",
        )
    )
    untrained = found.heads[found.heads["model"] == UNTRAINED]
    highest = untrained.groupby("seed")["anti_diagonal"].max()
    out.append(
        _count(
            highest <= CRITERIA["chance_like"].threshold,
            f"every head of the untrained model is near chance (highest {_range(highest)})",
            "chance_like",
        )
    )
    return out


def _specialisation(found: Found) -> list[Finding]:
    out = []
    broad = found.heads[found.heads["model"] == NEXT_TOKEN].groupby("seed")["entropy_predicting"]
    yes = broad.max() >= CRITERIA["broad"].threshold
    out.append(
        _count(
            yes,
            f"the next-token model also has a head that attends broadly (up to "
            f"{_range(broad.max())} nats)",
            "broad",
        )
    )
    for model in (NEXT_TOKEN, OUTPUTS_ONLY):
        spread = _spread_in_best_layer(found.heads[found.heads["model"] == model])
        out.append(
            _count(
                spread >= CRITERIA["specialised"].threshold,
                f"the heads of the {model} model are specialised: in the layer of the best one, "
                f"anti-diagonal scores differ by {_range(spread)}",
                "specialised",
            )
        )
    return out


def _needs(found: Found) -> list[Finding]:
    out = []
    table = ranks(found)
    for model in (NEXT_TOKEN, OUTPUTS_ONLY):
        rows = table[table["model"] == model]
        words = ", ".join(f"{n} {word}" for word, n in rows["verdict"].value_counts().items())
        first = int((rows["rank_mean"] == 1).sum())
        out.append(
            _count(
                rows["verdict"] == "needs",
                f"the {model} model needs its top-scoring head (verdicts: {words}; first by effect "
                f"on the loss under mean ablation in {first} of {len(rows)})",
                "needs",
            )
        )
    changes = found.heads[found.heads["model"] == OUTPUTS_ONLY]
    words_by_head = [
        verdict({k: row[f"exact_match_change_{k}"] for k in ("mean", "resample")})
        for _, row in changes.iterrows()
    ]
    every = pd.Series(words_by_head, index=changes["seed"]).eq("can go").groupby(level=0).all()
    out.append(_count(every, "any one head of the outputs only model can go", "can_go"))
    return out


def _joint(found: Found) -> list[Finding]:
    out = []
    for model in (NEXT_TOKEN, OUTPUTS_ONLY):
        counts = _labelled(found, model).groupby("seed")["labelled"].sum()
        counts = counts[counts > 0]
        rows = found.joint[(found.joint["model"] == model) & (found.joint["metric"] == _EXACT)]
        rows = rows[rows["seed"].isin(counts.index)]
        if rows.empty:
            text = f"What the labelled heads of the {model} model do together is not testable here:"
            out.append(Finding(f"{text} no head is labelled.", "needs", None))
            continue
        removed = _by_kind(rows[rows["mode"] == "remove"], "change")
        needed = removed.apply(lambda row: verdict(row.to_dict()) == "needs", axis=1)
        text = f"the {model} model needs its labelled anti-diagonal heads together ("
        out.append(_count(needed, f"{text}{_range(counts, digits=0)} of them)", "needs"))
        kept = rows[rows["mode"] == "keep"]
        share = _by_kind(kept, "ablated")["mean"] / kept.groupby("seed")["clean"].first()
        out.append(
            _count(
                share >= CRITERIA["suffices"].threshold,
                f"these heads suffice for the {model} model: with every other head at its mean it "
                f"retains {_range(share)} of its exact match",
                "suffices",
            )
        )
        out.append(_backup(found, model, removed))
    return out


def _backup(found: Found, model: str, together: pd.DataFrame) -> Finding:
    """Is the joint effect of the labelled heads more than the sum of their single effects?"""
    labelled = _labelled(found, model)
    labelled = labelled[labelled["labelled"]]
    kinds = ("mean", "resample")
    alone = labelled.groupby("seed")[[f"exact_match_change_{kind}" for kind in kinds]].sum()
    extra = pd.DataFrame(
        {kind: alone[f"exact_match_change_{kind}"] - together[kind] for kind in kinds}
    )
    return _count(
        extra.min(axis=1) >= CRITERIA["backup"].threshold,
        f"the labelled heads of the {model} model back each other up: removing them together "
        "costs more exact match than the sum of removing each alone, by "
        f"{_range(extra['mean'])} under mean and {_range(extra['resample'])} under resample "
        "ablation",
        "backup",
    )


def _labelled(found: Found, model: str) -> pd.DataFrame:
    heads = found.heads[found.heads["model"] == model]
    return heads.assign(labelled=heads["labelled"].astype(bool))


def _confidence(found: Found) -> list[Finding]:
    halves = found.confidence.groupby("steps")["half_point"].first().dropna()
    if len(halves) < 2:
        text = "Whether longer training makes the model more confident cannot be told: fewer than "
        return [Finding(f"{text}two lengths of training reach 50% exact match.", "confident", None)]
    gain = float(halves.iloc[-1] - halves.iloc[0])
    points = ", ".join(f"{value:.2f} after {steps:,} steps" for steps, value in halves.items())
    holds = gain >= CRITERIA["confident"].threshold
    verb = "makes" if holds else "does not make"
    text = f"Longer training {verb} the model more confident: exact match is 50% at temperature "
    return [Finding(f"{text}{points} (seed 0).", "confident", holds)]


def _temperature(found: Found) -> list[Finding]:
    out = []
    own = found.temperature[found.temperature["model"] == NEXT_TOKEN].set_index("seed")
    cold = own[own["temperature"] == 0.1]["exact_match"]
    hot = own[own["temperature"] == 2.0]["exact_match"]
    out.append(
        _count(
            cold >= CRITERIA["right_when_cold"].threshold,
            f"at temperature 0.1 sampling is always right (exact match {_range(cold, digits=4)})",
            "right_when_cold",
        )
    )
    out.append(
        _count(
            hot < CRITERIA["errs_when_hot"].threshold,
            f"at temperature 2.0 sampling errs (exact match {_range(hot)})",
            "errs_when_hot",
        )
    )
    tails = found.temperature["tail"].dropna()
    limit = CRITERIA["sampling_agrees"].threshold / len(tails)
    agrees = bool(tails.min() >= limit)
    out.append(
        Finding(
            f"{'The samples agree' if agrees else 'The samples disagree'} with the exact "
            f"probabilities: of {len(tails)} cells, {int((tails < 0.05).sum())} have a two-sided "
            f"tail under 5% where at most {0.05 * len(tails):.1f} are expected, and the smallest "
            f"tail is {tails.min():.4f}.",
            "sampling_agrees",
            agrees,
        )
    )
    return out


def _count(yes: pd.Series[bool], text: str, criterion: str, *, bound: bool = False) -> Finding:
    """Say in how many seeds something holds, with the exact bound where it is asked for."""
    k, n = int(yes.sum()), len(yes)
    note = f" (of all seeds at least {exact_lower_bound(k, n):.0%}, exact 95% bound)"
    number = f"In {k} of {n} seed{'s' if n > 1 else ''}, "
    return Finding(f"{number}{text}{note if bound and k == n else ''}.", criterion, k == n)


def _range(values: Iterable[float], *, digits: int = 2) -> str:
    """Lowest to highest, as one number where they print the same."""
    array = np.asarray(list(values), dtype=float)
    if not len(array) or np.isnan(array).all():
        return "n/a"
    low, high = (f"{v:.{digits}f}" for v in (np.nanmin(array), np.nanmax(array)))
    return low if low == high else f"{low} to {high}"


def _lowest_entropy(heads: pd.DataFrame) -> pd.DataFrame:
    return heads.loc[heads.groupby("seed")["entropy_predicting"].idxmin()]


def _spread_in_best_layer(heads: pd.DataFrame) -> pd.Series[float]:
    def spread(rows: pd.DataFrame) -> float:
        layer = rows["layer"].to_numpy()[rows["anti_diagonal"].to_numpy().argmax()]
        scores = rows.loc[rows["layer"] == layer, "anti_diagonal"]
        return float(scores.max() - scores.min())

    return pd.Series({seed: spread(rows) for seed, rows in heads.groupby("seed")})


def _by_kind(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    return rows.pivot(index="seed", columns="ablation", values=value)
