"""Ablation: what a model loses when parts of it are taken away.

A head is removed where its output ``z`` enters the output projection, not after it, where all
heads are mixed; an attention or MLP layer where its output is added to the residual stream. What
stands in is zero, a mean over reference sequences, or another sequence's (`analyses.substitutes`).
Everything downstream is recomputed (total effect), at no more places than that takes
(`analyses.reruns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from analyses.effects import Scored as Scored
from analyses.effects import Variant as Variant
from analyses.effects import effect_table as effect_table
from analyses.effects import prompt_table as prompt_table
from analyses.effects import units_of as units_of
from analyses.inputs import (
    Inputs,
    as_batch,
    as_names,
    chosen_positions,
    leading_bos,
    real_positions,
)
from analyses.metrics import Metric, MetricLike, as_metrics
from analyses.registry import run_module
from analyses.reruns import Array, Edit, replace, score_runs
from analyses.statistics import mean_where_defined
from analyses.substitutes import ABLATIONS as ABLATIONS
from analyses.substitutes import (
    POINTS,
    Ablation,
    Draw,
    Substitute,
    default_ablation,
    possible_ablations,
    substitutes,
)
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import HeadLike, Part, choose, hook_name, parse_parts
from models.tasks import Batch

EVALUATED = 256

Metrics = MetricLike | Iterable[MetricLike] | None
Positions = int | str | Sequence[int] | Sequence[Sequence[int]] | Tensor | None


def ablate(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    metric: Metrics = None,
    ablation: str | None = None,
    positions: Positions = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Remove some heads or layers together and compare.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        heads: e.g. ``["1.2", "0.3"]``; all heads of a layer are ``"4.*"``, what a layer adds as a
            whole ``"attn.4"`` or ``"mlp.4"``; none changes nothing.
        metric: see `analyses.metrics.as_metrics`; default loss, token accuracy and exact match.
        ablation: ``zero``, ``mean`` or ``resample``; default ``mean`` for a task and
            ``resample`` for text (``zero`` for a single text without ``reference``).
        positions: where; see `analyses.inputs.chosen_positions`. Default everywhere; sequences
            without a chosen position are left out. ``"skip_bos"``: all but a BOS in front.
        reference: sequences for ``mean``, none of them evaluated; default 256 of the task's
            training split.
        seed: of the default batches, the resampling partners and the intervals.

    Returns:
        One row per metric (``loss`` in nats per output; ``token_accuracy``, ``exact_match`` in
        shares of 1; see `analyses.metrics.UNITS`): ``metric``; ``clean``, ``ablated``, ``change``,
        means over ``n`` sequences; ``ci_low``, ``ci_high`` (of the change, 95% BCa over
        sequences); ``monte_carlo_error`` (standard error from the finite number of resampling
        draws); ``baseline`` (what stood in: ``zero``, ``position mean of N``, ``token mean of N``
        where lengths differ, ``10 other sequences``).

    Raises:
        UnknownNameError: a head or layer that the model does not have.
        InputError: ``mean`` without reference sequences, or with some that are evaluated.
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    kind = one_ablation(batch, ablation, reference)
    variants = [Variant(tuple(parts_of(model, heads)), kind)]
    table = run_variants(
        model,
        batch,
        variants,
        metric=metric,
        positions=positions,
        reference=reference,
        seed=seed,
    )
    return table.drop(columns=["heads", "ablation"])


def ablate_every_head(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    metric: Metrics = None,
    ablation: str | Iterable[str] | None = None,
    positions: Positions = None,
    reference: Inputs = None,
    seed: int = 0,
    per_prompt: bool = False,
) -> pd.DataFrame:
    """The effect of removing each head alone, everything downstream recomputed.

    Exact for ``zero`` and ``mean``; of ``resample`` the mean over its draws.

    Args:
        model, tokens, metric, positions, reference, seed: as in `ablate`.
        ablation: the kind, or several; default all that the input allows (``mean`` needs
            references, ``resample`` a second sequence).
        per_prompt: one row for each sequence, without intervals.

    Returns:
        One row per head, ablation and metric: ``layer``, ``head``, ``ablation``, ``metric``, and
        the columns of `ablate`. With ``per_prompt`` one row per head, ablation, metric and
        ``prompt`` (from 0), with ``clean``, ``ablated``, ``change`` and ``baseline``.

    Cost:
        On our GPT one clean pass and, for each layer, one batch of all its heads from the output
        projection on; see `analyses.reruns`. For an estimate of all heads at the price of a few
        passes see `analyses.estimates.estimate_every_head`.
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    kinds = possible_ablations(model, batch, reference)
    kinds = kinds if ablation is None else ablations_of(ablation)
    variants = [Variant((head,), kind) for head in shape(model).heads for kind in kinds]
    metrics = as_metrics(model, batch, metric)
    scored = score_variants(
        model, batch, metrics, variants, positions=positions, reference=reference, seed=seed
    )
    if per_prompt:
        table = prompt_table(variants, metrics, scored)
    else:
        table = effect_table(variants, metrics, scored, seed=seed)
    names = table.pop("heads").str.split(".", expand=True).astype(int)
    table.insert(0, "layer", names[0])
    table.insert(1, "head", names[1])
    return table


