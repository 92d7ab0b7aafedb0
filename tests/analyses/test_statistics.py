"""Intervals and tails against scipy called directly, enumeration and simulation."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from analyses import statistics
from analyses.statistics import (
    exact_lower_bound,
    family_p,
    mean_interval,
    mean_where_defined,
    poisson_binomial_tail,
    rank_sum_p,
    ratio_interval,
    wilson_interval,
)

Array = NDArray[np.float64]


def by_scipy(column: Array, seed: int) -> tuple[float, float]:
    result = stats.bootstrap(
        (column,), np.mean, n_resamples=9_999, method="BCa", rng=np.random.default_rng(seed)
    )
    return result.confidence_interval.low, result.confidence_interval.high


def test_every_column_has_the_interval_that_scipy_gives_it_alone() -> None:
    random = np.random.default_rng(5)
    values = random.gamma(0.7, size=(37, 2, 3))
    values[:, 1, 2] = values[:, 1, 2] > 1  # shares of right answers
    found = mean_interval(values, seed=11)
    for cell in np.ndindex(2, 3):
        low, high = by_scipy(values[:, *cell], seed=11)
        # means are rounded to 1e-12 of the largest value; measured: 1.2e-12
        assert found.low[cell] == pytest.approx(low, abs=1e-11)
        assert found.high[cell] == pytest.approx(high, abs=1e-11)
        assert found.mean[cell] == pytest.approx(values[:, *cell].mean(), abs=1e-15)
    np.testing.assert_array_equal(found.smallest, values.min(0))
    np.testing.assert_array_equal(found.largest, values.max(0))
    assert (found.n == 37).all()


def test_the_interval_does_not_depend_on_how_many_draws_are_held_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(2).normal(size=(23, 3))
    whole = mean_interval(values)
    monkeypatch.setattr(statistics, "BATCH", 23 * 41)
    for left, right in zip(whole, mean_interval(values), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-15)


def test_an_undefined_unit_is_left_out_and_counted() -> None:
    random = np.random.default_rng(3)
    values = random.normal(size=(31, 3))
    holed = values.copy()
    holed[4:9, 1], holed[:, 2] = np.nan, np.nan
    found, kept = mean_interval(holed), mean_interval(np.delete(values, range(4, 9), axis=0))
    assert found.n.tolist() == [31, 26, 0]
    for name in ("mean", "low", "high", "smallest", "largest"):
        assert getattr(found, name)[1] == pytest.approx(getattr(kept, name)[1], abs=1e-12)
        assert np.isnan(getattr(found, name)[2]), "nothing is not 0"


def test_under_ten_units_only_the_raw_range_stands() -> None:
    values = np.random.default_rng(4).normal(size=(10, 1))
    assert np.isfinite(mean_interval(values).low).all()
    few = mean_interval(values[:9])
    assert np.isnan(few.low).all()
    assert np.isnan(few.high).all()
    assert few.smallest[0] == values[:9].min()
    assert few.largest[0] == values[:9].max()


@pytest.mark.parametrize("value", [0.0, 1.0, 0.3, -7.1e-5])
def test_equal_units_have_no_interval_and_disturb_no_other(value: float) -> None:
    other = np.random.default_rng(6).normal(size=17)
    found = mean_interval(np.stack([np.full(17, value), other], axis=1))
    assert np.isnan([found.low[0], found.high[0]]).all()
    assert (found.smallest[0], found.largest[0]) == (value, value)
    assert found.mean[0] == pytest.approx(value, abs=1e-16)
    assert (found.low[1], found.high[1]) == pytest.approx(by_scipy(other, 0), abs=1e-11)


def test_intervals_cover_about_as_often_as_they_say() -> None:
    """600 samples of 32 skewed values each; simulated coverage of such intervals is 92 to 94%."""
    values = np.random.default_rng(7).gamma(2.0, size=(32, 600))
    found = mean_interval(values)
    covered = ((found.low <= 2.0) & (found.high >= 2.0)).mean()
    assert 0.90 < covered < 0.97  # measured: 0.93


def test_the_interval_of_shares_does_not_hang_on_the_last_bit_of_a_sum() -> None:
    """Many draws of mostly equal shares have the mean of all; they are ties in any order."""
    random = np.random.default_rng(8)
    shares = np.where(random.random((17, 29)) < 0.15, 0.2, 0.0) + 0.1
    noise = 1 + 1e-16 * random.integers(-3, 4, size=shares.shape)
    clean, noisy = mean_interval(shares), mean_interval(shares * noise)
    np.testing.assert_allclose(noisy.low, clean.low, rtol=0, atol=1e-11)
    np.testing.assert_allclose(noisy.high, clean.high, rtol=0, atol=1e-11)


def test_no_columns_give_no_intervals() -> None:
    assert mean_interval(np.empty((13, 0))).mean.shape == (0,)


def test_the_mean_where_defined_is_undefined_where_nothing_is() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mean_where_defined(np.array([[1.0, np.nan, 5.0], [np.nan] * 3]), axis=1)
    assert found[0] == 3.0
    assert np.isnan(found[1])


@pytest.mark.parametrize(("successes", "n"), [(0, 7), (3, 7), (7, 7), (251, 256)])
def test_wilson_by_its_formula(successes: int, n: int) -> None:
    z, p = stats.norm.ppf(0.975), successes / n
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    # measured: 2e-16
    assert wilson_interval(successes, n) == pytest.approx((centre - half, centre + half), abs=1e-12)


def test_the_exact_lower_bound_is_a_quantile_of_a_beta() -> None:
    assert exact_lower_bound(5, 5) == pytest.approx(0.025 ** (1 / 5), abs=1e-12)
    assert exact_lower_bound(3, 5) == pytest.approx(stats.beta.ppf(0.025, 3, 3), abs=1e-12)
    assert exact_lower_bound(0, 5) == 0


def enumerated_tail(successes: int, p: list[float]) -> float:
    chance = np.zeros(len(p) + 1)
    for outcome in itertools.product((0, 1), repeat=len(p)):
        right = [q if hit else 1 - q for q, hit in zip(p, outcome, strict=True)]
        chance[sum(outcome)] += np.prod(right)
    return float(min(1.0, 2 * min(chance[: successes + 1].sum(), chance[successes:].sum())))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_the_tail_is_what_enumerating_every_outcome_gives(
    p: list[float], data: st.DataObject
) -> None:
    successes = data.draw(st.integers(0, len(p)))
    # measured: 4e-16
    assert poisson_binomial_tail(successes, np.array(p)) == pytest.approx(
        enumerated_tail(successes, p), abs=1e-12
    )


def test_equal_probabilities_are_binomial_also_for_many_trials() -> None:
    p = np.full(256, 0.97)
    for successes in (230, 248, 256):
        below = stats.binom.cdf(successes, 256, 0.97)
        above = stats.binom.sf(successes - 1, 256, 0.97)
        # measured: 3e-15
        assert poisson_binomial_tail(successes, p) == pytest.approx(
            min(1.0, 2 * min(below, above)), abs=1e-12
        )


def test_certain_trials_leave_no_doubt() -> None:
    assert poisson_binomial_tail(5, np.ones(5)) == 1.0
    assert poisson_binomial_tail(4, np.ones(5)) == pytest.approx(0.0, abs=1e-15)
    above_one = np.array([1 + 1e-12, 0.5])  # a probability that rounding pushed out of 0..1
    assert poisson_binomial_tail(1, above_one) == 1.0


# --- family-wise sign flips


def t_statistics(x: Array) -> Array:
    t: Array = x.mean(0) / (x.std(0, ddof=1) / np.sqrt(len(x)))
    return t


def test_family_wise_p_is_the_enumeration_of_all_flips() -> None:
    x = np.random.default_rng(0).normal(0.3, 1, (7, 3))
    largest = [
        t_statistics((x - 0.05) * np.array(signs)[:, None]).max()
        for signs in itertools.product([1, -1], repeat=7)
    ]
    own = t_statistics(x - 0.05)
    expected = [np.mean([big >= t - 1e-9 for big in largest]) for t in own]
    np.testing.assert_allclose(family_p(x, null=0.05), expected, rtol=0, atol=1e-12)


def test_random_flips_are_close_to_the_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(0.4, 1, (12, 2))
    exact = family_p(x)
    monkeypatch.setattr(statistics, "RANDOM_FLIPS", 4_000)
    sampled = family_p(x, seed=3)
    # four standard errors of a share of 4,000
    assert (np.abs(sampled - exact) < 4 * np.sqrt(exact * (1 - exact) / 4_000)).all()
    assert np.array_equal(sampled, family_p(x, seed=3))


def test_false_alarms_over_the_family_are_at_the_level() -> None:
    """200 families of 5 dependent columns at the edge of the hypothesis, 12 units each."""
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(200):
        common = rng.standard_t(4, (12, 1))
        x = 0.05 + common + rng.standard_t(4, (12, 5))
        alarms += bool((family_p(x, null=0.05) <= 0.05).any())
    # binomial(200, 0.05): P(alarms > 20) = 0.0008
    assert 1 <= alarms <= 20


def test_columns_without_spread_are_decided_by_their_mean() -> None:
    x = np.array([[0.0, 1.0]] * 14)
    assert family_p(x, null=0.05).tolist() == pytest.approx([1.0, 2**-14], abs=1e-3)


def test_an_interval_of_a_ratio_is_that_of_the_mean_over_a_constant() -> None:
    values = np.random.default_rng(3).exponential(size=37)
    low, high = ratio_interval(values, np.full(37, 4.0), seed=5)
    mean = mean_interval(values, seed=5)
    assert low == pytest.approx(float(mean.low) / 4, abs=1e-9)
    assert high == pytest.approx(float(mean.high) / 4, abs=1e-9)


def test_an_interval_of_a_ratio_of_many_units_is_that_of_the_delta_method() -> None:
    random = np.random.default_rng(0)
    below = random.gamma(4.0, size=499)
    above = 0.5 * below + random.normal(size=499)
    ratio = above.mean() / below.mean()
    error = (above - ratio * below).std(ddof=1) / below.mean() / 499**0.5
    low, high = ratio_interval(above, below)
    # measured: 0.04 and 0.02 standard errors apart
    assert (low - ratio) / error == pytest.approx(-1.96, abs=0.15)
    assert (high - ratio) / error == pytest.approx(1.96, abs=0.15)


def test_a_ratio_of_few_or_equal_units_has_no_interval() -> None:
    x = np.arange(1.0, 10.0)
    assert np.isnan(ratio_interval(x, x + 1)).all(), "nine units"
    x = np.arange(1.0, 14.0)
    assert np.isnan(ratio_interval(2 * x, x)).all(), "every draw gives 2"
    x[3:7] = np.nan
    assert np.isnan(ratio_interval(x, np.ones(13))).all(), "nine are defined"


@pytest.mark.parametrize("sizes", [(4,), (2, 3), (3, 5, 2, 4), (1, 1, 6)])
def test_a_sum_of_ranks_is_as_likely_as_counting_says(sizes: tuple[int, ...]) -> None:
    sums = [sum(some) for some in itertools.product(*[range(1, n + 1) for n in sizes])]
    for ranks in itertools.product(*[range(1, n + 1) for n in sizes]):
        share = np.mean([total <= sum(ranks) for total in sums])
        assert rank_sum_p(ranks, sizes) == pytest.approx(share, abs=1e-12)


def test_a_sum_of_two_way_ranks_is_binomial() -> None:
    for k in range(14):
        p = rank_sum_p([2] * k + [1] * (13 - k), [2] * 13)
        assert p == pytest.approx(stats.binom.cdf(k, 13, 0.5), abs=1e-12)


def test_a_rank_outside_its_stratum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.\.4, but got 5"):
        rank_sum_p([5], [4])
