"""Position or content, against a loop over leave-one-out means."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from analyses.content_dependence import content_dependence, mean_pattern
from analyses.random_tokens import repeated_tokens
from models.gpt import GPT
from models.interface import capture, hooked
from models.tasks import Batch

NAMES = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)]


def slowly(pattern: Tensor, lengths: list[int]) -> float:
    """``[sequence, query, key]`` of one head."""
    values = []
    for s, length in enumerate(lengths):
        rows = []
        for query in range(1, length):
            others = [pattern[o, query] for o, n in enumerate(lengths) if o != s and n > query]
            if others:
                mean = torch.stack(others).mean(0)
                rows.append(float((pattern[s, query] - mean).abs().sum() / 2))
        values.append(np.mean(rows))
    return float(np.mean(values))


def test_it_is_the_distance_from_the_mean_of_the_others(model: GPT, ragged_batch: Batch) -> None:
    table = content_dependence(model, ragged_batch).set_index(["layer", "head"])
    kept = capture(model, ragged_batch.tokens, NAMES).activations
    for layer, head in ((0, 1), (1, 2)):
        expected = slowly(kept[NAMES[layer]][:, head].double(), ragged_batch.lengths.tolist())
        # measured: 2e-8
        assert table.loc[(layer, head), "value"] == pytest.approx(expected, abs=1e-6)
    assert table["value"].between(0, 1).all()


def test_a_head_that_routes_by_position_has_none(model: GPT, batch: Batch) -> None:
    def previous(pattern: Tensor, *, hook: object) -> Tensor:
        pattern = pattern.clone()
        pattern[:, 1] = torch.eye(11).roll(-1, 1).tril()
        return pattern

    with hooked(model, [(NAMES[0], previous)]):
        table = content_dependence(model, batch).set_index(["layer", "head"])
    assert table.loc[(0, 1), "value"] == 0
    assert table.loc[(0, 0), "value"] > 0.01


def test_one_sequence_has_no_others(model: GPT) -> None:
    assert content_dependence(model, [[1, 2, 3]])["value"].isna().all()


def test_the_mean_pattern_is_the_mean(model: GPT, batch: Batch) -> None:
    mean, n = mean_pattern(model, batch)
    kept = capture(model, batch.tokens, NAMES).activations
    expected = torch.stack([kept[name].mean(0) for name in NAMES])
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-6)  # measured: 1e-7
    assert n.tolist() == [13.0] * 11


def test_an_untrained_model_attends_by_position(make_model: Callable[..., GPT]) -> None:
    model = make_model(n_ctx=26, std=0.02)
    assert (content_dependence(model, repeated_tokens(model))["value"] < 0.05).all()