def run_variants(
    model: HookedModel,
    batch: Batch,
    variants: Sequence[Variant],
    *,
    metric: Metrics = None,
    positions: Positions = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Evaluate the clean model and every variant on the same sequences: see `effect_table`."""
    metrics = as_metrics(model, batch, metric)
    scored = score_variants(
        model, batch, metrics, variants, positions=positions, reference=reference, seed=seed
    )
    return effect_table(variants, metrics, scored, seed=seed)


def score_variants(
    model: HookedModel,
    batch: Batch,
    metrics: Sequence[Metric],
    variants: Sequence[Variant],
    *,
    positions: Positions = None,
    reference: Inputs = None,
    seed: int = 0,
) -> Scored:
    """Score the clean model and every variant on every sequence.

    Args:
        metrics: bound to the batch, see `analyses.metrics.as_metrics`.
        others: as in `ablate`.
    """
    if not variants:
        raise InputError("ablation needs at least one variant")
    mask = _mask(model, batch, positions)
    distinct = list(dict.fromkeys((v.parts, v.ablation) for v in variants))
    kinds = dict.fromkeys(kind for parts, kind in distinct if parts)
    names = sorted({_point(part) for parts, _ in distinct for part in parts})
    given = substitutes(model, batch, kinds, names, reference=reference, seed=seed)
    jobs = [(key, draw) for key in distinct if key[0] for draw in given[key[1]].draws]
    runs = [_edits(key[0], draw, mask) for key, draw in jobs]
    clean, scores = score_runs(model, batch, metrics, runs, what="ablating")
    drawn: dict[Any, list[Array]] = {}
    untouched = [] if mask is None else (~mask.any(1)).nonzero().flatten().tolist()
    for (key, _), score in zip(jobs, scores, strict=True):
        score[[*given[key[1]].alone, *untouched]] = np.nan
        drawn.setdefault(key, []).append(score)
    draws = [np.stack(drawn.get((v.parts, v.ablation), [clean])) for v in variants]
    means, errors = zip(*map(_over_draws, draws), strict=True)
    baselines = [_baseline(variant, given) for variant in variants]
    return Scored(clean, np.stack(means), np.stack(errors), baselines)


def ablation_runs(
    model: HookedModel,
    batch: Batch,
    heads: Sequence[HeadLike | Part],
    *,
    ablation: str | None = None,
    positions: Positions = None,
    reference: Inputs = None,
    seed: int = 0,
) -> list[list[Edit]]:
    """The edits of an ablation, one list for each draw; `analyses.reruns.as_hooks` makes hooks.

    Raises:
        InputError: a sequence has no other to take activations from.
    """
    parts = parts_of(model, heads)
    kind = one_ablation(batch, ablation, reference)
    mask = _mask(model, batch, positions)
    names = sorted(set(map(_point, parts)))
    given = substitutes(model, batch, [kind], names, reference=reference, seed=seed)[kind]
    if given.alone and parts:
        raise InputError(
            f"resampling prompt {given.alone[0]} needs another prompt that is as long and not the "
            "same: use zero, or mean with reference="
        )
    return [_edits(parts, draw, mask) for draw in given.draws]


def parts_of(model: HookedModel, heads: Sequence[HeadLike | Part]) -> list[Part]:
    """The parts that a user named, checked against the model."""
    sizes = shape(model)
    parts = parse_parts(heads, n_layers=sizes.n_layers, n_heads=sizes.n_heads)
    known: Any = model.hook_dict
    for part in parts:
        if _point(part) not in known:
            raise InputError(f"{part} does not exist: this model has no MLP")
    return parts


def ablations_of(kinds: str | Iterable[str]) -> list[Ablation]:
    """The kinds that a user named, checked."""
    found = [_ablation(kind) for kind in as_names(kinds)]
    if not found:
        raise InputError(f"name at least one ablation of {', '.join(ABLATIONS)}")
    return found


def _over_draws(scores: Array) -> tuple[Array, Array]:
    """Mean over draws of ``[draw, sequence, metric]``, and the Monte-Carlo error of its mean."""
    each = mean_where_defined(scores, axis=1)
    error = (
        each.std(0, ddof=1) / len(each) ** 0.5 if len(each) > 1 else np.full(each[0].shape, np.nan)
    )
    return scores.mean(0), error


def one_ablation(batch: Batch, ablation: Any, reference: Inputs = None) -> Ablation:
    """The kind that a user named, or the default for these sequences; several are refused."""
    if ablation is None:
        return default_ablation(batch, reference)
    kinds = ablations_of(ablation)
    if len(kinds) != 1:
        raise InputError(f"one ablation is wanted here, but got {', '.join(kinds)}: name one")
    return kinds[0]


def _edits(parts: Sequence[Part], draw: Draw, mask: Tensor | None) -> list[Edit]:
    """Heads of one layer share an edit."""
    found = []
    for name in dict.fromkeys(map(_point, parts)):
        some = [part for part in parts if _point(part) == name]
        heads = [part.head for part in some if part.head is not None] or None
        value = partial(_take, draw, name, heads)
        found.append(replace(some[0].layer, POINTS[some[0].kind], value, heads=heads, mask=mask))
    return found


def _mask(model: HookedModel, batch: Batch, positions: Positions) -> Tensor | None:
    if isinstance(positions, str):
        choose("positions", positions, ("skip_bos",))
        return real_positions(batch) & ~leading_bos(model, batch)
    return None if positions is None else chosen_positions(batch, positions)


def _take(draw: Draw, name: str, heads: list[int] | None, where: Any) -> Tensor:
    value = draw(name, where)
    return value if heads is None or value.ndim == 1 else value[:, :, heads]


def _point(part: Part) -> str:
    return hook_name(POINTS[part.kind], part.layer)


def _baseline(variant: Variant, given: dict[str, Substitute]) -> str:
    return given[variant.ablation].baseline if variant.heads else ""


def _ablation(kind: str) -> Ablation:
    return choose("ablation", kind, ABLATIONS)  # type: ignore[return-value]


if __name__ == "__main__":
    run_module("ablation")
