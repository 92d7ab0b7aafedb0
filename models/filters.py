"""What temperature, top-k and top-p make of logits.

One order, that of `transformers`:

1. ``temperature`` divides the logits once; 0 is greedy.
2. ``top_k`` keeps the k most likely tokens; what is left is renormalised.
3. ``top_p`` keeps the smallest set of the most likely tokens whose mass, of what is left, is at
   least p; what is left is renormalised again.

Equally likely tokens count in the order of their ids, so that exactly k are kept, and the most
likely token is always. Probabilities are float64; a mass that misses p by 1e-7, which float32
logits cannot tell apart, is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final, TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.errors import InputError, ProbeError

CUT_BY: Final = ("", "top_k", "top_p")
_ENOUGH = 1e-7


class Filters(TypedDict, total=False):
    """How the next token is drawn."""

    temperature: float
    top_k: int | None
    top_p: float | None


@dataclass(frozen=True)
class Filtered:
    """What temperature and filters make of logits; every field is ``[*batch, d_vocab]``.

    Args:
        logits: as the model gave them.
        scaled: divided by the temperature; NaN at temperature 0.
        before: probability before the filters; at temperature 0, 1 for the largest logit.
        after_top_k: probability after top-k, renormalised.
        after_top_p: probability after top-p, renormalised: what is drawn from.
        kept: whether the token is left; one whose probability rounds to 0 may be.
        cut_by: the filter that cut it, as an index into `CUT_BY`; 0 for none.

    Identity: ``before``, ``after_top_k`` and ``after_top_p`` each sum to 1.
    """

    logits: Float[Tensor, "*batch d_vocab"]
    scaled: Float[Tensor, "*batch d_vocab"]
    before: Float[Tensor, "*batch d_vocab"]
    after_top_k: Float[Tensor, "*batch d_vocab"]
    after_top_p: Float[Tensor, "*batch d_vocab"]
    kept: Bool[Tensor, "*batch d_vocab"]
    cut_by: Int[Tensor, "*batch d_vocab"]


def check_temperature(temperature: float) -> float:
    """The temperature, if it is a number of at least 0.

    Raises:
        InputError: negative, infinite, or not a number.
    """
    if not is_number(temperature) or not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(
            f"temperature must be 0 (greedy) or a positive number, but got {temperature!r}"
        )
    return temperature


def check_filters(
    *, temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None
) -> None:
    """Refuse what is no temperature, no top-k or no top-p.

    Raises:
        InputError: a bad temperature, ``top_k`` below 1, or ``top_p`` outside 0..1 or 0.
    """
    check_temperature(temperature)
    if top_k is not None and (not is_whole(top_k) or top_k < 1):
        raise InputError(f"top_k must be at least 1 token, but got {top_k!r}: leave it out for all")
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise InputError(f"top_p must be above 0 and at most 1, but got {top_p!r}")


def is_number(value: Any) -> bool:
    """Whether it is a real number; a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number by its type; a truth value is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def probabilities(
    logits: Float[Tensor, "*batch d_vocab"], temperature: float
) -> Float[Tensor, "*batch d_vocab"]:
    """``softmax(logits / temperature)`` in float64; at 0, all mass on the largest logit.

    >>> probabilities(torch.tensor([2.0, 0.0]), 2.0)[0].item().__round__(6)
    0.731059
    """
    check_temperature(temperature)
    if not logits.ndim or not logits.shape[-1]:
        raise InputError(
            f"logits must be those of one or more tokens, but got shape {tuple(logits.shape)}"
        )
    logits = logits.double()
    largest = logits.amax(-1, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise ProbeError("the model's logits are not finite: it cannot be sampled")
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    # the largest logit becomes 0, so that no quotient overflows however small the temperature
    return ((logits - largest) / temperature).softmax(-1)


def filter_distribution(
    logits: Float[Tensor, "*batch d_vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Filtered:
    """What temperature, top-k and top-p, in this order, make of every token.

    Args:
        logits: of the next token.
        temperature: 0 puts all mass on the largest logit; the filters then change nothing.
        top_k: how many tokens to keep; ``None``, or as many as there are, for all.
        top_p: how much mass to keep, above 0; ``None`` or 1 for all.

    Raises:
        InputError: a bad temperature, top-k or top-p, or no logits.
        ProbeError: logits that are not finite.

    >>> found = filter_distribution(torch.tensor([3.0, 2.0, 1.0]), top_k=2, top_p=0.7)
    >>> [CUT_BY[i] for i in found.cut_by]
    ['', 'top_p', 'top_k']
    """
    check_filters(temperature=temperature, top_k=top_k, top_p=top_p)
    before = probabilities(logits, temperature)
    after_top_k = after_top_p = before
    cut_by = torch.zeros_like(before, dtype=torch.int8)
    if top_k is not None or (top_p is not None and top_p < 1):
        order = logits.argsort(dim=-1, descending=True, stable=True)
        if top_k is not None:
            after_top_k = _keep(before, order[..., :top_k])
            cut_by.scatter_(-1, order[..., top_k:], CUT_BY.index("top_k"))
        if top_p is not None and top_p < 1:
            in_order = after_top_k.gather(-1, order)
            enough = (in_order.cumsum(-1) - in_order) >= top_p - _ENOUGH
            enough[..., 0] = False
            cut = torch.zeros_like(cut_by, dtype=torch.bool).scatter_(-1, order, enough)
            after_top_p = _normalised(after_top_k.masked_fill(cut, 0))
            cut_by.masked_fill_(cut & (cut_by == 0), CUT_BY.index("top_p"))
        else:
            after_top_p = after_top_k
    scaled = logits.double() / (temperature or torch.nan)
    return Filtered(logits, scaled, before, after_top_k, after_top_p, cut_by == 0, cut_by)


def _keep(p: Float[Tensor, "*batch d_vocab"], tokens: Int[Tensor, "*batch kept"]) -> Tensor:
    """The probabilities of these tokens, renormalised; 0 elsewhere."""
    return _normalised(torch.zeros_like(p).scatter_(-1, tokens, p.gather(-1, tokens)))


def _normalised(p: Float[Tensor, "*batch d_vocab"]) -> Tensor:
    return p / p.sum(-1, keepdim=True)
