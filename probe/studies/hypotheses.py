"""The reversal study's hypothesis: the labelled anti-diagonal heads are necessary and sufficient.

Heads are labelled by their attention on one batch and tested on other held-out sequences, against
all sets with as many heads in every layer. A small model has few such sets, so that one seed alone
is often not testable; seeds are combined by an exact rank sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analyses.criteria import CRITERIA
from analyses.hypothesis import combine_seeds, hypothesis_table, prompts_to_test
from analyses.hypothesis_words import CLAIMS, DECIDE
from analyses.matched_sets import measure_sets, set_table
from models.interface import HookedModel
from models.names import Head
from probe.studies.kinds import NEXT_TOKEN, OUTPUTS_ONLY
from probe.studies.sentences import Finding, count, spread

_DOES = {
    "necessary": "removing them costs {} of the loss that removing all heads costs",
    "sufficient": "kept alone they retain {} of the loss that all heads save",
}
_BY = {
    "necessary": "by what removing them costs",
    "sufficient": "by what keeping only them retains",
}


def labelled_hypothesis(
    model: HookedModel, labelled: Sequence[Head], *, seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Test the heads of one model that were labelled on the 64 default sequences of a seed.

    Args:
        model: trained on a task.
        labelled: the heads.
        seed: of the sequences on which they were labelled, left out here, and of the test.

    Returns:
        ``hypotheses`` (see `analyses.hypothesis.test_hypothesis`) and ``hypothesis_sets`` (see
        `analyses.matched_sets.set_table`); nothing where no head is labelled.
    """
    if not labelled:
        return {}
    batch, selected = prompts_to_test(model, selected_on=seed, seed=seed)
    scores = measure_sets(model, batch, heads=labelled, seed=seed)
    return {
        "hypotheses": hypothesis_table(scores, selected=selected),
        "hypothesis_sets": set_table(scores),
    }


def combined_hypotheses(tests: pd.DataFrame) -> pd.DataFrame:
    """All seeds of each model together.

    Args:
        tests: tables ``hypotheses`` with ``model`` and ``seed``.

    Returns:
        One row per model, claim and ablation: ``model`` and the columns of
        `analyses.hypothesis.combine_seeds`. Seeds whose set is the only one with as many heads in
        every layer are left out: there is nothing to compare it with.
    """
    parts = [pd.DataFrame()]
    for model, rows in tests[tests["n_sets"] > 1].groupby("model", sort=False):
        part = combine_seeds(own for _, own in rows.groupby("seed"))
        part.insert(0, "model", model)
        parts.append(part)
    return pd.concat(parts[1:] or parts, ignore_index=True)


def hypothesis_findings(tests: pd.DataFrame | None, *, seeds: int) -> list[Finding]:
    """Are the labelled heads necessary and sufficient, and exceptional among matched sets?

    Args:
        tests: tables ``hypotheses`` with ``model`` and ``seed``; ``None`` without a labelled head.
        seeds: how many seeds of each model were trained; one without labelled heads does not hold.
    """
    out = []
    combined = None if tests is None else combined_hypotheses(tests)
    for model in (NEXT_TOKEN, OUTPUTS_ONLY):
        own = None if tests is None else tests[tests["model"] == model]
        if own is None or combined is None or own.empty:
            text = f"Whether the labelled heads of the {model} model are necessary or sufficient"
            text += " is not testable here: no head is labelled."
            out.append(Finding(text, "necessary", None))
            continue
        alone = own[own["n_sets"] == 1]["seed"].nunique()
        for claim in CLAIMS:
            out.append(_size(own[own["claim"] == claim], model, claim, seeds))
            if alone == own["seed"].nunique():
                out.append(_only_set(model, claim))
                continue
            rows = combined[(combined["model"] == model) & (combined["claim"] == claim)]
            out.append(_exceptional(rows, model, claim, alone))
    return out


def _size(rows: pd.DataFrame, model: str, claim: str, seeds: int) -> Finding:
    share = rows.pivot(index="seed", columns="ablation", values="share").reindex(range(seeds))
    both = share[list(DECIDE)].min(axis=1, skipna=False)  # an undefined share is not large
    mean, resample = (spread(share[kind]) for kind in DECIDE)
    does = _DOES[claim].format(f"{mean} (mean) and {resample} (resample ablation)")
    text = f"the labelled anti-diagonal heads of the {model} model are {claim} for the loss: {does}"
    return count(both >= CRITERIA[claim].threshold, text, claim)


def _only_set(model: str, claim: str) -> Finding:
    text = f"Whether the labelled heads of the {model} model are exceptional {_BY[claim]}, is not "
    text += "testable here: only one such set exists, with as many heads in every layer."
    return Finding(text, "exceptional", None)


def _exceptional(combined: pd.DataFrame, model: str, claim: str, left_out: int) -> Finding:
    rows = combined.set_index("ablation").to_dict("index")
    words = {str(rows[kind]["verdict"]) for kind in DECIDE}
    word = words.pop() if len(words) == 1 else "depends on the ablation"
    n, alone = (int(rows[DECIDE[0]][name]) for name in ("n_seeds", "n_testable"))
    subject = f"the labelled heads of the {model} model"
    among = f"exceptional {_BY[claim]}, among the sets with as many heads in every layer"
    says = {
        "exceptional": f"{subject} are {among}",
        "not exceptional": f"{subject} are not {among}",
        "depends on the ablation": f"whether {subject} are {among}, depends on the ablation",
    }.get(word, f"whether {subject} are {among}, is {word}")
    numbers = "; ".join(
        f"p = {rows[kind]['p']:.2g} under {kind} ablation, alone in front in "
        f"{rows[kind]['n_first']} of {rows[kind]['n_seeds']}"
        for kind in DECIDE
    )
    text = f"Over {n} seed{'s' if n > 1 else ''} together, {says} (exact rank sum: {numbers}; "
    text += f"{alone} of {n} testable without the others"
    text += f"; only one such set exists in {left_out} more)." if left_out else ")."
    holds = None if word in ("not testable here", "undefined") else word == "exceptional"
    return Finding(text, "exceptional", holds)
