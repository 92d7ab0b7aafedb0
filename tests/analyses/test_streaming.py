"""Patterns reduced while the model runs, against whole patterns captured and sliced."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analyses import streaming
from analyses.streaming import (
    Rows,
    mean_over,
    run_until,
    stream_patterns,
    uniform_scores,
    uniform_values,
    visit_patterns,
)
from models.config import GPTConfig
from models.gpt import GPT
from models.interface import capture, hooked
from models.tasks import Batch

LAYERS = (0, 1)
QUERY = 6


def patterns(model: GPT, batch: Batch) -> Tensor:
    """Captured whole: ``[sequence, layer, head, query, key]``."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in LAYERS]
    kept = capture(model, batch.tokens, names).activations
    return torch.stack([kept[name] for name in names], dim=1)


def first_keys(batch: Batch) -> Callable[[Rows], Tensor]:
    """Attention on the first three keys, at one query only."""

    def reduce(rows: Rows) -> Tensor:
        n, first = rows.pattern.shape[2], rows.first
        wanted = torch.arange(first, first + n) == QUERY
        keys = torch.nn.functional.pad(rows.pattern[..., :3], (0, max(0, 3 - first - n)))
        return torch.where(wanted[:, None], keys, torch.nan)

    return reduce


def highest(batch: Batch) -> Callable[[Rows], Tensor]:
    """The highest attention of every real query: a reducer that needs its own part of the batch."""
    real = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    return lambda rows: torch.where(real[:, None, rows.queries], rows.pattern.amax(-1), torch.nan)


def test_streamed_patterns_are_the_captured_ones(model: GPT, batch: Batch) -> None:
    found = stream_patterns(model, batch, {"keys": first_keys})["keys"]
    assert found.dtype == torch.float64
    expected = patterns(model, batch)[..., QUERY, :3]
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-6)  # measured: 2e-7


def test_chunks_change_nothing(
    model: GPT, ragged_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    reducers = {"keys": first_keys, "highest": highest}
    together = stream_patterns(model, ragged_batch, reducers)
    for limit, value in (("CHUNK", 3), ("WIDE", 1), ("ROWS", 1), ("QUERIES", 4)):
        with monkeypatch.context() as patch:
            patch.setattr(streaming, limit, value)
            apart = stream_patterns(model, ragged_batch, reducers)
        for name, values in together.items():
            assert float((values - apart[name]).abs().max()) < 1e-5  # measured: 1.3e-6


def test_a_batch_of_one_is_the_same_as_in_a_batch(model: GPT, ragged_batch: Batch) -> None:
    """Each sequence alone, without its padding."""
    together = stream_patterns(model, ragged_batch, {"highest": highest})["highest"]
    for i, length in enumerate(ragged_batch.lengths.tolist()):
        one = ragged_batch[i : i + 1]
        alone = Batch(
            one.tokens[:, :length],
            one.lengths,
            one.next_tokens[:, :length],
            one.outputs[:, :length],
            one.target_keys[:, :length],
        )
        found = stream_patterns(model, alone, {"highest": highest})["highest"]
        assert float((found[0] - together[i]).abs().max()) < 1e-5  # measured: 1.3e-6


def test_half_precision_patterns_are_reduced_in_single_precision(
    make_model: Callable[..., GPT], batch: Batch
) -> None:
    seen = []

    def spy(batch: Batch) -> Callable[[Rows], Tensor]:
        def reduce(rows: Rows) -> Tensor:
            seen.append(rows.pattern.dtype)
            return rows.pattern.sum(-1)

        return reduce

    found = stream_patterns(make_model().bfloat16(), batch, {"sum": spy})["sum"]
    assert set(seen) == {torch.float32}
    # rows rounded to eight bits sum to 1 within 1e-2; measured: 2e-3 on average over 11 rows
    assert float((found - 1).abs().max()) < 1e-2


def test_double_precision_patterns_stay_double(
    make_model: Callable[..., GPT], batch: Batch
) -> None:
    double = make_model().double()
    found = stream_patterns(double, batch, {"keys": first_keys})["keys"]
    expected = patterns(double, batch)[..., QUERY, :3]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)  # measured: 2e-16


