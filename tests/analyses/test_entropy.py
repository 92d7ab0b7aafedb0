"""Entropies by hand and against scipy."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import stats

from analyses.entropy import entropy, entropy_reducers, normalized_entropy, row_entropy
from analyses.streaming import reduce_pattern
from models.attention import visible_keys
from models.gpt import GPT
from models.interface import capture
from models.tasks import Batch


def uniform(n: int) -> torch.Tensor:
    return torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]


def test_two_equal_keys_are_ln_two_nats() -> None:
    assert float(row_entropy(torch.tensor([0.5, 0.5, 0, 0]))) == pytest.approx(0.693147, abs=1e-6)


def test_one_key_is_exactly_zero_and_not_minus_zero() -> None:
    found = float(row_entropy(torch.tensor([1.0, 0, 0])))
    assert found == 0
    assert math.copysign(1, found) == 1


def test_uniform_rows_are_the_logarithm_of_their_keys() -> None:
    rows = row_entropy(uniform(5))
    assert rows.tolist() == pytest.approx([0, 0.693147, 1.098612, 1.386294, 1.609438], abs=1e-6)
    assert float(rows.mean()) == pytest.approx(0.957498, abs=1e-6)


def test_normalised_uniform_rows_are_one_and_a_single_key_is_undefined() -> None:
    rows = normalized_entropy(uniform(5), visible_keys(5, 5))
    assert rows[0].isnan()
    assert rows[1:].tolist() == pytest.approx([1.0] * 4, abs=1e-6)


def test_a_row_that_sees_nothing_is_undefined() -> None:
    rows = row_entropy(torch.tensor([[0.0, 0, 0], [torch.nan] * 3, [0.5, 0.5, torch.nan]]))
    assert rows.isnan().all()


def test_only_visible_keys_count() -> None:
    row = torch.tensor([0.5, 0.5, 0.9])
    visible = torch.tensor([True, True, False])
    assert float(row_entropy(row, visible)) == pytest.approx(math.log(2))
    hidden = torch.tensor([0.5, 0.5, torch.nan])
    assert float(row_entropy(hidden, visible)) == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single_precision(dtype: torch.dtype) -> None:
    row = torch.full((1000,), 1 / 1000, dtype=dtype)
    found = row_entropy(row)
    assert found.dtype == torch.float32
    # the rounded row sums to 0.999451 in bfloat16; measured: 0.0034 and 0.0002
    assert float(found) == pytest.approx(math.log(1000), abs=0.01)


def test_double_precision_stays_double() -> None:
    assert row_entropy(torch.full((7,), 1 / 7, dtype=torch.float64)).dtype == torch.float64


@settings(deadline=None)
@given(arrays(np.float64, (3, 7), elements=st.floats(0, 1)))
def test_rows_are_what_scipy_says(weights: NDArray[np.float64]) -> None:
    weights[:, 0] += 0.01
    pattern = weights / weights.sum(1, keepdims=True)
    found = row_entropy(torch.from_numpy(pattern)).numpy()
    # measured: 4e-16
    np.testing.assert_allclose(found, stats.entropy(pattern, axis=1), rtol=0, atol=1e-12)


def test_means_leave_undefined_rows_out(batch: Batch) -> None:
    """Row 0 sees one key, row 3 sees nothing: neither counts as 0."""
    pattern = uniform(11).expand(13, 1, 11, 11).clone()
    pattern[:, :, 3] = 0
    reducers = entropy_reducers(batch)
    rows = np.log(np.arange(1, 12))
    kept = np.delete(rows, 3).mean()
    assert reduce_pattern(reducers["entropy"], batch, pattern)[:, 0].tolist() == pytest.approx(
        [kept] * 13
    )
    assert reduce_pattern(reducers["entropy_normalized"], batch, pattern)[
        :, 0
    ].tolist() == pytest.approx([1.0] * 13)


def test_groups_of_queries_are_those_of_the_task(model: GPT, ragged_batch: Batch) -> None:
    table = entropy(model, ragged_batch).set_index(["layer", "head", "score"])
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)]
    patterns = capture(model, ragged_batch.tokens, names).activations
    for layer, head in ((0, 2), (1, 1)):
        expected: dict[str, list[float]] = {}
        lengths = ragged_batch.lengths.tolist()
        for pattern, length in zip(patterns[names[layer]], lengths, strict=True):
            n = length // 2
            rows = stats.entropy(pattern[head].numpy(), axis=1)
            expected.setdefault("entropy", []).append(rows[:length].mean())
            expected.setdefault("entropy_inputs", []).append(rows[:n].mean())
            expected.setdefault("entropy_predicting", []).append(rows[n : 2 * n].mean())
            expected.setdefault("entropy_separator", []).append(rows[n])
            share = rows[1:length] / np.log(np.arange(2, length + 1))
            expected.setdefault("entropy_normalized", []).append(share.mean())
        for name, values in expected.items():
            # measured: 2e-7
            assert table.loc[(layer, head, name), "value"] == pytest.approx(
                np.mean(values), abs=1e-5
            )
        assert len(expected) == table.loc[(layer, head)].index.nunique()


@pytest.mark.parametrize("window", [None, 3])
def test_chance_is_uniform_attention_over_the_visible_keys(
    make_model: Callable[..., GPT], batch: Batch, window: int | None
) -> None:
    table = entropy(make_model(window=window), batch).set_index("score")
    keys = np.minimum(np.arange(1, 12), window or 11)
    assert table.loc["entropy", "chance"].iloc[0] == pytest.approx(np.log(keys).mean(), abs=1e-12)
    assert table.loc["entropy_separator", "chance"].iloc[0] == pytest.approx(np.log(keys[5]))
    assert table.loc["entropy_normalized", "chance"].iloc[0] == pytest.approx(1.0)
    assert (table["value"] <= table["chance"] + 1e-6).loc[["entropy_normalized"]].all()


def test_a_window_of_one_key_leaves_nothing_to_normalise(
    make_model: Callable[..., GPT], batch: Batch
) -> None:
    table = entropy(make_model(window=1), batch).set_index("score")
    assert table.loc["entropy_normalized", ["value", "chance"]].isna().all(axis=None)
    assert (table.loc["entropy", "value"] == 0).all()
    assert (table.loc["entropy_normalized", "skipped"] == 13).all()


def test_the_unit_is_named(model: GPT, batch: Batch) -> None:
    assert "nats" in entropy(model, batch).attrs["units"]["value"]
