"""Sampling: greedy, temperature, top-k and top-p, reproducible sequence by sequence.

What temperature and filters make of logits is in `models.filters`, whose names stand here too.

Every sequence has its own random stream, made from the seed and its own prompt, so that its
sample does not depend on what else is in the batch or in which order; the global random state
is not touched. Our GPT reads each position once and keeps its keys and values (`models.cache`);
another engine reads the whole sequence for every token.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.cache import KeyValueCache
from models.errors import InputError, VocabularyError
from models.filters import (
    CUT_BY,
    Filtered,
    Filters,
    check_filters,
    check_temperature,
    filter_distribution,
    is_whole,
    probabilities,
)
from models.gpt import GPT
from models.interface import HookedModel, Padded, TokensLike, evaluating, pad, shape
from models.names import unknown

__all__ = [
    "CUT_BY",
    "ContextNotice",
    "Filtered",
    "Filters",
    "Step",
    "check_filters",
    "check_temperature",
    "context_notice",
    "filter_distribution",
    "generate",
    "probabilities",
    "stream",
]

NO_TOKEN: Final = -1


class ContextNotice(UserWarning):
    """Sequences ended because the model's context was full."""


@dataclass(frozen=True)
class Step:
    """One more token of every sequence.

    Args:
        tokens: the ids; -1 in sequences that ended earlier, whose other values say nothing.
        probability: of the token under the distribution it was drawn from.
        model_probability: under the model itself, ``softmax(logits)``.
        rank: of the token by its logit; 1 is the model's first choice.
        n_removed: how many tokens the filters removed.
        mass_removed: how much probability, after the temperature, they had.
        context_full: the sequence ends here because the context is full, and more was wanted.
    """

    tokens: Int[Tensor, " batch"]
    probability: Float[Tensor, " batch"]
    model_probability: Float[Tensor, " batch"]
    rank: Int[Tensor, " batch"]
    n_removed: Int[Tensor, " batch"]
    mass_removed: Float[Tensor, " batch"]
    context_full: Bool[Tensor, " batch"]


def generate(
    model: HookedModel,
    tokens: TokensLike,
    n: int,
    *,
    stop: Iterable[int] = (),
    seed: int = 0,
    cached: bool = True,
    **filters: Unpack[Filters],
) -> Int[Tensor, "batch n"]:
    """Continue every prompt by ``n`` tokens, or until it ends.

    Args:
        model: a hooked model.
        tokens: prompts; they may have different lengths.
        n: tokens to add to each, at most.
        stop: ids that end a sequence; the one that did is its last token.
        seed: equal prompts in one batch get different streams, the first always the same one.
        cached: let our GPT keep keys and values. Hooks then see the new positions only; with
            ``False`` every token is the last of a full pass, for hooks that count positions.
        filters: ``temperature`` (0, the default, is greedy), ``top_k`` and ``top_p``, see
            `filter_distribution`.

    Returns:
        The new ids only, as many columns as the longest has; -1 after a sequence's end.

    Warns:
        ContextNotice: the context was full before a sequence had its ``n`` tokens. The last
            token is predicted at the context's last position, and is not read any more.

    Raises:
        InputError: an empty prompt, a bad filter, ``n`` below 1, or a filter of a greedy choice.
        LengthError: a prompt longer than the context.
        VocabularyError: an id outside the vocabulary.
    """
    steps = list(stream(model, tokens, n, stop=stop, seed=seed, cached=cached, **filters))
    if full := sum(int(step.context_full.sum()) for step in steps):
        warnings.warn(context_notice(model, full), ContextNotice, stacklevel=2)
    return torch.stack([step.tokens for step in steps], dim=1).to(shape(model).device)


def context_notice(model: HookedModel, n_sequences: int) -> str:
    """What to say when the context ended so many sequences."""
    which = "a sequence" if n_sequences == 1 else f"{n_sequences} sequences"
    return f"the model's context of {shape(model).n_ctx} tokens is full: {which} ended early"


def stream(
    model: HookedModel,
    tokens: TokensLike,
    n: int,
    *,
    stop: Iterable[int] = (),
    seed: int = 0,
    cached: bool = True,
    **filters: Unpack[Filters],
) -> Iterator[Step]:
    """The same as `generate`, token by token: one `Step` for all sequences at a time.

    Arguments are checked at the call, before the first token is asked for. Nothing of the model
    is changed between two steps, so the iterator may be left at any time.
    """
    _check(n, seed, filters)
    stops = _stop_ids(stop, shape(model).d_vocab)
    prompts = pad(model, tokens)
    draws = _uniform_draws(prompts.tokens, prompts.lengths, n, seed)
    return _steps(model, prompts, draws, stops, _Reader(model, cached), filters)


def _check(n: int, seed: int, filters: Filters) -> None:
    """Refuse counts and filters that cannot be, before anything runs."""
    known = list(Filters.__annotations__)
    for name in filters:
        if name not in known:
            raise unknown("option of sampling", name, known)
    check_filters(**filters)
    if not is_whole(n) or n < 1:
        raise InputError(f"n must be at least 1 token, but got {n!r}")
    if not is_whole(seed) or seed < 0:
        raise InputError(f"seed must be at least 0, but got {seed!r}")
    if not filters.get("temperature") and (filters.get("top_k") or filters.get("top_p")):
        raise InputError(
            "top_k and top_p choose what is sampled from, and temperature 0 is greedy: "
            "give a temperature above 0, or leave them out"
        )


