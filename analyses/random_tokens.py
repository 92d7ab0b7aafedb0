"""Random tokens, repeated: input on which nothing but the repetition can be known.

A block is drawn without replacement from the model's own vocabulary, special tokens left out, and
repeated once. Its contrast has the same second block at the same positions after a fresh first
block that shares no token with it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from analyses.inputs import SEQUENCES, Inputs, as_batch, has_task
from models.errors import InputError
from models.interface import HookedModel, shape
from models.tasks import Batch

BLOCK = 32  # tokens, where the context and the vocabulary allow it


def repeated_tokens(
    model: HookedModel,
    *,
    n: int = SEQUENCES,
    block: int | None = None,
    bos: bool | None = None,
    seed: int = 0,
) -> Batch:
    """``n`` independent sequences: a block of random tokens, then the same block again.

    Args:
        model: a hooked model.
        n: sequences.
        block: tokens per block; default 32, or as many as the context and the vocabulary allow.
        bos: whether one BOS comes first; default what the model's tokenizer does by itself.
        seed: of a generator of its own.

    Returns:
        A batch whose outputs are those of the second block, with the query groups
        ``first_block`` and ``second_block`` (BOS is in neither).

    Raises:
        InputError: BOS asked of a model without one, or a block that does not fit.
    """
    _, second = _blocks(model, n, block, bos, seed)
    return _batch(model, second, second, bos)


def fresh_tokens(
    model: HookedModel,
    *,
    n: int = SEQUENCES,
    block: int | None = None,
    bos: bool | None = None,
    seed: int = 0,
) -> Batch:
    """The second blocks of `repeated_tokens`, at the same positions, after fresh first blocks."""
    first, second = _blocks(model, n, block, bos, seed)
    return _batch(model, first, second, bos)


def batch_for(
    model: HookedModel, tokens: Inputs, *, bos: bool | None = None, seed: int = 0
) -> Batch:
    """`as_batch`, with repeated random tokens for a model without a task."""
    if tokens is None and not has_task(model):
        return repeated_tokens(model, bos=bos, seed=seed)
    return as_batch(model, tokens, seed=seed)


def usable_ids(model: HookedModel) -> Int[Tensor, " id"]:
    """The ids that text can give: the vocabulary without special tokens."""
    ids = torch.arange(shape(model).d_vocab)
    tokenizer = _tokenizer(model)
    if tokenizer is None:
        return ids
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    left_out = torch.tensor(sorted(special), dtype=torch.long)
    return ids[(ids < len(tokenizer)) & ~torch.isin(ids, left_out)]


def bos_id(model: HookedModel, bos: bool | None) -> int | None:
    """The id of the BOS that comes first, or ``None`` for none."""
    tokenizer = _tokenizer(model)
    known = None if tokenizer is None else tokenizer.bos_token_id
    if bos is None and known is not None and tokenizer is not None:
        bos = list(tokenizer("a")["input_ids"])[:1] == [known]
    if bos and known is None:
        raise InputError("this model has no BOS token: leave out bos")
    return known if bos else None


def _blocks(
    model: HookedModel, n: int, block: int | None, bos: bool | None, seed: int
) -> tuple[Tensor, Tensor]:
    """A fresh and a repeated block per sequence, without a common token."""
    if n < 1 or seed < 0:
        raise InputError(f"n must be at least 1 and seed at least 0, but got {n} and {seed}")
    ids, n_ctx = usable_ids(model), shape(model).n_ctx
    most = min((n_ctx - (bos_id(model, bos) is not None)) // 2, len(ids) // 2)
    size = min(BLOCK, most) if block is None else block
    if not 2 <= size <= most:
        raise InputError(
            f"a block must have 2..{most} tokens, so that it fits twice into the context of "
            f"{n_ctx} and the vocabulary of {len(ids)}, but got {size}"
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack(
        [torch.randperm(len(ids), generator=generator)[: 2 * size] for _ in range(n)]
    )
    return ids[drawn[:, size:]], ids[drawn[:, :size]]


def _batch(model: HookedModel, first: Tensor, second: Tensor, bos: bool | None) -> Batch:
    start, device = bos_id(model, bos), shape(model).device
    before = first.new_full((len(first), int(start is not None)), start or 0)
    tokens = torch.cat([before, first, second], dim=1).to(device)
    position = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    begin = before.shape[1] + first.shape[1]
    in_second = position >= begin
    following = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-1)
    return Batch(
        tokens,
        torch.full((len(tokens),), tokens.shape[1], device=device),
        following,
        in_second & (following >= 0),
        torch.full_like(tokens, -1),
        groups={
            "first_block": (position >= before.shape[1]) & ~in_second,
            "second_block": in_second,
        },
    )


def _tokenizer(model: Any) -> Any:
    """The `transformers` tokenizer of a model, if it has one."""
    tokenizer = getattr(getattr(model, "vocabulary", None), "tokenizer", None)
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    return tokenizer if hasattr(tokenizer, "added_tokens_decoder") else None
