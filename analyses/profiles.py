"""Where every head looks, by distance and by key: what else could explain its score.

The *offset* of a cell is query - key. One pass over the pattern gives the attention at every
offset (a product with the sheared pattern, which is a view) and on every key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.inputs import real_positions
from analyses.streaming import Rows
from models.interface import HookedModel, shape
from models.tasks import Batch

Queries = Callable[[Batch], Bool[Tensor, "batch query"]]
ENOUGH = 0.5  # of the queries must have an offset, or see a key, for it to be a rival


class Profiles:
    """Mean attention by offset and by key, over sequences, for some sets of queries.

    Args:
        model: a hooked model.
        n_pos: length of the sequences.
        groups: sets of queries by name, from a batch.

    Within a sequence an offset is averaged over the queries that have it, a key over those that
    may see it; then sequences are averaged. What fewer than half of the queries have is NaN.
    """

    def __init__(self, model: HookedModel, n_pos: int, groups: Mapping[str, Queries]) -> None:
        sizes = shape(model)
        self.groups, self.n_layers = groups, sizes.n_layers
        self._total = torch.zeros(
            2, sizes.n_layers, sizes.n_heads, len(groups), n_pos, dtype=torch.float64
        )
        self._n = torch.zeros(len(groups), n_pos, dtype=torch.float64)  # sequences
        self._has = torch.zeros(len(groups), n_pos, dtype=torch.float64)  # queries

    def __call__(self, batch: Batch) -> Callable[[Rows], None]:
        """What is shown the rows of a chunk of the batch; see `analyses.streaming`."""
        real = real_positions(batch)
        queries = torch.stack([function(batch) & real for function in self.groups.values()], dim=1)
        # offset d is there for queries d, d + 1, ..., and these may see key d
        has = queries.flip(-1).cumsum(-1).flip(-1).double()
        self._n += (has > 0).sum(0).cpu()
        self._has += has.sum(0).cpu()
        counted = has.clamp_min(1)[:, None]

        def look(rows: Rows) -> None:
            weight = queries[:, None, :, rows.queries] & rows.attends[:, :, None]
            weight = weight.to(rows.pattern.dtype)
            pattern = rows.pattern
            if bool(pattern.isnan().any()):
                pattern = pattern.nan_to_num()
            for kind, sums in enumerate((by_offset(pattern, weight), weight @ pattern)):
                n = sums.shape[-1]
                part = (sums / counted[..., :n]).sum(0).cpu()
                self._total[kind, rows.layer, :, :, :n] += part

        return look

    @property
    def offsets(self) -> Float[Tensor, "layer head group offset"]:
        """Mean attention ``offset`` keys back."""
        return self._mean(0)

    @property
    def keys(self) -> Float[Tensor, "layer head group key"]:
        """Mean attention on each key."""
        return self._mean(1)

    def _mean(self, kind: int) -> Tensor:
        common = self._has >= ENOUGH * self._has[:, :1].clamp_min(1)
        return self._total[kind] / torch.where(common, self._n, torch.nan)


def by_offset(
    pattern: Float[Tensor, "batch head query key"], weight: Float[Tensor, "batch #head group query"]
) -> Float[Tensor, "batch head group key"]:
    """Weighted sums over queries of the attention at each offset, 0 first.

    Args:
        pattern: rows that end at the key of the last query; 0 where a key is not visible.
        weight: of each query, in each group.

    Row i starts one key further right than row i - 1, in a view whose rows are one cell longer
    than the pattern's: what it reads before a row's first key is the hidden end of the row above.
    """
    size, n_heads, n, n_keys = pattern.shape
    pattern = pattern.contiguous()
    sums = pattern.new_zeros(size, n_heads, weight.shape[2], n_keys)
    if n > 1:
        sheared = pattern.as_strided(
            (size, n_heads, n - 1, n_keys),
            (n_heads * n * n_keys, n * n_keys, n_keys + 1, 1),
            pattern.storage_offset() + n_keys - n + 2,
        )
        sums += weight[..., 1:] @ sheared
    sums[..., n - 1 :] += weight[..., :1] * pattern[:, :, :1, : n_keys - n + 1]
    return sums.flip(-1)