def _stop_ids(stop: object, d_vocab: int) -> Int[Tensor, " stop"]:
    given: Any = stop.tolist() if isinstance(stop, Tensor) else stop
    ids: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    if not all(is_whole(i) for i in ids):
        raise InputError(f"stop must be a list of token ids, but got {stop!r}")
    if outside := sorted({int(i) for i in ids if not 0 <= i < d_vocab}):
        raise VocabularyError(f"stop tokens must be 0..{d_vocab - 1}, but got {outside}")
    return torch.tensor(sorted(set(map(int, ids))), dtype=torch.long)


def _steps(
    model: HookedModel,
    prompts: Padded,
    draws: Float[Tensor, "batch n"],
    stops: Int[Tensor, " stop"],
    read: _Reader,
    filters: Filters,
) -> Iterator[Step]:
    n_ctx, n = shape(model).n_ctx, draws.shape[1]
    room = min(n_ctx, prompts.tokens.shape[1] + n)
    ids = torch.nn.functional.pad(prompts.tokens, (0, room - prompts.tokens.shape[1]))
    ends = prompts.lengths.cpu()  # how many of each row are there; it stays when a row has ended
    going = torch.ones(len(ids), dtype=torch.bool)
    for i in range(n):
        with evaluating(model), torch.no_grad():  # never while the caller has control
            step = _step(read(ids, ends.tolist()).cpu(), draws[:, i], going, filters)
        going = going & ~torch.isin(step.tokens, stops)
        full = going & (ends == n_ctx)
        yield replace(step, context_full=full & (i + 1 < n))
        going = going & ~full
        if not going.any():
            return
        rows = going.nonzero()[:, 0]
        ids[rows.to(ids.device), ends[rows].to(ids.device)] = step.tokens[rows].to(ids.device)
        ends = ends + going


def _step(
    logits: Float[Tensor, "batch d_vocab"],
    draw: Float[Tensor, " batch"],
    going: Bool[Tensor, " batch"],
    filters: Filters,
) -> Step:
    """Draw one token of each row, and say what it was drawn from."""
    temperature = filters.get("temperature", 0.0)
    own = probabilities(logits, 1.0)
    n_removed, mass_removed = torch.zeros(len(logits), dtype=torch.long), torch.zeros(len(logits))
    if temperature == 0:
        tokens, p = logits.argmax(-1), torch.ones(len(logits)).double()
    elif filters.get("top_k") is None and filters.get("top_p") is None:
        given = own if temperature == 1 else probabilities(logits, temperature)
        tokens = _pick(given, draw)
        p = _at(given, tokens)
    else:
        found = filter_distribution(logits, **filters)
        tokens = _pick(found.after_top_p, draw)
        p = _at(found.after_top_p, tokens)
        n_removed = (~found.kept).sum(-1)
        mass_removed = found.before.masked_fill(found.kept, 0).sum(-1)
    return Step(
        tokens=tokens.where(going, NO_TOKEN),
        probability=p,
        model_probability=_at(own, tokens),
        rank=_rank(logits, tokens),
        n_removed=n_removed,
        mass_removed=mass_removed.double(),
        context_full=torch.zeros_like(going),
    )


class _Reader:
    """The logits that follow each row's last token, and no others where the engine can."""

    def __init__(self, model: HookedModel, cached: bool) -> None:
        self.model = model
        self.cache = KeyValueCache() if cached and isinstance(model, GPT) else None

    def __call__(
        self, ids: Int[Tensor, "batch room"], ends: list[int]
    ) -> Float[Tensor, "batch d_vocab"]:
        """The next logits of rows of which ``ends`` tokens are there."""
        last = torch.tensor(ends, device=ids.device) - 1
        rows, new = torch.arange(len(ids), device=ids.device), ids[:, : max(ends)]
        if not isinstance(self.model, GPT):
            return self.model(new, return_type="logits")[rows, last]  # type: ignore[no-any-return]
        follows = self.cache is not None and bool(self.cache.lengths)
        if self.cache is not None and follows:
            self.cache.truncate([end - 1 for end in ends])  # an ended row reads its last again
            new, last = ids[rows, last][:, None], torch.zeros_like(last)
        x = self.model(new, stop_at_layer=len(self.model.blocks), cache=self.cache)
        if self.cache is not None:
            self.cache.truncate(ends)  # without the padding
        return self.model.logits(x[rows, last][:, None])[:, 0]


def _at(p: Float[Tensor, "batch d_vocab"], tokens: Int[Tensor, " batch"]) -> Tensor:
    return p.gather(-1, tokens[:, None])[:, 0]


def _rank(logits: Float[Tensor, "batch d_vocab"], tokens: Int[Tensor, " batch"]) -> Tensor:
    """1 for the largest logit; of equal ones the smaller id comes first."""
    chosen = logits.gather(-1, tokens[:, None])
    earlier = torch.arange(logits.shape[-1]) < tokens[:, None]
    return 1 + ((logits > chosen) | ((logits == chosen) & earlier)).sum(-1)


def _pick(p: Float[Tensor, "batch d_vocab"], draw: Float[Tensor, " batch"]) -> Tensor:
    """The first token whose cumulative probability exceeds the draw."""
    cumulative = p.cumsum(-1)
    # the largest draw is below the total even after rounding, and never on a token of mass 0
    index = torch.searchsorted(cumulative, (draw * cumulative[:, -1])[:, None], right=True)
    return index[:, 0]


def _uniform_draws(tokens: Tensor, lengths: Tensor, n: int, seed: int) -> Float[Tensor, "batch n"]:
    seen: Counter[tuple[int, ...]] = Counter()
    draws = np.empty((len(tokens), n))
    for i, (row, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
        prompt = tuple(row[:length])
        stream = [seed, seen[prompt], len(prompt), *prompt]
        draws[i] = np.random.default_rng(stream).random(n)
        seen[prompt] += 1
    return torch.from_numpy(draws)
