"""From effects to words: whether a model needs a set of heads, or could do without.

Zero ablation decides nothing here: a word is given only where mean and resample ablation agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from analyses.criteria import CRITERIA

Verdict = Literal["needs", "can go", "weakens", "depends on the ablation", "undefined"]


def verdict(exact_match_change: Mapping[str, float], *, clean: float) -> Verdict:
    """What removing a set of heads says.

    Args:
        exact_match_change: change of the exact match (share of 1, negative for a loss) by
            ablation; ``mean`` and ``resample`` are read.
        clean: exact match of the whole model.

    Returns:
        ``needs`` or ``can go`` where both say so, ``weakens`` where both lie between,
        ``depends on the ablation`` where they disagree, ``undefined`` where one is missing or the
        clean model fails.

    >>> verdict({"zero": -1.0, "mean": 0.0, "resample": -0.01}, clean=1.0)
    'can go'
    >>> verdict({"mean": 0.0, "resample": -0.9}, clean=1.0)
    'depends on the ablation'
    """
    if not clean >= CRITERIA["measurable"].threshold:
        return "undefined"
    words = [_word(exact_match_change.get(kind, math.nan)) for kind in ("mean", "resample")]
    if "undefined" in words:
        return "undefined"
    return words[0] if words[0] == words[1] else "depends on the ablation"


def _word(change: float) -> Verdict:
    if math.isnan(change):
        return "undefined"
    if -change >= CRITERIA["needs"].threshold:
        return "needs"
    return "can go" if -change <= CRITERIA["can_go"].threshold else "weakens"
