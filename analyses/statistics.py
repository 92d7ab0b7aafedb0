"""Intervals, tails and tests, on top of scipy.

The unit is the independent sequence, never a token and never a head.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

RESAMPLES = 9_999
RANDOM_FLIPS = 9_999
FEWEST_UNITS = 10
CONFIDENCE = 0.95
BATCH = 2**22  # draws times units, resampled at a time
INTERVAL = "95% BCa over sequences: of this model on this kind of input"


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
    mean, low, high, smallest, largest = np.full((5, len(columns)), np.nan)
    for rows in _same_units(defined):
        kept = columns[rows][:, defined[rows[0]]]
        if kept.shape[1]:
            mean[rows], smallest[rows], largest[rows] = kept.mean(1), kept.min(1), kept.max(1)
            low[rows], high[rows] = _bca(kept, seed)
    n = defined.sum(1)
    return Interval(*(part.reshape(shape) for part in (mean, low, high, smallest, largest, n)))


def mean_where_defined(values: Array, *, axis: int) -> Array:
    """Mean over an axis, NaN left out; NaN where nothing is left."""
    n = (~np.isnan(values)).sum(axis)
    mean: Array = np.nansum(values, axis) / np.where(n, n, np.nan)
    return mean


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
    distribution = stats.poisson_binom(np.clip(p, 0.0, 1.0))
    below = float(distribution.cdf(successes))
    above = float(distribution.sf(successes - 1))
    return min(1.0, 2 * min(below, above))


def family_p(values: Array, *, null: float = 0.0, seed: int = 0) -> Array:
    """Family-wise p-values of columns whose mean is at most ``null`` under the hypothesis.

    The statistic is Student's t of each column. Under the hypothesis at its edge, the
    differences from ``null`` are taken to be symmetric around 0, so that flipping the sign of
    a whole unit, in all columns together, changes nothing; p is the share of flips, the
    identity included, whose largest statistic over all columns is at least the column's own.

    Args:
        values: ``[unit, column]``.
        null: the largest mean under the hypothesis.
        seed: of 9,999 random flips; where there are no more than 10,000 in all, every one is
            tried instead.

    Source: Westfall & Young 1993 (maximum over the family); Winkler et al. 2014 (sign flips).
    """
    x = values - null
    n = len(x)
    if 2**n <= RANDOM_FLIPS + 1:
        bits = np.arange(2**n)[:, None] >> np.arange(n)
        flips = 1.0 - 2.0 * (bits & 1)
    else:
        flips = np.random.default_rng(seed).choice([-1.0, 1.0], (RANDOM_FLIPS + 1, n))
        flips[0] = 1
    mean = flips @ x / n
    spread = ((x**2).sum(0) - n * mean**2).clip(np.finfo(float).tiny)
    t = mean * np.sqrt(n * (n - 1) / spread)
    largest, own = t.max(1), t[0]
    reached = largest[:, None] >= own - 1e-9 * np.abs(own)
    share: Array = reached.mean(0)
    return share


def ratio_interval(numerator: Array, denominator: Array, *, seed: int = 0) -> tuple[float, float]:
    """`ratio_intervals` of one ratio; a unit that is NaN in either is left out of both."""
    known = ~(np.isnan(numerator) | np.isnan(denominator))
    low, high = ratio_intervals(numerator[None, known], denominator[known], seed=seed)
    return float(low[0]), float(high[0])


def ratio_intervals(numerators: Array, denominator: Array, *, seed: int = 0) -> tuple[Array, Array]:
    """BCa bootstrap intervals of ratios of two means over the same units.

    Args:
        numerators: ``[ratio, unit]``.
        denominator: ``[unit]``, of all of them.
        seed: of the resampling, which draws whole units.

    Returns:
        The 95% intervals' ends, ``[ratio]`` each; NaN with fewer than 10 units or where every
        draw gives one ratio.
    """
    above, below = numerators.astype(np.float64), denominator.astype(np.float64)
    low, high = np.full((2, len(above)), np.nan)
    n = len(below)
    if n < FEWEST_UNITS:
        return low, high
    residual = above - (above.mean(1) / below.mean())[:, None] * below
    varied = np.abs(residual).max(1) > 1e-9 * np.abs(below).max()
    if not varied.any():
        return low, high
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # a degenerate ratio comes back as NaN, as we want
        interval = stats.bootstrap(
            (np.arange(n),),
            _ratio_of_units(above[varied], below),
            n_resamples=RESAMPLES,
            batch=max(1, BATCH // (n + int(varied.sum()))),
            confidence_level=CONFIDENCE,
            method="BCa",
            vectorized=True,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    low[varied], high[varied] = interval.low, interval.high
    return low, high


def rank_sum_p(ranks: Sequence[int], sizes: Sequence[int]) -> float:
    """Exact P(sum of ranks <= the one found), ranks independent and uniform on 1..size.

    Args:
        ranks: one of each stratum, 1 the most extreme. With ties, the number at least as extreme
            (the worst of the tied ranks) keeps the p-value valid: it can only be too large.
        sizes: how many are ranked in each stratum.

    >>> round(rank_sum_p([1, 1], [4, 6]) * 24, 9), rank_sum_p([], [])
    (1.0, 1.0)
    """
    ways = np.ones(1)  # ways[s]: probability that the ranks so far, counted from 0, sum to s
    for rank, size in zip(ranks, sizes, strict=True):
        if not 1 <= rank <= size:
            raise ValueError(f"a rank must be 1..{size}, but got {rank}")
        ways = np.convolve(ways, np.full(size, 1 / size))
    return min(1.0, float(ways[: sum(ranks) - len(ranks) + 1].sum()))


def _same_units(defined: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Columns grouped by which units are defined, so that a group is resampled together."""
    if not defined.size:
        return []
    _, group = np.unique(defined, axis=0, return_inverse=True)
    return [np.flatnonzero(group.ravel() == i) for i in range(int(group.max()) + 1)]


