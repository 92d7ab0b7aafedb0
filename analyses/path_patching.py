"""Path patching: does one head act on the next directly, and through what it reads?

Activation patching of a head changes everything that reads it. Here only one direct path changes.
A first run puts the other prompt's output of the sender in and freezes every other head's ``z`` and
every MLP's output at the run's own, so that what arrives at the receiver is the residual stream
with the sender's write exchanged; the receiver's norm is recomputed on that. A second, ordinary run
puts the query, key or value (or, for the logits, the residual stream after the last layer) of the
first one in, and everything after the receiver is recomputed.

Source: Wang et al. 2022 (section 3.1, appendix B), Goldowsky-Dill et al. 2023. As in the latter the
MLPs between are frozen too; Wang et al. recompute them, so that their direct path includes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses.metrics import Metric, MetricLike
from analyses.pairs import (
    Pairs,
    PromptsLike,
    as_pairs,
    pair_metric,
    patched_table,
)
from analyses.patching import HELD
from analyses.progress import track
from analyses.reruns import Array, Edit, chunk_size, replace, score_runs
from analyses.substitutes import POINTS
from models.errors import InputError, UnknownNameError
from models.interface import HookedModel, Hooks, capture, shape
from models.names import Head, HeadLike, head_name, hook_name, parse_head, parse_heads
from models.tasks import Batch

_RECEIVER = re.compile(r"(-?\d+\.-?\d+)\.([qkv])")


@dataclass(frozen=True)
class Receiver:
    """What a sender's write arrives at.

    Args:
        name: ``layer.head.q`` (or ``k``, ``v``), or ``logits``.
        layer: the first whose block comes after every sender that may reach it.
        point, at: the hook point that is put in, of layer ``at``.
        index: of the head at that point, of the key-value head for keys and values.
        kv_head: the key-value head, where it is one.
    """

    name: str
    layer: int
    point: str
    at: int
    index: int | None = None
    kv_head: int | None = None

    @property
    def hook(self) -> str:
        """The hook point's name."""
        return hook_name(self.point, self.at)

    def take(self, activations: Mapping[str, Tensor]) -> Tensor:
        """Its part of what was captured."""
        value = activations[self.hook]
        return value if self.index is None else value[:, :, self.index : self.index + 1]

    def edit(self, value: Tensor) -> Edit:
        """What puts a value in."""
        heads = None if self.index is None else [self.index]
        return replace(self.at, self.point, value, heads=heads)


def path_patching(
    model: HookedModel,
    clean: PromptsLike,
    corrupt: PromptsLike,
    *,
    metric: MetricLike,
    receivers: str | Sequence[str] = "logits",
    senders: Sequence[HeadLike] | None = None,
    mode: str | Sequence[str] = "noise",
    seed: int = 0,
) -> pd.DataFrame:
    """What a head changes by its direct path to a later head, or to the logits, alone.

    ``value = (patched - corrupted) / (clean - corrupted)``, as in
    `analyses.patching.activation_patching`: with ``noise`` 1 means that the path carries nothing
    and 0 that it carries everything; with ``denoise`` the other way round.

    Args:
        model, clean, corrupt, metric, seed: as in `analyses.patching.activation_patching`.
        receivers: ``layer.head.q``, ``.k`` or ``.v`` of a head, as in ``"9.6.q"``, or ``logits``;
            one or several, each alone. Where query heads share a key-value head (``kv_head``),
            its key or value is put in, and all that share it read it.
        senders: heads, as in ``["5.5", "6.9"]``, patched at all positions; default every head of
            an earlier layer than the receiver's.
        mode: ``noise`` (the clean run, with the sender's output of the corrupted one), ``denoise``
            (the other way round), or both.

    Returns:
        One row per mode, receiver and sender: ``sender`` (``layer.head``); ``receiver``;
        ``kv_head`` (NA but for keys and values); ``mode``; ``clean``, ``corrupted``, ``patched``
        (means, in the metric's unit); ``value`` (share, 1 is clean); ``ci_low``, ``ci_high``;
        ``n`` independent units; ``n_prompts`` pairs. ``attrs["ids"]`` are the ids fed.

    Raises:
        UnknownNameError: a head that the model does not have.
        InputError: a receiver that is not later than a sender that was named for it.

    Cost:
        One frozen run per sender, and one run from the receiver's layer on per path.

    Identity: the residual stream at a receiver is the run's own plus ``(z_other - z_own) W_O`` of
        the sender.
    """
    pairs = as_pairs(model, clean, corrupt)
    metrics = pair_metric(model, pairs, metric)
    paths = _paths(model, senders, receivers)
    patch = partial(_patched, model, pairs, metrics, paths)
    return patched_table(model, pairs, metrics, _names(paths), patch, mode=mode, seed=seed)


def parse_receiver(model: HookedModel, name: str) -> Receiver:
    """Read ``9.6.q`` or ``logits``.

    Raises:
        UnknownNameError: neither, or a head that the model does not have.
    """
    sizes = shape(model)
    if name == "logits":
        return Receiver(name, sizes.n_layers, "hook_resid_post", sizes.n_layers - 1)
    match = _RECEIVER.fullmatch(name)
    if match is None:
        raise UnknownNameError(
            "a receiver is written layer.head.q (or .k, .v), as in 9.6.q, or logits, "
            f"but got {name!r}"
        )
    layer, head = parse_head(match[1], n_layers=sizes.n_layers, n_heads=sizes.n_heads)
    kv = None if match[2] == "q" else head // (sizes.n_heads // sizes.n_key_value_heads)
    index = head if kv is None else kv
    return Receiver(name, layer, f"attn.hook_{match[2]}", layer, index, kv)


