"""Patterns reduced while the model runs, against whole patterns captured and sliced."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from analyses import streaming
from analyses.streaming import mean_over, stream_patterns, uniform_scores, uniform_values
from models.gpt import GPT
from models.interface import capture
from models.tasks import Batch

LAYERS = (0, 1)


def patterns(model: GPT, batch: Batch) -> Tensor:
    """Captured whole: ``[sequence, layer, head, query, key]``."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in LAYERS]
    kept = capture(model, batch.tokens, names).activations
    return torch.stack([kept[name] for name in names], dim=1)


def whole(batch: Batch) -> Callable[[Tensor], Tensor]:
    return lambda pattern: pattern


def last_key_by_length(batch: Batch) -> Callable[[Tensor], Tensor]:
    """A reducer that needs its own part of the batch."""
    last = batch.lengths - 1
    return lambda pattern: pattern[torch.arange(len(last)), :, last].amax(-1)


def test_streamed_patterns_are_the_captured_ones(model: GPT, batch: Batch) -> None:
    found = stream_patterns(model, batch, {"whole": whole})["whole"]
    assert found.dtype == torch.float64
    assert torch.equal(found.float(), patterns(model, batch))


def test_chunks_change_nothing(
    model: GPT, ragged_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    reducers = {"whole": whole, "last": last_key_by_length}
    together = stream_patterns(model, ragged_batch, reducers)
    for limit, value in (("CHUNK", 3), ("CELLS", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(streaming, limit, value)
            apart = stream_patterns(model, ragged_batch, reducers)
        for name, values in together.items():
            assert float((values - apart[name]).abs().max()) < 1e-5  # measured: 1.3e-6


def test_a_batch_of_one_is_the_same_as_in_a_batch(model: GPT, ragged_batch: Batch) -> None:
    """Each sequence alone, without its padding."""
    together = stream_patterns(model, ragged_batch, {"last": last_key_by_length})["last"]
    for i, length in enumerate(ragged_batch.lengths.tolist()):
        one = ragged_batch[i : i + 1]
        alone = Batch(
            one.tokens[:, :length],
            one.lengths,
            one.next_tokens[:, :length],
            one.outputs[:, :length],
            one.target_keys[:, :length],
        )
        found = stream_patterns(model, alone, {"last": last_key_by_length})["last"]
        assert float((found[0] - together[i]).abs().max()) < 1e-5  # measured: 1.3e-6


def test_half_precision_patterns_are_reduced_in_single_precision(
    make_model: Callable[..., GPT], batch: Batch
) -> None:
    seen = []

    def spy(batch: Batch) -> Callable[[Tensor], Tensor]:
        def reduce(pattern: Tensor) -> Tensor:
            seen.append(pattern.dtype)
            return pattern.sum((-1, -2))

        return reduce

    found = stream_patterns(make_model().bfloat16(), batch, {"sum": spy})["sum"]
    assert set(seen) == {torch.float32}
    # rows rounded to eight bits sum to 1 within 1e-2; measured: 2e-3 on average over 11 rows
    assert float((found / batch.tokens.shape[1] - 1).abs().max()) < 1e-2


def test_double_precision_patterns_stay_double(
    make_model: Callable[..., GPT], batch: Batch
) -> None:
    double = make_model().double()
    found = stream_patterns(double, batch, {"whole": whole})["whole"]
    assert torch.equal(found, patterns(double, batch))


@pytest.mark.parametrize("window", [None, 2, 4])
def test_uniform_values_are_those_of_a_model_that_attends_uniformly(
    make_model: Callable[..., GPT], batch: Batch, window: int | None
) -> None:
    model = make_model(window=window)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:21] = 0  # no query asks for anything
            block.attn.qkv.bias.zero_()
    found = uniform_values(model, batch, {"whole": whole})["whole"]
    real = stream_patterns(model, batch, {"whole": whole})["whole"]
    for layer in LAYERS:
        # measured: 1.5e-8, and 3e-8 on a row of thirds
        assert float((real[:, layer, 1] - found).abs().max()) < 1e-6


def test_chance_is_the_mean_over_sequences_that_define_the_score(
    model: GPT, ragged_batch: Batch
) -> None:
    def some(batch: Batch) -> Callable[[Tensor], Tensor]:
        value = torch.where(batch.lengths > 7, batch.lengths.double(), torch.nan)
        return lambda pattern: value[:, None].expand(-1, pattern.shape[1])

    lengths = ragged_batch.lengths[ragged_batch.lengths > 7]
    assert uniform_scores(model, ragged_batch, {"some": some})["some"] == lengths.double().mean()
    assert np.isnan(
        uniform_scores(
            model,
            ragged_batch,
            {"none": lambda batch: lambda p: torch.full(p.shape[:2], torch.nan)},
        )["none"]
    )


def test_a_mean_leaves_out_what_is_undefined_and_is_undefined_over_nothing() -> None:
    values = torch.tensor([[1.0, 2.0, 4.0], [torch.nan, 2.0, 4.0], [torch.nan, 2.0, 4.0]])
    defined = torch.tensor([[True, False, True], [True, True, True], [True, False, False]])
    found = mean_over(values, defined)
    assert found[:2].tolist() == [2.5, 3.0]
    assert found[2].isnan()
