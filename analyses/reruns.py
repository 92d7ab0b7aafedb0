"""The same sequences again and again, each time with some activations changed.

An `Edit` changes part of one activation in one run; what is downstream of it is recomputed, norm
scales included. On our GPT a run starts at the first layer that is changed (after its attention
where only what follows attention is changed) from the activations of one clean run; runs that
start together go through as one larger batch; the last block, the final norm and the logits are
computed at the positions that are read. That is exact, the same arithmetic on the same numbers,
and is left for whole runs where anybody watches the model. On other engines several runs go
through as one larger batch, from the tokens on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from analyses.metrics import Metric, Rows
from analyses.progress import track
from analyses.readout import Readout, Unembedding
from analyses.streaming import run_until
from models.gpt import GPT
from models.interface import HookedModel, Hooks, capture, evaluating, hooked, shape
from models.names import hook_name
from models.tasks import Batch

Array = NDArray[np.float64]

CHUNK = 256  # sequences per forward pass
CHUNK_ON_DEVICE = 4096  # where a pass of few sequences leaves an accelerator idle
WHOLE = 2**62
CELLS = 2**26  # numbers in the widest activation
RUNS = 2**24  # numbers in the widest activation of several runs at a time

AFTER_ATTENTION = ("attn.hook_z", "hook_attn_out", "hook_resid_mid", "hook_mlp_out")
AFTER_BLOCK = "hook_resid_post"


class Where(NamedTuple):
    """What part of the sequences an activation is of."""

    sequences: slice
    positions: slice


Change = Callable[[Tensor, Where], None]
"""Changes, in place, one run's part of an activation, ``[sequence, pos, ...]``."""


@dataclass(frozen=True)
class Edit:
    """A change of one activation.

    Args:
        layer, point: of the hook point ``blocks.{layer}.{point}``.
        change: changes its part in place; a pattern has its queries at axis 2.
    """

    layer: int
    point: str
    change: Change

    @property
    def name(self) -> str:
        """The hook point's name."""
        return hook_name(self.point, self.layer)


Run = Sequence[Edit]


def replace(
    layer: int,
    point: str,
    value: Tensor | Callable[[Where], Tensor],
    *,
    heads: Sequence[int] | None = None,
    mask: Tensor | None = None,
) -> Edit:
    """An edit that puts other values in.

    Args:
        layer, point: where.
        value: ``[sequence, pos, ...]`` over all sequences and positions, or 1 where it is the same
            for all; a function of `Where` gives only that part of it.
        heads: of an activation ``[sequence, pos, head, d_head]``, which ones; ``value`` has these.
        mask: ``[sequence, pos]``, which places; the others stay.
    """

    def change(part: Tensor, where: Where) -> None:
        new = value(where) if callable(value) else _part(value, where)
        new = new.to(part.dtype).to(part.device)
        if mask is not None:
            kept = ~mask[where.sequences, where.positions].to(part.device)
            old = part if heads is None else part[:, :, list(heads)]
            new = torch.where(kept[(..., *[None] * (part.ndim - 2))], old, new)
        if heads is None:
            part.copy_(new.expand_as(part))
        else:
            part[:, :, list(heads)] = new

    return Edit(layer, point, change)


