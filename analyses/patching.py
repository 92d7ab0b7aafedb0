"""Activation patching: which parts carry the difference between two prompts?

The same model reads a clean prompt and a corrupted one of the same length. Denoising runs the
corrupted prompt and puts the clean run's activation in at one site: what is enough to restore the
answer? Noising runs the clean prompt and puts the corrupted activation in: what is needed? The two
questions have different answers. Everything downstream is recomputed; each number is exact, one
run a site, see `analyses.reruns`.

Source: Vig et al. 2020 (causal mediation), Meng et al. 2022 (causal tracing), Heimersheim and
Nanda 2024 ("How to use and interpret activation patching").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses.inputs import as_names, real_positions
from analyses.metrics import Metric, MetricLike
from analyses.pairs import (
    Pairs,
    PromptsLike,
    as_pairs,
    pair_metric,
    patched_table,
)
from analyses.reruns import Array, Edit, replace, score_runs
from analyses.substitutes import POINTS, all_activations
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import choose, hook_name
from models.tasks import Batch

SITES = ("head", "attn", "mlp", "resid")
HELD = 2**28  # numbers held of the other run at a time

Positions = str | Sequence[int] | Mapping[str, Sequence[int]] | None
Label = int | str | None
Mask = tuple[Label, Tensor | None]


@dataclass(frozen=True)
class Site:
    """A place where an activation is exchanged.

    Args:
        kind: ``head``, ``attn``, ``mlp`` or ``resid``.
        layer: of it; of the residual stream the layer that reads it, ``n_layers`` after the last.
        head: of a head.
        position: a position or its name; ``None`` for all positions together.
        mask: the places ``[pair, pos]``; ``None`` for all.
        point: the hook point, of layer ``at``.
    """

    kind: str
    layer: int
    head: int | None
    position: Label
    mask: Tensor | None
    point: str
    at: int

    def edit(self, values: Mapping[str, Tensor]) -> Edit:
        """What puts the other run's activation in."""
        value = values[hook_name(self.point, self.at)]
        if self.head is None:
            return replace(self.at, self.point, value, mask=self.mask)
        part = value[:, :, self.head : self.head + 1]
        return replace(self.at, self.point, part, heads=[self.head], mask=self.mask)


def activation_patching(
    model: HookedModel,
    clean: PromptsLike,
    corrupt: PromptsLike,
    *,
    metric: MetricLike,
    sites: str | Iterable[str] | None = None,
    mode: str | Sequence[str] = "denoise",
    positions: Positions = None,
    seed: int = 0,
) -> pd.DataFrame:
    """How much of the difference between two prompts each site carries.

    ``value = (patched - corrupted) / (clean - corrupted)``: 0 is the corrupted run, 1 the clean
    one. It is the ratio of means over prompts, not clipped. NaN where ``|clean - corrupted|`` is
    under 2 standard errors (of a single prompt: where it is 0).

    Args:
        model: a hooked model.
        clean, corrupt: texts, ids, or `analyses.pairs.Prompts`; ``clean[i]`` is paired with
            ``corrupt[i]``, which has as many tokens.
        metric: one, see `analyses.metrics.as_metrics`; both runs are judged by it, and by the
            clean prompts' next tokens where it reads those.
        sites: ``head`` (every head's ``z``), ``attn`` and ``mlp`` (what a layer adds), ``resid``
            (the residual stream before every layer, and after the last); default all there are.
        mode: ``denoise`` (clean activations into the corrupted run), ``noise`` (corrupted ones
            into the clean run), or both.
        positions: ``"all"`` together, ``"each"`` alone, a list of positions each alone (negative
            ones from each prompt's end), or by name one position for each prompt, as in
            ``{"END": [14, 12]}``. Default: the residual stream at each, all else at all.
        seed: of the intervals.

    Returns:
        One row per mode, site and position: ``kind``; ``layer`` (of ``resid`` the layer that
        reads it, ``n_layers`` after the last); ``head`` (NA but for heads); ``position`` (NA for
        all together); ``mode``; ``clean``, ``corrupted``, ``patched`` (means, in the metric's
        unit); ``value`` (share, 1 is clean); ``ci_low``, ``ci_high`` (of it, 95% BCa; NaN under
        10 units); ``n`` independent units; ``n_prompts`` pairs. ``attrs["ids"]`` are the ids fed.

    Raises:
        LengthError: a pair of unequal length.
        InputError: no such site or position, or a metric that a corrupted run has no value of.

    Identity: a prompt patched with itself stays as it is; the residual stream at all positions
    gives 1, in every layer and in both modes 1 and 0.
    """
    pairs = as_pairs(model, clean, corrupt)
    metrics = pair_metric(model, pairs, metric)
    kinds, chosen = sites_of(model, sites), _positions(pairs, positions)
    asked = [site for kind in kinds for site in _sites(model, kind, chosen, positions is None)]
    patch = partial(_patched, model, pairs, metrics, asked)
    return patched_table(model, pairs, metrics, _names(asked), patch, mode=mode, seed=seed)


