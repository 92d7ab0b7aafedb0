"""Head entropies: how spread out each head's attention is.

``H = -sum_j A_ij ln A_ij`` in nats over the visible keys of a query. Low is not the same as
reversal: a head that stares at one fixed key has entropy 0.
"""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.inputs import Inputs, as_batch, real_positions
from analyses.registry import run_module
from analyses.streaming import Prepare, Reduce, Rows
from analyses.tables import score_heads
from models.interface import HookedModel, shape
from models.tasks import Batch

UNIT = "nats (entropy_normalized: 0..1)"


def row_entropy(
    pattern: Float[Tensor, "*#batch key"], visible: Bool[Tensor, "*#batch key"] | None = None
) -> Float[Tensor, "*#batch"]:
    """Entropy of each row in nats; a row that is all zero or holds NaN is NaN.

    Args:
        pattern: attention weights, any floating type; computed in float32 or better.
        visible: keys that count; default all.

    >>> row_entropy(torch.tensor([0.5, 0.5, 0.0, 0.0])).item().__round__(6)
    0.693147
    >>> row_entropy(torch.tensor([1.0, 0.0, 0.0])).item()
    0.0
    """
    pattern = pattern if pattern.dtype == torch.float64 else pattern.float()
    if visible is not None:
        pattern = torch.where(visible, pattern, 0.0)
    # p ln p with ln 0 cut off at the smallest float is 0 at 0; measured: a third of entr's time
    log = pattern.clamp_min(torch.finfo(pattern.dtype).tiny).log_()
    entropy = torch.linalg.vecdot(pattern, log).abs()  # abs: -0.0 is 0.0
    return torch.where(pattern.sum(-1) > 0, entropy, torch.nan)


def normalized_entropy(
    pattern: Float[Tensor, "*#batch query key"], visible: Bool[Tensor, "*#batch query key"]
) -> Float[Tensor, "*#batch query"]:
    """Entropy divided by the most it can be, ``ln(visible keys)``; NaN with one visible key."""
    keys = visible.sum(-1)
    most = torch.where(keys >= 2, keys, torch.nan).log()
    return row_entropy(pattern, visible) / most


def entropy(model: HookedModel, tokens: Inputs = None, *, seed: int = 0) -> pd.DataFrame:
    """Entropy of every head's attention, by group of queries.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`.
        seed: of the default batch and of the resampling.

    Returns:
        One row per head and score: ``layer``, ``head``, ``score``, ``value``, ``chance``
        (uniform attention), ``ci_low``, ``ci_high``, ``smallest``, ``largest``, ``n``,
        ``skipped``. Scores: ``entropy`` (nats, all queries), ``entropy_<group>`` (nats, the
        task's query groups) and ``entropy_normalized`` (0..1, queries with two or more
        visible keys).
    """
    batch = as_batch(model, tokens, seed=seed)
    reducers = entropy_reducers(batch, shape(model).window)
    return score_heads(model, batch, reducers, unit=UNIT, seed=seed)


def entropy_reducers(batch: Batch, window: int | None = None) -> dict[str, Prepare]:
    """Reducers by score for the query groups of a batch."""
    groups = ["", *batch.groups]
    reducers = {"entropy" + (f"_{g}" if g else ""): _mean_entropy(g, window) for g in groups}
    return {**reducers, "entropy_normalized": _mean_entropy("", window, normalized=True)}


def _mean_entropy(group: str, window: int | None, *, normalized: bool = False) -> Prepare:
    def prepare(batch: Batch) -> Reduce:
        queries = real_positions(batch)
        if group:
            queries = queries & batch.groups[group]
        keys = torch.arange(1, batch.tokens.shape[1] + 1, device=queries.device)
        keys = keys if window is None else keys.clamp_max(window)
        most = torch.where(keys >= 2, keys, torch.nan).log()

        def reduce(rows: Rows) -> Tensor:
            entropy = rows.once(row_entropy)
            if normalized:
                entropy = entropy / most[rows.queries].to(entropy.dtype)
            return torch.where(queries[:, None, rows.queries], entropy, torch.nan)

        return reduce

    return prepare


if __name__ == "__main__":
    run_module("entropy")
