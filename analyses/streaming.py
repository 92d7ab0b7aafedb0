"""One forward pass, reduced as it goes.

Patterns are turned into numbers per sequence and head while the model runs, layer by layer and
chunk by chunk, so that memory does not grow with the number of sequences and one pass serves
every score asked for together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.inputs import to_device
from models.attention import visible_keys
from models.interface import HookedModel, capture, hooked, shape
from models.names import hook_name
from models.tasks import Batch

Pattern = Float[Tensor, "batch head query key"]
Reduce = Callable[[Pattern], Tensor]
Prepare = Callable[[Batch], Reduce]

CHUNK = 64  # sequences per forward pass
CELLS = 2**26  # of one layer's patterns at a time


def stream_patterns(
    model: HookedModel, batch: Batch, reducers: Mapping[str, Prepare]
) -> dict[str, Float[Tensor, "sequence layer head ..."]]:
    """Reduce every head's pattern to numbers per sequence.

    Args:
        model: a hooked model.
        batch: the sequences.
        reducers: by name, what takes a chunk of the batch and returns the function that
            reduces a pattern ``[batch, head, query, key]`` to ``[batch, head, ...]``. It gets
            float32 or better and must not write to it.

    Returns:
        By name, float64 on the CPU; equal to reducing one sequence at a time.
    """
    layers = range(shape(model).n_layers)
    kept: dict[str, list[Tensor]] = {name: [] for name in reducers}
    for chunk in _chunks(batch, shape(model).n_heads):
        reduced: dict[str, dict[int, Tensor]] = {name: {} for name in reducers}
        prepared = {name: prepare(chunk) for name, prepare in reducers.items()}
        hooks = [
            (hook_name("attn.hook_pattern", layer), partial(_reduce, layer, prepared, reduced))
            for layer in layers
        ]
        with hooked(model, hooks):
            capture(model, chunk.tokens, [hook_name("attn.hook_z", layers[-1])])
        for name, by_layer in reduced.items():
            kept[name].append(torch.stack([by_layer[layer] for layer in layers], dim=1))
    return {name: torch.cat(parts) for name, parts in kept.items()}


def uniform_values(
    model: HookedModel, batch: Batch, reducers: Mapping[str, Prepare]
) -> dict[str, Float[Tensor, "sequence ..."]]:
    """What the reducers make of uniform attention over the keys that the model's mask leaves.

    Float64 on the CPU.
    """
    batch, n = to_device(batch, "cpu"), batch.tokens.shape[1]
    visible = visible_keys(n, n, window=shape(model).window).double()
    uniform = (visible / visible.sum(-1, keepdim=True)).expand(1, 1, n, n)
    chunks = _chunks(batch, 1)
    return {
        name: torch.cat([prepare(c)(uniform.expand(len(c), -1, -1, -1))[:, 0] for c in chunks])
        for name, prepare in reducers.items()
    }


def uniform_scores(
    model: HookedModel, batch: Batch, reducers: Mapping[str, Prepare]
) -> dict[str, float]:
    """Chance: the mean over sequences of `uniform_values`; NaN where none defines the score."""
    values = uniform_values(model, batch, reducers)
    return {name: float(value.nanmean()) for name, value in values.items()}


def mean_over(values: Tensor, defined: Tensor) -> Tensor:
    """Mean over the last axis where ``defined`` and not NaN; NaN where nothing is left."""
    defined = defined & ~values.isnan()
    total = torch.where(defined, values, 0.0).sum(-1)
    return total / torch.where(defined.any(-1), defined.sum(-1), torch.nan)


def _chunks(batch: Batch, n_heads: int) -> list[Batch]:
    size = max(1, min(CHUNK, CELLS // (n_heads * batch.tokens.shape[1] ** 2)))
    return [batch[first : first + size] for first in range(0, len(batch), size)]


def _reduce(
    layer: int,
    prepared: Mapping[str, Reduce],
    reduced: Mapping[str, dict[int, Tensor]],
    pattern: Pattern,
    *,
    hook: Any,
) -> None:
    pattern = pattern.detach()
    pattern = pattern if pattern.dtype == torch.float64 else pattern.float()
    for name, reduce in prepared.items():
        reduced[name][layer] = reduce(pattern).cpu().double()
