"""Pairs of prompts and the scale from corrupted to clean."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from analyses.metrics import LogitDifference
from analyses.pairs import Prompts, as_pairs, normalize, pair_metric
from models.errors import InputError, LengthError
from models.gpt import GPT
from models.tasks import Batch


def test_a_pair_of_unequal_length_is_named_with_both_lengths(model: GPT) -> None:
    with pytest.raises(LengthError, match="pair 1 has 3 and 2"):
        as_pairs(model, [[1, 2, 3], [1, 2, 3]], [[3, 2, 1], [3, 2]])


def test_every_clean_prompt_needs_a_corrupted_one(model: GPT) -> None:
    with pytest.raises(InputError, match="one corrupted prompt, but got 2 and 1"):
        as_pairs(model, [[1, 2, 3], [1, 2, 3]], [[3, 2, 1]])
    with pytest.raises(InputError, match="got None"):
        as_pairs(model, None, [[1]])


def test_texts_are_read_by_the_models_own_codec(model: GPT) -> None:
    vocabulary: Any = model.vocabulary
    texts = ["".join(vocabulary.tokens[i] for i in row) for row in ([1, 2, 3], [3, 1, 2])]
    assert as_pairs(model, texts, texts[::-1]).describe() == {
        "clean": [[1, 2, 3], [3, 1, 2]],
        "corrupt": [[3, 1, 2], [1, 2, 3]],
    }
    assert as_pairs(model, texts[0], texts[1]).describe()["clean"] == [[1, 2, 3]]


def test_both_runs_are_judged_by_the_clean_targets(model: GPT, batch: Batch) -> None:
    pairs = as_pairs(model, batch, batch.tokens.flip(0))
    assert (pairs.corrupt.next_tokens == batch.next_tokens).all()
    assert (pairs.corrupt.outputs == batch.outputs).all()
    assert (pairs.corrupt.tokens == batch.tokens.flip(0)).all()


def test_wider_padding_on_one_side_is_cut(model: GPT, batch: Batch, widen: Any) -> None:
    pairs = as_pairs(model, widen(batch, 2), batch)
    assert pairs.clean.tokens.shape == pairs.corrupt.tokens.shape == batch.tokens.shape


def test_a_metric_that_compares_with_the_run_itself_is_refused(model: GPT) -> None:
    pairs = as_pairs(model, [[1, 2]], [[2, 1]])
    with pytest.raises(InputError, match=r"one metric .* but got kl"):
        pair_metric(model, pairs, "kl")
    assert pair_metric(model, pairs, LogitDifference(1, 2))[0].name == "logit_difference"


def drawn(n: int, *, gap: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    corrupted = random.normal(size=n)
    clean = corrupted + gap + random.normal(size=n)
    patched = corrupted + np.array([[0.0], [0.7], [1.0]]) * (clean - corrupted)
    return patched + np.array([[0.0], [1.0], [0.0]]) * random.normal(size=n) * 0.1, clean, corrupted


def test_the_value_is_the_ratio_of_means() -> None:
    patched, clean, corrupted = drawn(13)
    found = normalize(patched, clean, corrupted, np.arange(13))
    expected = (patched.mean(1) - corrupted.mean()) / (clean.mean() - corrupted.mean())
    np.testing.assert_allclose(found.value, expected, rtol=1e-12)
    np.testing.assert_allclose(found.value[[0, 2]], [0, 1], atol=1e-12)
    np.testing.assert_allclose(found.patched, patched.mean(1))
    assert (found.n == 13).all()
    assert (found.n_prompts == 13).all()


def test_the_interval_is_scipys_bca_of_the_ratio_and_degenerate_ones_are_undefined() -> None:
    patched, clean, corrupted = drawn(13)
    found = normalize(patched, clean, corrupted, np.arange(13), seed=3)

    def ratio(p: np.ndarray, c: np.ndarray, k: np.ndarray, axis: int) -> np.ndarray:
        return (p.mean(axis) - k.mean(axis)) / (c.mean(axis) - k.mean(axis))

    expected = stats.bootstrap(
        (patched[1], clean, corrupted),
        ratio,
        paired=True,
        vectorized=True,
        method="BCa",
        n_resamples=9_999,
        rng=np.random.default_rng(3),
    ).confidence_interval
    # the same draws, so only rounding differs
    np.testing.assert_allclose([found.low[1], found.high[1]], list(expected), rtol=1e-9)
    assert np.isnan(found.low[[0, 2]]).all(), "no patch varies: 0 and 1 exactly"


def test_under_ten_units_there_is_no_interval() -> None:
    found = normalize(*drawn(9), np.arange(9))
    assert np.isfinite(found.value).all()
    assert np.isnan(found.low).all()


def test_prompts_of_one_template_count_once() -> None:
    patched, clean, corrupted = drawn(13)
    units = np.repeat(np.arange(3), [1, 5, 7])
    found = normalize(patched, clean, corrupted, units)
    means = [
        np.array([part[..., units == u].mean(-1) for u in range(3)]).mean(0)
        for part in (patched, clean, corrupted)
    ]
    np.testing.assert_allclose(found.value, (means[0] - means[2]) / (means[1] - means[2]))
    assert (found.n == 3).all()
    assert (found.n_prompts == 13).all()
    assert np.isnan(found.low).all(), "three templates are no ten"


def test_a_difference_within_two_standard_errors_is_undefined() -> None:
    patched, clean, corrupted = drawn(13, gap=0.0)
    gap = clean - corrupted
    shifted = corrupted + gap - gap.mean()
    error = 2 * gap.std(ddof=1) / 13**0.5
    for factor, defined in ((0.99, False), (1.01, True)):
        found = normalize(patched, shifted + factor * error, corrupted, np.arange(13))
        assert np.isfinite(found.value).all() == defined


def test_one_prompt_is_undefined_only_where_nothing_changes() -> None:
    one = np.ones(1)
    unit = np.zeros(1, dtype=np.int64)
    assert normalize(one[None] * 2, one * 3, one, unit).value == 0.5
    assert np.isnan(normalize(one[None] * 2, one, one, unit).value).all()
    assert np.isnan(normalize(one[None] * 2, one * (1 + 1e-7), one, unit).value).all(), "rounding"


def test_pairs_without_the_site_are_left_out() -> None:
    patched, clean, corrupted = drawn(13)
    patched[1, :4] = np.nan
    patched[2] = np.nan
    found = normalize(patched, clean, corrupted, np.arange(13))
    alone = normalize(patched[1:2, 4:], clean[4:], corrupted[4:], np.arange(9))
    assert found.value[1] == alone.value[0]
    assert found.n.tolist() == [13, 9, 0]
    assert np.isnan(found.clean[2])


def test_units_are_numbered_whatever_they_are_called(model: GPT) -> None:
    given = Prompts(((1, 2), (2, 3), (3, 1)), (7, 2, 7))
    assert as_pairs(model, given, [[2, 1], [3, 2], [1, 3]]).units.tolist() == [1, 0, 1]
