"""Sets of heads: removed one after the other, kept alone, and two at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from analyses.ablation import (
    EVALUATED,
    Metrics,
    Variant,
    ablations_of,
    one_ablation,
    parts_of,
    run_variants,
    score_variants,
    units_of,
)
from analyses.inputs import Inputs, as_batch
from analyses.metrics import MetricLike, as_metrics
from analyses.reruns import Array
from analyses.statistics import mean_interval, mean_where_defined
from analyses.substitutes import default_ablation
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import HeadLike, Part


def cumulative_ablation(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    order: Sequence[HeadLike],
    metric: Metrics = None,
    ablation: str | Iterable[str] | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Remove heads one after the other, and keep only the first ones, in a given order.

    Args:
        model, tokens, metric, reference, seed: as in `analyses.ablation.ablate`.
        order: heads, e.g. by falling anti-diagonal score. Heads that are not named stay.
        ablation: the kind, or several; default ``zero`` and the default of `ablate`.

    Returns:
        One row per mode, ablation and number of heads: ``mode`` (``remove`` the first
        ``n_heads`` of the order, or ``keep`` only these of the order), ``ablation``,
        ``n_heads``, ``heads`` (the first ones, ``layer.head``), a column for each metric (by
        default ``loss`` in nats per output, ``token_accuracy``, ``exact_match`` in shares of 1),
        ``n`` sequences, the same for all rows.
    """
    heads = parts_of(model, order)
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    usual = dict.fromkeys(("zero", default_ablation(batch, reference)))
    kinds = ablations_of(usual if ablation is None else ablation)
    rows = [(m, k, n) for m in ("remove", "keep") for k in kinds for n in range(len(heads) + 1)]
    variants = [Variant(tuple(heads[:n] if m == "remove" else heads[n:]), k) for m, k, n in rows]
    metrics = as_metrics(model, batch, metric)
    scored = score_variants(model, batch, metrics, variants, reference=reference, seed=seed)
    values = _on_common(scored.ablated)
    table = pd.DataFrame(rows, columns=["mode", "ablation", "n_heads"])
    table["heads"] = [_names(heads[:n]) for _, _, n in rows]
    table[[one.name for one in metrics]] = mean_where_defined(values, axis=1)
    table["n"] = (~np.isnan(values[..., 0])).sum(1)
    table.attrs["units"] = units_of(metrics)
    return table


