"""Ablation: what a model loses when heads are taken away.

A head is removed where its output ``z`` enters the output projection, not after it, where all
heads are mixed. What stands in for it is zero, a mean over reference sequences, or another
sequence's (`analyses.substitutes`). Everything downstream is recomputed (total effect), at no
more places than that takes (`analyses.reruns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from analyses.inputs import Inputs, as_batch, as_names
from analyses.metrics import METRICS, UNITS
from analyses.registry import run_module
from analyses.reruns import Edits, Runner, chunk_size
from analyses.statistics import INTERVAL, mean_interval, mean_where_defined
from analyses.substitutes import ABLATIONS as ABLATIONS
from analyses.substitutes import (
    Ablation,
    Draw,
    Substitute,
    default_ablation,
    possible_ablations,
    substitutes,
)
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import Head, HeadLike, choose, head_name, parse_heads
from models.tasks import Batch

EVALUATED = 256

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Variant:
    """A set of heads to remove, and how."""

    heads: tuple[Head, ...]
    ablation: Ablation


def ablate(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    ablation: str | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Remove some heads together and compare.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        heads: e.g. ``["1.2", "0.3"]``; none changes nothing.
        ablation: ``zero``, ``mean`` or ``resample``; default ``mean`` for a task and
            ``resample`` for text.
        reference: sequences for ``mean``, none of them evaluated; default 256 of the task's
            training split.
        seed: of the default batches, the resampling partners and the intervals.

    Returns:
        One row per metric (``loss`` in nats per output; ``token_accuracy``, ``exact_match`` in
        shares of 1): ``metric``; ``clean``, ``ablated``, ``change``, means over ``n``
        sequences; ``ci_low``, ``ci_high`` (of the change, 95% BCa over sequences);
        ``monte_carlo_error`` (standard error from the finite number of resampling draws);
        ``baseline`` (what stood in: ``zero``, ``position mean of N``, ``token mean of N``
        where lengths differ, ``10 other sequences``).

    Raises:
        UnknownNameError: a head that the model does not have.
        InputError: ``mean`` without reference sequences, or with some that are evaluated.
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    kind = default_ablation(batch) if ablation is None else _ablation(ablation)
    variants = [Variant(_heads(model, heads), kind)]
    table = run_variants(model, batch, variants, reference=reference, seed=seed)
    return table.drop(columns=["heads", "ablation"])


def ablate_every_head(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    ablations: Iterable[str] | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The exact effect of removing each head alone.

    Args:
        model, tokens, reference, seed: as in `ablate`.
        ablations: the kinds to try; default all that the input allows (``mean`` needs
            references, ``resample`` a second sequence).

    Returns:
        One row per head, ablation and metric: ``layer``, ``head``, ``ablation``, ``metric``,
        and the columns of `ablate`.
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    kinds = possible_ablations(model, batch, reference)
    kinds = kinds if ablations is None else _ablations(ablations)
    variants = [Variant((head,), kind) for head in shape(model).heads for kind in kinds]
    table = run_variants(model, batch, variants, reference=reference, seed=seed)
    names = table.pop("heads").str.split(".", expand=True).astype(int)
    table.insert(0, "layer", names[0])
    table.insert(1, "head", names[1])
    return table


def cumulative_ablation(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    order: Sequence[HeadLike],
    ablations: Iterable[str] | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Remove heads one after the other, and keep only the first ones, in a given order.

    Args:
        model, tokens, reference, seed: as in `ablate`.
        order: heads, e.g. by falling anti-diagonal score. Heads that are not named stay.
        ablations: the kinds to try; default ``zero`` and the default of `ablate`.

    Returns:
        One row per mode, ablation and number of heads: ``mode`` (``remove`` the first
        ``n_heads`` of the order, or ``keep`` only these of the order), ``ablation``,
        ``n_heads``, ``heads`` (the first ones, ``layer.head``), ``loss`` (nats per output),
        ``token_accuracy``, ``exact_match`` (shares of 1), ``n``.
    """
    heads = _heads(model, order)
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    kinds = _ablations(("zero", default_ablation(batch)) if ablations is None else ablations)
    rows = [(m, k, n) for m in ("remove", "keep") for k in kinds for n in range(len(heads) + 1)]
    variants = [Variant(heads[:n] if m == "remove" else heads[n:], k) for m, k, n in rows]
    table = run_variants(model, batch, variants, reference=reference, seed=seed, intervals=False)
    result = pd.DataFrame(rows, columns=["mode", "ablation", "n_heads"])
    result["heads"] = [_names(heads[:n]) for _, _, n in rows]
    result[list(METRICS)] = table["ablated"].to_numpy().reshape(len(rows), len(METRICS))
    result["n"] = table["n"].to_numpy()[:: len(METRICS)]
    result.attrs["units"] = UNITS
    return result


