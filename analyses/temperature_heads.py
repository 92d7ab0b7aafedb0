"""Which heads keep a model right when it is sampled hot.

A head may be needed to be right at all, or only to be sure. Removing one of the second kind
leaves the greedy answer as it is and brings the fall of the exact match to lower temperatures.
The curve is exact, without and with each head (`analyses.temperature`), so nothing is sampled:
one run of a variant gives the logits, and these the curve at every temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline
from torch import Tensor

from analyses.ablation import (
    EVALUATED,
    Scored,
    Variant,
    ablations_of,
    parts_of,
    score_variants,
)
from analyses.inputs import Inputs, as_batch, task_of
from analyses.metrics import Metric, Rows
from analyses.readout import Readout
from analyses.registry import run_module
from analyses.statistics import INTERVAL, mean_interval, mean_where_defined
from analyses.substitutes import default_ablation
from analyses.temperature import TEMPERATURES, Array, answer_log_probability, sweep_temperatures
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import HeadLike

COLDEST, HOTTEST, GRID = 0.05, 20.0, 49
HeadSets = Sequence[HeadLike] | Sequence[Sequence[HeadLike]] | None


@dataclass(frozen=True)
class RightAt(Metric):
    """Probability that a sampled answer is right in all its outputs, at a temperature.

    Args:
        temperature: above 0; the logits are divided by it.
    """

    temperature: float
    name = "exact_match"
    unit = "probability"
    whole = True

    def values(self, read: Readout, rows: Rows) -> Tensor:
        """``ln softmax(logits / t)`` of the right token at each output."""
        logits = read.logits().double()[:, None]
        return answer_log_probability(logits, rows.targets[:, None], self.temperature)[:, 0]

    def combine(self, values: Tensor, rows: Rows) -> Tensor:
        """The product over a sequence's outputs; NaN where it has none."""
        mean = super().combine(values, rows)
        n_outputs = rows.owner.bincount(minlength=mean.numel()).view_as(mean)
        return (mean * n_outputs).exp()


def fragility(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: HeadSets = None,
    temperatures: Sequence[float] = TEMPERATURES,
    ablation: str | Iterable[str] | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The exact-match curve over temperatures, with and without heads.

    Args:
        model: a hooked model trained on a task.
        tokens: a task batch; default 256 held-out sequences.
        heads: to remove together, as in `analyses.ablation.ablate`; or a list of such lists, each
            removed by itself. Default each head alone.
        temperatures: above 0.
        ablation: ``zero``, ``mean`` or ``resample``, or several; default as in
            `analyses.ablation.ablate`. With ``resample`` an answer's probability is the mean over
            the draws.
        reference: sequences for ``mean``, see `analyses.ablation.ablate`.
        seed: of the batches, the resampling partners and the intervals.

    Returns:
        One row per set of heads, ablation and temperature: ``heads``, ``ablation``,
        ``temperature``; ``clean``, ``ablated``, ``change`` (exact probability that a sampled
        answer is right, means over ``n`` sequences); ``ci_low``, ``ci_high`` (of the change, 95%
        BCa over sequences); ``monte_carlo_error`` (of ``ablated``; NaN without random draws);
        ``clean_half_point``, ``ablated_half_point`` (the highest temperature at which exact match
        is 50%, from a spline through 49 temperatures; NaN outside 0.05..20 or where it never
        is); ``n``; ``baseline`` (what stood in).

    Raises:
        UnknownNameError: a head that the model does not have.
        InputError: a temperature that is not above 0, tokens without outputs, no heads.

    Identity: removing no head changes nothing; ``clean`` is the ``exact_match`` of
    `analyses.temperature.temperature` on the same sequences.
    """
    steps = sweep_temperatures(temperatures)
    if tokens is None:
        task_of(model)  # random tokens have no answer
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    if not batch.outputs.any():
        raise InputError("the tokens have no outputs: give a batch of a task")
    kinds = [default_ablation(batch, reference)] if ablation is None else ablations_of(ablation)
    sets = [tuple(parts_of(model, some)) for some in head_sets(model, heads)]
    variants = [Variant(parts, kind) for parts in sets for kind in kinds]
    grid = np.geomspace(COLDEST, HOTTEST, GRID).tolist()
    metrics = [RightAt(t) for t in (*steps, *grid)]
    scored = score_variants(model, batch, metrics, variants, reference=reference, seed=seed)
    return _table(variants, steps, grid, scored, seed)


def head_sets(model: HookedModel, heads: HeadSets) -> list[list[HeadLike]]:
    """Each head alone, one set of heads, or several.

    Raises:
        InputError: heads and sets of heads mixed, or no set at all.
    """
    if heads is None:
        return [[head] for head in shape(model).heads]
    given: list[Any] = list(heads)
    are_sets = [isinstance(one, list) or _is_set(one) for one in given]
    if not given or (any(are_sets) and not all(are_sets)):
        raise InputError(
            'heads are removed together, as in ["1.2", "0.3"], or set by set, as in '
            f'[["1.2"], ["0.3"]], but got {given}'
        )
    return [list(one) for one in given] if all(are_sets) else [given]


def _is_set(one: Any) -> bool:
    """Whether a tuple is a set of heads; one of two numbers is a head itself."""
    return isinstance(one, tuple) and not all(isinstance(part, int) for part in one)


def _table(
    variants: Sequence[Variant],
    steps: Sequence[float],
    grid: Sequence[float],
    scored: Scored,
    seed: int,
) -> pd.DataFrame:
    change = scored.ablated - scored.clean  # variant sequence temperature
    compared = np.where(np.isnan(change), np.nan, scored.clean)
    wanted = slice(0, len(steps))
    interval = mean_interval(np.moveaxis(change[..., wanted], 1, 0), seed=seed)
    clean, ablated = (mean_where_defined(part, axis=1) for part in (compared, scored.ablated))
    each = len(steps)
    table = pd.DataFrame(
        {
            "heads": np.repeat([" ".join(map(str, v.parts)) for v in variants], each),
            "ablation": np.repeat([v.ablation for v in variants], each),
            "temperature": np.tile(steps, len(variants)),
            "clean": clean[:, wanted].ravel(),
            "ablated": ablated[:, wanted].ravel(),
            "change": interval.mean.ravel(),
            "ci_low": interval.low.ravel(),
            "ci_high": interval.high.ravel(),
            "monte_carlo_error": scored.errors[:, wanted].ravel(),
            "clean_half_point": np.repeat(_half_points(grid, clean[:, each:]), each),
            "ablated_half_point": np.repeat(_half_points(grid, ablated[:, each:]), each),
            "n": interval.n.ravel(),
            "baseline": np.repeat(scored.baselines, each),
        }
    )
    units = dict.fromkeys(("clean", "ablated", "change"), "probability")
    table.attrs |= {"units": units, "interval": INTERVAL}
    return table


def _half_points(grid: Sequence[float], curves: Array) -> list[float]:
    """The highest temperature at which each curve is 0.5."""
    found = []
    for curve in curves:
        above = np.flatnonzero(curve >= 0.5)
        if not len(above) or above[-1] == len(grid) - 1:
            found.append(float("nan"))
            continue
        roots = CubicSpline(np.log(grid), curve - 0.5).roots(extrapolate=False)
        low, high = np.log(grid[above[-1]]), np.log(grid[above[-1] + 1])
        inside = roots[(roots >= low - 1e-9) & (roots <= high + 1e-9)]
        found.append(float(np.exp(inside.max())))
    return found


if __name__ == "__main__":
    run_module("temperature_heads")
