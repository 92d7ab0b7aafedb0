"""Verdicts and sentences on head sets: every verb is an entry of `analyses.criteria`.

A verdict joins two predicates: whether the set is ``exceptional`` among matched sets, and whether
what it does is large (``necessary``, ``sufficient``). Every one can come out the other way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analyses.criteria import CRITERIA

CLAIMS = ("necessary", "sufficient")
DECIDE = ("mean", "resample")
"""The ablations that have to agree: zero decides nothing."""

UNDECLARED = "not declared"


def claim_verdict(table: pd.DataFrame, claim: str) -> str:
    """What mean and resample ablation say of a claim together.

    Args:
        table: of `test_hypothesis`.
        claim: ``necessary`` or ``sufficient``.

    Returns:
        A verdict of the table, without its rank, where both ablations give it; ``depends on the
        ablation`` where they differ; ``undecided`` where one of them was not run.
    """
    rows = table[table["claim"] == claim].set_index("ablation")["verdict"]
    if not set(DECIDE) <= set(rows.index):
        return "undecided"
    words = {str(rows[kind]).split(";")[0] for kind in DECIDE}
    return words.pop() if len(words) == 1 else "depends on the ablation"


def hypothesis_sentence(table: pd.DataFrame) -> str:
    """One plain sentence on both claims; its verbs are entries of `analyses.criteria`.

    Args:
        table: of `analyses.hypothesis.test_hypothesis`.
    """
    heads = str(table["heads"].iloc[0]).split()
    one = len(heads) == 1
    subject = f"head {heads[0]} is" if one else f"heads {', '.join(heads[:-1])} and {heads[-1]} are"
    first = _clause(table, "necessary", subject)
    second = _clause(table, "sufficient", "it is" if one else "they are")
    text = f"{first}, and {second}; {_compared(table)}; {_selection(table)}."
    return text[0].upper() + text[1:]


def rank_verdict(p: float, smallest: float) -> str:
    """Whether a rank is exceptional, could not be, or is undefined."""
    if np.isnan(p):
        return "undefined"
    limit = CRITERIA["exceptional"].threshold
    if smallest > limit:
        return "not testable here"
    return "exceptional" if p <= limit else "not exceptional"


def verdict(claim: str, share: float, p: float, rank: float, n_sets: int) -> str:
    """What one ablation says of one claim.

    Args:
        claim: of `CLAIMS`.
        share: of what all heads give, lost on removal or retained; NaN where they give nothing.
        p, rank, n_sets: among the matched sets.

    >>> verdict("necessary", 0.98, 1 / 24, 1.0, 24)
    'necessary and exceptional'
    >>> verdict("necessary", 0.98, 1 / 4, 1.0, 4)
    'not testable here; ranks 1st of 4'
    >>> verdict("necessary", float("nan"), 1 / 24, 1.0, 24)
    'undefined; ranks 1st of 24'
    """
    place = "" if np.isnan(p) else f"; ranks {_ordinal(int(rank))} of {n_sets}"
    word = "undefined" if np.isnan(share) else rank_verdict(p, 1 / n_sets)
    if word in ("undefined", "not testable here"):
        return f"{word}{place}"
    large = share >= CRITERIA[claim].threshold
    if word == "exceptional":
        return f"{claim} and exceptional" if large else f"exceptional, but not {claim}"
    return f"{claim}, but not exceptional{place}" if large else f"neither{place}"


def row_sentence(row: dict[Any, Any]) -> str:
    """One row of `analyses.hypothesis.test_hypothesis` in words."""
    removed = row["claim"] == "necessary"
    does = f"{'removing' if removed else 'keeping only'} {row['heads']}"
    why = _reason(row)
    if np.isnan(row["value"]):
        return f"Under {row['ablation']} ablation what {does} does is undefined here{why}."
    what = f"changes {row['metric']} by" if removed else "retains a share of"
    low, high, error = row["ci_low"], row["ci_high"], row["monte_carlo_error"]
    interval = "" if np.isnan(low) or np.isnan(high) else f" [{low:.3g}, {high:.3g}]"
    p = "" if np.isnan(row["p"]) else f" (p = {row['p']:.3g})"
    noise = "" if np.isnan(error) else f" (Monte-Carlo error {error:.2g})"
    return (
        f"Under {row['ablation']} ablation {does} {what} {row['value']:.3g}{interval}{noise}: "
        f"{row['verdict']}{why}{p}."
    )


def _reason(row: dict[Any, Any]) -> str:
    """Why a share is undefined, where there are numbers."""
    if not np.isnan(row["share"]) or np.isnan(row["clean"]) or np.isnan(row["none"]):
        return ""
    return (
        f", because {row['metric']} with all heads ({row['clean']:.3g}) is not better than without "
        f"any ({row['none']:.3g}) by two standard errors"
    )


def _clause(table: pd.DataFrame, claim: str, subject: str) -> str:
    word = claim_verdict(table, claim)
    missing = [kind for kind in DECIDE if kind not in set(table["ablation"])]
    ran = "was not run" if len(missing) == 1 else "were not run"
    open_ = {
        "undecided": f"is undecided, because {' and '.join(missing)} ablation {ran}",
        "depends on the ablation": "depends on the ablation",
        "not testable here": "is not testable here",
        "undefined": f"is undefined here{_first_reason(table, claim)}",
    }
    whether = f"whether {subject} {claim} {open_.get(word, '')}"
    said = f"{subject} {word}".replace("neither", f"neither {claim} nor exceptional")
    return f"{whether if word in open_ else said} ({_numbers(table, claim)})"


def _first_reason(table: pd.DataFrame, claim: str) -> str:
    rows = table[(table["claim"] == claim) & table["ablation"].isin(DECIDE)]
    return next(filter(None, map(_reason, rows.to_dict("records"))), "")


def _numbers(table: pd.DataFrame, claim: str) -> str:
    """What mean and resample ablation found, or what there is."""
    rows = table[table["claim"] == claim]
    decisive = rows[rows["ablation"].isin(DECIDE)]
    parts = []
    for row in (rows if decisive.empty else decisive).to_dict("records"):
        share = "an undefined share" if np.isnan(row["share"]) else f"{row['share']:.0%}"
        place = "" if np.isnan(row["p"]) else f", {_ordinal(int(row['rank']))}, p = {row['p']:.3g}"
        parts.append(f"{share} under {row['ablation']} ablation{place}")
    does = "removing costs" if claim == "necessary" else "keeping alone retains"
    return f"of what all heads give in {rows['metric'].iloc[0]}, {does} {'; '.join(parts)}"


def _compared(table: pd.DataFrame) -> str:
    n, enumerated = table[["n_sets", "enumerated"]].iloc[0]
    if n == 1:
        return "no other set has as many heads in every layer"
    kind = f"all {n}" if enumerated else f"{n} randomly drawn"
    return f"compared with {kind} sets with as many heads in every layer, this one included"


def _selection(table: pd.DataFrame) -> str:
    chosen = str(table["selection"].iloc[0])
    if chosen == UNDECLARED:
        return "on which prompts the heads were chosen is not declared"
    return f"the heads were chosen on {chosen}"


def _ordinal(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
