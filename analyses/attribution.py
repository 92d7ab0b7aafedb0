"""What each part of a model writes: its direct effect on the logits.

The residual stream before the final norm is a sum of what the parts of a model added to it, and
the final norm, with its scale as it was in the clean run, is linear. So a logit is a sum over
parts: the embedding, each head (``z W_O`` of its own), each MLP, and what no input changes. Only
the direct path to the logits counts; what a head does through later heads is in its exact effect
(`analyses.ablation`).

Sources: Elhage et al. 2021, "A mathematical framework for transformer circuits"; Wang et al. 2022
(arXiv 2211.00593).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.ablation import EVALUATED
from analyses.copying import FINAL_SCALE, final_norm
from analyses.inputs import Inputs, as_batch
from analyses.metrics import (
    Logit,
    LogitDifference,
    LogProbability,
    Loss,
    Metric,
    MetricLike,
    Probability,
    Rank,
    Rows,
    as_metrics,
)
from analyses.progress import track
from analyses.registry import run_module
from analyses.reruns import Array, chunk_size
from analyses.statistics import INTERVAL, mean_interval
from analyses.streaming import run_until
from models.blocks import Norm
from models.errors import InputError
from models.interface import HookedModel, evaluating, shape, weights
from models.names import Part, hook_name
from models.tasks import Batch

CLOSE = 0.02  # what the parts may miss of the stream, of its size, in half precision too
EMBED, POSITIONS, BIAS = Part(-1, "embed"), Part(-1, "pos_embed"), Part(-1, "bias")
DIRECTIONS: dict[type[Metric], str] = {
    LogitDifference: "logit of the answer above that of the distractor",
    Logit: "logit of the answer",
    Probability: "logit of the answer",
    LogProbability: "logit of the answer",
    Rank: "logit of the answer",
    Loss: "logit of the right token above the mean over the vocabulary",
}
"""The sum of logits that stands for a metric."""


def direct_effects(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    metric: MetricLike = "loss",
    per_prompt: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """The direct contribution of each head, each MLP and the embeddings to the metric's logits.

    Of a part that writes ``x`` to the residual stream: ``norm(x) . u``, where ``norm`` divides by
    the scale of the final norm in the clean run, multiplies by its weight (a layer norm takes out
    the mean of ``x`` first) and ``u`` is the metric's direction in the unembedding.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        metric: says the positions and the direction. ``logit_difference``: the answer above the
            distractor. ``logit``, ``probability``, ``log_probability``, ``rank``: the answer's
            logit. ``loss``: the right token's logit above the mean over the vocabulary, averaged
            over the outputs; positive lowers the loss.
        per_prompt: one row for each sequence, without intervals.
        seed: of the default sequences and the intervals.

    Returns:
        One row per part: ``component`` (``embed``, ``pos_embed`` where there is one, heads
        ``4.11``, ``mlp.4``, ``bias``: output biases of attention, final norm and unembedding;
        an MLP's bias is in its MLP), ``layer``, ``head`` (missing where it is of none),
        ``value`` (logits, mean over ``n`` sequences), ``ci_low``, ``ci_high`` (95% BCa over
        sequences), ``n``. With ``per_prompt`` one row per part and ``prompt`` (from 0), with
        ``value``. ``attrs["direction"]`` says in words what the values add up to.

    Raises:
        InputError: a metric that is no sum of logits (``kl``, accuracies, a function of yours), or
            a model whose parts do not add up to what its final norm reads.

    Cost: one forward pass without logits.

    Identity: the values add up to the metric's logits in the clean run (before a soft cap, where
    a model has one).
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    bound = _directed(as_metrics(model, batch, metric))
    end = _end(model)
    size = chunk_size(model, batch.tokens.shape[1])
    values: list[Array] = []
    parts: list[Part] = []
    with track("direct effects", len(batch)) as advance:
        for first in range(0, len(batch), size):
            rows = slice(first, min(first + size, len(batch)))
            found = _Sums(model, batch, bound, rows, end).run()
            parts = list(found)
            values.append(np.stack(list(found.values()), axis=-1))
            advance(rows.stop - rows.start)
    table = _table(parts, np.concatenate(values), per_prompt, seed)
    table.attrs["units"] = {"value": "logits"}
    table.attrs["direction"] = DIRECTIONS[type(bound)]
    return table


