"""Does a head write the reverse? Attention by how far it is from the anti-diagonal.

For a query that predicts output j of n, the letter to write stands where query + key = 2n - 1
(0-based). The *offset* of a cell is query + key - (2n - 1), so 0 is the anti-diagonal; the best
other offset is the head's rival explanation.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses.attention_patterns import is_anti_diagonal
from analyses.criteria import CRITERIA
from analyses.inputs import Inputs, as_batch
from analyses.statistics import mean_interval
from analyses.streaming import Pattern, Prepare, Reduce, mean_over, stream_patterns
from analyses.registry import run_module
from models.errors import InputError
from models.interface import HookedModel
from models.tasks import Batch


def anti_diagonal(model: HookedModel, tokens: Inputs = None, *, seed: int = 0) -> pd.DataFrame:
    """Attention at every offset from the anti-diagonal, for every head.

    An offset is averaged over the predicting queries for which such a key exists; offsets that
    fewer than half of them have are left out.

    Args:
        model: a hooked model.
        tokens: a task batch whose target keys lie on an anti-diagonal; default held-out
            sequences of the model's task.
        seed: of the default batch and of the resampling.

    Returns:
        One row per head and offset: ``layer``, ``head``, ``offset``, ``mass`` (share of
        attention, 0..1), ``chance``, ``ci_low``, ``ci_high``, ``n``.

    Raises:
        InputError: the input has no anti-diagonal.
    """
    batch = as_batch(model, tokens, seed=seed)
    offsets = _offsets(batch)
    reducer = offset_mass(offsets)
    values = stream_patterns(model, batch, {"mass": reducer})["mass"].numpy()
    n = batch.tokens.shape[1]
    uniform = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    chance = reducer(batch)(uniform.to(batch.tokens.device).expand(len(batch), 1, n, n))
    interval = mean_interval(values, seed=seed)
    layer, head, offset = np.indices(values.shape[1:]).reshape(3, -1)
    table = pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "offset": offsets.cpu().numpy()[offset],
            "mass": interval.mean.ravel(),
            "chance": chance.double().nanmean((0, 1)).cpu().numpy()[offset],
            "ci_low": interval.low.ravel(),
            "ci_high": interval.high.ravel(),
            "n": interval.n.ravel(),
        }
    )
    table.attrs["units"] = {"mass": "share of attention, 0..1", "offset": "positions"}
    return table


def label_anti_diagonal(profile: pd.DataFrame) -> pd.DataFrame:
    """Which heads are labelled anti-diagonal heads.

    A head is labelled when the lower end of its interval at offset 0 reaches
    ``label_floor`` and its mass there is at least ``label_ratio`` times its best rival's.

    Args:
        profile: from `anti_diagonal`.

    Returns:
        One row per head: ``layer``, ``head``, ``rival_offset``, ``rival`` (mass at it),
        ``labelled`` (bool).
    """
    rows = []
    for (layer, head), part in profile.groupby(["layer", "head"]):
        own = part[part["offset"] == 0].iloc[0]
        best = part.loc[part.loc[part["offset"] != 0, "mass"].idxmax()]
        # a degenerate interval (every sequence equal) is the value itself
        low = own["ci_low"] if np.isfinite(own["ci_low"]) else own["mass"]
        labelled = (
            low >= CRITERIA["label_floor"].threshold
            and own["mass"] >= CRITERIA["label_ratio"].threshold * best["mass"]
        )
        rows.append((layer, head, int(best["offset"]), float(best["mass"]), bool(labelled)))
    return pd.DataFrame(rows, columns=["layer", "head", "rival_offset", "rival", "labelled"])


def offset_mass(offsets: Tensor) -> Prepare:
    """Reducer: attention at each offset, averaged over the predicting queries that have it."""

    def prepare(batch: Batch) -> Reduce:
        predicting = batch.target_keys >= 0
        query = torch.arange(predicting.shape[1], device=predicting.device)
        keys = batch.target_keys[..., None] + offsets  # batch query offset
        exists = predicting[..., None] & (keys >= 0) & (keys <= query[:, None])
        index = keys.clamp(0, predicting.shape[1] - 1)[:, None]

        def reduce(pattern: Pattern) -> Tensor:
            mass = pattern.gather(-1, index.expand(-1, pattern.shape[1], -1, -1))
            return mean_over(mass.transpose(-1, -2), exists[:, None].transpose(-1, -2))

        return reduce

    return prepare


def _offsets(batch: Batch) -> Tensor:
    if not is_anti_diagonal(batch):
        raise InputError(
            "an anti-diagonal needs a batch whose target keys lie on one, "
            "such as held-out sequences of the reversal task"
        )
    predicting = batch.target_keys >= 0
    n = predicting.shape[1]
    query = torch.arange(n, device=predicting.device)
    offsets = torch.arange(-n, n + 1, device=predicting.device)
    keys = batch.target_keys[..., None] + offsets
    exists = predicting[..., None] & (keys >= 0) & (keys <= query[:, None])
    share = exists.sum((0, 1)) / predicting.sum()
    return offsets[share >= 0.5]


if __name__ == "__main__":
    run_module("anti_diagonal")
