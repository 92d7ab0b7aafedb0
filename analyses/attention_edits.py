"""What interventions on attention share: which heads, rows of a pattern, scores, tables.

A row of a pattern is the attention of one query. Scores are changed before the softmax, so that
what is left of a row sums to 1 however little of it that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.ablation import parts_of
from analyses.reruns import Edit, Where
from models.attention import visible_keys
from models.errors import InputError
from models.gpt import GPT
from models.interface import HookedModel, capture, shape
from models.names import Head, HeadLike, hook_name
from models.tasks import Batch

PATTERN: Final = "attn.hook_pattern"
SCORES: Final = "attn.hook_attn_scores"

NewRows = Callable[[Head, Where], Tensor]
"""New attention of a head, ``[sequence, query, key]`` or 1 for all sequences; keys from 0 on."""


def chosen_heads(model: HookedModel, heads: Iterable[HeadLike]) -> list[Head]:
    """Heads that a user named (all of a layer are ``"4.*"``), checked against the model.

    Raises:
        InputError: none, or a part of the model that is no head.
    """
    parts = parts_of(model, heads if isinstance(heads, str) else list(heads))
    if other := [str(part) for part in parts if part.head is None]:
        raise InputError(f"attention is of heads, as in 4.11 or 4.*, but got {', '.join(other)}")
    if not parts:
        raise InputError("name at least one head, as in 4.11")
    return [(part.layer, part.head) for part in parts if part.head is not None]


def by_layer(heads: Iterable[Head]) -> dict[int, list[int]]:
    """The heads of each layer."""
    found: dict[int, list[int]] = {}
    for layer, head in heads:
        found.setdefault(layer, []).append(head)
    return found


def seen(model: HookedModel, where: Where, device: torch.device) -> Bool[Tensor, "query key"]:
    """Which of the keys up to the last query each query's mask leaves visible."""
    first, stop = where.positions.start, where.positions.stop
    return visible_keys(stop - first, stop, window=shape(model).window, device=device)


def replace_rows(
    heads: Iterable[Head], rows: NewRows, queries: Bool[Tensor, "sequence query"]
) -> list[Edit]:
    """Edits that give heads other patterns, at some queries of each sequence."""

    def edit(layer: int, some: Sequence[int]) -> Edit:
        def change(part: Tensor, where: Where) -> None:
            at = queries[where.sequences, where.positions, None].to(part.device)
            for head in some:
                new = rows((layer, head), where).to(part)
                part[:, head] = torch.where(at, new, part[:, head])

        return Edit(layer, PATTERN, change)

    return [edit(layer, some) for layer, some in by_layer(heads).items()]


def check_answers(model: HookedModel, batch: Batch, point: str) -> None:
    """Refuse an engine that shows its attention but goes on with another one.

    A bridge may fire its attention points after the fact: what a hook puts in is then dropped.

    Raises:
        InputError: heads do not answer to what is put in at ``point``.
    """
    longest = int(batch.lengths.argmax())
    if isinstance(model, GPT) or int(batch.lengths[longest]) < 2:
        return
    tokens = batch.tokens[longest : longest + 1, :2]
    z = hook_name("attn.hook_z", 0)

    def only(key: int) -> Callable[..., Tensor]:
        def hook(activation: Tensor, *, hook: Any) -> Tensor:
            activation = activation.clone()
            nothing = 0 if point == PATTERN else torch.finfo(activation.dtype).min
            one = activation.new_full(activation.shape[-1:], nothing)
            one[key] = 1 if point == PATTERN else 0
            activation[:, :, -1] = one
            return activation

        return hook

    keys = (0, 1)
    found = [
        capture(model, tokens, [z], hooks=[(hook_name(point, 0), only(key))]).activations[z]
        for key in keys
    ]
    value = hook_name("attn.hook_v", 0)
    first, second = capture(model, tokens, [value]).activations[value][0, keys, ...]
    if torch.equal(found[0][:, -1], found[1][:, -1]) and not torch.equal(first, second):
        raise InputError(
            f"this model does not go on with what is put in at {point}: its attention cannot be "
            "edited; load it with eager attention, or with engine='gpt'"
        )


def tempered(
    scores: Float[Tensor, "sequence head query key"],
    temperature: float,
    visible: Bool[Tensor, "query key"],
) -> Float[Tensor, "sequence head query key"]:
    """Scores divided by a temperature, the best visible one moved to 0 so that none overflows."""
    wide = scores if scores.dtype == torch.float64 else scores.float()
    wide = wide.masked_fill(~visible, -torch.inf)
    best = wide.amax(-1, keepdim=True)
    return ((wide - best) / temperature).to(scores.dtype)
