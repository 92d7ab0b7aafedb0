"""Intervals and tails, on top of scipy.

The unit is the independent sequence, never a token and never a head.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

RESAMPLES = 9_999
FEWEST_UNITS = 10
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Means over units with their bootstrap interval and raw range, one per column."""

    mean: Array
    low: Array
    high: Array
    smallest: Array
    largest: Array
    n: NDArray[np.int64]


def mean_interval(values: Array, *, seed: int = 0) -> Interval:
    """Mean over the first axis with its BCa bootstrap interval.

    Args:
        values: ``[unit, ...]``; NaN marks a unit where the value is undefined: it is left out.
        seed: of the resampling.

    Returns:
        Arrays of shape ``values.shape[1:]``. With fewer than 10 units, or where all units are
        equal, ``low`` and ``high`` are NaN and only the raw range stands.

    Source: Efron 1987 (BCa), `scipy.stats.bootstrap`, 9,999 draws, 95%.
    """
    shape = values.shape[1:]
    columns = np.ascontiguousarray(values.reshape(len(values), -1).T.astype(np.float64))
    defined = ~np.isnan(columns)
    counts = defined.sum(1)
    out = np.full((5, len(columns)), np.nan)
    for rows in _same_units(defined):
        kept = columns[rows][:, defined[rows[0]]]
        if not kept.shape[1]:
            continue
        out[0, rows] = kept.mean(1)
        out[1, rows], out[2, rows] = _bca(kept, seed)
        out[3, rows], out[4, rows] = kept.min(1), kept.max(1)
    return Interval(*(row.reshape(shape) for row in out), n=counts.reshape(shape))


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    result = stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return float(result.low), float(result.high)


def exact_lower_bound(successes: int, n: int) -> float:
    """Lower end of the exact (Clopper-Pearson) 95% interval of a share.

    >>> round(exact_lower_bound(5, 5), 2)
    0.48
    """
    return float(stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="exact").low)


def poisson_binomial_tail(successes: int, p: Array) -> float:
    """Two-sided tail of the number of successes among trials with probabilities ``p``.

    Twice the smaller of P(X <= k) and P(X >= k), at most 1.

    >>> round(poisson_binomial_tail(2, np.array([0.5, 0.5])), 3)
    0.5
    """
    p = np.clip(p, 0.0, 1.0)
    distribution = stats.poisson_binom(p)
    below = float(distribution.cdf(successes))
    above = float(distribution.sf(successes - 1))
    tail = min(1.0, 2 * min(below, above))
    return tail if math.isfinite(tail) else float("nan")


def _same_units(defined: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Columns grouped by which units are defined, so that a group is resampled together."""
    _, group = np.unique(defined, axis=0, return_inverse=True)
    return [np.flatnonzero(group.ravel() == i) for i in range(int(group.max()) + 1)]


def _bca(columns: Array, seed: int) -> tuple[Array, Array]:
    if columns.shape[1] < FEWEST_UNITS:
        empty = np.full(len(columns), np.nan)
        return empty, empty
    spread = np.ptp(columns, axis=1)
    varied = spread > 1e-12 * np.abs(columns).max(1)
    low, high = np.full((2, len(columns)), np.nan)
    if varied.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # degenerate columns come back as NaN, as we want
            result = stats.bootstrap(
                (columns[varied],),
                np.mean,
                axis=-1,
                n_resamples=RESAMPLES,
                batch=max(1, 10_000_000 // columns[varied].size),
                confidence_level=CONFIDENCE,
                method="BCa",
                vectorized=True,
                rng=np.random.default_rng(seed),
            )
        low[varied], high[varied] = result.confidence_interval
    return low, high
