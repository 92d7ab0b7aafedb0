"""What an analysis measures on: a task's batch, or tokens of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Number
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from models.errors import InputError
from models.interface import HookedModel, TokensLike, pad, shape
from models.tasks import Batch, Task
from models.text_codec import codec_of

Inputs = Batch | TokensLike | str | Sequence[str] | None
SEQUENCES = 64
REFERENCE = 256


def as_batch(model: HookedModel, tokens: Inputs, *, n: int = SEQUENCES, seed: int = 0) -> Batch:
    """The batch to measure on, on the model's device.

    Args:
        model: a hooked model.
        tokens: a `Batch`, ids ``[batch, pos]``, a list of lists of ids, a text or a list of
            texts, or ``None`` for ``n`` held-out sequences of the task the model was trained on;
            a model without a task gets repeated random tokens (at most 64 sequences, see
            `analyses.random_tokens`). Of plain ids and texts every next token is an output.
        n, seed: of the default batch.

    Raises:
        InputError: a negative seed, an empty prompt, or what is no ids.
    """
    if seed < 0:
        raise InputError(f"seed must be at least 0, but got {seed}")
    if tokens is None and not has_task(model):
        from analyses.random_tokens import repeated_tokens  # which begins from here

        return repeated_tokens(model, n=min(n, SEQUENCES), seed=seed)
    if tokens is None:
        return task_of(model).heldout(n, seed=seed, device=shape(model).device)
    if isinstance(tokens, Batch):
        pad(model, tokens.tokens, tokens.lengths)
        return to_device(tokens, shape(model).device)
    padded = pad(model, encode_texts(model, tokens))
    following = torch.nn.functional.pad(padded.tokens[:, 1:], (0, 1))
    known = torch.nn.functional.pad(padded.real[:, 1:], (0, 1))
    following = torch.where(known, following, -1)
    nowhere = torch.full_like(padded.tokens, -1)
    return Batch(padded.tokens, padded.lengths, following, known, nowhere)


def encode_texts(model: HookedModel, tokens: Any, *, bos: bool | None = None) -> Any:
    """The ids of a text or of several texts; anything else as it is."""
    texts = [tokens] if isinstance(tokens, str) else tokens
    if isinstance(texts, Tensor) or not any(isinstance(text, str) for text in texts):
        return tokens
    if not all(isinstance(text, str) for text in texts):
        raise InputError("tokens must be texts or lists of ids, but got both")
    codec: Any = codec_of(model)
    ids = [codec.encode(text) if bos is None else codec.encode(text, bos=bos) for text in texts]
    if not all(ids):
        raise InputError("the prompt is empty: it gives no token")
    return ids


def typed(model: HookedModel, texts: Sequence[str] | None, bos: bool | None = None) -> Any:
    """What was typed, as ids; without a text what an analysis takes by itself, with BOS or not."""
    if texts:
        return encode_texts(model, list(texts), bos=bos)
    if bos is None or has_task(model):
        return None
    from analyses.random_tokens import repeated_tokens  # which begins from here

    return repeated_tokens(model, bos=bos)


def reference_batch(
    model: HookedModel, batch: Batch, reference: Inputs = None, *, seed: int = 0
) -> Batch:
    """Sequences for means, none of which is evaluated.

    Args:
        model: a hooked model.
        batch: the sequences that are evaluated.
        reference: the user's own; default 256 of the task's training split.
        seed: of the default.

    Raises:
        InputError: a sequence of ``reference`` is evaluated too, or there is neither a
            reference nor a task.
    """
    evaluated = set(sequences(batch))
    if reference is not None:
        given = as_batch(model, reference)
        shared = sum(sequence in evaluated for sequence in sequences(given))
        if shared:
            raise InputError(
                "reference sequences must not be among those evaluated, "
                f"but {shared} of {len(given)} are: use others"
            )
        return given
    if not has_task(model):
        raise InputError(
            "mean ablation needs reference sequences, and this model has no task to draw them "
            "from: give reference=, or use zero or resample"
        )
    generator = torch.Generator(shape(model).device).manual_seed(seed)
    drawn = task_of(model).draw(REFERENCE, generator=generator, split="train")
    fresh = [sequence not in evaluated for sequence in sequences(drawn)]
    if not any(fresh):
        raise InputError("every training sequence of the task is evaluated: give reference=")
    return select(drawn, torch.tensor(fresh, device=drawn.tokens.device))


def has_task(model: HookedModel) -> bool:
    """Whether the model was trained on a task of ours."""
    return isinstance(getattr(model, "task", None), Task)


def task_of(model: HookedModel) -> Task:
    """The task the model was trained on."""
    task: Any = getattr(model, "task", None)
    if not isinstance(task, Task):
        raise InputError("this model was not trained on a task of ours: give tokens")
    return task


def real_positions(batch: Batch) -> Bool[Tensor, "batch pos"]:
    """Which positions are not padding."""
    position = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return position < batch.lengths[:, None]


def leading_bos(model: HookedModel, batch: Batch) -> Bool[Tensor, "batch pos"]:
    """Where a sequence begins with the BOS of the model's own tokenizer."""
    tokenizer = getattr(model, "vocabulary", None) or getattr(model, "tokenizer", None)
    bos = None if tokenizer is None else getattr(codec_of(model), "bos", None)
    found = torch.zeros_like(batch.tokens, dtype=torch.bool)
    if bos is not None:
        found[:, 0] = batch.tokens[:, 0] == bos
    return found