Path = tuple[Head, Receiver]


def _paths(
    model: HookedModel, senders: Sequence[HeadLike] | None, receivers: str | Sequence[str]
) -> list[Path]:
    """Every sender with every receiver, in the order of receivers."""
    sizes = shape(model)
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    ends = [parse_receiver(model, name) for name in dict.fromkeys(names)]
    named = None
    if senders is not None:
        named = parse_heads(senders, n_layers=sizes.n_layers, n_heads=sizes.n_heads)
    paths = []
    for end in ends:
        for head in sizes.heads if named is None else named:
            if head[0] < end.layer:
                paths.append((head, end))
            elif named is not None:
                raise InputError(
                    f"a receiver must be in a later layer than its sender, but {end.name} is not "
                    f"later than {head_name(*head)}: name an earlier sender or a later receiver"
                )
    if not paths:
        raise InputError(
            f"path patching needs a receiver with an earlier sender, but got {', '.join(names)}: "
            "no head is earlier than layer 0"
        )
    return paths


def _patched(
    model: HookedModel, pairs: Pairs, metrics: Sequence[Metric], paths: Sequence[Path], mode: str
) -> Array:
    """The metric of every pair with each path exchanged, ``[path, pair]``."""
    base, source = pairs.runs_on(mode)
    found = np.empty((len(paths), len(pairs)))
    for indices in _groups(model, base, paths):
        some = [paths[i] for i in indices]
        values = _arriving(model, base, source, some)
        runs = [[end.edit(value)] for (_, end), value in zip(some, values, strict=True)]
        scores = score_runs(model, base, metrics, runs, what=f"path patching ({mode})")[1]
        found[indices] = scores[..., 0]
    return found


def _groups(model: HookedModel, base: Batch, paths: Sequence[Path]) -> Iterator[list[int]]:
    """Paths, sender by sender, in groups whose values are held together."""
    sizes = shape(model)
    order = sorted(range(len(paths)), key=lambda i: paths[i][0])
    group: list[int] = []
    held = 0
    for i in order:
        width = sizes.d_model if paths[i][1].index is None else sizes.d_head
        cost = base.tokens.numel() * width
        if group and held + cost > HELD:
            yield group
            group, held = [], 0
        group.append(i)
        held += cost
    yield group


def _arriving(
    model: HookedModel, base: Batch, source: Batch, paths: Sequence[Path]
) -> list[Tensor]:
    """What each receiver reads when only its sender is exchanged, over all pairs."""
    by_sender: dict[Head, list[int]] = {}
    for i, (head, _) in enumerate(paths):
        by_sender.setdefault(head, []).append(i)
    size = chunk_size(model, base.tokens.shape[1])
    chunks = [slice(first, first + size) for first in range(0, len(base), size)]
    parts: list[list[Tensor]] = [[] for _ in paths]
    with track("freezing all other paths", len(chunks) * len(by_sender)) as advance:
        for rows in chunks:
            own, other = _writes(model, base, source, rows, list(by_sender))
            for head, indices in by_sender.items():
                names = list(dict.fromkeys(paths[i][1].hook for i in indices))
                hooks = _frozen(head, own, other)
                seen = capture(model, base.tokens[rows], names, hooks=hooks).activations
                for i in indices:
                    parts[i].append(paths[i][1].take(seen).clone())
                advance(1)
    return [torch.cat(part) for part in parts]


def _writes(
    model: HookedModel, base: Batch, source: Batch, rows: slice, senders: Sequence[Head]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What every later part of the model gives in the run itself, and the senders in the other."""
    first = min(layer for layer, _ in senders)
    layers = range(first, shape(model).n_layers)
    names = [hook_name(POINTS[kind], layer) for layer in layers for kind in ("head", "mlp")]
    own = capture(model, base.tokens[rows], [n for n in names if n in model.hook_dict]).activations
    sent = dict.fromkeys(hook_name(POINTS["head"], layer) for layer, _ in senders)
    return own, capture(model, source.tokens[rows], sent).activations


def _frozen(sender: Head, own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Hooks:
    """Hooks that exchange the sender and hold all that comes after it."""
    layer, head = sender
    sent = hook_name(POINTS["head"], layer)
    z = own[sent].clone()
    z[:, :, head] = other[sent][:, :, head]
    held = {name: value for name, value in own.items() if int(name.split(".")[1]) >= layer}
    return [(name, partial(_put, value)) for name, value in {**held, sent: z}.items()]


def _put(value: Tensor, activation: Tensor, *, hook: Any) -> Tensor:
    return value.to(activation.dtype).expand_as(activation).clone()


def _names(paths: Sequence[Path]) -> dict[str, Any]:
    return {
        "sender": [head_name(*head) for head, _ in paths],
        "receiver": [end.name for _, end in paths],
        "kv_head": pd.Series([end.kv_head for _, end in paths], dtype="Int64"),
    }