class _End(NamedTuple):
    """What follows the last layer."""

    weight: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]
    centred: bool
    W_O: Float[Tensor, "layer head d_head d_model"]
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None
    mean: Float[Tensor, " d_model"]  # of the unembedding over the vocabulary


def _end(model: Any) -> _End:
    try:
        weight, centred = final_norm(model)
    except InputError as error:
        text = str(error).replace("copying is", "direct effects are", 1)
        raise InputError(text) from None
    norm = model.ln_final
    if isinstance(norm, Norm):
        given = norm.bias
        bias = torch.zeros_like(weight) if given is None else given.detach().float()
    else:  # what a norm makes of nothing is its bias
        inner = getattr(norm, "original_component", None) or norm
        like = next(inner.parameters(), weight)
        with evaluating(model), torch.no_grad():
            bias = inner(torch.zeros_like(weight)[None, None].to(like))[0, 0].float()
    matrices = weights(model)
    W_O, W_U = matrices["W_O"], matrices["W_U"]
    if W_O is None or W_U is None:
        raise InputError(
            "direct effects need the matrices W_O and W_U, but this model has not both"
        )
    b_U = getattr(model, "b_U", None)
    b_U = b_U.detach().float() if isinstance(b_U, Tensor) else None
    return _End(weight, bias, centred, W_O, W_U, b_U, W_U.float().mean(1))


@dataclass
class _Sums:
    """One chunk's contributions, gathered as the model runs."""

    model: HookedModel
    batch: Batch
    metric: Metric
    rows: slice
    end: _End
    found: dict[Part, Tensor] = field(default_factory=dict)  # of a part, at every row

    def run(self) -> dict[Part, Array]:
        """By part, one number for each sequence; NaN where the metric reads nothing."""
        read = self.metric.positions(self.batch)[self.rows]
        self.sequence, self.position = read.nonzero(as_tuple=True)
        self.at = Rows(self.sequence + self.rows.start, self.position, self.batch)
        u, offset = self._directions()
        direction = u * self.end.weight
        if self.end.centred:  # what a layer norm subtracts from the stream cannot reach the logit
            direction = direction - direction.mean(-1, keepdim=True)
        self.direction, self.scale = direction, torch.ones(())
        self.whole = self.bias = torch.zeros(len(u), device=u.device)
        self.found[EMBED] = self.whole  # comes first, and is known last of the two
        tokens = self.batch.tokens[self.rows]
        run_until(self.model, tokens, FINAL_SCALE, hooks=self._hooks())
        self._check()
        parts = {part: value / self.scale for part, value in self.found.items()}
        parts[BIAS] = self.bias / self.scale + u @ self.end.bias + offset
        return {part: self._mean(value) for part, value in parts.items()}

    def _directions(self) -> tuple[Float[Tensor, "row d_model"], Float[Tensor, " row"] | float]:
        """The metric's direction at every row, and what the unembedding's bias adds to it."""
        end, metric, owner = self.end, self.metric, self.at.sequence
        loss = isinstance(metric, Loss)
        plus = self.at.targets if loss else metric.answer[owner]  # type: ignore[attr-defined]
        minus = metric.distractor[owner] if isinstance(metric, LogitDifference) else None
        u = end.W_U.T[plus].float()
        offset = 0.0 if end.b_U is None else end.b_U[plus]
        if loss:
            return u - end.mean, offset if end.b_U is None else offset - end.b_U.mean()
        if minus is None:
            return u, offset
        return u - end.W_U.T[minus].float(), offset if end.b_U is None else offset - end.b_U[minus]

    def _hooks(self) -> list[tuple[str, Any]]:
        known, layers = self.model.hook_dict, range(shape(self.model).n_layers)
        hooks: list[tuple[str, Any]] = []
        if "hook_pos_embed" in known:
            hooks.append(("hook_pos_embed", partial(self._add, POSITIONS)))
        hooks.append((hook_name("hook_resid_pre", 0), self._embed))
        for layer in layers:
            hooks.append((hook_name("attn.hook_z", layer), partial(self._heads, layer)))
            hooks.append((hook_name("hook_attn_out", layer), partial(self._attention, layer)))
            if (mlp := hook_name("hook_mlp_out", layer)) in known:
                hooks.append((mlp, partial(self._add, Part(layer, "mlp"))))
        hooks.append((hook_name("hook_resid_post", layers[-1]), self._stream))
        return [*hooks, (FINAL_SCALE, self._scale)]

    def _read(self, activation: Tensor) -> Tensor:
        """An activation at the rows; one sequence may stand for all."""
        activation = activation.expand(self.rows.stop - self.rows.start, *activation.shape[1:])
        return activation[self.sequence, self.position].float()

    def _add(self, part: Part, activation: Tensor, *, hook: Any) -> None:
        self.found[part] = (self._read(activation) * self.direction).sum(-1)

    def _embed(self, stream: Tensor, *, hook: Any) -> None:
        """All that enters the first layer, but for the positions."""
        self._add(EMBED, stream, hook=hook)
        self.found[EMBED] -= self.found.get(POSITIONS, 0)

    def _heads(self, layer: int, z: Tensor, *, hook: Any) -> None:
        W_O, z = self.end.W_O[layer].float(), self._read(z)
        each = torch.einsum("rm,hdm->rhd", self.direction, W_O) * z
        self.written = torch.einsum("rhd,hdm->rm", z, W_O)
        for head, value in enumerate(each.sum(-1).unbind(1)):
            self.found[Part(layer, "head", head)] = value

    def _attention(self, layer: int, out: Tensor, *, hook: Any) -> None:
        """What attention adds beyond its heads: a bias, which is the same everywhere."""
        rest = self._read(out) - self.written
        if (rest - rest[:1]).norm() > CLOSE * self._read(out).norm():
            raise InputError(
                f"the heads of layer {layer} must add z W_O to the residual stream, but what "
                "they add is changed on its way: direct effects are not defined for this model"
            )
        self.bias = self.bias + (rest * self.direction).sum(-1)

    def _stream(self, stream: Tensor, *, hook: Any) -> None:
        self.whole = (self._read(stream) * self.direction).sum(-1)

    def _scale(self, scale: Tensor, *, hook: Any) -> None:
        size = self.rows.stop - self.rows.start
        self.scale = self._read(scale.reshape(size, -1, 1))[:, 0]

    def _check(self) -> None:
        """The parts must add up to what the final norm reads."""
        parts = torch.stack([*self.found.values(), self.bias])
        size = parts.abs().sum(0).mean() if parts.numel() else 0.0
        if parts.numel() and (parts.sum(0) - self.whole).abs().mean() > CLOSE * size:
            raise InputError(
                "embeddings, heads and MLPs must add up to the residual stream, but here they do "
                "not: direct effects are not defined for this model"
            )

    def _mean(self, value: Tensor) -> Array:
        mean = self.metric.combine(value, self.at)[0, self.rows]
        return mean.cpu().double().numpy()