def chunk_size(model: HookedModel, n_pos: int) -> int:
    """How many sequences go through the model at a time; all where anybody watches it."""
    if watched(model):  # a watcher may count rows
        return WHOLE
    sizes = shape(model)
    width = 2 * sizes.n_layers * sizes.d_model
    width = max(width, sizes.d_mlp if isinstance(model, GPT) else sizes.d_vocab)
    most = CHUNK if sizes.device.type == "cpu" else CHUNK_ON_DEVICE
    return max(1, min(most, CELLS // (n_pos * width)))


def output_logits(
    model: HookedModel, tokens: Tensor, rows: slice | None
) -> Float[Tensor, "sequence pos d_vocab"]:
    """Logits at a range of positions; on our GPT nothing is computed that they do not need."""
    with evaluating(model), torch.no_grad():
        if rows is None or not isinstance(model, GPT):
            return model(tokens, return_type="logits")[:, rows or slice(None)]  # type: ignore[no-any-return]
        return model(tokens[:, : rows.stop], rows=rows)  # type: ignore[no-any-return]


def score_runs(
    model: HookedModel,
    batch: Batch,
    metrics: Sequence[Metric],
    runs: Sequence[Run],
    *,
    what: str = "runs",
) -> tuple[Array, Array]:
    """Every sequence judged in the clean model and in every run.

    Args:
        model: a hooked model.
        batch: the sequences.
        metrics: bound to them, see `analyses.metrics.as_metrics`.
        runs: the edits of each.
        what: of the progress that is shown.

    Returns:
        Float64 on the CPU: ``[sequence, metric]`` and ``[run, sequence, metric]``.
    """
    size = chunk_size(model, batch.tokens.shape[1])
    clean = np.empty((len(batch), len(metrics)))
    scores = np.empty((len(runs), len(batch), len(metrics)))
    total = len(runs) * -(-len(batch) // size)
    with track(what, total) as advance:
        for first in range(0, len(batch), size):
            rows = slice(first, min(first + size, len(batch)))
            runner = Runner(model, batch, metrics, rows)
            clean[rows] = runner.clean_scores
            for indices, some in runner.together(runs):
                scores[indices, rows] = runner.scores(some)
                advance(len(some))
    return clean, scores


def as_hooks(batch: Batch, run: Run) -> Hooks:
    """Hooks that make a run's edits in whole forward passes of these sequences."""
    where = Where(slice(0, len(batch)), slice(0, batch.tokens.shape[1]))

    def make(edit: Edit, activation: Tensor, *, hook: Any) -> Tensor:
        activation = activation.clone()
        edit.change(activation, where)
        return activation

    return [(edit.name, partial(make, edit)) for edit in run]


class Runner:
    """Some sequences, run with edits.

    Args:
        model: a hooked model.
        batch: all sequences.
        metrics: bound to all of them.
        rows: the sequences of this chunk.
    """

    def __init__(
        self, model: HookedModel, batch: Batch, metrics: Sequence[Metric], rows: slice
    ) -> None:
        self.model, self.metrics, self.sequences = model, metrics, rows
        self.batch, self.all = batch[rows], batch
        read = torch.stack([metric.positions(batch) for metric in metrics])[:, rows]
        columns = read.any(0).any(0).nonzero().flatten()
        first, last = (int(columns[0]), int(columns[-1])) if len(columns) else (0, 0)
        self.positions = slice(first, last + 1)
        self.watched = watched(model)
        width = self.batch.tokens.shape[1] if self.watched else last + 1
        read = read[..., :width]
        self.read = read.any(0)
        self.tokens = self.batch.tokens[:, :width]
        self.sequence, self.position = self.read.nonzero(as_tuple=True)
        # rows of each metric among those that any reads; every one where they read the same
        self.own = [None if bool((own == self.read).all()) else own[self.read] for own in read]
        self.best = any(metric.best for metric in metrics)
        self.unembed = None if self.watched else final_step(model, self.tokens)
        self.kept: dict[str, Tensor] = {}
        self.partial = isinstance(model, GPT) and not self.watched
        clean = self._clean_run()
        self.clean = clean if any(metric.whole for metric in metrics) else None
        self.clean_scores = self._judge(clean, 1)[0]

    def together(self, runs: Sequence[Run]) -> Iterator[tuple[list[int], list[Run]]]:
        """Indices and edits of runs that begin at one place and go through at once."""
        groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for index, run in enumerate(runs):
            groups[_start(run) if self.partial else (0, False)].append(index)
        sizes = shape(self.model)
        width = self.tokens.numel() * max(sizes.d_mlp, 4 * sizes.d_model)
        if self.unembed is None:
            width = max(width, self.tokens.numel() * sizes.d_vocab)
        elif any(metric.whole for metric in self.metrics):
            width = max(width, 4 * len(self.sequence) * sizes.d_vocab)
        most = (
            1
            if self.watched
            else max(1, (RUNS if sizes.device.type == "cpu" else 4 * CELLS) // width)
        )
        for _, indices in sorted(groups.items()):
            rest = iter(indices)
            while some := list(islice(rest, most)):
                yield some, [runs[i] for i in some]

    def scores(self, runs: Sequence[Run]) -> Float[Array, "run sequence metric"]:
        """What the metrics say of every sequence, for each run. All must start at one place."""
        return self._judge(self.readout(runs), len(runs))

    def readout(self, runs: Sequence[Run]) -> Readout:
        """What the model predicts where it is read, for each run, one run after another."""
        with evaluating(self.model), torch.no_grad(), hooked(self.model, self._hooks(runs)):
            if not self.partial:
                return self._whole(len(runs))
            layer, attended = _start(runs[0])
            x = self._from_layer(layer, len(runs), attended=attended)
        return self._readout(x, len(runs))

    def _clean_run(self) -> Readout:
        if not self.partial:
            with evaluating(self.model), torch.no_grad():
                return self._whole(1)
        points = ("hook_resid_pre", "attn.hook_z")
        layers = range(shape(self.model).n_layers)
        names = [hook_name(point, layer) for layer in layers for point in points]
        last = hook_name(AFTER_BLOCK, layers[-1])
        self.kept = capture(self.model, self.tokens, [*names, last]).activations
        return self._readout(self.kept.pop(last)[:, self.positions], 1)

    def _from_layer(self, first: int, copies: int, *, attended: bool) -> Tensor:
        """The residual stream after the last block, at the positions that are read."""
        blocks: Any = self.model.blocks  # type: ignore[attr-defined]
        last = len(blocks) - 1
        x = self.kept[hook_name("hook_resid_pre", first)]
        if attended:
            z = self.kept[hook_name("attn.hook_z", first)]
            z, x = (z, x) if first < last else (z[:, self.positions], x[:, self.positions])
            z, x = self._copies(z, copies), self._copies(x, copies)
            x = blocks[first].finish(x, blocks[first].attn.project(z))
            first += 1
        else:
            x = self._copies(x, copies)
        for layer in range(first, last + 1):
            x = blocks[layer](x, self.positions if layer == last else None)
        return x

    def _readout(self, x: Tensor, copies: int) -> Readout:
        """Final norm and unembedding of a residual stream, where it is read."""
        sequence, position = self.sequence, self.position - self.positions.start
        run = torch.arange(copies, device=x.device)[:, None] * len(self.tokens)
        rows = x[(run + sequence).flatten(), position.repeat(copies)]
        with torch.no_grad(), evaluating(self.model):
            states = self.model.ln_final(rows[None])[0]  # type: ignore[attr-defined]
        return Readout(states, self.unembed, best=self.best)

    def _whole(self, copies: int) -> Readout:
        model: Any = self.model
        tokens = self._copies(self.tokens, copies)
        if self.unembed is not None:
            return self._readout(last_residual(model, tokens)[:, self.positions], copies)
        logits = model(tokens, return_type="logits")
        return Readout(logits[self.read.repeat(copies, 1)], best=self.best)

    def _judge(self, read: Readout, copies: int) -> Float[Array, "run sequence metric"]:
        judged = []
        for metric, own in zip(self.metrics, self.own, strict=True):
            some, sequence, position, clean = read, self.sequence, self.position, self.clean
            if own is not None:
                some, sequence, position = read[own.repeat(copies)], sequence[own], position[own]
                clean = None if clean is None else clean[own]
            # rows are counted within all sequences, to which the metrics are bound
            at = sequence.repeat(copies) + self.sequences.start
            rows = Rows(at, position.repeat(copies), self.all, copies, clean)
            values = metric.combine(metric.values(some, rows), rows)
            judged.append(values[:, self.sequences])
        return torch.stack(judged, dim=-1).cpu().double().numpy()

    def _hooks(self, runs: Sequence[Run]) -> Hooks:
        """One hook for every point that any run changes."""
        changes: dict[str, list[tuple[int, Change]]] = defaultdict(list)
        for i, run in enumerate(runs):
            for edit in run:
                changes[edit.name].append((i, edit.change))
        return [(name, partial(self._change, some, len(runs))) for name, some in changes.items()]

    def _change(
        self, changes: Iterable[tuple[int, Change]], copies: int, activation: Tensor, *, hook: Any
    ) -> Tensor:
        activation = activation.clone()
        n = activation.shape[2 if hook.name.endswith(("scores", "pattern")) else 1]
        whole = n == self.tokens.shape[1]
        positions = slice(0, n) if whole else self.positions
        parts = activation.chunk(copies)
        for i, change in changes:
            change(parts[i], Where(self.sequences, positions))
        return activation

    @staticmethod
    def _copies(x: Tensor, n: int) -> Tensor:
        return x if n == 1 else x.expand(n, *x.shape).flatten(0, 1)


def watched(model: HookedModel) -> bool:
    """Whether anybody's hooks are attached: what they see must be whole runs, one at a time."""
    points: Iterable[Any] = model.hook_dict.values()
    return any(getattr(p, "watched", False) or getattr(p, "fwd_hooks", ()) for p in points)


def final_step(model: HookedModel, tokens: Tensor) -> Unembedding | None:
    """The last matrix of a model, where final norm and matrix are all that follows the blocks.

    A bridge may do more (cap its logits, scale them): one clean run of a few tokens decides.
    """
    if isinstance(model, GPT):
        return Unembedding((model.W_E if model.config.tied else model.unembed).detach())
    bridge: Any = model
    some = tokens[:1, :4]
    try:
        bias = getattr(bridge, "b_U", None)
        bias = None if bias is None or not bool(bias.any()) else bias.detach()
        unembed = Unembedding(bridge.W_U.T.detach(), bias)
        with evaluating(model), torch.no_grad():
            x = last_residual(model, some)
            found = Readout(bridge.ln_final(x)[0], unembed).logits()
            expected = bridge(some, return_type="logits")[0].float()
    except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    close = torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    return unembed if found.shape == expected.shape and close else None


def last_residual(model: HookedModel, tokens: Tensor) -> Float[Tensor, "sequence pos d_model"]:
    """The residual stream after the last block; neither final norm nor logits are computed."""
    name, kept = hook_name(AFTER_BLOCK, shape(model).n_layers - 1), []

    def keep(x: Tensor, *, hook: Any) -> None:
        kept.append(x)

    run_until(model, tokens, name, hooks=[(name, keep)])
    return kept[0]


def _start(run: Run) -> tuple[int, bool]:
    """The first layer that a run changes, and whether its attention stays as it was."""
    if not run:
        return 0, False
    layer = min(edit.layer for edit in run)
    points = {edit.point for edit in run if edit.layer == layer}
    return layer, points <= {*AFTER_ATTENTION, AFTER_BLOCK}


def _part(value: Tensor, where: Where) -> Tensor:
    """The part of a value; axes of size 1 stand for all."""
    for axis, some in enumerate(where[: value.ndim]):
        if value.shape[axis] != 1:
            value = value[(slice(None),) * axis + (some,)]
    return value
