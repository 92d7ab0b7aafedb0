"""Sentences, and in how many seeds they hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyses.statistics import exact_lower_bound


@dataclass(frozen=True)
class Finding:
    """A sentence, the criterion it rests on, and whether it holds in every seed."""

    text: str
    criterion: str
    holds: bool | None


@dataclass(frozen=True)
class Found:
    """The reversal study's tables, each with ``model`` and ``seed``."""

    models: pd.DataFrame
    heads: pd.DataFrame
    joint: pd.DataFrame
    temperature: pd.DataFrame
    confidence: pd.DataFrame

    def exact_match(self, model: str) -> pd.Series[float]:
        """Greedy exact match of a model on held-out sequences, by seed."""
        return self.models[self.models["model"] == model].set_index("seed")["exact_match"]


def count(yes: pd.Series[bool], text: str, criterion: str, *, bound: bool = False) -> Finding:
    """Say in how many seeds something holds, with the exact bound where it is asked for."""
    k, n = int(yes.sum()), len(yes)
    note = f" (of all seeds at least {exact_lower_bound(k, n):.0%}, exact 95% bound)"
    number = f"In {k} of {n} seed{'s' if n > 1 else ''}, "
    return Finding(f"{number}{text}{note if bound and k == n else ''}.", criterion, k == n)


def spread(values: Iterable[float], *, digits: int = 2) -> str:
    """Lowest to highest, as one number where they print the same."""
    array = np.asarray(list(values), dtype=float)
    if not len(array) or np.isnan(array).all():
        return "n/a"
    low, high = (f"{v:.{digits}f}" for v in (np.nanmin(array), np.nanmax(array)))
    return low if low == high else f"{low} to {high}"
