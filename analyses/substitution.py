"""Pattern substitution: does a head do what it looks like?

A head's attention is replaced, on the queries where a pattern is defined, by the ideal pattern,
by its own mean over other sequences, or by uniform attention; its values, and all that is
downstream, are computed as ever. ``explained`` = 1 - damage(substituted) / damage(uniform): 1
where the pattern is all that matters about where the head looks, 0 where it is no better than
looking everywhere. It joins what a head looks like and what it does in one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.ablation import EVALUATED, Metrics
from analyses.attention_edits import (
    PATTERN,
    NewRows,
    check_answers,
    chosen_heads,
    replace_rows,
    seen,
)
from analyses.attention_patterns import PATTERNS, Cells, Targets, available, checked_cells
from analyses.content_dependence import mean_pattern
from analyses.effects import outcome_table
from analyses.inputs import Inputs, as_batch, has_task, real_positions, reference_batch
from analyses.metrics import Metric, MetricLike, as_metrics
from analyses.registry import run_module
from analyses.reruns import Array, Where, score_runs
from analyses.statistics import mean_where_defined
from models.attention import visible_keys
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import Head, HeadLike, unknown
from models.tasks import Batch

Pattern = str | Callable[[Batch], Targets | Cells | Tensor]
OWN = ("ideal", "mean", "uniform")
NOISE = 1e-6
"""A change of the mean under this (relative to the metric, where that is over 1) is rounding."""


@dataclass(frozen=True)
class Substitution:
    """A pattern, made ready for a batch.

    Args:
        name: of it.
        queries: where it is defined.
        rows: the attention that it gives a head there.
    """

    name: str
    queries: Bool[Tensor, "sequence query"]
    rows: NewRows


def substitute_pattern(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    pattern: Pattern = "ideal",
    metric: Metrics = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Give some heads another attention pattern together, and compare.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        heads: e.g. ``["1.2", "0.3"]``; all heads of a layer are ``"4.*"``.
        pattern: ``ideal`` (all attention on the key that the task means for the query); a score
            of `analyses.attention_patterns.PATTERNS` (uniform over its target keys); ``mean``
            (the head's own, per position, over reference sequences); ``uniform`` (over the
            visible keys); or a function of the batch that gives target keys, as for
            `analyses.attention_patterns.match_pattern`, or attention ``[sequence, query, key]``
            whose rows sum to 1 (a row of zeros leaves its query as it is; 1 sequence for all).
        metric: see `analyses.metrics.as_metrics`; default loss, token accuracy and exact match.
        reference: sequences for ``mean``, none of them evaluated; default 256 of the task's
            training split.
        seed: of the default batches and the intervals.

    Returns:
        One row per metric (units in ``attrs``): ``metric``; ``clean``, ``substituted``,
        ``change``, means over the ``n`` sequences in which a query has the pattern; ``ci_low``,
        ``ci_high`` (of the change, 95% BCa over sequences); ``uniform_change`` (with uniform
        attention on the same queries); ``explained`` (at most 1 unless the pattern helps; not
        clipped; NaN where ``uniform_change`` is under 2 standard errors over sequences).
        ``attrs["queries"]`` is how many queries were given the pattern.

    Raises:
        UnknownNameError: a head or score that does not exist.
        InputError: a pattern that the input does not define; ``mean`` with unequal lengths,
            without reference sequences, or with some that are evaluated.

    Identity: a head's own pattern changes nothing.
    """
    chosen = chosen_heads(model, heads)
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    metrics = as_metrics(model, batch, metric)
    new = substitution(model, batch, pattern, reference=reference, seed=seed)
    clean, substituted, uniform = _scored(model, batch, metrics, [chosen], new)
    table = outcome_table(metrics, clean, substituted, column="substituted", seed=seed)
    table.insert(len(table.columns) - 1, "uniform_change", _change(clean, uniform).ravel())
    table.insert(len(table.columns) - 1, "explained", _explained(clean, substituted, uniform)[0])
    table.attrs |= {"pattern": new.name, "queries": int(new.queries.sum())}
    return table


