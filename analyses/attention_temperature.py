"""Attention temperature: a head sharpened or blurred instead of removed.

A head's scaled, masked scores are divided by a temperature before the softmax. At 1 nothing
changes; towards 0 every query looks at its best key alone; at large temperatures attention is
uniform over the visible keys. The sweep is a graded ablation of where a head looks; what it
writes when it looks there stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.ablation import EVALUATED, Metrics
from analyses.attention_edits import (
    SCORES,
    by_layer,
    check_answers,
    chosen_heads,
    seen,
    tempered,
)
from analyses.effects import outcome_table
from analyses.entropy import row_entropy
from analyses.inputs import Inputs, as_batch, real_positions
from analyses.metrics import as_metrics
from analyses.progress import track
from analyses.registry import run_module
from analyses.reruns import Array, Edit, Where, score_runs
from analyses.statistics import mean_where_defined
from analyses.streaming import chunks, mean_over, run_until
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import Head, HeadLike, hook_name
from models.tasks import Batch

TEMPERATURES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
COLDEST, HOTTEST = 1e-9, 1e9


def attention_temperature(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    temperatures: Iterable[float] = TEMPERATURES,
    metric: Metrics = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Give some heads' attention a temperature together, and compare.

    ``A_ij = softmax_j(s_ij / t)`` with ``s`` the scaled scores, over the visible keys.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        heads: e.g. ``["1.2", "0.3"]``; all heads of a layer are ``"4.*"``.
        temperatures: each from 1e-9 (the best key alone) to 1e9 (uniform).
        metric: see `analyses.metrics.as_metrics`; default loss, token accuracy and exact match.
        seed: of the default batch and the intervals.

    Returns:
        One row per temperature and metric (units in ``attrs``): ``temperature``, ``metric``;
        ``clean``, ``value``, ``change``, means over ``n`` sequences; ``ci_low``, ``ci_high`` (of
        the change, 95% BCa over sequences); ``entropy`` (nats, of these heads' rows at that
        temperature, mean over all queries, heads and sequences).

    Raises:
        UnknownNameError: a head that the model does not have.
        InputError: a temperature outside that range, or twice.

    Identity: at temperature 1 nothing changes; at a large one it is
    `analyses.substitution.substitute_pattern` by ``uniform``.
    """
    chosen, wanted = chosen_heads(model, heads), _checked(temperatures)
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    metrics = as_metrics(model, batch, metric)
    check_answers(model, batch, SCORES)
    runs = [_edits(model, chosen, t) for t in wanted]
    clean, scores = score_runs(model, batch, metrics, runs, what="attention temperature")
    table = outcome_table(metrics, clean, scores, column="value", seed=seed)
    entropy = _joint_entropies(model, batch, by_layer(chosen), wanted)
    table.insert(0, "temperature", np.repeat(wanted, len(metrics)))
    return _with_entropy(table, np.repeat(entropy.mean(-1), len(metrics)))


def attention_temperature_every_head(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    temperatures: Iterable[float] = TEMPERATURES,
    metric: Metrics = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Give each head's attention a temperature alone.

    Args:
        model, tokens, temperatures, metric, seed: as in `attention_temperature`.

    Returns:
        One row per head, temperature and metric: ``layer``, ``head``, and the columns of
        `attention_temperature`.
    """
    wanted, heads = _checked(temperatures), shape(model).heads
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    metrics = as_metrics(model, batch, metric)
    check_answers(model, batch, SCORES)
    runs = [_edits(model, [head], t) for head in heads for t in wanted]
    clean, scores = score_runs(model, batch, metrics, runs, what="attention temperature")
    table = outcome_table(metrics, clean, scores, column="value", seed=seed)
    entropy = _entropies(model, batch, by_layer(heads), wanted)  # temperature head
    each = len(wanted) * len(metrics)
    table.insert(0, "layer", np.repeat([layer for layer, _ in heads], each))
    table.insert(1, "head", np.repeat([head for _, head in heads], each))
    table.insert(2, "temperature", np.tile(np.repeat(wanted, len(metrics)), len(heads)))
    return _with_entropy(table, np.repeat(entropy.T.ravel(), len(metrics)))


def _with_entropy(table: pd.DataFrame, entropy: Array) -> pd.DataFrame:
    table.insert(len(table.columns) - 1, "entropy", entropy)
    table.attrs["units"]["entropy"] = "nats"
    return table


def _checked(temperatures: Iterable[float]) -> list[float]:
    found = [float(t) for t in temperatures]
    for t in found:
        if not COLDEST <= t <= HOTTEST:
            raise InputError(
                f"an attention temperature must be {COLDEST:g}..{HOTTEST:g}, but got {t:g}: near "
                "the ends a query looks at its best key alone, or at all alike"
            )
    if not found or len(set(found)) < len(found):
        raise InputError(f"name at least one temperature, and each once, but got {found}")
    return found


def _edits(model: HookedModel, heads: Sequence[Head], temperature: float) -> list[Edit]:
    def edit(layer: int, some: Sequence[int]) -> Edit:
        def change(part: Tensor, where: Where) -> None:
            visible = seen(model, where, part.device)
            for head in some:
                only = slice(head, head + 1)
                part[:, only] = tempered(part[:, only], temperature, visible)

        return Edit(layer, SCORES, change)

    return [edit(layer, some) for layer, some in by_layer(heads).items()]


def _joint_entropies(
    model: HookedModel, batch: Batch, heads: Mapping[int, list[int]], temperatures: Sequence[float]
) -> Float[Array, "temperature head"]:
    """Of heads that have the temperature together: later ones see what earlier ones did."""
    if len(heads) == 1:
        return _entropies(model, batch, heads, temperatures)
    with track("entropies", len(temperatures)) as advance:
        rows = []
        for t in temperatures:
            rows.append(_entropies(model, batch, heads, [t], applied=True))
            advance(1)
    return np.concatenate(rows)


def _entropies(
    model: HookedModel,
    batch: Batch,
    heads: Mapping[int, list[int]],
    temperatures: Sequence[float],
    *,
    applied: bool = False,
) -> Float[Array, "temperature head"]:
    """Mean over queries, then sequences, of the entropy of rows at each temperature, in nats.

    Args:
        heads: by layer.
        applied: whether the model goes on with what the (one) temperature makes of the scores.
    """
    parts = []
    for chunk in chunks(model, batch):
        real = real_positions(chunk)[:, None]
        where = Where(slice(0, len(chunk)), slice(0, chunk.tokens.shape[1]))
        visible = seen(model, where, real.device)
        kept: dict[int, Tensor] = {}

        def read(
            layer: int,
            scores: Tensor,
            *,
            hook: Any,
            real: Tensor = real,
            visible: Tensor = visible,
            kept: dict[int, Tensor] = kept,
        ) -> Tensor | None:
            own, found = heads[layer], []
            for t in temperatures:
                new = tempered(scores.detach()[:, own], t, visible)
                entropy = row_entropy(new.float().softmax(-1))
                found.append(mean_over(entropy, real.expand_as(entropy)).cpu().double())
            kept[layer] = torch.stack(found)  # temperature sequence head
            if not applied:
                return None
            scores = scores.clone()
            scores[:, own] = new
            return scores

        hooks = [(hook_name(SCORES, layer), partial(read, layer)) for layer in heads]
        run_until(model, chunk.tokens, hook_name(SCORES, max(heads)), hooks=hooks)
        parts.append(torch.cat([kept[layer] for layer in heads], dim=-1))
    return mean_where_defined(torch.cat(parts, dim=1).numpy(), axis=1)


if __name__ == "__main__":
    run_module("attention_temperature")