def keep_only(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    metric: Metrics = None,
    ablation: str | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Remove all heads but some, MLPs kept, and compare: the complement of `ablate`.

    Args:
        model, tokens, metric, ablation, reference, seed: as in `analyses.ablation.ablate`.
        heads: the heads that stay; none removes all.

    Returns:
        One row per metric, as `analyses.ablation.ablate`.
    """
    kept = {(part.layer, part.head) for part in parts_of(model, heads)}
    if any(head is None for _, head in kept):
        raise InputError("only heads can be kept alone: leave out attn.L and mlp.L")
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    kind = one_ablation(batch, ablation, reference)
    rest = tuple(head for head in shape(model).heads if head not in kept)
    table = run_variants(
        model, batch, [Variant(rest, kind)], metric=metric, reference=reference, seed=seed
    )
    return table.drop(columns=["heads", "ablation"])


def greedy_ablation(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    metric: MetricLike = "loss",
    ablation: str | None = None,
    heads: Sequence[HeadLike],
    most: int | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Remove, again and again, the head whose removal changes the metric most.

    Args:
        model, tokens, ablation, reference, seed: as in `analyses.ablation.ablate`.
        metric: one; "most" is the largest absolute change from the run before.
        heads: the candidates.
        most: how many to remove; default all.

    Returns:
        One row per step: ``n_heads`` removed so far, ``head`` (``layer.head``), ``value`` of the
        metric, ``change`` from the clean model, ``step`` (change from the run before),
        ``monte_carlo_error``, ``ablation``, ``baseline``, ``n``.
        A head that is chosen first is the largest alone, not "the most important": the order
        depends on what is gone already.
    """
    left = parts_of(model, heads)
    if not left or (most is not None and most < 1):
        raise InputError(f"a greedy order needs heads and most >= 1, but got {len(left)}, {most}")
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    metrics = as_metrics(model, batch, metric)
    if len(metrics) != 1:
        raise InputError(f"a greedy order needs one metric, but got {len(metrics)}")
    kind = one_ablation(batch, ablation, reference)
    gone: list[Part] = []
    rows: list[dict[str, object]] = []
    before = clean = np.nan
    for n_heads in range(1, min(len(left), most or len(left)) + 1):
        variants = [Variant((*gone, part), kind) for part in left]
        scored = score_variants(model, batch, metrics, variants, reference=reference, seed=seed)
        ablated = _on_common(scored.ablated)[..., 0]
        if n_heads == 1:
            before = clean = float(scored.clean[~np.isnan(ablated[0]), 0].mean())
        values = np.nanmean(ablated, axis=1)
        best = int(np.nanargmax(np.abs(values - before)))
        gone.append(left.pop(best))
        value = float(values[best])
        rows.append(
            {
                "n_heads": n_heads,
                "head": str(gone[-1]),
                "value": value,
                "change": value - clean,
                "step": value - before,
                "monte_carlo_error": scored.errors[best, 0],
                "ablation": kind,
                "baseline": scored.baselines[best],
                "n": int((~np.isnan(ablated[best])).sum()),
            }
        )
        before = value
    table = pd.DataFrame(rows)
    table.attrs["units"] = units_of(metrics)
    return table


def interactions(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    metric: MetricLike = "loss",
    ablation: str | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """What removing two heads does beyond what removing each alone does.

    Interaction = joint effect - sum of the single effects, sequence by sequence. Positive for a
    loss: each head makes up for the other ("backup"); negative: both are needed for one thing.

    Args:
        model, tokens, ablation, reference, seed: as in `analyses.ablation.ablate`.
        heads: at least two; every pair is tried.
        metric: one.

    Returns:
        One row per pair: ``first``, ``second`` (``layer.head``), ``effect_first``,
        ``effect_second``, ``joint``, ``interaction`` (in the metric's unit), its ``ci_low``,
        ``ci_high`` (95% BCa over sequences), ``ablation``, ``baseline``, ``n``.
    """
    parts = parts_of(model, heads)
    if len(parts) < 2:
        raise InputError(f"an interaction needs at least two heads, but got {len(parts)}")
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    metrics = as_metrics(model, batch, metric)
    kind = one_ablation(batch, ablation, reference)
    pairs = list(combinations(parts, 2))
    variants = [Variant((part,), kind) for part in parts]
    variants += [Variant(pair, kind) for pair in pairs]
    scored = score_variants(model, batch, metrics, variants, reference=reference, seed=seed)
    effects = (scored.ablated - scored.clean)[..., 0]
    single = dict(zip(parts, effects, strict=False))
    joint = effects[len(parts) :]
    excess = np.stack([j - single[a] - single[b] for j, (a, b) in zip(joint, pairs, strict=True)])
    interval = mean_interval(excess.T, seed=seed)
    table = pd.DataFrame(
        {
            "first": [str(a) for a, _ in pairs],
            "second": [str(b) for _, b in pairs],
            "effect_first": [np.nanmean(single[a]) for a, _ in pairs],
            "effect_second": [np.nanmean(single[b]) for _, b in pairs],
            "joint": np.nanmean(joint, axis=1),
            "interaction": interval.mean,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "ablation": kind,
            "baseline": scored.baselines[-1],
            "n": interval.n,
        }
    )
    table.attrs["units"] = units_of(metrics)
    return table


def _on_common(ablated: Array) -> Array:
    """``[variant, sequence, metric]``, NaN for sequences that any variant leaves undefined."""
    return np.where(np.isnan(ablated).any(0), np.nan, ablated)


def _names(parts: Sequence[Part]) -> str:
    return " ".join(map(str, parts))
