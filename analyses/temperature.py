"""Temperature on a task: exactly, and confirmed by sampling.

Along the right answer, the probability of emitting all of it at temperature t is the product of
``softmax(logits / t)`` at the right tokens, so one teacher-forced pass gives the exact curve.
The confirmation draws one real sample per sequence from the generator; the number that come out
right is Poisson-binomial with the exact probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor

from analyses.inputs import Inputs, as_batch
from analyses.statistics import poisson_binomial_tail, wilson_interval
from analyses.registry import run_module
from models.errors import InputError
from models.interface import HookedModel, evaluating
from models.sampling import check_temperature, generate
from models.tasks import Batch, common_rows

TEMPERATURES = (0.1, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
SEQUENCES = 2_000
SAMPLED = 256
CHUNK = 512


def temperature(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    samples: int = SAMPLED,
    seed: int = 0,
) -> pd.DataFrame:
    """Exact match at each temperature, exact and sampled.

    Args:
        model: a hooked model trained on a task.
        tokens: a task batch; default 2,000 held-out sequences.
        temperatures: above 0.
        samples: sequences sampled once at each temperature; 0 for none.
        seed: of the default batch and of the samples.

    Returns:
        One row per temperature: ``temperature``; ``exact_match`` (exact probability that a
        sampled answer is right, mean over ``n`` sequences); ``token_probability`` (of the
        right token given a right prefix, mean); ``n``; and of the samples ``sampled`` (share
        right), ``sampled_low``, ``sampled_high`` (Wilson 95%), ``expected`` (mean exact
        probability of the sequences sampled), ``tail`` (two-sided, Poisson-binomial),
        ``n_sampled``.

    Raises:
        InputError: a temperature that is not above 0, or tokens without outputs.
    """
    for t in temperatures:
        if check_temperature(t) == 0:
            raise InputError("a sweep needs temperatures above 0: 0 is greedy")
    batch = as_batch(model, tokens, n=SEQUENCES, seed=seed)
    logits, targets, outputs = answer_logits(model, batch)
    rows: list[dict[str, Any]] = []
    for i, t in enumerate(temperatures):
        log_p = answer_log_probability(logits, targets, t)
        p = log_p.masked_fill(~outputs, 0).sum(1).exp().numpy()
        row = {
            "temperature": float(t),
            "exact_match": p.mean(),
            "token_probability": float(log_p[outputs].exp().mean()),
            "n": len(p),
        }
        rows.append(
            row | _sampled(model, batch[: min(samples, len(batch))], t, p, 1_000 * seed + i)
        )
    table = pd.DataFrame(rows)
    table.attrs["units"] = {"exact_match": "probability", "token_probability": "probability"}
    return table


def half_point(model: HookedModel, tokens: Inputs = None, *, seed: int = 0) -> float:
    """The temperature at which the exact match is 50%; NaN when it is outside 0.01..100."""
    batch = as_batch(model, tokens, n=SEQUENCES, seed=seed)
    logits, targets, outputs = answer_logits(model, batch)

    def excess(log_t: float) -> float:
        log_p = answer_log_probability(logits, targets, float(np.exp(log_t)))
        return float(log_p.masked_fill(~outputs, 0).sum(1).exp().mean()) - 0.5

    low, high = np.log(0.01), np.log(100.0)
    if excess(low) < 0 or excess(high) > 0:
        return float("nan")
    return float(np.exp(brentq(excess, low, high, xtol=1e-3)))


def answer_logits(
    model: HookedModel, batch: Batch
) -> tuple[Float[Tensor, "sequence output d_vocab"], Tensor, Tensor]:
    """Logits at the output positions given the right prefix, the right tokens, and which rows
    of them are outputs; float64 on the CPU."""
    if not batch.outputs.any():
        raise InputError("the tokens have no outputs: give a batch of a task")
    rows = common_rows(batch.outputs) or slice(None)
    parts = []
    with evaluating(model), torch.no_grad():
        for first in range(0, len(batch), CHUNK):
            part = batch.tokens[first : first + CHUNK]
            parts.append(model(part, return_type="logits")[:, rows].cpu().double())
    return torch.cat(parts), batch.next_tokens[:, rows].cpu(), batch.outputs[:, rows].cpu()


def answer_log_probability(
    logits: Float[Tensor, "sequence output d_vocab"], targets: Tensor, t: float
) -> Float[Tensor, "sequence output"]:
    """``ln softmax(logits / t)`` at the right tokens; 0 where no token is right."""
    scaled = (logits / t).log_softmax(-1)
    return scaled.gather(-1, targets.clamp(min=0)[..., None])[..., 0]


def _sampled(
    model: HookedModel, batch: Batch, t: float, p: np.ndarray[Any, Any], seed: int
) -> dict[str, float]:
    n = len(batch)
    if n == 0:
        names = ("sampled", "sampled_low", "sampled_high", "expected", "tail")
        return {**dict.fromkeys(names, float("nan")), "n_sampled": 0}
    right = _sample_right(model, batch, t, seed)
    low, high = wilson_interval(right, n)
    return {
        "sampled": right / n,
        "sampled_low": low,
        "sampled_high": high,
        "expected": float(p[:n].mean()),
        "tail": poisson_binomial_tail(right, p[:n]),
        "n_sampled": n,
    }


def _sample_right(model: HookedModel, batch: Batch, t: float, seed: int) -> int:
    """How many sequences come out right when each answer is sampled once."""
    right = 0
    starts = batch.outputs.int().argmax(1) + 1
    counts = batch.outputs.sum(1)
    for start, count in sorted({(int(s), int(c)) for s, c in zip(starts, counts, strict=True)}):
        same = (starts == start) & (counts == count)
        tokens = batch.tokens[same]
        answer = batch.next_tokens[same][:, start - 1 : start - 1 + count]
        written = generate(model, tokens[:, :start], count, temperature=t, seed=seed)
        right += int((written == answer).all(1).sum())
    return right


if __name__ == "__main__":
    run_module("temperature")
