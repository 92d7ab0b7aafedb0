"""Does a head write the reverse? Attention by how far it is from the anti-diagonal.

For a query that predicts output j of n, the letter to write stands where query + key = 2n - 1
(0-based). The *offset* of a cell is query + key - (2n - 1), so 0 is the anti-diagonal; the best
other offset is the head's rival explanation.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from analyses.attention_patterns import is_anti_diagonal
from analyses.criteria import CRITERIA
from analyses.inputs import Inputs, as_batch
from analyses.registry import run_module
from analyses.statistics import FEWEST_UNITS, INTERVAL, mean_interval
from analyses.streaming import Prepare, Reduce, Rows, stream_patterns, uniform_values
from models.errors import InputError
from models.interface import HookedModel
from models.tasks import Batch

UNITS = {"mass": "share of attention, 0..1", "offset": "positions"}


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
        One row per head and offset: ``layer``, ``head``, ``offset``; ``mass`` and ``chance``
        (shares of attention, 0..1); ``ci_low``, ``ci_high`` (95% BCa over sequences, NaN under
        10 sequences); ``smallest``, ``largest`` (over sequences); ``n`` sequences and
        ``skipped`` ones in which no query has the offset.

    Raises:
        InputError: the input has no anti-diagonal.

    Identity: at offset 0 ``mass`` is the score ``anti_diagonal`` of `attention_patterns`.
    """
    batch = as_batch(model, tokens, seed=seed)
    offsets = profile_offsets(batch)
    values = stream_patterns(model, batch, {"mass": offset_mass(offsets)})["mass"]
    return profile_table(model, batch, values, seed=seed)


def profile_table(
    model: HookedModel, batch: Batch, values: Tensor, *, seed: int = 0
) -> pd.DataFrame:
    """`anti_diagonal` from what `offset_mass` gave, ``[sequence, layer, head, offset]``."""
    offsets = profile_offsets(batch)
    uniform = uniform_values(model, batch, {"mass": offset_mass(offsets)})["mass"]
    interval = mean_interval(values.numpy(), seed=seed)
    layer, head, offset = np.indices(values.shape[1:]).reshape(3, -1)
    columns = {
        "layer": layer,
        "head": head,
        "offset": offsets.cpu().numpy()[offset],
        "mass": interval.mean.ravel(),
        "chance": uniform.nanmean(0).numpy()[offset],
        "ci_low": interval.low.ravel(),
        "ci_high": interval.high.ravel(),
        "smallest": interval.smallest.ravel(),
        "largest": interval.largest.ravel(),
        "n": interval.n.ravel(),
        "skipped": len(values) - interval.n.ravel(),
    }
    table = pd.DataFrame(columns)
    table.attrs |= {"units": UNITS, "interval": INTERVAL}
    return table


def label_anti_diagonal(
    profile: pd.DataFrame, *, floor: float | None = None, ratio: float | None = None
) -> pd.DataFrame:
    """Which heads are labelled anti-diagonal heads.

    A head is labelled when the lower end of its interval at offset 0 reaches ``floor`` and its
    mass there is at least ``ratio`` times its best rival's. Where the interval is degenerate the
    smallest value stands in; with under 10 sequences there is neither, and no label.

    Args:
        profile: from `anti_diagonal`.
        floor, ratio: default `CRITERIA` ``label_floor`` and ``label_ratio``.

    Returns:
        One row per head: ``layer``, ``head``, ``rival_offset`` (missing where every rival is
        undefined), ``rival`` (mass at it), ``labelled`` (bool). ``attrs["criteria"]`` holds the
        thresholds.
    """
    floor = CRITERIA["label_floor"].threshold if floor is None else floor
    ratio = CRITERIA["label_ratio"].threshold if ratio is None else ratio
    keys = ["layer", "head"]
    own = profile[profile["offset"] == 0].set_index(keys)
    rivals = profile[profile["offset"] != 0].sort_values("mass", ascending=False, kind="stable")
    best = rivals.groupby(keys).head(1).set_index(keys).reindex(own.index)
    low = own["ci_low"].fillna(own["smallest"].where(own["n"] >= FEWEST_UNITS))
    labels = pd.DataFrame(
        {
            "rival_offset": best["offset"].where(best["mass"].notna()),
            "rival": best["mass"],
            "labelled": (low >= floor) & (own["mass"] >= ratio * best["mass"]),
        }
    ).reset_index()
    labels.attrs["criteria"] = {"label_floor": floor, "label_ratio": ratio}
    return labels


def offset_mass(offsets: Tensor) -> Prepare:
    """Reducer: attention at each offset, averaged over the predicting queries that have it."""

    def prepare(batch: Batch) -> Reduce:
        keys, exists = _cells(batch, offsets)

        def reduce(rows: Rows) -> Tensor:
            pattern, defined = rows.pattern, exists[:, None, rows.queries] & rows.attends[..., None]
            index = keys[:, rows.queries].clamp(0, pattern.shape[-1] - 1)[:, None]
            mass = pattern.gather(-1, index.expand(-1, pattern.shape[1], -1, -1))
            return torch.where(defined, mass, torch.nan)

        return reduce

    return prepare


def profile_offsets(batch: Batch) -> Int[Tensor, " offset"]:
    """The offsets that at least half of the predicting queries have."""
    if not is_anti_diagonal(batch):
        raise InputError(
            "an anti-diagonal needs a batch whose target keys lie on one, "
            "such as held-out sequences of the reversal task"
        )
    n = batch.tokens.shape[1]
    offsets = torch.arange(-n, n + 1, device=batch.tokens.device)
    _, exists = _cells(batch, offsets)
    share = exists.sum((0, 1)) / (batch.target_keys >= 0).sum()
    return offsets[share >= 0.5]


def _cells(
    batch: Batch, offsets: Tensor
) -> tuple[Int[Tensor, "batch query offset"], Bool[Tensor, "batch query offset"]]:
    """The key at each offset for each query, and whether a predicting query has it."""
    predicting = batch.target_keys >= 0
    query = torch.arange(predicting.shape[1], device=predicting.device)
    keys = batch.target_keys[..., None] + offsets.to(predicting.device)
    return keys, predicting[..., None] & (keys >= 0) & (keys <= query[:, None])


if __name__ == "__main__":
    run_module("anti_diagonal")
