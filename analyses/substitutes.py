"""What stands in for a head's output ``z`` when the head is removed.

``zero`` is 0. ``mean`` is the mean over reference sequences, none of which is evaluated: per
position where all sequences have one length, otherwise over all their tokens. ``resample`` is
``z`` from the same position of another sequence, drawn ten times over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from analyses.inputs import Inputs, has_task, real_positions, reference_batch
from analyses.reruns import chunk_size
from models.errors import InputError
from models.interface import HookedModel, capture
from models.names import hook_name
from models.tasks import Batch

Ablation = Literal["zero", "mean", "resample"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)
DRAWS = 10

Draw = Callable[[int, list[int], slice], Tensor]
"""From a layer, heads and a slice of the sequences to ``[sequence, pos, head, d_head]``."""


@dataclass(frozen=True)
class Substitute:
    """One kind of ablation, made ready for a batch.

    Args:
        draws: what gives the new ``z``; one unless it is random.
        baseline: what it is, in two or three words.
        alone: sequences for which there is none.
    """

    draws: Sequence[Draw]
    baseline: str
    alone: Sequence[int] = ()


def substitutes(
    model: HookedModel,
    batch: Batch,
    kinds: Iterable[str],
    layers: Sequence[int],
    *,
    reference: Inputs = None,
    seed: int = 0,
) -> dict[str, Substitute]:
    """By kind, what replaces ``z`` in these layers."""
    found = {}
    for kind in kinds:
        if kind == "zero":
            found[kind] = Substitute([lambda layer, heads, rows: torch.zeros(1, 1, 1, 1)], "zero")
        elif kind == "mean":
            found[kind] = _mean(model, batch, layers, reference, seed)
        else:
            found[kind] = _resample(model, batch, layers, seed)
    return found


def possible_ablations(model: HookedModel, batch: Batch, reference: Inputs) -> list[Ablation]:
    """The kinds that an input allows."""
    allowed = {
        "zero": True,
        "mean": reference is not None or has_task(model),
        "resample": len(batch) > 1,
    }
    return [kind for kind in ABLATIONS if allowed[kind]]


def default_ablation(batch: Batch) -> Ablation:
    """``mean`` for a task; ``resample`` for text, where every known token is an output."""
    text = bool((batch.outputs == (batch.next_tokens >= 0)).all())
    return "resample" if text else "mean"


def mean_z(
    model: HookedModel, reference: Batch, layers: Iterable[int], *, pooled: bool = False
) -> dict[int, Float[Tensor, "1 pos head d_head"]]:
    """Mean of ``z`` by layer, float64 on the CPU.

    Args:
        model: a hooked model.
        reference: the sequences; of one length unless ``pooled``.
        layers: which.
        pooled: over all real tokens instead of per position. A first token that all sequences
            share is taken for a beginning-of-sequence token and left out.
    """
    names = {layer: hook_name("attn.hook_z", layer) for layer in layers}
    counted = real_positions(reference)
    if pooled and _same_first_token(reference):
        counted = counted & (torch.arange(counted.shape[1], device=counted.device) > 0)
    over = (0, 1) if pooled else (0,)
    sums: dict[int, Tensor] = {}
    size = chunk_size(model, reference.tokens.shape[1])
    for first in range(0, len(reference), size):
        rows = slice(first, first + size)
        kept = capture(model, reference.tokens[rows], names.values()).activations
        for layer, name in names.items():
            z = torch.where(counted[rows][..., None, None], kept[name], 0).cpu().double()
            sums[layer] = sums.get(layer, 0) + z.sum(over, keepdim=True)
    n = int(counted.sum()) if pooled else len(reference)
    return {layer: total / n for layer, total in sums.items()}


def partners(batch: Batch, *, seed: int = 0, draw: int = 0) -> Int[Tensor, " sequence"]:
    """For every sequence another one whose positions cover it; -1 where there is none.

    Sequences of one length take each other's places in a random cycle; one that is alone with
    its length gets a longer one.
    """
    random = np.random.default_rng([seed, draw])
    lengths = batch.lengths.cpu().numpy()
    partner = np.full(len(lengths), -1)
    for length in np.unique(lengths):
        same, longer = np.flatnonzero(lengths == length), np.flatnonzero(lengths > length)
        if len(same) > 1:
            order = random.permutation(same)
            partner[order] = np.roll(order, 1)
        elif len(longer):
            partner[same] = random.choice(longer)
    return torch.from_numpy(partner).to(batch.tokens.device)


def _mean(
    model: HookedModel, batch: Batch, layers: Sequence[int], reference: Inputs, seed: int
) -> Substitute:
    sequences = reference_batch(model, batch, reference, seed=seed)
    pooled = len({*sequences.lengths.tolist(), *batch.lengths.tolist()}) > 1
    means = mean_z(model, sequences, layers, pooled=pooled)
    if not pooled:  # as wide as the batch, should one of them have more padding
        wider = batch.tokens.shape[1] - sequences.tokens.shape[1]
        means = {k: torch.nn.functional.pad(m, (0, 0, 0, 0, 0, wider)) for k, m in means.items()}
    return Substitute(
        [lambda layer, heads, rows: means[layer][:, :, heads]],
        f"{'token' if pooled else 'position'} mean of {len(sequences)}",
    )


def _resample(model: HookedModel, batch: Batch, layers: Sequence[int], seed: int) -> Substitute:
    drawn = [partners(batch, seed=seed, draw=draw) for draw in range(DRAWS)]
    alone = (drawn[0] < 0).nonzero().flatten().tolist()
    if len(alone) == len(batch):
        raise InputError(
            "resampling needs a second sequence to take a head's output from, but got 1 sequence"
        )
    z = _all_z(model, batch, layers)

    def take(partner: Tensor, layer: int, heads: list[int], rows: slice) -> Tensor:
        return z[layer][partner[rows, None], :, heads].transpose(1, 2)

    baseline = f"{DRAWS} other sequences"
    return Substitute([partial(take, partner) for partner in drawn], baseline, alone)


def _all_z(model: HookedModel, batch: Batch, layers: Sequence[int]) -> dict[int, Tensor]:
    names = [hook_name("attn.hook_z", layer) for layer in layers]
    size = chunk_size(model, batch.tokens.shape[1])
    parts = [
        capture(model, batch.tokens[first : first + size], names).activations
        for first in range(0, len(batch), size)
    ]
    return {k: torch.cat([p[n] for p in parts]) for k, n in zip(layers, names, strict=True)}


def _same_first_token(batch: Batch) -> bool:
    first = batch.tokens[:, 0]
    return len(batch) > 1 and bool((first == first[0]).all() and (batch.lengths > 1).all())