def run_variants(
    model: HookedModel,
    batch: Batch,
    variants: Sequence[Variant],
    *,
    reference: Inputs = None,
    seed: int = 0,
    intervals: bool = True,
) -> pd.DataFrame:
    """Evaluate the clean model and every variant on the same sequences.

    Returns:
        One row per variant and metric, in that order: ``heads``, ``ablation``, ``metric``, and
        the columns of `ablate`.
    """
    if not variants or not bool(batch.outputs.any()):
        raise InputError("ablation needs at least one variant, and tokens with outputs")
    kinds = dict.fromkeys(variant.ablation for variant in variants if variant.heads)
    layers = sorted({layer for variant in variants for layer, _ in variant.heads})
    given = substitutes(model, batch, kinds, layers, reference=reference, seed=seed)
    clean, ablated, errors = _evaluate(model, batch, variants, given)
    change = ablated - clean  # variant sequence metric
    compared = np.where(np.isnan(change), np.nan, clean)  # on the sequences that have both
    interval = mean_interval(np.moveaxis(change, 1, 0), seed=seed) if intervals else None
    nothing = np.full(errors.shape, np.nan)
    baselines = [given[v.ablation].baseline if v.heads else "" for v in variants]
    repeated = len(METRICS)
    table = pd.DataFrame(
        {
            "heads": np.repeat([_names(variant.heads) for variant in variants], repeated),
            "ablation": np.repeat([variant.ablation for variant in variants], repeated),
            "metric": list(METRICS) * len(variants),
            "clean": mean_where_defined(compared, axis=1).ravel(),
            "ablated": mean_where_defined(ablated, axis=1).ravel(),
            "change": mean_where_defined(change, axis=1).ravel(),
            "ci_low": (interval.low if interval else nothing).ravel(),
            "ci_high": (interval.high if interval else nothing).ravel(),
            "n": (~np.isnan(change)).sum(1).ravel(),
            "monte_carlo_error": errors.ravel(),
            "baseline": np.repeat(baselines, repeated),
        }
    )
    table.attrs |= {"units": UNITS, "interval": INTERVAL}
    return table


def _evaluate(
    model: HookedModel, batch: Batch, variants: Sequence[Variant], given: dict[str, Substitute]
) -> tuple[Array, Array, Array]:
    """Clean ``[sequence, metric]``; of each variant its scores and their Monte-Carlo error."""
    jobs = [
        (heads, kind, draw)
        for heads, kind in dict.fromkeys(map(_key, variants))
        if heads
        for draw in given[kind].draws
    ]
    jobs.sort(key=lambda job: job[0][0][0])  # runs that start at one layer go together
    size = chunk_size(model, batch.tokens.shape[1])
    clean, chunks = [], []
    for first in range(0, len(batch), size):
        rows = slice(first, first + size)
        runner = Runner(model, batch[rows], together=max(1, size // len(batch[rows])))
        clean.append(runner.scores([{}])[0])
        chunks.append(runner.scores(_edits(heads, draw, rows) for heads, _, draw in jobs))
    whole, scores = torch.cat(clean).numpy(), torch.cat(chunks, 1).numpy()
    drawn: dict[Any, list[Array]] = {}
    for (heads, kind, _), score in zip(jobs, scores, strict=True):
        score[list(given[kind].alone)] = np.nan
        drawn.setdefault((heads, kind), []).append(score)
    draws = [np.stack(drawn.get(_key(variant), [whole])) for variant in variants]
    means, errors = zip(*map(_over_draws, draws), strict=True)
    return whole, np.stack(means), np.stack(errors)


def _over_draws(scores: Array) -> tuple[Array, Array]:
    """Mean over draws of ``[draw, sequence, metric]``, and the Monte-Carlo error of its mean."""
    each = mean_where_defined(scores, axis=1)
    error = (
        each.std(0, ddof=1) / len(each) ** 0.5 if len(each) > 1 else np.full(each[0].shape, np.nan)
    )
    return scores.mean(0), error


def _key(variant: Variant) -> tuple[tuple[Head, ...], Ablation]:
    return tuple(sorted(variant.heads)), variant.ablation


def _edits(heads: Sequence[Head], draw: Draw, rows: slice) -> Edits:
    layers = {layer: [h for at, h in heads if at == layer] for layer, _ in heads}
    return {layer: (chosen, draw(layer, chosen, rows)) for layer, chosen in layers.items()}


def _heads(model: HookedModel, heads: Sequence[HeadLike]) -> tuple[Head, ...]:
    sizes = shape(model)
    return tuple(parse_heads(heads, n_layers=sizes.n_layers, n_heads=sizes.n_heads))


def _names(heads: Iterable[Head]) -> str:
    return " ".join(head_name(*head) for head in heads)


def _ablations(kinds: Iterable[str]) -> list[Ablation]:
    found = [_ablation(kind) for kind in as_names(kinds)]
    if not found:
        raise InputError(f"name at least one ablation of {', '.join(ABLATIONS)}")
    return found


def _ablation(kind: str) -> Ablation:
    return choose("ablation", kind, ABLATIONS)  # type: ignore[return-value]


if __name__ == "__main__":
    run_module("ablation")
