"""One forward pass, reduced as it goes.

Patterns are turned into numbers per query while the model runs, layer by layer and some queries
at a time, and averaged over queries; so memory does not grow with the number of sequences and
one pass serves every score asked for together. The pass stops after the last pattern.

Our GPT forms no whole pattern (`models.gpt.GPT.stream_patterns`); other engines form one layer's
at a time, which is read at ``hook_pattern``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.inputs import to_device
from models.attention import visible_keys
from models.gpt import GPT
from models.interface import HookedModel, Hooks, evaluating, hooked, shape
from models.names import hook_name
from models.tasks import Batch

CHUNK = 64  # sequences per forward pass
QUERIES = 64  # rows of a pattern at a time
CELLS = 2**26  # numbers of one layer's patterns at a time
WIDE = 3 * 2**19  # numbers in the widest activation of our GPT, on a processor
ROWS = 2**21  # numbers in some rows of its patterns


class Rows:
    """Attention of some queries in one layer.

    Args:
        pattern: of queries ``first``, ``first + 1``, ... on the keys up to the last of them;
            float32 or better; reducers must not write to it.
        layer: where it comes from.
        first: position of the first query.
    """

    def __init__(
        self, pattern: Float[Tensor, "batch head query key"], layer: int, first: int
    ) -> None:
        self.pattern = pattern if pattern.dtype == torch.float64 else pattern.float()
        self.layer, self.first = layer, first
        self._kept: dict[Callable[[Tensor], Tensor], Tensor] = {}

    @property
    def queries(self) -> slice:
        """The positions of the queries."""
        return slice(self.first, self.first + self.pattern.shape[2])

    @property
    def attends(self) -> Bool[Tensor, "batch head query"]:
        """Which rows are neither masked throughout nor hold NaN."""
        return self.once(_attends)

    def once(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``function(pattern)``, computed once for all reducers that ask for it."""
        if function not in self._kept:
            self._kept[function] = function(self.pattern)
        return self._kept[function]


Reduce = Callable[[Rows], Tensor]
"""From rows to ``[batch, head, query, ...]``; NaN where a query does not define the value."""
Prepare = Callable[[Batch], Reduce]


Visitor = Callable[[Batch], Callable[[Rows], None]]


def stream_patterns(
    model: HookedModel,
    batch: Batch,
    reducers: Mapping[str, Prepare],
    *,
    also: Visitor | None = None,
    hooks: Hooks = (),
) -> dict[str, Float[Tensor, "sequence layer head ..."]]:
    """Reduce every head's pattern to numbers per sequence.

    Args:
        model: a hooked model.
        batch: the sequences.
        reducers: by name, what takes a chunk of the batch and returns the function that reduces
            `Rows` to values per query; these are averaged over the queries that define them.
        also: what takes a chunk of the batch and returns a function that is shown the rows too.
        hooks: further hooks for the runs.

    Returns:
        By name, float64 on the CPU; NaN where no query defines the value.
    """
    layers, hooks = range(shape(model).n_layers), list(hooks)
    parts: dict[str, list[Tensor]] = {name: [] for name in reducers}
    for chunk in chunks(model, batch):
        prepared = {name: prepare(chunk) for name, prepare in reducers.items()}
        means = {(name, layer): RunningMean() for name in reducers for layer in layers}

        look = None if also is None else also(chunk)
        visit_patterns(model, chunk.tokens, partial(_reduce, prepared, means, look), hooks=hooks)
        for name, values in parts.items():
            values.append(torch.stack([means[name, layer].value() for layer in layers], dim=1))
    return {name: torch.cat(values) for name, values in parts.items()}


