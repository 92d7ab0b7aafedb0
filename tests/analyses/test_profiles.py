"""Attention by offset and by key against loops."""

import numpy as np
import pytest
import torch
from torch import Tensor

from analyses.profiles import Profiles, by_offset
from analyses.streaming import stream_patterns
from models.gpt import GPT
from models.interface import capture
from models.tasks import Batch


@pytest.mark.parametrize(("first", "stop"), [(0, 7), (0, 1), (3, 4), (2, 7)])
def test_sums_by_offset_are_the_loop(first: int, stop: int) -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(2, 3, stop, stop, generator=generator).tril().double()
    pattern = whole[:, :, first:]
    weight = torch.rand(2, 3, 5, stop - first, generator=generator).double()
    expected = torch.zeros(2, 3, 5, stop).double()
    for query in range(first, stop):
        for key in range(query + 1):
            cell = weight[..., query - first] * pattern[:, :, query - first, key, None]
            expected[..., query - key] += cell
    found = by_offset(pattern, weight)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["ours", "chunked"])
def test_profiles_are_means_within_and_then_over_sequences(
    model: GPT, ragged_batch: Batch, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "chunked":
        monkeypatch.setattr("analyses.streaming.QUERIES", 3)
        monkeypatch.setattr("analyses.streaming.CHUNK", 5)

    def later(batch: Batch) -> Tensor:
        return torch.arange(batch.tokens.shape[1]).expand_as(batch.tokens) >= 1

    n = ragged_batch.tokens.shape[1]
    profiles = Profiles(model, n, {"later": later})
    stream_patterns(model, ragged_batch, {}, also=profiles)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)]
    kept = capture(model, ragged_batch.tokens, names).activations
    offset: dict[int, list[float]] = {d: [] for d in range(4)}
    keys: dict[int, list[float]] = {k: [] for k in range(4)}
    for pattern, length in zip(kept[names[1]][:, 2].double(), ragged_batch.lengths, strict=True):
        for d in range(4):
            cells = [float(pattern[i, i - d]) for i in range(max(1, d), int(length))]
            offset[d] += [float(np.mean(cells))] if cells else []
            cells = [float(pattern[i, d]) for i in range(max(1, d), int(length))]
            keys[d] += [float(np.mean(cells))] if cells else []
    for d in range(4):
        # measured: 5e-8
        assert float(profiles.offsets[1, 2, 0, d]) == pytest.approx(np.mean(offset[d]), abs=1e-6)
        assert float(profiles.keys[1, 2, 0, d]) == pytest.approx(np.mean(keys[d]), abs=1e-6)
    assert profiles.offsets[..., n - 1].isnan().all(), "few queries have it"
    assert profiles.keys[..., n - 1].isnan().all()
