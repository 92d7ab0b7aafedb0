"""The effect of removing each head, estimated for all heads at once from gradients.

A gate ``g`` on each head puts ``z + g (b - z)`` in for its output, where ``b`` is what ablation
puts in (`analyses.substitutes`): 0 is the clean run, 1 the ablated one. The exact effect of a head
is the integral of the metric's derivative over its gate from 0 to 1, the others at 0 (of
``resample``, the mean of that over draws). One backward pass gives the derivatives for all heads.

- ``gradient`` takes the derivative in the clean run for the whole path. It fails where the metric
  is flat there, as a loss is in a model that makes no errors.
- ``integrated-gradients`` also looks along the path. The heads are dealt into nine groups, anew
  for each sequence. Each pass opens the gates of one group and reads that group's derivatives, so
  that each sequence reads one point of a head's path. How far its gate is open runs evenly through
  0 to 1 over the sequences: with many of them, and only then, their mean integrates the head's own
  path, but for the rest of its group, which is partly gone too. With many heads that matters, so
  the derivative in the clean run, where nothing is gone, counts for half. Where the metric is flat
  there, estimates are for the order of heads, and sizes come out at about half; a warning says so.

Opening all gates together answers another question, what happens when all heads go, and ranks
worse (`benchmarks/estimates.py`).

Sources: Syed et al. 2023 (arXiv 2310.10348), attribution patching; Sundararajan et al. 2017,
integrated gradients; Hanna et al. 2024 (arXiv 2403.17806), where one gradient fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.ablation import EVALUATED, Variant, one_ablation, score_variants
from analyses.inputs import Inputs, as_batch
from analyses.metrics import (
    KL,
    ExactMatch,
    Loss,
    Metric,
    MetricLike,
    Rank,
    Rows,
    TokenAccuracy,
    as_metrics,
)
from analyses.progress import track
from analyses.readout import Readout
from analyses.reruns import Array, Where
from analyses.statistics import mean_where_defined
from analyses.substitutes import Draw, Substitute, substitutes
from models.errors import InputError
from models.gpt import GPT
from models.interface import HookedModel, evaluating, hooked, shape
from models.names import choose, hook_name
from models.tasks import Batch

Estimate = Literal["integrated-gradients", "gradient"]
ESTIMATES: tuple[Estimate, ...] = get_args(Estimate)
POINTS = 10  # passes of integrated gradients, the clean run among them
CLEAN = 0.5  # what the clean run's derivative counts for, see above
SATURATED = 0.05  # nats; a clean loss under this is flat
FEW = 10  # sequences; with fewer each path is read at few points
CELLS = 2**25  # numbers that a pass keeps for its way back
KEPT = 20  # activations of a layer that it keeps, in residual streams
FLAT: tuple[type[Metric], ...] = (TokenAccuracy, ExactMatch, Rank)


class SaturationWarning(UserWarning):
    """The metric is flat at the clean run, so that its gradient says little."""


def estimate_every_head(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    metric: MetricLike = "loss",
    ablation: str | None = None,
    estimate: str = "integrated-gradients",
    top: int | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimates of the effect of removing each head alone, for the same ablation as `ablate`.

    Args:
        model, tokens, reference, seed: as in `analyses.ablation.ablate`; ``seed`` also deals the
            groups.
        metric: one that has a derivative: not an accuracy, an exact match or a rank.
        ablation: ``zero``, ``mean`` or ``resample``; default ``mean`` for a task and ``resample``
            for text (``zero`` for a single text without ``reference``). Of the draws of
            ``resample`` each pass uses one; ``gradient`` all.
        estimate: ``integrated-gradients`` or ``gradient``, see above.
        top: how many of the heads with the largest absolute estimates are recomputed by ablation;
            default none. That they are the largest in truth is not known.

    Returns:
        One row per head: ``layer``, ``head``, ``ablation``, ``metric``, ``estimate`` (in the
        metric's unit, mean over ``n`` sequences; for the order of heads, its size is rough),
        ``change`` (what `ablate` gives, NaN where it was not recomputed), ``monte_carlo_error``
        (of ``change``, from the finite number of resampling draws), ``recomputed``, ``n``.
        ``attrs``: ``units``; ``method``; ``baseline``; ``cost`` (``forward`` and ``backward``
        passes over the sequences, heads ``recomputed``); ``cut_off`` (the largest absolute
        estimate that was not recomputed); ``note`` (of under 10 sequences, otherwise empty).

    Raises:
        InputError: a metric without a derivative; more than one metric, or ablation; ``top`` that
            is no whole number of at least 1.

    Warns:
        SaturationWarning: the clean loss is under 0.05, or the metric is KL.

    Cost: ten forward and backward passes (one for ``gradient``), whatever the number of heads,
    beside what the ablation's own values take.
    """
    method = choose("estimate", estimate, ESTIMATES)
    _check_top(top)
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    one = _differentiable(as_metrics(model, batch, metric))
    kind = one_ablation(batch, ablation, reference)
    names = [hook_name("attn.hook_z", layer) for layer in range(shape(model).n_layers)]
    given = substitutes(model, batch, [kind], names, reference=reference, seed=seed)[kind]
    gradient = method == "gradient"
    passes = [_clean(model, batch, given, 1.0 if gradient else CLEAN)]
    if not gradient:
        passes += _dealt(model, batch, given, POINTS - 1, 1 - CLEAN, seed)
    values, clean = _integrate(model, batch, one, passes)
    values[list(given.alone)] = np.nan
    _warn_if_flat(one, clean, gradient=gradient)
    table = _table(model, values, kind, one)
    _recompute(model, batch, one, table, top=top, reference=reference, seed=seed)
    n_forward = len(passes) + one.whole
    table.attrs |= {
        "units": dict.fromkeys(("estimate", "change", "monte_carlo_error"), one.unit),
        "method": method if gradient else f"{method}, {len(passes)} points",
        "baseline": given.baseline,
        "note": "" if gradient else _note(len(batch)),
        "cost": {
            "forward": n_forward,
            "backward": len(passes),
            "recomputed": int(table["recomputed"].sum()),
        },
    }
    return table