def chosen_positions(batch: Batch, positions: Any) -> Bool[Tensor, "batch pos"]:
    """Some real positions of a batch, as a mask.

    Args:
        batch: the sequences.
        positions: numbers for all sequences (negative ones count from each sequence's own end);
            a list of these for each sequence (empty for none); or a mask ``[sequence, pos]``.

    Raises:
        InputError: a position outside a sequence, what is no position, or none at all.
    """
    mask = _mask_of(batch, positions)
    if not bool(mask.any()):
        raise InputError("positions must select at least one token, but select none")
    return mask


def _mask_of(batch: Batch, positions: Any) -> Bool[Tensor, "batch pos"]:
    n, width = batch.tokens.shape
    if isinstance(positions, np.ndarray):
        positions = torch.from_numpy(positions)
    if isinstance(positions, Tensor) and positions.dtype == torch.bool:
        if positions.shape != batch.tokens.shape:
            raise InputError(
                f"a mask of positions must be [{n}, {width}], but got {list(positions.shape)}"
            )
        return positions.to(batch.tokens.device) & real_positions(batch)
    given = positions.tolist() if isinstance(positions, Tensor) else positions
    given = [given] if isinstance(given, Integral) else given
    if not isinstance(given, list | tuple | range):
        raise InputError(f"positions must be whole numbers, or a list for each, not {given!r}")
    each = given if given and not isinstance(given[0], Number) else [given] * n
    if len(each) != n:
        raise InputError(f"give positions for each of {n} sequences, but got {len(each)} lists")
    mask = torch.zeros(n, width, dtype=torch.bool)
    for row, some, length in zip(mask, each, batch.lengths.tolist(), strict=True):
        for position in some:
            if not isinstance(position, Integral):
                raise InputError(f"a position must be a whole number, but got {position!r}")
            if not -length <= int(position) < length:
                raise InputError(f"a position must be 0..{length - 1} here, but got {position}")
            row[int(position) % length] = True
    return mask.to(batch.tokens.device)


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """The batch on a device."""
    return _each(batch, lambda part: part.to(device))


def select(batch: Batch, rows: Tensor) -> Batch:
    """Some sequences of a batch, by index or by a mask."""
    return _each(batch, lambda part: part[rows])


def read_columns(batch: Batch, columns: slice) -> Batch:
    """Some positions of a batch: what a metric reads when logits exist at these only."""
    return Batch(
        batch.tokens[:, columns],
        batch.lengths,
        batch.next_tokens[:, columns],
        batch.outputs[:, columns],
        batch.target_keys[:, columns],
    )


def as_names(names: Iterable[str]) -> list[str]:
    """A list of names without repetition; a single name is a list of one."""
    return list(dict.fromkeys([names] if isinstance(names, str) else names))


def _each(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    return Batch(
        change(batch.tokens),
        change(batch.lengths),
        change(batch.next_tokens),
        change(batch.outputs),
        change(batch.target_keys),
        groups={name: change(group) for name, group in batch.groups.items()},
    )


def sequences(batch: Batch) -> list[tuple[int, ...]]:
    """The real ids of every sequence."""
    rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    return [tuple(row[:length]) for row, length in rows]
