"""Position or content: does a head's attention change from sequence to sequence?

At each position, the total variation between a sequence's attention row and the mean row of the
other sequences there. Small: the head routes by position. Its causal twin is to substitute the
mean pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.inputs import Inputs, real_positions
from analyses.random_tokens import batch_for
from analyses.registry import run_module
from analyses.streaming import Reduce, Rows, stream_patterns
from analyses.tables import score_table
from models.interface import HookedModel, shape
from models.tasks import Batch

UNIT = "total variation, 0..1"


def content_dependence(model: HookedModel, tokens: Inputs = None, *, seed: int = 0) -> pd.DataFrame:
    """How much every head's attention depends on content rather than on position.

    ``1/2 sum_j |A_ij - M_ij|`` with M the mean over the other sequences, averaged over queries
    with two or more visible keys, then over sequences. Two passes; the mean patterns of all
    heads are held, ``layers * heads * pos**2`` numbers, however many sequences there are.

    Args:
        model: a hooked model.
        tokens: sequences of one layout; default the model's task, or repeated random tokens.
        seed: of the default batch and of the resampling.

    Returns:
        One row per head: ``layer``, ``head``, ``score``, ``value`` (0..1), ``chance`` (0, what
        attention by position alone gives), the interval, range and counts of
        `analyses.attention_patterns`. NaN where no other sequence has the position.

    Identity: 0 for a head whose rows are the same in every sequence.
    """
    batch = batch_for(model, tokens, seed=seed)
    mean, n = mean_pattern(model, batch)
    n = n.to(batch.tokens.device)

    def prepare(batch: Batch) -> Reduce:
        real = real_positions(batch)
        position = torch.arange(batch.tokens.shape[1], device=real.device)
        defined = real & (position >= 1) & (n >= 2)

        def reduce(rows: Rows) -> Tensor:
            at = rows.queries
            row_mean = mean[rows.layer, :, at, : at.stop].to(rows.pattern)
            distance = (rows.pattern - row_mean).abs_().sum(-1) / 2
            others = n[at] / (n[at] - 1)  # A - mean of the others = (A - mean of all) n / (n - 1)
            return torch.where(defined[:, None, at] & rows.attends, distance * others, torch.nan)

        return reduce

    values = stream_patterns(model, batch, {"content_dependence": prepare})
    return score_table(values, {"content_dependence": 0.0}, unit=UNIT, seed=seed)


def mean_pattern(
    model: HookedModel, batch: Batch
) -> tuple[Float[Tensor, "layer head query key"], Float[Tensor, " query"]]:
    """The mean pattern over the sequences that reach each position, and how many do.

    On the CPU, float32.
    """
    total = PatternSum(model, batch)
    stream_patterns(model, batch, {}, also=total)
    return total.mean()


class PatternSum:
    """Visitor of `analyses.streaming.stream_patterns` that adds the patterns up.

    Args:
        model: whose patterns.
        batch: the sequences of the whole pass.
    """

    def __init__(self, model: HookedModel, batch: Batch) -> None:
        sizes, n_pos = shape(model), batch.tokens.shape[1]
        self.total = torch.zeros(sizes.n_layers, sizes.n_heads, n_pos, n_pos)
        self.n = real_positions(batch).sum(0).float().cpu()

    def __call__(self, batch: Batch) -> Callable[[Rows], None]:
        """For a chunk of the batch: what is shown its rows."""
        real = real_positions(batch)

        def look(rows: Rows) -> None:
            at = rows.queries
            counted = (real[:, None, at] & rows.attends)[..., None]
            part = torch.where(counted, rows.pattern, 0.0).sum(0)
            self.total[rows.layer, :, at, : at.stop] += part.cpu()

        return look

    def mean(self) -> tuple[Float[Tensor, "layer head query key"], Float[Tensor, " query"]]:
        """`mean_pattern`, after the pass."""
        return self.total / self.n.clamp_min(1)[:, None], self.n


if __name__ == "__main__":
    run_module("content_dependence")