def _check_top(top: Any) -> None:
    if top is not None and (not isinstance(top, Integral) or int(top) < 1):
        raise InputError(f"top must be a whole number of at least 1, but got {top!r}")


class _Pass(NamedTuple):
    """One forward and backward pass: how far each gate is open, and what its slope counts for."""

    gates: Float[Tensor, "sequence layer head"]
    weight: Float[Tensor, "sequence layer head"]
    draw: Draw


def _clean(model: HookedModel, batch: Batch, given: Substitute, weight: float) -> _Pass:
    """All gates shut; the derivative is linear in what would be put in, so draws are averaged."""

    def mean(name: str, where: Where) -> Tensor:
        return torch.stack([draw(name, where) for draw in given.draws]).mean(0)

    sizes = shape(model)
    shut = torch.zeros(len(batch), sizes.n_layers, sizes.n_heads, device=sizes.device)
    return _Pass(shut, torch.full_like(shut, weight), mean)


def _dealt(
    model: HookedModel, batch: Batch, given: Substitute, points: int, weight: float, seed: int
) -> list[_Pass]:
    """Each pass opens the gates of one group of heads, dealt anew for each sequence."""
    random = np.random.default_rng([seed, points])
    sizes, n = shape(model), len(batch)
    n_heads = sizes.n_layers * sizes.n_heads
    deck = np.tile(np.arange(n_heads) % points, (n, 1))
    steps = np.tile((np.arange(n)[:, None] + 0.5) / n, (1, n_heads))

    def on_device(x: Any) -> Tensor:
        return torch.from_numpy(x).view(n, sizes.n_layers, sizes.n_heads).to(sizes.device)

    group = on_device(random.permuted(deck, axis=1))
    how_far = on_device(random.permuted(steps, axis=0)).float()
    passes = []
    for point in range(points):
        opened = group == point
        draw = given.draws[point % len(given.draws)]
        passes.append(_Pass(how_far * opened, weight * opened, draw))
    return passes


