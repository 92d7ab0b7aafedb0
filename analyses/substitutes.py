"""What stands in for a part of a model that is taken away.

A part is a head (its output ``z``, where it enters the output projection) or what a layer's
attention or MLP adds to the residual stream. ``zero`` is 0. ``mean`` is the mean over reference
sequences, none of which is evaluated: per position where all sequences have one length, otherwise
over all their tokens. ``resample`` is the value at the same position of another sequence, drawn
ten times over.
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
from analyses.reruns import Where, chunk_size
from models.errors import InputError
from models.interface import HookedModel, capture
from models.tasks import Batch

Ablation = Literal["zero", "mean", "resample"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)
DRAWS = 10

POINTS = {"head": "attn.hook_z", "attn": "hook_attn_out", "mlp": "hook_mlp_out"}
"""The hook point of each kind of part."""

Draw = Callable[[str, Where], Tensor]
"""From a hook point's name to what is put in, ``[sequence, pos, ...]`` or 1 for all."""


@dataclass(frozen=True)
class Substitute:
    """One kind of ablation, made ready for a batch.

    Args:
        draws: what gives the new values; one unless it is random.
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
    names: Sequence[str],
    *,
    reference: Inputs = None,
    seed: int = 0,
) -> dict[str, Substitute]:
    """By kind, what replaces the activations of these hook points."""
    found = {}
    for kind in kinds:
        if kind == "zero":
            found[kind] = Substitute([lambda name, where: torch.zeros(1)], "zero")
        elif kind == "mean":
            found[kind] = _mean(model, batch, names, reference, seed)
        else:
            found[kind] = _resample(model, batch, names, seed)
    return found


def possible_ablations(model: HookedModel, batch: Batch, reference: Inputs) -> list[Ablation]:
    """The kinds that an input allows."""
    allowed = {
        "zero": True,
        "mean": reference is not None or has_task(model),
        "resample": len(batch) > 1,
    }
    return [kind for kind in ABLATIONS if allowed[kind]]


def default_ablation(batch: Batch, reference: Inputs = None) -> Ablation:
    """``mean`` for a task; ``resample`` for text, where every known token is an output.

    A single text has no other to take activations from: ``mean`` with a reference, else ``zero``.
    """
    text = bool((batch.outputs == (batch.next_tokens >= 0)).all())
    if text and len(batch) == 1:
        return "zero" if reference is None else "mean"
    return "resample" if text else "mean"


def mean_activations(
    model: HookedModel, reference: Batch, names: Sequence[str], *, pooled: bool = False
) -> dict[str, Float[Tensor, "1 pos ..."]]:
    """Mean of activations by hook point, float64 on the CPU.

    Args:
        model: a hooked model.
        reference: the sequences; of one length unless ``pooled``.
        names: of hook points ``[sequence, pos, ...]``.
        pooled: over all real tokens instead of per position. A first token that all sequences
            share is taken for a beginning-of-sequence token and left out.
    """
    counted = real_positions(reference)
    if pooled and _same_first_token(reference):
        counted = counted & (torch.arange(counted.shape[1], device=counted.device) > 0)
    over = (0, 1) if pooled else (0,)
    sums: dict[str, Tensor] = {}
    size = chunk_size(model, reference.tokens.shape[1])
    for first in range(0, len(reference), size):
        rows = slice(first, first + size)
        kept = capture(model, reference.tokens[rows], names).activations
        for name, value in kept.items():
            real = counted[rows][(..., *[None] * (value.ndim - 2))]
            total = torch.where(real, value, 0).cpu().double().sum(over, keepdim=True)
            sums[name] = sums.get(name, 0) + total
    n = int(counted.sum()) if pooled else len(reference)
    return {name: total / n for name, total in sums.items()}


def partners(batch: Batch, *, seed: int = 0, draw: int = 0) -> Int[Tensor, " sequence"]:
    """For every sequence another one whose positions cover it; -1 where there is none.

    Sequences of one length take each other's places in a random cycle; one that is alone with
    its length gets a longer one. Never one that begins with the very same tokens.
    """
    random = np.random.default_rng([seed, draw])
    lengths, tokens = batch.lengths.cpu().numpy(), batch.tokens.cpu().numpy()
    partner = np.full(len(lengths), -1)
    for length in np.unique(lengths):
        same, longer = np.flatnonzero(lengths == length), np.flatnonzero(lengths > length)
        if len(same) > 1:
            order = random.permutation(same)
            partner[order] = np.roll(order, 1)
        elif len(longer):
            partner[same] = random.choice(longer)
    for row, other in enumerate(partner):
        length = lengths[row]
        if other >= 0 and (tokens[row, :length] == tokens[other, :length]).all():
            differs = (tokens[:, :length] != tokens[row, :length]).any(1)
            rest = np.flatnonzero(differs & (lengths >= length))
            partner[row] = random.choice(rest) if len(rest) else -1
    return torch.from_numpy(partner).to(batch.tokens.device)


def _mean(
    model: HookedModel, batch: Batch, names: Sequence[str], reference: Inputs, seed: int
) -> Substitute:
    sequences = reference_batch(model, batch, reference, seed=seed)
    pooled = len({*sequences.lengths.tolist(), *batch.lengths.tolist()}) > 1
    means = mean_activations(model, sequences, names, pooled=pooled)
    wider = batch.tokens.shape[1] - sequences.tokens.shape[1]
    if not pooled and wider > 0:  # as wide as the batch, should it have more padding
        means = {
            k: torch.cat([m, m[:, -1:].repeat_interleave(wider, 1)], 1) for k, m in means.items()
        }

    def take(name: str, where: Where) -> Tensor:
        return means[name] if pooled else means[name][:, where.positions]

    return Substitute([take], f"{'token' if pooled else 'position'} mean of {len(sequences)}")


def _resample(model: HookedModel, batch: Batch, names: Sequence[str], seed: int) -> Substitute:
    every = [partners(batch, seed=seed, draw=draw) for draw in range(DRAWS)]
    drawn = list({tuple(partner.tolist()): partner for partner in every}.values())
    alone = (drawn[0] < 0).nonzero().flatten().tolist()
    if len(alone) == len(batch):
        raise InputError(
            "resampling needs a second sequence to take a part's output from, but got 1 sequence"
        )
    values = all_activations(model, batch, names)

    def take(partner: Tensor, name: str, where: Where) -> Tensor:
        return values[name][:, where.positions][partner[where.sequences]]

    others = "another sequence" if len(drawn) == 1 else f"{len(drawn)} other sequences"
    left_out = f" ({len(alone)} without one left out)" if alone else ""
    baseline = others + left_out
    return Substitute([partial(take, partner) for partner in drawn], baseline, alone)


def all_activations(model: HookedModel, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
    """Activations of every sequence by hook point, ``[sequence, pos, ...]``."""
    size = chunk_size(model, batch.tokens.shape[1])
    parts = [
        capture(model, batch.tokens[first : first + size], names).activations
        for first in range(0, len(batch), size)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in names}


def _same_first_token(batch: Batch) -> bool:
    first = batch.tokens[:, 0]
    return len(batch) > 1 and bool((first == first[0]).all() and (batch.lengths > 1).all())
