"""Edges: single (query, key) cells taken out of heads' patterns.

An ablation takes a whole head away; cutting an edge takes away one thing that it looks at. By
default the rest of the row is renormalised, as if the key had not been there to look at (its
score is set to minus infinity); without that, its share is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral, Number
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from analyses.ablation import EVALUATED, Metrics, units_of
from analyses.attention_edits import (
    PATTERN,
    SCORES,
    by_layer,
    check_answers,
    chosen_heads,
)
from analyses.attention_patterns import Targets, target_mass
from analyses.effects import outcome_table
from analyses.inputs import Inputs, as_batch, real_positions
from analyses.metrics import as_metrics
from analyses.reruns import Array, Edit, Where, score_runs
from analyses.streaming import stream_patterns
from models.attention import visible_keys
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import Head, HeadLike
from models.tasks import Batch

Edges = Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]] | Tensor
"""``(query, key)`` pairs, a list of these for each sequence, or a mask."""


def cut_edges(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    edges: Edges,
    heads: Sequence[HeadLike] | None = None,
    renormalize: bool = True,
    metric: Metrics = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Take some (query, key) cells out of some heads' patterns together, and compare.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        edges: ``(query, key)`` pairs for all sequences (negative ones count from each sequence's
            own end), a list of these for each sequence (empty for none), or a bool mask
            ``[sequence, query, key]``.
        heads: e.g. ``["1.2", "0.*"]``; default all.
        renormalize: whether what is left of a row sums to 1 again.
        metric: see `analyses.metrics.as_metrics`; default loss, token accuracy and exact match.
        seed: of the default batch and the intervals.

    Returns:
        One row per metric (units in ``attrs``): ``metric``; ``clean``, ``ablated``, ``change``,
        means over the ``n`` sequences that lose an edge; ``ci_low``, ``ci_high`` (of the change,
        95% BCa over sequences).

    Raises:
        InputError: no edge, one to a key that its query does not see, or a query that would keep
            no key and yet be renormalised.

    Identity: without renormalising, all edges cut is zero ablation of ``z``.
    """
    chosen = shape(model).heads if heads is None else chosen_heads(model, heads)
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    mask = edge_mask(model, batch, edges, renormalize=renormalize)
    metrics = as_metrics(model, batch, metric)
    check_answers(model, batch, SCORES if renormalize else PATTERN)
    run = _cut(chosen, mask, renormalize)
    clean, scores = score_runs(model, batch, metrics, [run], what="cutting edges")
    scores[:, _untouched(mask)] = np.nan
    return outcome_table(metrics, clean, scores, column="ablated", seed=seed)