@pytest.mark.parametrize("window", [None, 2, 4])
def test_uniform_values_are_those_of_a_model_that_attends_uniformly(
    make_model: Callable[..., GPT], batch: Batch, window: int | None
) -> None:
    model = make_model(window=window)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:21] = 0  # no query asks for anything
            block.attn.qkv.bias.zero_()
    reducers = {"keys": first_keys, "highest": highest}
    found = uniform_values(model, batch, reducers)
    real = stream_patterns(model, batch, reducers)
    for layer in LAYERS:
        # measured: 1.5e-8, and 3e-8 on a row of thirds
        for name, values in found.items():
            assert float((real[name][:, layer, 1] - values).abs().max()) < 1e-6


def test_chance_is_the_mean_over_sequences_that_define_the_score(
    model: GPT, ragged_batch: Batch
) -> None:
    def some(batch: Batch) -> Callable[[Rows], Tensor]:
        value = torch.where(batch.lengths > 7, batch.lengths.double(), torch.nan)
        return lambda rows: value[:, None, None].expand(rows.pattern.shape[:3])

    lengths = ragged_batch.lengths[ragged_batch.lengths > 7]
    assert uniform_scores(model, ragged_batch, {"some": some})["some"] == lengths.double().mean()
    assert np.isnan(
        uniform_scores(
            model,
            ragged_batch,
            {"none": lambda batch: lambda rows: torch.full(rows.pattern.shape[:3], torch.nan)},
        )["none"]
    )


def test_a_mean_leaves_out_what_is_undefined_and_is_undefined_over_nothing() -> None:
    values = torch.tensor([[1.0, 2.0, 4.0], [torch.nan, 2.0, 4.0], [torch.nan, 2.0, 4.0]])
    defined = torch.tensor([[True, False, True], [True, True, True], [True, False, False]])
    found = mean_over(values, defined)
    assert found[:2].tolist() == [2.5, 3.0]
    assert found[2].isnan()


def test_every_row_is_shown_once_by_both_engines(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    tokens = torch.randint(22, (2, 11), generator=torch.Generator().manual_seed(0))
    shown = []
    for model in (gpt2_twin, gpt2_bridge):
        whole = torch.zeros(2, 2, 3, 11, 11)

        def add(rows: Rows, whole: Tensor = whole) -> None:
            at = rows.queries
            whole[rows.layer, :, :, at, : at.stop] += rows.pattern

        visit_patterns(model, tokens, add)
        shown.append(whole)
    torch.testing.assert_close(shown[0].sum(-1), torch.ones(2, 2, 3, 11))
    torch.testing.assert_close(*shown, rtol=0, atol=1e-5)  # measured: 2e-6


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_a_run_stops_where_it_was_told(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    fired: list[str] = []

    def note(x: Tensor, *, hook: Any) -> None:
        fired.append(hook.name)

    names = ["blocks.0.attn.hook_z", "blocks.1.attn.hook_pattern", "blocks.1.attn.hook_z"]
    run_until(model, torch.ones(1, 3).long(), names[1], hooks=[(name, note) for name in names])
    assert fired == names[:2]


def test_what_a_hook_made_of_a_pattern_is_what_is_reduced(model: GPT, batch: Batch) -> None:
    def first_key(pattern: Tensor, *, hook: Any) -> Tensor:
        changed = torch.zeros_like(pattern)
        changed[..., 0] = 1
        return changed

    with hooked(model, [("blocks.0.attn.hook_pattern", first_key)]):
        found = stream_patterns(model, batch, {"keys": first_keys})["keys"]
    assert (found[:, 0] == torch.tensor([1.0, 0, 0])).all()
    assert not (found[:, 1, :, 0] == 1).any()


def test_long_contexts_need_no_whole_pattern() -> None:
    """8,192 tokens: a layer's pattern of two heads would be 512 MiB."""
    model = GPT(GPTConfig(11, 8192, n_layers=2, n_heads=2, d_model=4), seed=1).eval()
    largest = 0

    def look(rows: Rows) -> None:
        nonlocal largest
        largest = max(largest, rows.pattern.numel())

    tokens = torch.randint(11, (1, 8192), generator=torch.Generator().manual_seed(0))
    visit_patterns(model, tokens, look)
    assert largest <= streaming.ROWS
