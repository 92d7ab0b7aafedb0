"""Keys and values of the positions that a GPT has run, so that later ones need not run them again.

::

    cache = KeyValueCache()
    with torch.no_grad():
        model(prompt, cache=cache)             # fills it
        logits = model(following, cache=cache)  # the next positions, as many as you like

A cache is a value of the caller's; the model keeps none. A chunk gives the rows of the full pass,
whatever the chunks were. Hooks see the chunk's rows only, except that scores and pattern are
``[batch head new_query all_keys]``; what a hook does to a key or a value is what is kept.

Rows may hold different numbers of positions: each writes at its own, and a place that a row does
not hold is hidden from it. A batch padded on the right is run as it is and then cut:
``cache.truncate(lengths)``. Memory is reserved by doubling, up to the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.config import GPTConfig
from models.errors import InputError, LengthError

Places = slice | Int[Tensor, "batch pos"]


class LayerCache:
    """One layer's keys, rotated where that applies, and values: ``[batch kv_head room d_head]``."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def extend(
        self,
        k: Float[Tensor, "b new kv_head d_head"],
        v: Float[Tensor, "b new kv_head d_head"],
        chunk: Chunk,
    ) -> tuple[Float[Tensor, "b key kv_head d_head"], Float[Tensor, "b key kv_head d_head"]]:
        """Write a chunk's keys and values at its places; views of all that are in use."""
        if k.requires_grad or v.requires_grad:
            raise InputError("a cache keeps values and no graph: run it under torch.no_grad()")
        self.keys = _written(self.keys, k, chunk)
        self.values = _written(self.values, v, chunk)
        used = slice(chunk.n_keys)
        return self.keys[:, :, used].transpose(1, 2), self.values[:, :, used].transpose(1, 2)


@dataclass(frozen=True)
class Chunk:
    """Where the positions of one pass go.

    Args:
        places: positions, the same for all rows, or for each.
        n_keys: how many keys there are, those of the chunk included, in the longest row.
        n_ctx: how many there may be.
        visible: which keys each query sees; ``None`` where the positions alone say it.
    """

    places: Places
    n_keys: int
    n_ctx: int
    visible: Bool[Tensor, "batch 1 query key"] | None


class KeyValueCache:
    """Keys and values by layer; empty at first.

    Attributes:
        lengths: how many positions each row holds.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._layers: dict[int, LayerCache] = {}

    def __getitem__(self, layer: int) -> LayerCache:
        """One layer."""
        return self._layers.setdefault(layer, LayerCache())

    def truncate(self, lengths: Sequence[int]) -> None:
        """Keep the first ``lengths[i]`` positions of row ``i`` and forget the others.

        Raises:
            LengthError: more than a row holds.
        """
        if len(lengths) != len(self.lengths) or any(
            not 0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)
        ):
            raise LengthError(
                f"a cache that holds {self.lengths} positions cannot be cut to {list(lengths)}"
            )
        self.lengths = list(lengths)

    def chunk(self, tokens: Int[Tensor, "batch pos"], config: GPTConfig) -> Chunk:
        """Where the next tokens go. The cache holds them when `advance` says so.

        Raises:
            InputError: another batch than the cache was filled with.
            LengthError: more than the context.
        """
        batch, n = tokens.shape
        held = self.lengths or [0] * batch
        if len(held) != batch:
            raise InputError(f"the cache holds {len(held)} rows, but got {batch}")
        first, last = min(held), max(held)
        if last + n > config.n_ctx:
            raise LengthError(
                f"the model's context is {config.n_ctx} tokens, but the cache holds {last} "
                f"and got {n} more"
            )
        places: Places = slice(first, first + n)
        visible = None
        if first != last:
            starts = torch.tensor(held, device=tokens.device)
            places = starts[:, None] + torch.arange(n, device=tokens.device)
            key, query = torch.arange(last + n, device=tokens.device), places[:, None, :, None]
            visible = key <= query
            if config.window is not None:
                visible &= key > query - config.window
        return Chunk(places, last + n, config.n_ctx, visible)

    def advance(self, tokens: Int[Tensor, "batch pos"]) -> None:
        """Hold the positions of these tokens, now that every layer has run."""
        batch, n = tokens.shape
        self.lengths = [held + n for held in self.lengths or [0] * batch]


def _written(
    store: Tensor | None, new: Float[Tensor, "b new kv_head d_head"], chunk: Chunk
) -> Float[Tensor, "b kv_head room d_head"]:
    """The store with a chunk written to it, in place where there is room."""
    batch, _, heads, width = new.shape
    if store is None or store.shape[2] < chunk.n_keys:
        room = min(chunk.n_ctx, max(64, 2 * chunk.n_keys))
        larger = new.new_zeros(batch, heads, room, width)  # a hidden place must hold numbers
        if store is not None:
            larger[:, :, : store.shape[2]] = store
        store = larger
    if isinstance(chunk.places, slice):
        store[:, :, chunk.places] = new.transpose(1, 2)
    else:
        rows = torch.arange(batch, device=new.device)[:, None]
        store[rows, :, chunk.places] = new
    return store
