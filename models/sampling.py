"""Sampling: greedy and with a temperature, reproducible sequence by sequence.

``temperature`` divides the logits once; 0 is greedy. Every sequence has its own random stream,
made from the seed and its own prompt, so that its sample does not depend on what else is in the
batch or in which order; the global random state is not touched.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.errors import InputError, LengthError, ProbeError
from models.gpt import GPT
from models.interface import HookedModel, TokensLike, evaluating, pad, shape


def check_temperature(temperature: float) -> float:
    """The temperature, if it is a number of at least 0.

    Raises:
        InputError: negative, infinite, or not a number.
    """
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(
            f"temperature must be 0 (greedy) or a positive number, but got {temperature}"
        )
    return temperature


def probabilities(
    logits: Float[Tensor, "*batch d_vocab"], temperature: float
) -> Float[Tensor, "*batch d_vocab"]:
    """``softmax(logits / temperature)`` in float64; at 0, all mass on the largest logit.

    >>> probabilities(torch.tensor([2.0, 0.0]), 2.0)[0].item().__round__(6)
    0.731059
    """
    check_temperature(temperature)
    logits = logits.double()
    if not bool(logits.amax(-1).isfinite().all()):
        raise ProbeError("the model's logits are not finite: it cannot be sampled")
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    # the largest logit becomes 0, so that no quotient overflows however small the temperature
    return ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)


def generate(
    model: HookedModel,
    tokens: TokensLike,
    n: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
) -> Int[Tensor, "batch n"]:
    """Continue every prompt by ``n`` tokens.

    Args:
        model: a hooked model.
        tokens: prompts; they may have different lengths.
        n: tokens to add to each.
        temperature: 0 is greedy.
        seed: equal prompts in one batch get different streams, the first always the same one.

    Returns:
        The new ids only.

    Raises:
        LengthError: prompt and continuation do not fit the context.
        InputError: a bad temperature or ``n`` below 1.
    """
    check_temperature(temperature)
    if n < 1:
        raise InputError(f"n must be at least 1 token, but got {n}")
    if seed < 0:
        raise InputError(f"seed must be at least 0, but got {seed}")
    prompts = pad(model, tokens)
    n_ctx = shape(model).n_ctx
    longest = int(prompts.lengths.max())
    if longest + n - 1 > n_ctx:
        raise LengthError(
            f"a prompt of {longest} tokens and {n} new ones need a context of {longest + n - 1}, "
            f"but the model's is {n_ctx}"
        )
    ids = torch.nn.functional.pad(prompts.tokens, (0, n))
    draws = _uniform_draws(prompts.tokens, prompts.lengths, n, seed)
    rows = torch.arange(len(ids), device=ids.device)
    with evaluating(model), torch.no_grad():
        for step in range(n):
            ends = prompts.lengths + step
            logits = _last_logits(model, ids[:, : int(ends.max())], ends)
            chosen = _pick(probabilities(logits.cpu(), temperature), draws[:, step])
            ids[rows, ends] = chosen.to(ids.device)
    return torch.stack([ids[rows, prompts.lengths + step] for step in range(n)], dim=1)


def _last_logits(
    model: HookedModel, ids: Int[Tensor, "batch pos"], ends: Int[Tensor, " batch"]
) -> Float[Tensor, "batch d_vocab"]:
    """Logits at the last real position of each row; our GPT forms those only, where it can."""
    if isinstance(model, GPT) and bool((ends == ids.shape[1]).all()):
        return model(ids, rows=slice(ids.shape[1] - 1, ids.shape[1]))[:, 0]  # type: ignore[no-any-return]
    rows = torch.arange(len(ids), device=ids.device)
    return model(ids, return_type="logits")[rows, ends - 1]  # type: ignore[no-any-return]


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