def _bca(columns: Array, seed: int) -> tuple[Array, Array]:
    low, high = np.full((2, len(columns)), np.nan)
    n, size = columns.shape[1], np.abs(columns).max(1)
    varied = np.ptp(columns, axis=1) > 1e-9 * size
    if n < FEWEST_UNITS or not varied.any():
        return low, high
    size = size[varied]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degenerate columns come back as NaN, as we want
        result = stats.bootstrap(
            (np.arange(n),),
            _mean_of_units(columns[varied] / size[:, None]),
            n_resamples=RESAMPLES,
            batch=max(1, BATCH // n),
            confidence_level=CONFIDENCE,
            method="BCa",
            vectorized=True,
            rng=np.random.default_rng(seed),
        )
    interval = result.confidence_interval
    low[varied], high[varied] = interval.low * size, interval.high * size
    return low, high


def _mean_of_units(columns: Array) -> Callable[..., Array]:
    """The statistic: from drawn units ``[draw, n]`` to every column's mean ``[column, draw]``.

    Units are drawn, not values, so that one product of how often each unit was drawn with the
    values serves all columns. Means are rounded to 12 places: BCa counts draws that equal the
    mean itself, and shares often do, but not to the last bit of a sum in another order.
    """
    n_units = columns.shape[1]

    def means(units: NDArray[np.int64], axis: int = -1) -> Array:
        mean = ((columns @ _times(units, n_units)) / units.shape[-1]).round(12)
        return mean.reshape(len(columns), *units.shape[:-1])  # type: ignore[no-any-return]

    return means


def _ratio_of_units(numerators: Array, denominator: Array) -> Callable[..., Array]:
    """From drawn units ``[draw, n]`` to every ratio of means ``[ratio, draw]``, to 12 places."""
    n_units = len(denominator)

    def ratios(units: NDArray[np.int64], axis: int = -1) -> Array:
        times = _times(units, n_units)
        ratio: Array = ((numerators @ times) / (denominator @ times)).round(12)
        return ratio.reshape(len(numerators), *units.shape[:-1])

    return ratios


def _times(units: NDArray[np.int64], n_units: int) -> Array:
    """How often each unit was drawn, ``[unit, draw]``."""
    drawn = units.reshape(-1, units.shape[-1])
    cells = drawn + n_units * np.arange(len(drawn))[:, None]
    times = np.bincount(cells.ravel(), minlength=n_units * len(drawn))
    return times.reshape(len(drawn), n_units).T.astype(np.float64)
