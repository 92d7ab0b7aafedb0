"""Pattern scores: how much attention goes where a named pattern says it should.

For a score, each query has a set of target keys. A head's score on a sequence is its attention
on the targets, averaged over the queries where the pattern is defined; then sequences are
averaged. Chance is the same average with uniform attention over the visible keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from analyses.inputs import Inputs, as_batch, as_names, real_positions
from analyses.registry import run_module
from analyses.streaming import Prepare, Reduce, Rows
from analyses.tables import score_heads
from models.errors import InputError
from models.interface import HookedModel
from models.names import unknown
from models.tasks import Batch

UNIT = "share of attention, 0..1"


class Targets(NamedTuple):
    """Which keys a pattern means for each query, and for which queries it is defined."""

    keys: Bool[Tensor, "batch query key"]
    queries: Bool[Tensor, "batch query"]


class Cells(NamedTuple):
    """The same as a list: cells in the order of their queries, and the queries that count."""

    sequence: Int[Tensor, " cell"]
    query: Int[Tensor, " cell"]
    key: Int[Tensor, " cell"]
    queries: Bool[Tensor, "batch query"]


PatternFunction = Callable[[Batch], Targets | Cells]


def _previous_token(batch: Batch) -> Cells:
    return _one_key(_positions(batch) - 1)


def _current_token(batch: Batch) -> Cells:
    position = _positions(batch)
    return _one_key(torch.where(position > 0, position, -1))


def _first_token(batch: Batch) -> Cells:
    return _one_key(torch.where(_positions(batch) > 0, 0, -1))


def _separator(batch: Batch) -> Cells:
    separator = batch.groups["separator"]
    after = separator.cumsum(1).bool() & ~separator
    return _one_key(torch.where(after, separator.long().argmax(1, keepdim=True), -1))


def _anti_diagonal(batch: Batch) -> Cells:
    return _one_key(batch.target_keys)


def _anti_diagonal_holding(batch: Batch) -> Cells:
    return _one_key(torch.nn.functional.pad(batch.target_keys[:, :-1], (1, 0), value=-1))


def _right_token(batch: Batch) -> Cells:
    holds = batch.tokens[:, None, :] == batch.next_tokens[..., None]
    return _listed(Targets(holds.tril(), batch.target_keys >= 0))


def _duplicate_token(batch: Batch) -> Cells:
    copies = earlier_copies(batch)
    return _listed(Targets(copies, copies.any(-1)))


def _induction(batch: Batch) -> Cells:
    copies = earlier_copies(batch)
    sequence, query, key, queries = _listed(Targets(copies, copies.any(-1)))
    return Cells(sequence, query, key + 1, queries)


PATTERNS: dict[str, tuple[PatternFunction, str]] = {
    "anti_diagonal": (_anti_diagonal, "query predicting y_j looks at the letter it must write"),
    "anti_diagonal_holding": (_anti_diagonal_holding, "query holding y_j looks at its copy"),
    "right_token": (_right_token, "any key that holds the right next token"),
    "previous_token": (_previous_token, "the key one position back"),
    "current_token": (_current_token, "the query's own position"),
    "first_token": (_first_token, "position 0"),
    "separator": (_separator, "the separator, from queries after it"),
    "duplicate_token": (_duplicate_token, "all strictly earlier copies of the query's token"),
    "induction": (_induction, "the tokens after all strictly earlier copies"),
}


def is_anti_diagonal(batch: Batch) -> bool:
    """Whether target keys lie on one anti-diagonal (query + key fixed) in every sequence."""
    target = batch.target_keys >= 0
    position = torch.arange(target.shape[1], device=target.device)
    total = position + batch.target_keys
    low = torch.where(target, total, 10**9).amin(1)
    high = torch.where(target, total, -1).amax(1)
    return bool(((low == high) | ~target.any(1)).all() and (target.sum(1) > 1).any())


_NEEDS: dict[str, Callable[[Batch], bool]] = {
    "anti_diagonal": is_anti_diagonal,
    "anti_diagonal_holding": is_anti_diagonal,
    "right_token": lambda batch: bool((batch.target_keys >= 0).any()),
    "separator": lambda batch: "separator" in batch.groups,
}


def attention_patterns(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    scores: Iterable[str] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Pattern scores of every head.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`.
        scores: names from `PATTERNS`; default all that the input defines.
        seed: of the default batch and of the resampling.

    Returns:
        One row per head and score: ``layer``, ``head``, ``score``; ``value`` and ``chance``
        (shares of attention, 0..1); ``ci_low``, ``ci_high`` (95% BCa over sequences, NaN under
        10 sequences); ``smallest``, ``largest`` (over sequences); ``n`` sequences and
        ``skipped`` ones in which no query has the pattern.

    Raises:
        UnknownNameError: a score that does not exist.
        InputError: a score that this input does not define.

    Source: Olsson et al. 2022 (prefix matching, here "induction").
    Identity: on uniform attention every value equals its chance.
    """
    batch = as_batch(model, tokens, seed=seed)
    return score_heads(model, batch, pattern_reducers(batch, scores), unit=UNIT, seed=seed)