def cut_edges_every_head(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    edges: Edges,
    renormalize: bool = True,
    metric: Metrics = None,
    per_prompt: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """Take some (query, key) cells out of each head's pattern alone.

    Args:
        model, tokens, edges, renormalize, metric, seed: as in `cut_edges`.
        per_prompt: one row for each sequence, without intervals.

    Returns:
        One row per head and metric: ``layer``, ``head``, ``attention`` (share of a row that is
        cut, mean over the queries that lose an edge, then over sequences; 0..1), and the columns
        of `cut_edges`. With ``per_prompt`` one row per head, metric and ``prompt`` (from 0), with
        ``attention``, ``clean``, ``ablated``, ``change``; NaN where no edge is cut.
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    mask = edge_mask(model, batch, edges, renormalize=renormalize)
    metrics = as_metrics(model, batch, metric)
    check_answers(model, batch, SCORES if renormalize else PATTERN)
    heads = shape(model).heads
    runs = [_cut([head], mask, renormalize) for head in heads]
    clean, scores = score_runs(model, batch, metrics, runs, what="cutting edges")
    scores[:, _untouched(mask)] = np.nan
    looked = _attention(model, batch, mask)  # sequence head
    if per_prompt:
        head, metric_, prompt = np.indices((len(heads), len(metrics), len(batch))).reshape(3, -1)
        table = pd.DataFrame({"metric": [metrics[i].name for i in metric_], "prompt": prompt})
        table["clean"] = clean[prompt, metric_]
        table["ablated"] = scores[head, prompt, metric_]
        table["change"] = table["ablated"] - table["clean"]
        table.attrs["units"] = units_of(metrics)
        attention = looked[prompt, head]
    else:
        table = outcome_table(metrics, clean, scores, column="ablated", seed=seed)
        head = np.repeat(np.arange(len(heads)), len(metrics))
        attention = np.nanmean(looked, axis=0)[head]
    table.insert(0, "layer", [heads[i][0] for i in head])
    table.insert(1, "head", [heads[i][1] for i in head])
    table.insert(2, "attention", attention)
    table.attrs["units"]["attention"] = "share, 0..1"
    return table


def edge_mask(
    model: HookedModel, batch: Batch, edges: Edges, *, renormalize: bool
) -> Bool[Tensor, "sequence query key"]:
    """The edges as a mask, checked: see `cut_edges`."""
    size, n = batch.tokens.shape
    device = batch.tokens.device
    edges = _as_tensor(edges)
    if isinstance(edges, Tensor) and edges.dtype == torch.bool:
        if edges.shape != (size, n, n):
            raise InputError(
                f"a mask of edges must be [{size}, {n}, {n}], but got {list(edges.shape)}"
            )
        mask = edges.to(device) & real_positions(batch)[..., None]
    else:
        mask = torch.zeros(size, n, n, dtype=torch.bool)
        for s, query, key in _named(batch, edges):
            mask[s, query, key] = True
        mask = mask.to(device)
    if not bool(mask.any()):
        raise InputError("name at least one edge (query, key), as in edges=[(-1, 3)]")
    window = shape(model).window
    visible = visible_keys(n, n, window=window, device=device)
    if bool((blind := mask & ~visible).any()):
        s, query, key = blind.nonzero()[0].tolist()
        at = f" (its window is {window} keys)" if window and key <= query else ""
        raise InputError(
            f"an edge must lead to a key that its query sees, but query {query} of sequence {s} "
            f"does not see key {key}{at}"
        )
    if renormalize and bool((bare := (mask.sum(-1) == visible.sum(-1)) & mask.any(-1)).any()):
        s, query = bare.nonzero()[0].tolist()
        raise InputError(
            f"a query must keep a key to look at, but query {query} of sequence {s} loses all: "
            "leave it one, or give renormalize=False"
        )
    return mask


def _named(batch: Batch, edges: Any) -> Iterator[tuple[int, int, int]]:
    """Sequence, query and key of edges that are given by numbers."""
    given = edges.tolist() if isinstance(edges, Tensor) else edges
    if _lists(given):
        given = [edge.tolist() if hasattr(edge, "tolist") else edge for edge in given]
    if not _lists(given) or not all(map(_lists, given)):
        raise InputError(f"edges must be a list of (query, key), as in [(3, 1)], not {given!r}")
    one_list = bool(given) and all(edge and isinstance(edge[0], Number) for edge in given)
    each = [given] * len(batch) if one_list or not given else given
    if len(each) != len(batch):
        raise InputError(f"give edges for each of {len(batch)} sequences, but got {len(each)}")
    for s, (pairs, length) in enumerate(zip(each, batch.lengths.tolist(), strict=True)):
        for pair in pairs:
            if not _lists(pair) or len(pair) != 2:
                raise InputError(f"an edge is (query, key), but got {pair!r}")
            for position in pair:
                if not isinstance(position, Integral):
                    raise InputError(f"a position must be a whole number, but got {position!r}")
                if not -length <= int(position) < length:
                    raise InputError(
                        f"a position of sequence {s} must be 0..{length - 1} (or -1 for the "
                        f"last), but got {position}"
                    )
            yield s, int(pair[0]) % length, int(pair[1]) % length


def _as_tensor(edges: Any) -> Any:
    return torch.from_numpy(edges) if isinstance(edges, np.ndarray) else edges


def _lists(given: Any) -> bool:
    return isinstance(given, list | tuple)


def _cut(heads: Sequence[Head], mask: Tensor, renormalize: bool) -> list[Edit]:
    """The mask's cells gone: their scores minus infinity, or their attention 0."""
    nothing = -torch.inf if renormalize else 0.0

    def edit(layer: int, some: Sequence[int]) -> Edit:
        def change(part: Tensor, where: Where) -> None:
            at = where.positions
            cells = mask[where.sequences, at, : at.stop].to(part.device)
            for head in some:
                part[:, head] = part[:, head].masked_fill(cells, nothing)

        return Edit(layer, SCORES if renormalize else PATTERN, change)

    return [edit(layer, some) for layer, some in by_layer(heads).items()]


def _untouched(mask: Tensor) -> NDArray[np.bool_]:
    """The sequences that lose no edge."""
    return ~mask.any(-1).any(-1).cpu().numpy()


def _attention(model: HookedModel, batch: Batch, mask: Tensor) -> Array:
    """Mean share of a row that is cut, ``[sequence, layer * head]``."""
    done = 0

    def pattern(chunk: Batch) -> Targets:
        nonlocal done
        keys = mask[done : done + len(chunk)]
        done += len(chunk)
        return Targets(keys, keys.any(-1))

    values = stream_patterns(model, batch, {"cut": target_mass(pattern)})["cut"]
    return values.flatten(1).numpy()