def sites_of(model: HookedModel, sites: str | Iterable[str] | None) -> list[str]:
    """The kinds of sites that a user named, checked; by default all that the model has."""
    has_mlp = hook_name(POINTS["mlp"], 0) in model.hook_dict
    if sites is None:
        return [kind for kind in SITES if has_mlp or kind != "mlp"]
    found = [choose("site", kind, SITES) for kind in as_names(sites)]
    if not found:
        raise InputError(f"name at least one site of {', '.join(SITES)}")
    if "mlp" in found and not has_mlp:
        raise InputError("mlp does not exist: this model has no MLP")
    return found


def _sites(
    model: HookedModel, kind: str, chosen: Sequence[Mask], by_default: bool
) -> Iterator[Site]:
    """The sites of a kind, layer by layer; by default only the residual stream is split up."""
    sizes = shape(model)
    places = chosen if kind == "resid" or not by_default else [(None, None)]
    for layer in range(sizes.n_layers):
        for head in range(sizes.n_heads) if kind == "head" else (None,):
            for label, mask in places:
                point = POINTS.get(kind, "hook_resid_pre")
                yield Site(kind, layer, head, label, mask, point, layer)
    if kind == "resid":
        last = sizes.n_layers - 1
        for label, mask in places:
            yield Site(kind, last + 1, None, label, mask, "hook_resid_post", last)


def _patched(
    model: HookedModel, pairs: Pairs, metrics: Sequence[Metric], sites: Sequence[Site], mode: str
) -> Array:
    """The metric of every pair with each site exchanged, ``[site, pair]``; NaN without the site."""
    base, source = pairs.runs_on(mode)
    found = np.empty((len(sites), len(pairs)))
    for indices in _groups(model, source, sites):
        names = dict.fromkeys(hook_name(sites[i].point, sites[i].at) for i in indices)
        values = all_activations(model, source, list(names))
        runs = [[sites[i].edit(values)] for i in indices]
        scores = score_runs(model, base, metrics, runs, what=f"patching ({mode})")[1]
        found[indices] = scores[..., 0]
    for site, row in zip(sites, found, strict=True):
        if site.mask is not None:
            row[~site.mask.any(1).cpu().numpy()] = np.nan
    return found


def _groups(model: HookedModel, batch: Batch, sites: Sequence[Site]) -> list[list[int]]:
    """Sites, layer by layer, in groups whose activations are held together."""
    sizes = shape(model)
    width = batch.tokens.numel() * max(sizes.d_model, sizes.n_heads * sizes.d_head)
    most = max(1, HELD // width)
    groups: list[list[int]] = []
    held: set[str] = set()
    for i in sorted(range(len(sites)), key=lambda i: sites[i].at):
        name = hook_name(sites[i].point, sites[i].at)
        if not groups or (name not in held and len(held) >= most):
            groups.append([])
            held = set()
        groups[-1].append(i)
        held.add(name)
    return groups


def _positions(pairs: Pairs, positions: Positions) -> list[Mask]:
    """What is exchanged together: a label and a mask ``[pair, pos]`` each."""
    real = real_positions(pairs.clean)
    lengths = pairs.clean.lengths.tolist()
    if positions == "all":
        return [(None, None)]
    if positions is None or positions == "each":
        positions = range(real.shape[1])
    if isinstance(positions, str):
        choose("positions", positions, ("all", "each"))
    found: list[Mask] = []
    if isinstance(positions, Mapping):
        found += [(name, _one_each(real, name, at)) for name, at in positions.items()]
    longest = max(lengths)
    for at in () if isinstance(positions, Mapping) else _numbers(positions, "positions"):
        if not -longest <= at < longest:
            raise InputError(f"a position must be {-longest}..{longest - 1} here, but got {at}")
        mask = torch.zeros_like(real)
        for pair, length in enumerate(lengths):
            if -length <= at < length:
                mask[pair, at % length] = True
        found.append((at, mask))
    if not found:
        raise InputError("name at least one position, or all, or each")
    return found


def _numbers(given: Any, what: str) -> list[int]:
    """A list of positions, checked."""
    given = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(f"{what} must be a list of whole numbers, as in [3, -1], not {given!r}")
    for at in given:
        if not isinstance(at, Integral):
            raise InputError(f"a position must be a whole number, but got {at!r}")
    return [int(at) for at in given]


def _one_each(real: Tensor, name: str, given: Any) -> Tensor:
    lengths = real.sum(1).tolist()
    at = _numbers(given, f"positions {name!r}")
    if len(at) != len(lengths):
        raise InputError(
            f"positions {name!r} must be one for each of {len(lengths)} prompts, but got {len(at)}"
        )
    mask = torch.zeros_like(real)
    for pair, (place, length) in enumerate(zip(at, lengths, strict=True)):
        if not -length <= place < length:
            raise InputError(
                f"position {name!r} of prompt {pair} must be {-length}..{length - 1}, "
                f"but got {place}"
            )
        mask[pair, place % length] = True
    return mask


def _names(sites: Sequence[Site]) -> dict[str, Any]:
    labels = [site.position for site in sites]
    named = any(isinstance(label, str) for label in labels)
    return {
        "kind": [site.kind for site in sites],
        "layer": [site.layer for site in sites],
        "head": pd.Series([site.head for site in sites], dtype="Int64"),
        "position": pd.Series(labels, dtype="string" if named else "Int64"),
    }