def match_pattern(
    model: HookedModel, tokens: Inputs = None, *, pattern: PatternFunction, seed: int = 0
) -> pd.DataFrame:
    """The score of every head for a pattern of your own.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`.
        pattern: from a batch to `Targets`: bool ``keys [batch, query, key]`` and bool
            ``queries [batch, query]``; padding, and keys after the query, are left out here.
        seed: of the default batch and of the resampling.

    Returns:
        As `attention_patterns`, with ``score`` the function's name.

    Raises:
        InputError: ``pattern`` is no function, or returns no targets of the batch's shape.
    """
    if not callable(pattern):
        raise InputError(
            f"pattern must be a function of a batch that returns Targets, not {_kind(pattern)}"
        )
    batch = as_batch(model, tokens, seed=seed)
    name = getattr(pattern, "__name__", "pattern")
    return score_heads(model, batch, {name: target_mass(pattern)}, unit=UNIT, seed=seed)


def pattern_reducers(batch: Batch, scores: Iterable[str] | None = None) -> dict[str, Prepare]:
    """Reducers by score: the named ones, or all that the batch defines."""
    defined = available(batch)
    names = defined if scores is None else as_names(scores)
    for name in names:
        if name not in PATTERNS:
            raise unknown("score", name, list(PATTERNS))
        if name not in defined:
            raise InputError(f"{name} is not defined on this input; these are: {defined}")
    if not names:
        raise InputError("name at least one score")
    return {name: target_mass(PATTERNS[name][0]) for name in names}


def target_mass(pattern: PatternFunction) -> Prepare:
    """The reducer of a pattern: attention on the targets of each query that counts.

    A row that is all zero or holds NaN is left out.
    """

    def prepare(batch: Batch) -> Reduce:
        sequence, query, key, queries = checked_cells(pattern(batch), batch)

        def reduce(rows: Rows) -> Tensor:
            start, stop = rows.queries.start, rows.queries.stop
            part = slice(*torch.searchsorted(query, query.new_tensor([start, stop])).tolist())
            size, n_heads, n, _ = rows.pattern.shape
            at = sequence[part], slice(None), query[part] - start, key[part]
            mass = rows.pattern.new_zeros(size * n, n_heads)
            mass.index_add_(0, at[0] * n + at[2], rows.pattern[at])
            defined = queries[:, None, rows.queries] & rows.attends
            return torch.where(defined, mass.view(size, n, n_heads).mT, torch.nan)

        return reduce

    return prepare


def checked_cells(targets: Targets | Cells, batch: Batch) -> Cells:
    """The targets as a list in the order of their queries, of real queries only.

    Raises:
        InputError: no targets, or keys or queries of other shapes than the batch.
    """
    if not isinstance(targets, Targets | Cells):
        raise InputError(
            "a pattern must return Targets(keys, queries), both bool tensors, "
            f"but returned {_kind(targets)}"
        )
    masks = targets if isinstance(targets, Targets) else targets[3:]
    for part in targets:
        if not isinstance(part, Tensor):
            raise InputError(f"the targets of a pattern must be tensors, but hold {_kind(part)}")
    if wrong := [mask.dtype for mask in masks if mask.dtype != torch.bool]:
        raise InputError(f"keys and queries of a pattern must be bool, but got {wrong[0]}")
    if isinstance(targets, Targets):
        size, n = batch.tokens.shape
        keys, queries = targets
        if keys.shape != (size, n, n) or queries.shape != (size, n):
            raise InputError(
                f"a pattern must return keys of shape {(size, n, n)} and queries of shape "
                f"{(size, n)}, but returned {tuple(keys.shape)} and {tuple(queries.shape)}"
            )
        targets = _listed(Targets(keys.tril(), queries))
    sequence, query, key, queries = targets
    real = real_positions(batch)
    kept = (queries & real)[sequence, query] & (key <= query)
    order = query[kept].argsort(stable=True)
    sequence, query, key = (index[kept][order] for index in (sequence, query, key))
    return Cells(sequence, query.contiguous(), key, queries & real)


def _kind(given: object) -> str:
    return "None" if given is None else type(given).__name__


def earlier_copies(batch: Batch) -> Bool[Tensor, "batch query key"]:
    """Which keys are strictly earlier copies of the query's token."""
    return (batch.tokens[:, :, None] == batch.tokens[:, None, :]).tril(-1)


def _listed(targets: Targets) -> Cells:
    sequence, query, key = targets.keys.nonzero().unbind(1)
    return Cells(sequence, query, key, targets.queries)


def _one_key(keys: Int[Tensor, "batch query"]) -> Cells:
    """Cells of patterns with one key per query; -1 where the pattern is not defined."""
    sequence, query = (keys >= 0).nonzero().unbind(1)
    return Cells(sequence, query, keys[sequence, query], keys >= 0)


def available(batch: Batch) -> list[str]:
    """The scores that a batch defines."""
    return [name for name in PATTERNS if name not in _NEEDS or _NEEDS[name](batch)]


def _positions(batch: Batch) -> Int[Tensor, "batch query"]:
    n = batch.tokens.shape[1]
    return torch.arange(n, device=batch.tokens.device).expand_as(batch.tokens)


if __name__ == "__main__":
    run_module("attention_patterns")
