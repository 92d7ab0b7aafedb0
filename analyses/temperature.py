"""Temperature on a task: exactly, and confirmed by sampling.

Along the right answer, the probability of emitting all of it at temperature t is the product of
``softmax(logits / t)`` at the right tokens, so one teacher-forced pass gives the exact curve,
for whole answers and output by output.
The confirmation draws one real sample per sequence from the generator; the number that come out
right is Poisson-binomial with the exact probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from analyses.inputs import Inputs, as_batch, select, task_of
from analyses.registry import run_module
from analyses.reruns import chunk_size, output_logits
from analyses.statistics import (
    INTERVAL,
    mean_interval,
    mean_where_defined,
    poisson_binomial_tail,
    wilson_interval,
)
from models.errors import InputError
from models.interface import HookedModel
from models.sampling import check_temperature, generate
from models.tasks import Batch, common_rows

Array = NDArray[np.float64]

TEMPERATURES = (0.1, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
SEQUENCES = 2_000
SAMPLED = 256


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
        right token given a right prefix, mean over a sequence's outputs, then over sequences);
        ``n``; and of the samples ``sampled`` (share right), ``sampled_low``, ``sampled_high``
        (Wilson 95%), ``expected`` (mean exact probability of the sequences sampled), ``tail``
        (two-sided, Poisson-binomial), ``n_sampled``. Sequences without outputs are left out.

    Raises:
        InputError: a temperature that is not above 0, or tokens without outputs.
    """
    steps = sweep_temperatures(temperatures)
    if tokens is None:
        task_of(model)  # random tokens have no answer
    batch = _answered(as_batch(model, tokens, n=SEQUENCES, seed=seed))
    sampled = batch[: max(0, min(samples, len(batch)))]
    rows: list[dict[str, Any]] = []
    for i, (t, (whole, token)) in enumerate(_exact(model, batch, steps).items()):
        exact = {
            "temperature": t,
            "exact_match": whole.mean(),
            "token_probability": token.mean(),
            "n": len(whole),
        }
        rows.append(exact | _sampled(model, sampled, t, whole, 1_000 * seed + i))
    table = pd.DataFrame(rows)
    table.attrs["units"] = {"exact_match": "probability", "token_probability": "probability"}
    return table


def temperature_by_position(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    seed: int = 0,
) -> pd.DataFrame:
    """How likely each output is right at each temperature, given that all before it are.

    ``softmax(logits / t)`` at the right token after the right prefix; no filters.

    Args:
        model: a hooked model trained on a task.
        tokens: a task batch; default 2,000 held-out sequences.
        temperatures: above 0.
        seed: of the default batch and the intervals.

    Returns:
        One row per temperature and output: ``temperature``, ``output`` (1 for a sequence's
        first); ``probability`` (mean over ``n`` sequences), ``ci_low``, ``ci_high`` (95% BCa over
        sequences), ``smallest``, ``largest``; ``so_far`` (probability that this output and all
        before it are right, mean over the same sequences); ``n``.

    Raises:
        InputError: a temperature that is not above 0, or tokens without outputs.

    Identity: of one sequence, the product over its outputs is the probability of its answer; of
    sequences of one length, the last ``so_far`` is the ``exact_match`` of `temperature`.
    """
    steps = sweep_temperatures(temperatures)
    if tokens is None:
        task_of(model)
    batch = _answered(as_batch(model, tokens, n=SEQUENCES, seed=seed))
    p = right_probabilities(model, batch, steps)
    interval = mean_interval(np.moveaxis(p, 1, 0), seed=seed)
    so_far = mean_where_defined(p.cumprod(-1), axis=1)  # NaN stays where a sequence has ended
    n_outputs = p.shape[-1]
    table = pd.DataFrame(
        {
            "temperature": np.repeat(steps, n_outputs),
            "output": np.tile(np.arange(1, n_outputs + 1), len(steps)),
            "probability": interval.mean.ravel(),
            "ci_low": interval.low.ravel(),
            "ci_high": interval.high.ravel(),
            "smallest": interval.smallest.ravel(),
            "largest": interval.largest.ravel(),
            "so_far": so_far.ravel(),
            "n": interval.n.ravel(),
        }
    )
    units = dict.fromkeys(("probability", "so_far"), "probability")
    table.attrs |= {"units": units, "interval": INTERVAL}
    return table


def right_probabilities(
    model: HookedModel, batch: Batch, temperatures: Sequence[float]
) -> Float[Array, "temperature sequence output"]:
    """Of every right token, given the right ones before it; NaN past a sequence's own outputs."""
    found = []
    for logits, targets, outputs in _answers(model, batch):
        order = (~outputs).int().argsort(dim=1, stable=True)  # a sequence's own outputs first
        log_p = [answer_log_probability(logits, targets, t) for t in temperatures]
        p = torch.stack(log_p).exp().masked_fill(~outputs, torch.nan)
        found.append(p.gather(2, order.expand_as(p)))
    most = int(batch.outputs.sum(1).max())
    return torch.cat(found, dim=1)[..., :most].numpy()


