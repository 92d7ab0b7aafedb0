"""What the reversal study found by removing heads, in sentences."""

from __future__ import annotations

import pandas as pd

from analyses.criteria import CRITERIA
from analyses.verdicts import verdict
from probe.studies.kinds import NEXT_TOKEN, OUTPUTS_ONLY
from probe.studies.sentences import Finding, Found, count, spread

_BOTH = ("mean", "resample")


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
    measured = found.heads[found.heads["loss_change_mean"].notna()]
    for _, top in top_heads(measured).iterrows():
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
                "verdict": verdict(
                    {k: top[f"exact_match_change_{k}"] for k in kinds},
                    clean=found.exact_match(top["model"])[top["seed"]],
                ),
            }
        )
    return pd.DataFrame(rows)


def needs(found: Found) -> list[Finding]:
    """Does the model need its top-scoring head, and can any one head go?"""
    out, table = [], ranks(found)
    for model in (NEXT_TOKEN, OUTPUTS_ONLY):
        rows = table[table["model"] == model]
        words = ", ".join(f"{n} {word}" for word, n in rows["verdict"].value_counts().items())
        first = int((rows["rank_mean"] == 1).sum())
        out.append(
            count(
                rows["verdict"] == "needs",
                f"the {model} model needs its top-scoring head for the exact match (verdicts: "
                f"{words}; first by effect on the loss under mean ablation in {first} of "
                f"{len(rows)})",
                "needs",
            )
        )
    heads, clean = (
        found.heads[found.heads["model"] == OUTPUTS_ONLY],
        found.exact_match(OUTPUTS_ONLY),
    )
    words_by_head = [
        verdict({k: row[f"exact_match_change_{k}"] for k in _BOTH}, clean=clean[row["seed"]])
        for _, row in heads.iterrows()
    ]
    every = pd.Series(words_by_head, index=heads["seed"]).eq("can go").groupby(level=0).all()
    out.append(
        count(
            every,
            f"every head of the {OUTPUTS_ONLY} model can go when it alone is removed (exact match)",
            "can_go",
        )
    )
    return out


def together(found: Found) -> list[Finding]:
    """What the labelled heads do together. Every seed counts; one without them does not hold."""
    out = []
    for model in (NEXT_TOKEN, OUTPUTS_ONLY):
        heads = found.heads[found.heads["model"] == model]
        labelled = heads[heads["labelled"].astype(bool)]
        counts = heads["labelled"].astype(int).groupby(heads["seed"]).sum()
        if labelled.empty:
            text = f"What the labelled heads of the {model} model do together is not testable here:"
            out.append(Finding(f"{text} no head is labelled.", "needs", None))
            continue
        without = int((counts == 0).sum())
        note = f"; no head is labelled in {without}" if without else ""
        own = found.joint[
            (found.joint["model"] == model) & (found.joint["metric"] == "exact_match")
        ]
        removed = _by_kind(own[own["mode"] == "remove"], "change")
        clean = found.exact_match(model)
        needed = _needed(removed, clean) & (counts > 0)
        words = f"{spread(counts[counts > 0], digits=0)} of them{note}"
        text = f"the {model} model needs its labelled anti-diagonal heads together for the exact "
        text += f"match ({words})"
        out.append(count(needed, text, "needs"))
        share = retained(own).where(counts > 0)
        out.append(
            count(
                share.min(axis=1, skipna=False) >= CRITERIA["suffices"].threshold,
                f"these heads suffice for the exact match of the {model} model: kept alone they "
                f"retain {spread(share['mean'])} of what attention gives it under mean and "
                f"{spread(share['resample'])} under resample ablation",
                "suffices",
            )
        )
        out.append(_backup(model, labelled, removed, counts))
    return out


def retained(joint: pd.DataFrame) -> pd.DataFrame:
    """(keep only - keep none) / (clean - keep none) of the exact match, by seed and ablation.

    NaN where clean and none differ by less than two standard errors; not clipped.
    """
    kept = _by_kind(joint[joint["mode"] == "keep"], "ablated")
    none = joint[joint["mode"] == "none"]
    low, high = _by_kind(none, "ci_low"), _by_kind(none, "ci_high")
    gap = -_by_kind(none, "change")
    error = ((high - low) / 4).fillna(0.0)  # a 95% interval is about four standard errors wide
    gap = gap.where((gap.abs() >= 2 * error) & (gap != 0))
    return ((kept - _by_kind(none, "ablated")) / gap)[list(_BOTH)]


def _needed(removed: pd.DataFrame, clean: pd.Series[float]) -> pd.Series[bool]:
    """By seed, whether removing the heads together says that they are needed."""
    changes = removed.to_dict(orient="index")
    words = [
        verdict({str(kind): value for kind, value in changes[seed].items()}, clean=clean[seed])
        for seed in removed.index
    ]
    return pd.Series([word == "needs" for word in words], index=removed.index)


def _backup(
    model: str, labelled: pd.DataFrame, removed: pd.DataFrame, counts: pd.Series[int]
) -> Finding:
    """Is the joint effect of the labelled heads more than the sum of their single effects?"""
    alone = labelled.groupby("seed")[[f"exact_match_change_{kind}" for kind in _BOTH]].sum()
    extra = pd.DataFrame(
        {kind: alone[f"exact_match_change_{kind}"] - removed[kind] for kind in _BOTH}
    ).reindex(counts.index)
    return count(
        extra.min(axis=1, skipna=False) >= CRITERIA["backup"].threshold,
        f"the labelled heads of the {model} model back each other up: removing them together "
        "costs more exact match than the sum of removing each alone, by "
        f"{spread(extra['mean'])} under mean and {spread(extra['resample'])} under resample "
        "ablation",
        "backup",
    )


def _by_kind(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    return rows.pivot(index="seed", columns="ablation", values=value)
