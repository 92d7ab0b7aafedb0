"""What a model would predict if its layers ended earlier: the logit lens.

The residual stream after each layer is put where the last layer leaves its own, so that the final
norm, with the scale of this stream and not of another, and all that follows it read it.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses.ablation import EVALUATED
from analyses.inputs import Inputs, as_batch
from analyses.metrics import LogProbability, Metric, MetricLike, Rows, as_metrics, last_positions
from analyses.progress import track
from analyses.readout import Readout
from analyses.registry import run_module
from analyses.reruns import Array, Run, Runner, Where, chunk_size, replace, score_runs
from analyses.statistics import INTERVAL, mean_interval
from models.errors import InputError
from models.interface import HookedModel, capture, shape
from models.names import hook_name
from models.tasks import Batch

_EXTRA = ("top_probability", "agreement")


def logit_lens(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    metric: MetricLike | None = None,
    per_prompt: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """What the model would predict if its layers ended earlier.

    The residual stream after each layer is put where the last layer leaves its own: the final
    norm, with the scale of this stream, and the unembedding read it.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        metric: one; default the log-probability of the token that the whole model finds
            likeliest after each sequence.
        per_prompt: one row for each sequence, without intervals.
        seed: of the default sequences and the intervals.

    Returns:
        One row per number of layers: ``n_layers`` (how many have run: 0 is the embedding, the
        last row is the model itself), ``metric``, ``value`` (in its unit), ``ci_low``,
        ``ci_high`` (95% BCa over sequences), ``top_probability`` (of the likeliest token, mean
        over the positions that the metric reads), ``agreement`` (share of these positions whose
        likeliest token is the whole model's), ``n``. With ``per_prompt`` one row per number of
        layers and ``prompt`` (from 0), without ``n`` and intervals.

    Raises:
        InputError: more than one metric.

    Cost: on our GPT about two forward passes; on a bridge one for every layer.

    Identity: the last row is the model's own output.
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    given = LogProbability(answer=_predictions(model, batch)) if metric is None else metric
    metrics = as_metrics(model, batch, given)
    if len(metrics) != 1:
        raise InputError(f"a logit lens needs one metric, but got {len(metrics)}")
    judged = [metrics[0], _TopProbability(metrics[0]), _Agreement(metrics[0])]
    depths = shape(model).n_layers + 1
    size, scores = chunk_size(model, batch.tokens.shape[1]), np.empty((depths, len(batch), 3))
    with track("logit lens", len(batch)) as advance:
        for first in range(0, len(batch), size):
            rows = slice(first, min(first + size, len(batch)))
            runs = _runs(model, batch.tokens[rows])  # before the runner's own hooks
            runner = Runner(model, batch, judged, rows)
            for indices, some in runner.together(runs):
                scores[indices, rows] = runner.scores(some)
            advance(rows.stop - rows.start)
    table = _lens_table(metrics[0].name, scores, per_prompt, seed)
    table.attrs["units"] = {"value": metrics[0].unit}
    return table


def _runs(model: HookedModel, tokens: Tensor) -> list[Run]:
    """One run for each number of layers, whose stream the last layer leaves instead of its own."""
    layers = range(shape(model).n_layers)
    names = [hook_name("hook_resid_pre", 0)]
    names += [hook_name("hook_resid_post", layer) for layer in layers]
    streams = capture(model, tokens, names).activations

    def part(name: str, where: Where) -> Tensor:
        return streams[name][:, where.positions]

    return [[replace(layers[-1], "hook_resid_post", partial(part, name))] for name in names]


@dataclass(frozen=True)
class _Likeliest(Metric):
    """About the likeliest token, where another metric reads."""

    of: Metric
    unit = "share"
    best = True

    def positions(self, batch: Batch) -> Tensor:
        return self.of.positions(batch)


@dataclass(frozen=True)
class _TopProbability(_Likeliest):
    name = "top_probability"

    def values(self, read: Readout, rows: Rows) -> Tensor:
        return read.log_probabilities(read.argmax()).exp()


@dataclass(frozen=True)
class _Agreement(_Likeliest):
    name = "agreement"
    whole = True

    def values(self, read: Readout, rows: Rows) -> Tensor:
        if rows.clean is None:
            return torch.ones(len(read), dtype=torch.float64, device=read.states.device)
        clean = rows.clean.argmax()
        return (read.argmax() == clean.repeat(len(read) // len(clean))).double()


def _predictions(model: HookedModel, batch: Batch) -> list[int]:
    """The likeliest token after each sequence."""
    last = _Last()
    _, scores = score_runs(model, batch, [last], [[]], what="predictions")
    return [int(token) for token in scores[0, :, 0]]


@dataclass(frozen=True)
class _Last(Metric):
    """The id of the likeliest token after each sequence."""

    name = "prediction"
    unit = "id"
    best = True

    def positions(self, batch: Batch) -> Tensor:
        return last_positions(batch)

    def values(self, read: Readout, rows: Rows) -> Tensor:
        return read.argmax().double()


def _lens_table(name: str, scores: Array, per_prompt: bool, seed: int) -> pd.DataFrame:
    """From ``[depth, sequence, (value, top probability, agreement)]``."""
    depth, prompt = np.indices(scores.shape[:2]).reshape(2, -1)
    if per_prompt:
        columns = dict(zip(("value", *_EXTRA), scores.reshape(-1, 3).T, strict=True))
        return pd.DataFrame({"n_layers": depth, "metric": name, "prompt": prompt, **columns})
    interval = mean_interval(np.moveaxis(scores, 1, 0), seed=seed)
    means: dict[str, Any] = {
        "value": interval.mean[:, 0],
        "ci_low": interval.low[:, 0],
        "ci_high": interval.high[:, 0],
        **dict(zip(_EXTRA, interval.mean[:, 1:].T, strict=True)),
        "n": interval.n[:, 0],
    }
    table = pd.DataFrame({"n_layers": np.arange(len(scores)), "metric": name, **means})
    table.attrs["interval"] = INTERVAL
    return table


if __name__ == "__main__":
    run_module("lens")