def half_point(model: HookedModel, tokens: Inputs = None, *, seed: int = 0) -> float:
    """The temperature at which the exact match is 50%; NaN when it is outside 0.01..100.

    For a model that is right when greedy the exact match falls with the temperature, so there
    is one such point.
    """
    batch = _answered(as_batch(model, tokens, n=SEQUENCES, seed=seed))
    logits, targets, outputs = answer_logits(model, batch)

    def excess(log_t: float) -> float:
        log_p = answer_log_probability(logits, targets, float(np.exp(log_t)))
        return float(log_p.masked_fill(~outputs, 0).sum(1).exp().mean()) - 0.5

    low, high = np.log(0.01), np.log(100.0)
    if excess(low) < 0 or excess(high) > 0:
        return float("nan")
    return float(np.exp(brentq(excess, low, high, xtol=1e-6)))


def sweep_temperatures(temperatures: Sequence[float]) -> list[float]:
    """The temperatures of a sweep, checked.

    Raises:
        InputError: none, or one that is not above 0.
    """
    steps = [check_temperature(float(t)) for t in temperatures]
    if not steps or 0 in steps:
        raise InputError("a sweep needs at least one temperature, and all above 0: 0 is greedy")
    return steps


def answer_logits(
    model: HookedModel, batch: Batch
) -> tuple[
    Float[Tensor, "sequence output d_vocab"],
    Int[Tensor, "sequence output"],
    Bool[Tensor, "sequence output"],
]:
    """What the model says given the right prefix.

    Returns:
        Logits at the output positions (float64), the right tokens, and which rows of them are
        outputs, all on the CPU.
    """
    chunks = list(_answers(model, batch))
    logits, targets, outputs = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return logits, targets, outputs


def answer_log_probability(
    logits: Float[Tensor, "sequence output d_vocab"],
    targets: Int[Tensor, "sequence output"],
    t: float,
) -> Float[Tensor, "sequence output"]:
    """``ln softmax(logits / t)`` at the right tokens; meaningless where no token is right."""
    # the largest logit becomes 0, so that no quotient overflows however small the temperature
    scaled = ((logits - logits.amax(-1, keepdim=True)) / t).log_softmax(-1)
    return scaled.gather(-1, targets.clamp(min=0)[..., None])[..., 0]


def _answered(batch: Batch) -> Batch:
    answered = batch.outputs.any(1)
    if not answered.any():
        raise InputError("the tokens have no outputs: give a batch of a task")
    return batch if answered.all() else select(batch, answered)


def _answers(model: HookedModel, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """`answer_logits`, chunk by chunk."""
    rows = common_rows(batch.outputs)
    read, size = rows or slice(None), chunk_size(model, batch.tokens.shape[1])
    for first in range(0, len(batch), size):
        part = batch[first : first + size]
        logits = output_logits(model, part.tokens, rows).cpu().double()
        yield logits, part.next_tokens[:, read].cpu(), part.outputs[:, read].cpu()


def _exact(
    model: HookedModel, batch: Batch, temperatures: Sequence[float]
) -> dict[float, tuple[Array, Array]]:
    """By temperature: the probability of every answer, and its mean probability per token."""
    found: dict[float, list[Tensor]] = {t: [] for t in temperatures}
    for logits, targets, outputs in _answers(model, batch):
        for t, parts in found.items():
            log_p = answer_log_probability(logits, targets, t)
            whole = log_p.masked_fill(~outputs, 0).sum(1).exp()
            token = log_p.exp().masked_fill(~outputs, 0).sum(1) / outputs.sum(1)
            parts.append(torch.stack([whole, token]))
    cells = {t: torch.cat(parts, 1).numpy() for t, parts in found.items()}
    return {t: (cell[0], cell[1]) for t, cell in cells.items()}


def _sampled(model: HookedModel, batch: Batch, t: float, p: Array, seed: int) -> dict[str, float]:
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
    starts, counts = batch.outputs.int().argmax(1) + 1, batch.outputs.sum(1)
    if not (_last_output(batch) - starts + 2 == counts).all():
        raise InputError("sampling needs each sequence's outputs in one run: use samples=0")
    for start, count in sorted(set(zip(starts.tolist(), counts.tolist(), strict=True))):
        same = (starts == start) & (counts == count)
        answer = batch.next_tokens[same][:, start - 1 : start - 1 + count]
        prompts = batch.tokens[same][:, :start]
        written = generate(model, prompts, count, temperature=t, seed=seed)
        right += int((written == answer).all(1).sum())
    return right


def _last_output(batch: Batch) -> Tensor:
    return batch.outputs.shape[1] - 1 - batch.outputs.flip(1).int().argmax(1)


if __name__ == "__main__":
    run_module("temperature")