def _integrate(
    model: HookedModel, batch: Batch, metric: Metric, passes: Sequence[_Pass]
) -> tuple[Float[Array, "sequence layer head"], Float[Array, " sequence"]]:
    """The weighted derivatives, summed over passes; and the metric in the first pass."""
    sizes, n_pos = shape(model), batch.tokens.shape[1]
    kept = max(KEPT * sizes.n_layers * sizes.d_model, 3 * sizes.d_vocab)
    size = max(1, min(len(batch), CELLS // (n_pos * kept)))
    values = np.zeros((len(batch), sizes.n_layers, sizes.n_heads))
    measured = np.empty(len(batch))
    with track("estimating", len(passes) * -(-len(batch) // size)) as advance:
        for first in range(0, len(batch), size):
            rows = slice(first, min(first + size, len(batch)))
            at = _Reader(model, batch, metric, rows)
            for i, one in enumerate(passes):
                slope, value = at.derivatives(one)
                values[rows] += (one.weight[rows] * slope).cpu().numpy()
                if i == 0:  # the clean run
                    measured[rows] = value.cpu().numpy()
                advance(1)
    values[np.isnan(measured)] = np.nan
    return values, measured


class _Reader:
    """Some sequences, and where the metric reads them."""

    def __init__(self, model: HookedModel, batch: Batch, metric: Metric, rows: slice) -> None:
        self.model, self.metric, self.sequences, self.all = model, metric, rows, batch
        read = metric.positions(batch)[rows]
        columns = read.any(0).nonzero().flatten()
        first, stop = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 1)
        self.columns = slice(first, stop)
        self.tokens = batch.tokens[rows, :stop]
        self.sequence, self.position = read.nonzero(as_tuple=True)
        self.clean: Readout | None = None
        if metric.whole:
            with torch.no_grad(), evaluating(model):
                self.clean = self._readout()

    def derivatives(self, one: _Pass) -> tuple[Tensor, Tensor]:
        """Of the metric by every gate ``[sequence, layer, head]``, float64; and the metric."""
        layers = range(shape(self.model).n_layers)
        gates = [one.gates[self.sequences, layer].clone().requires_grad_() for layer in layers]
        hooks: list[tuple[str, Any]] = [
            (hook_name("attn.hook_z", layer), partial(self._open, gate, one.draw))
            for layer, gate in zip(layers, gates, strict=True)
        ]
        with torch.enable_grad(), evaluating(self.model), hooked(self.model, hooks):
            rows = Rows(
                self.sequence + self.sequences.start, self.position, self.all, 1, self.clean
            )
            values = self.metric.values(self._readout(), rows)
            if not values.requires_grad:
                raise _no_derivative(self.metric)
            value = self.metric.combine(values, rows)[0, self.sequences]
            slopes = torch.autograd.grad(value.nansum(), gates)
        return torch.stack(slopes, dim=1).double(), value.detach()

    def _open(self, gate: Tensor, draw: Draw, z: Tensor, *, hook: Any) -> Tensor:
        new = draw(hook.name, Where(self.sequences, slice(0, z.shape[1]))).to(z)
        return z + gate[:, None, :, None].to(z.dtype) * (new - z)

    def _readout(self) -> Readout:
        """Whole logits where the metric reads; on our GPT none are formed elsewhere."""
        model: Any = self.model
        if isinstance(model, GPT):
            logits = model(self.tokens, rows=self.columns)
        else:
            logits = model(self.tokens, return_type="logits")[:, self.columns]
        return Readout(logits[self.sequence, self.position - self.columns.start])


def _differentiable(metrics: Sequence[Metric]) -> Metric:
    if len(metrics) != 1:
        raise InputError(f"estimates are of one metric, but got {len(metrics)}")
    if isinstance(metrics[0], FLAT):
        raise _no_derivative(metrics[0])
    return metrics[0]


def _no_derivative(metric: Metric) -> InputError:
    return InputError(
        f"estimates need a metric that has a derivative, but {metric.name} has none: take the "
        "loss, a logit difference or a probability, or ablate every head exactly"
    )


def _note(n: int) -> str:
    if n >= FEW:
        return ""
    return (
        f"each head's path is read at one point per sequence, and there are only {n}: estimates "
        f"are rough; give at least {FEW} sequences, or ablate every head"
    )


def _warn_if_flat(metric: Metric, clean: Array, *, gradient: bool) -> None:
    """Where the derivative in the clean run is too small for the size of an effect, say so."""
    loss = float(np.nanmean(clean))
    if isinstance(metric, KL):
        said = "the KL from the clean run has derivative 0 in the clean run"
    elif isinstance(metric, Loss) and loss < SATURATED:
        said = f"the clean loss is {loss:.2g}, under {SATURATED}, so its gradient is flat"
    else:
        return
    then = "estimates are for the order of heads, and sizes come out small"
    then = "use integrated-gradients" if gradient else then
    warnings.warn(f"{said}: {then}", SaturationWarning, stacklevel=3)


def _table(model: HookedModel, values: Array, kind: str, metric: Metric) -> pd.DataFrame:
    layer, head = np.array(shape(model).heads).T
    return pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "ablation": kind,
            "metric": metric.name,
            "estimate": mean_where_defined(values, axis=0).ravel(),
            "change": np.nan,
            "monte_carlo_error": np.nan,
            "recomputed": False,
            "n": (~np.isnan(values)).sum(0).ravel(),
        }
    )


def _recompute(
    model: HookedModel,
    batch: Batch,
    metric: Metric,
    table: pd.DataFrame,
    *,
    top: int | None,
    reference: Inputs,
    seed: int,
) -> None:
    """Fill in what ablation gives for the heads with the largest estimates."""
    size = table["estimate"].abs()
    chosen = size.sort_values(ascending=False, kind="stable").index[: top or 0]
    rest = size.drop(chosen)
    table.attrs["cut_off"] = float(rest.max()) if len(rest) else np.nan
    if not len(chosen):
        return
    kind = table["ablation"].iloc[0]
    heads = table.loc[chosen, ["layer", "head"]].to_numpy()
    variants = [Variant(((int(layer), int(head)),), kind) for layer, head in heads]
    scored = score_variants(model, batch, [metric], variants, reference=reference, seed=seed)
    change = (scored.ablated - scored.clean)[..., 0]
    table.loc[chosen, "change"] = mean_where_defined(change, axis=1)
    table.loc[chosen, "monte_carlo_error"] = scored.errors[:, 0]
    table.loc[chosen, "recomputed"] = True
