"""The long form in which scores of heads come: one row per head and score."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from torch import Tensor

from analyses.statistics import INTERVAL, mean_interval
from analyses.streaming import Prepare, stream_patterns, uniform_scores
from models.errors import InputError
from models.interface import HookedModel
from models.tasks import Batch

KEYS = ["layer", "head"]


def score_table(
    values: Mapping[str, Tensor], chances: Mapping[str, float], *, unit: str, seed: int = 0
) -> pd.DataFrame:
    """Average per-sequence values and put them in one table.

    Args:
        values: by score, ``[sequence, layer, head]``; NaN where a sequence does not define it.
        chances: by score.
        unit: of the values, kept in ``attrs["units"]``.
        seed: of the resampling.

    Returns:
        ``layer, head, score, value, chance, ci_low, ci_high, smallest, largest, n, skipped``.
    """
    names = list(values)
    stacked = np.stack([values[name].numpy() for name in names], axis=-1)
    _, n_layers, n_heads, _ = stacked.shape
    interval = mean_interval(stacked, seed=seed)
    layer, head, score = np.indices((n_layers, n_heads, len(names))).reshape(3, -1)
    table = pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "score": [names[i] for i in score],
            "value": interval.mean.ravel(),
            "chance": [chances[names[i]] for i in score],
            "ci_low": interval.low.ravel(),
            "ci_high": interval.high.ravel(),
            "smallest": interval.smallest.ravel(),
            "largest": interval.largest.ravel(),
            "n": interval.n.ravel(),
            "skipped": len(stacked) - interval.n.ravel(),
        }
    )
    table.attrs |= {"units": {"value": unit}, "interval": INTERVAL}
    return table


def score_heads(
    model: HookedModel, batch: Batch, reducers: Mapping[str, Prepare], *, unit: str, seed: int = 0
) -> pd.DataFrame:
    """Run the model once and tabulate the reducers' scores beside chance: see `score_table`."""
    values = stream_patterns(model, batch, reducers)
    return score_table(values, uniform_scores(model, batch, reducers), unit=unit, seed=seed)


def wide(table: pd.DataFrame) -> pd.DataFrame:
    """One row per head: ``<score>``, ``<score>_chance`` and the interval ``<score>_ci_*``."""
    parts = []
    for name, rows in table.groupby("score", sort=False):
        kept = rows.set_index(KEYS)[["value", "chance", "ci_low", "ci_high"]]
        kept.columns = pd.Index([str(name), *(f"{name}_{c}" for c in kept.columns[1:])])
        parts.append(kept)
    return pd.concat(parts, axis=1).reset_index()


def top_heads(
    table: pd.DataFrame, *, by: str | None = None, top: int | None = None
) -> pd.DataFrame:
    """A table sorted by a column, largest first, and cut to the first rows.

    Args:
        table: one row per head.
        by: a column with numbers; undefined ones come last. Default: the order as it is.
        top: how many rows; default all.

    Raises:
        InputError: no such column, or ``top`` under 1.
    """
    if top is not None and top < 1:
        raise InputError(f"top must be at least 1, but got {top}")
    if by is not None:
        numbers = list(table.select_dtypes("number").columns)
        if by not in numbers:
            names = [c for c in numbers if not c.endswith(("_ci_low", "_ci_high"))]
            raise InputError(f"there is no column {by!r} to sort by; there are: {', '.join(names)}")
        table = table.sort_values(by, ascending=False, kind="stable", na_position="last")
    return table if top is None else table.head(top)