def _directed(metrics: Sequence[Metric]) -> Metric:
    """The metric, if a sum of logits stands for it."""
    names = ", ".join(kind.name for kind in DIRECTIONS)
    if len(metrics) != 1:
        raise InputError(f"direct effects are of one metric, but got {len(metrics)}")
    if type(metrics[0]) not in DIRECTIONS:
        raise InputError(
            f"direct effects need a metric that is a sum of logits ({names}), "
            f"but got {metrics[0].name}"
        )
    return metrics[0]


def _table(parts: Sequence[Part], values: Array, per_prompt: bool, seed: int) -> pd.DataFrame:
    """From ``[sequence, part]``."""
    table = pd.DataFrame(
        {
            "component": [part.kind if part.layer < 0 else str(part) for part in parts],
            "layer": pd.array([None if p.layer < 0 else p.layer for p in parts], dtype="Int64"),
            "head": pd.array([part.head for part in parts], dtype="Int64"),
        }
    )
    if per_prompt:
        table = table.loc[table.index.repeat(len(values))].reset_index(drop=True)
        table["prompt"] = np.tile(np.arange(len(values)), len(parts))
        table["value"] = values.T.ravel()
        return table
    interval = mean_interval(values, seed=seed)
    table["value"], table["n"] = interval.mean, interval.n
    table.insert(4, "ci_low", interval.low)
    table.insert(5, "ci_high", interval.high)
    table.attrs["interval"] = INTERVAL
    return table


if __name__ == "__main__":
    run_module("attribution")
