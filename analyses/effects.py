"""What is removed, what that scores, and the tables of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyses.metrics import Metric
from analyses.reruns import Array
from analyses.statistics import INTERVAL, mean_interval, mean_where_defined
from analyses.substitutes import Ablation
from models.names import Head, Part


@dataclass(frozen=True)
class Variant:
    """A set of parts to remove together, and how.

    Args:
        heads: heads ``(layer, head)``, or parts (`models.names.Part`).
        ablation: what stands in.
    """

    heads: tuple[Head | Part, ...]
    ablation: Ablation

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in one order whatever order they were given in."""
        parts = [p if isinstance(p, Part) else Part(p[0], "head", p[1]) for p in self.heads]
        return tuple(sorted(parts, key=str))


@dataclass(frozen=True)
class Scored:
    """What variants score, before intervals.

    Args:
        clean: ``[sequence, metric]``.
        ablated: ``[variant, sequence, metric]``, NaN where nothing could stand in.
        errors: ``[variant, metric]``, Monte-Carlo error of the mean; NaN without random draws.
        baselines: what stood in, by variant.
    """

    clean: Array
    ablated: Array
    errors: Array
    baselines: list[str]


def effect_table(
    variants: Sequence[Variant], metrics: Sequence[Metric], scored: Scored, *, seed: int = 0
) -> pd.DataFrame:
    """One row per variant and metric, in that order.

    Returns:
        ``heads``, ``ablation``, ``metric``, and the columns of `ablate`.
    """
    table = outcome_table(metrics, scored.clean, scored.ablated, column="ablated", seed=seed)
    repeated = len(metrics)
    table.insert(0, "heads", np.repeat([_names(variant) for variant in variants], repeated))
    table.insert(1, "ablation", np.repeat([variant.ablation for variant in variants], repeated))
    table["monte_carlo_error"] = scored.errors.ravel()
    table["baseline"] = np.repeat(scored.baselines, repeated)
    return table


def outcome_table(
    metrics: Sequence[Metric], clean: Array, scores: Array, *, column: str, seed: int
) -> pd.DataFrame:
    """One row per run and metric, in that order.

    Args:
        metrics: of the last axis.
        clean: ``[sequence, metric]``.
        scores: ``[run, sequence, metric]``, NaN where a sequence does not count.
        column: what the mean of the scores is called.
        seed: of the resampling.

    Returns:
        ``metric``; ``clean``, ``column`` and ``change``, means over ``n`` sequences; ``ci_low``,
        ``ci_high`` of the change.
    """
    change = scores - clean
    compared = np.where(np.isnan(change), np.nan, clean)
    interval = mean_interval(np.moveaxis(change, 1, 0), seed=seed)
    table = pd.DataFrame(
        {
            "metric": [one.name for one in metrics] * len(scores),
            "clean": mean_where_defined(compared, axis=1).ravel(),
            column: mean_where_defined(scores, axis=1).ravel(),
            "change": mean_where_defined(change, axis=1).ravel(),
            "ci_low": interval.low.ravel(),
            "ci_high": interval.high.ravel(),
            "n": (~np.isnan(change)).sum(1).ravel(),
        }
    )
    table.attrs |= {"units": units_of(metrics), "interval": INTERVAL}
    return table


def prompt_table(
    variants: Sequence[Variant], metrics: Sequence[Metric], scored: Scored
) -> pd.DataFrame:
    """One row per variant, metric and prompt."""
    change = scored.ablated - scored.clean
    n_variants, n, n_metrics = change.shape
    variant, metric, prompt = np.indices((n_variants, n_metrics, n)).reshape(3, -1)
    table = pd.DataFrame(
        {
            "heads": [_names(variants[i]) for i in variant],
            "ablation": [variants[i].ablation for i in variant],
            "metric": [metrics[i].name for i in metric],
            "prompt": prompt,
            "clean": scored.clean[prompt, metric],
            "ablated": scored.ablated[variant, prompt, metric],
            "change": change[variant, prompt, metric],
            "baseline": [scored.baselines[i] for i in variant],
        }
    )
    table.attrs["units"] = units_of(metrics)
    return table


def units_of(metrics: Sequence[Metric]) -> dict[str, str]:
    """The units of metrics, by name."""
    return {metric.name: metric.unit for metric in metrics}


def _names(variant: Variant) -> str:
    ordered = [p if isinstance(p, Part) else Part(p[0], "head", p[1]) for p in variant.heads]
    return " ".join(map(str, ordered))
