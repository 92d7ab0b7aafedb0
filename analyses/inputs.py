"""What an analysis measures on: a task's batch, or tokens of the user's own."""

from __future__ import annotations

from typing import Any

import torch

from models.errors import InputError
from models.interface import HookedModel, TokensLike, pad, shape
from models.tasks import Batch, Task

Inputs = Batch | TokensLike | None
SEQUENCES = 64


def as_batch(model: HookedModel, tokens: Inputs, *, n: int = SEQUENCES, seed: int = 0) -> Batch:
    """The batch to measure on.

    Args:
        model: a hooked model.
        tokens: a `Batch`, ids ``[batch, pos]``, a list of lists of ids, or ``None`` for ``n``
            held-out sequences of the task the model was trained on.
        n, seed: of the default batch.

    Raises:
        InputError: ``None`` for a model without a task.
    """
    if isinstance(tokens, Batch):
        pad(model, tokens.tokens, tokens.lengths)
        return tokens
    if tokens is None:
        return task_of(model).heldout(n, seed=seed, device=shape(model).device)
    padded = pad(model, tokens)
    following = torch.nn.functional.pad(padded.tokens[:, 1:], (0, 1))
    known = torch.nn.functional.pad(padded.real[:, 1:], (0, 1))
    following = torch.where(known, following, -1)
    nowhere = torch.full_like(padded.tokens, -1)
    return Batch(padded.tokens, padded.lengths, following, known, nowhere)


def reference_batch(model: HookedModel, *, n: int = 256, seed: int = 0) -> Batch:
    """Sequences of the model's task that no evaluation uses: drawn from the training split."""
    generator = torch.Generator(shape(model).device).manual_seed(seed)
    return task_of(model).draw(n, generator=generator, split="train")


def task_of(model: HookedModel) -> Task:
    """The task the model was trained on."""
    task: Any = getattr(model, "task", None)
    if not isinstance(task, Task):
        raise InputError("this model was not trained on a task of ours: give tokens")
    return task