def explained_by_pattern(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    pattern: Pattern = "ideal",
    metric: MetricLike = "loss",
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """How much of what each head alone does is explained by a pattern.

    Args:
        model, tokens, pattern, reference, seed: as in `substitute_pattern`.
        metric: one.

    Returns:
        One row per head: ``layer``, ``head``, ``damage_substituted``, ``damage_uniform`` (changes
        of the metric, in its unit), ``explained`` (1 - their quotient, NaN where
        ``damage_uniform`` is under 2 standard errors), ``n`` sequences. A head that does nothing
        with its attention has no damage to explain, and is NaN.
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    metrics = as_metrics(model, batch, metric)
    if len(metrics) != 1:
        raise InputError(f"a column of the head table needs one metric, but got {len(metrics)}")
    new = substitution(model, batch, pattern, reference=reference, seed=seed)
    heads = shape(model).heads
    clean, substituted, uniform = _scored(model, batch, metrics, [[h] for h in heads], new)
    table = pd.DataFrame(heads, columns=["layer", "head"])
    table["damage_substituted"] = _change(clean, substituted)[:, 0]
    table["damage_uniform"] = _change(clean, uniform)[:, 0]
    table["explained"] = _explained(clean, substituted, uniform)[:, 0]
    table["n"] = (~np.isnan(substituted - clean)).sum(1)[:, 0]
    unit = metrics[0].unit
    table.attrs |= {
        "units": {"damage_substituted": unit, "damage_uniform": unit, "explained": "share"},
        "pattern": new.name,
        "metric": metrics[0].name,
    }
    return table


def substitution(
    model: HookedModel, batch: Batch, pattern: Pattern, *, reference: Inputs = None, seed: int = 0
) -> Substitution:
    """The pattern that a user named, on these sequences: see `substitute_pattern`."""
    if pattern == "uniform":
        new = _uniform(model, real_positions(batch))
    elif pattern == "mean":
        new = _mean(model, batch, reference, seed)
    elif pattern == "ideal":
        new = _ideal(model, batch)
    elif isinstance(pattern, str):
        if pattern not in PATTERNS:
            raise unknown("pattern", pattern, [*OWN, *PATTERNS])
        if pattern not in (defined := available(batch)):
            raise InputError(f"{pattern} is not defined on this input; these are: {defined}")
        new = _on_targets(model, batch, PATTERNS[pattern][0](batch), pattern)
    elif not callable(pattern):
        raise InputError(
            f"pattern must be a name, as in {', '.join(OWN)}, or a function of the batch, "
            f"but got {'None' if pattern is None else type(pattern).__name__}"
        )
    else:
        name, given = getattr(pattern, "__name__", "pattern"), pattern(batch)
        if isinstance(given, Tensor) and given.dtype != torch.bool:
            new = _given_rows(model, batch, given, name)
        else:
            targets = Targets(given, given.any(-1)) if isinstance(given, Tensor) else given
            new = _on_targets(model, batch, targets, name)
    if not bool(new.queries.any()):
        raise InputError(f"{new.name} is defined for no query of these sequences: use others")
    return new


def _scored(
    model: HookedModel,
    batch: Batch,
    metrics: Sequence[Metric],
    sets: Sequence[Sequence[Head]],
    new: Substitution,
) -> tuple[Array, Array, Array]:
    """Clean ``[sequence, metric]``; with the pattern and uniform ``[set, sequence, metric]``."""
    check_answers(model, batch, PATTERN)
    kinds = [new] if new.name == "uniform" else [new, _uniform(model, new.queries)]
    runs = [replace_rows(heads, kind.rows, kind.queries) for kind in kinds for heads in sets]
    clean, scores = score_runs(model, batch, metrics, runs, what="substituting patterns")
    scores[:, ~new.queries.any(1).cpu().numpy()] = np.nan
    return clean, scores[: len(sets)], scores[-len(sets) :]


def _change(clean: Array, scores: Array) -> Array:
    return mean_where_defined(scores - clean, axis=1)


def _explained(clean: Array, substituted: Array, uniform: Array) -> Array:
    """``[set, metric]``."""
    damage = uniform - clean
    n = (~np.isnan(damage)).sum(1)
    mean = mean_where_defined(damage, axis=1)
    squares = np.nansum((damage - mean[:, None]) ** 2, axis=1)
    error = np.sqrt(squares / np.where(n > 1, n * (n - 1.0), np.nan))
    least = NOISE * np.maximum(1, np.abs(mean_where_defined(clean, axis=0)))
    known = (np.abs(mean) >= 2 * error) & (np.abs(mean) > least)
    return 1 - _change(clean, substituted) / np.where(known, mean, np.nan)


def _uniform(model: HookedModel, queries: Tensor) -> Substitution:
    def rows(head: Head, where: Where) -> Tensor:
        visible = seen(model, where, queries.device).double()
        return (visible / visible.sum(-1, keepdim=True))[None]

    return Substitution("uniform", queries, rows)


def _mean(model: HookedModel, batch: Batch, reference: Inputs, seed: int) -> Substitution:
    if reference is None and not has_task(model):
        raise InputError(
            "a mean pattern needs reference sequences, and this model has no task to draw them "
            "from: give reference=, or use uniform"
        )
    others = reference_batch(model, batch, reference, seed=seed)
    lengths = {*others.lengths.tolist(), *batch.lengths.tolist()}
    if len(lengths) > 1:
        raise InputError(
            "a mean pattern is per position, so tokens and reference must be of one length, "
            f"but lengths are {min(lengths)}..{max(lengths)}: give such, or use uniform"
        )
    mean, _ = mean_pattern(model, others)
    n = batch.tokens.shape[1]
    wider = max(0, n - mean.shape[-1])  # padding, should the batch have more
    mean = torch.nn.functional.pad(mean, (0, wider, 0, wider))

    def rows(head: Head, where: Where) -> Tensor:
        return mean[head[0], head[1], where.positions, : where.positions.stop][None]

    return Substitution("mean", real_positions(batch), rows)


def _ideal(model: HookedModel, batch: Batch) -> Substitution:
    if not bool((batch.target_keys >= 0).any()):
        raise InputError(
            "only a task has an ideal pattern: name a score instead, as in "
            f"pattern='previous_token', of {', '.join(available(batch))}"
        )
    sequence, query = (batch.target_keys >= 0).nonzero().unbind(1)
    cells = Cells(sequence, query, batch.target_keys[sequence, query], batch.target_keys >= 0)
    return _on_targets(model, batch, cells, "ideal")


def _on_targets(
    model: HookedModel, batch: Batch, targets: Targets | Cells, name: str
) -> Substitution:
    """Uniform over the target keys that are visible, where there is one."""
    sequence, query, key, queries = checked_cells(targets, batch)
    if (window := shape(model).window) is not None:
        near = key > query - window
        sequence, query, key = sequence[near], query[near], key[near]
    count = torch.zeros(batch.tokens.shape, dtype=torch.double, device=batch.tokens.device)
    count = count.index_put((sequence, query), count.new_ones(()), accumulate=True)

    def rows(head: Head, where: Where) -> Tensor:
        some, at = where
        here = (sequence >= some.start) & (sequence < some.stop)
        here &= (query >= at.start) & (query < at.stop)
        s, q = sequence[here], query[here]
        new = count.new_zeros(some.stop - some.start, at.stop - at.start, at.stop)
        new[s - some.start, q - at.start, key[here]] = 1 / count[s, q]
        return new

    return Substitution(name, queries & (count > 0), rows)


def _given_rows(
    model: HookedModel, batch: Batch, given: Float[Tensor, "#sequence query key"], name: str
) -> Substitution:
    """A user's attention, checked."""
    size, n = batch.tokens.shape
    if given.shape not in ((size, n, n), (1, n, n)):
        raise InputError(
            f"attention must be [{size}, {n}, {n}] or [1, {n}, {n}], but got {list(given.shape)}"
        )
    given = given.to(batch.tokens.device).expand(size, -1, -1)
    queries = real_positions(batch) & (given != 0).any(-1)
    visible = visible_keys(n, n, window=shape(model).window, device=given.device)
    wide = given.double()
    off = (torch.where(visible, wide, 0).sum(-1) - 1).abs() > 1e-3
    bad = (off | (wide < 0).any(-1) | wide.isnan().any(-1)) & queries
    bad |= (torch.where(visible, 0, wide) != 0).any(-1) & queries
    if bool(bad.any()):
        s, q = bad.nonzero()[0].tolist()
        raise InputError(
            "a row of attention must be at least 0 and sum to 1 over the keys that its query "
            f"sees, but query {q} of sequence {s} does not: mend it, or leave it all 0"
        )

    def rows(head: Head, where: Where) -> Tensor:
        return given[where.sequences, where.positions, : where.positions.stop]

    return Substitution(name, queries, rows)


if __name__ == "__main__":
    run_module("substitution")