def visit_patterns(
    model: HookedModel, tokens: Tensor, visit: Callable[[Rows], None], *, hooks: Hooks = ()
) -> None:
    """Run the model up to its last pattern, in evaluation mode, and show every row once.

    Args:
        model: a hooked model.
        tokens: ids ``[batch, pos]``.
        visit: is called with some queries of one layer at a time, in order.
        hooks: further hooks for this run.
    """
    if isinstance(model, GPT):
        cells = tokens.numel() * shape(model).n_heads
        queries = max(1, min(QUERIES, ROWS // cells))
        with hooked(model, hooks), evaluating(model), torch.no_grad():
            for layer, first, pattern in model.stream_patterns(tokens, queries):
                visit(Rows(pattern, layer, first))
        return

    def read(layer: int, pattern: Tensor, *, hook: Any) -> None:
        visit(Rows(pattern.detach(), layer, 0))

    layers = range(shape(model).n_layers)
    names = [hook_name("attn.hook_pattern", layer) for layer in layers]
    reading = [(name, partial(read, layer)) for layer, name in zip(layers, names, strict=True)]
    run_until(model, tokens, names[-1], hooks=[*hooks, *reading])


def run_until(model: HookedModel, tokens: Tensor, name: str, *, hooks: Hooks) -> None:
    """Run the model, in evaluation mode and without gradients, until a hook point has fired.

    What comes after it, the logits for one, is not computed.
    """

    def stop(activation: Tensor, *, hook: Any) -> None:
        raise _StopError

    hooks = [*hooks, (name, stop)]
    with suppress(_StopError), hooked(model, hooks), evaluating(model), torch.no_grad():
        model(tokens, return_type="logits")


def uniform_values(
    model: HookedModel, batch: Batch, reducers: Mapping[str, Prepare]
) -> dict[str, Float[Tensor, "sequence ..."]]:
    """What the reducers make of uniform attention over the keys that the model's mask leaves.

    Float64 on the CPU.
    """
    batch, n = to_device(batch, "cpu"), batch.tokens.shape[1]
    parts: dict[str, list[Tensor]] = {name: [] for name in reducers}
    for first in range(0, len(batch), CHUNK):
        chunk = batch[first : first + CHUNK]
        prepared = {name: prepare(chunk) for name, prepare in reducers.items()}
        means = {name: RunningMean() for name in reducers}
        for start in range(0, n, QUERIES):
            rows = _uniform_rows(len(chunk), start, min(start + QUERIES, n), shape(model).window)
            for name, reduce in prepared.items():
                means[name].add(reduce(rows))
        for name, mean in means.items():
            parts[name].append(mean.value()[:, 0])
    return {name: torch.cat(part) for name, part in parts.items()}


def uniform_scores(
    model: HookedModel, batch: Batch, reducers: Mapping[str, Prepare]
) -> dict[str, float]:
    """Chance: the mean over sequences of `uniform_values`; NaN where none defines the score."""
    values = uniform_values(model, batch, reducers)
    return {name: float(value.nanmean()) for name, value in values.items()}


def reduce_pattern(
    prepare: Prepare, batch: Batch, pattern: Float[Tensor, "batch head query key"]
) -> Float[Tensor, "batch head ..."]:
    """What a reducer makes of a whole pattern that you hold; float64 on the CPU."""
    mean = RunningMean()
    mean.add(prepare(batch)(Rows(pattern, 0, 0)))
    return mean.value()


def mean_over(values: Tensor, defined: Tensor) -> Tensor:
    """Mean over the last axis where ``defined`` and not NaN; NaN where nothing is left."""
    defined = defined & ~values.isnan()
    total = torch.where(defined, values, 0.0).sum(-1)
    return total / torch.where(defined.any(-1), defined.sum(-1), torch.nan)


class RunningMean:
    """Mean over queries of values that come some queries at a time, NaN left out."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.n: Tensor | float = 0.0

    def add(self, values: Float[Tensor, "batch head query ..."]) -> None:
        """Take some queries in."""
        defined = ~values.isnan()
        self.total = self.total + torch.where(defined, values, 0.0).sum(2).double()
        self.n = self.n + defined.sum(2)

    def value(self) -> Float[Tensor, "batch head ..."]:
        """The mean so far; NaN where nothing was defined. Float64 on the CPU."""
        total, n = torch.as_tensor(self.total), torch.as_tensor(self.n)
        return (total / torch.where(n > 0, n, torch.nan)).cpu().double()


def chunks(model: HookedModel, batch: Batch) -> Iterable[Batch]:
    """Parts of a batch that are small enough to run at a time."""
    sizes, n = shape(model), batch.tokens.shape[1]
    if isinstance(model, GPT):
        widest = n * max(sizes.d_mlp, 3 * sizes.d_model)
        size = (WIDE if sizes.device.type == "cpu" else CELLS) // widest
    else:
        size = CELLS // (sizes.n_heads * n**2)
    size = max(1, min(CHUNK, size))
    return [batch[first : first + size] for first in range(0, len(batch), size)]


class _StopError(Exception):
    """Ends a forward pass that has given all that was wanted."""


def _reduce(
    prepared: Mapping[str, Reduce],
    means: Mapping[tuple[str, int], RunningMean],
    look: Callable[[Rows], None] | None,
    rows: Rows,
) -> None:
    for name, reduce in prepared.items():
        means[name, rows.layer].add(reduce(rows))
    if look is not None:
        look(rows)


def _attends(pattern: Tensor) -> Tensor:
    return pattern.sum(-1) > 0


def _uniform_rows(size: int, first: int, stop: int, window: int | None) -> Rows:
    visible = visible_keys(stop - first, stop, window=window).double()
    uniform = visible / visible.sum(-1, keepdim=True)
    return Rows(uniform.expand(size, 1, -1, -1), 0, first)
