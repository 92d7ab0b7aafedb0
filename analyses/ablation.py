"""Ablation: what a model loses when heads are taken away.

A head is removed where its output ``z`` enters the output projection, not after it, where all
heads are mixed. ``zero`` sets z to 0; ``mean`` to its mean per position over reference
sequences, disjoint from those evaluated; ``resample`` to z from the same position of another
sequence, ten times over. Everything downstream is recomputed (total effect).

On our GPT a run starts at the first ablated layer, from the clean residual stream, which is
exact; a bridge runs whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.inputs import Inputs, as_batch, reference_batch
from analyses.statistics import mean_interval
from analyses.registry import run_module
from models.errors import InputError
from models.gpt import GPT
from models.interface import HookedModel, capture, evaluating, hooked, shape
from models.names import Head, HeadLike, choose, head_name, hook_name, parse_heads
from models.tasks import Batch, common_rows, correct_tokens, exact_match, sequence_loss

Ablation = Literal["zero", "mean", "resample"]
ABLATIONS = get_args(Ablation)
METRICS = ("loss", "token_accuracy", "exact_match")
DRAWS = 10
CHUNK = 256
EVALUATED = 256
UNITS = {"loss": "nats per output", "token_accuracy": "share", "exact_match": "share"}

Replacement = Callable[[int, slice], Tensor]


@dataclass(frozen=True)
class Variant:
    """A set of heads to remove, and how."""

    heads: tuple[Head, ...]
    ablation: Ablation


def ablate(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    ablation: str = "mean",
    reference: Batch | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Remove some heads together and compare.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        heads: e.g. ``["1.2", "0.3"]``; none changes nothing.
        ablation: ``zero``, ``mean`` or ``resample``.
        reference: sequences whose mean ``mean`` uses; default 256 of the task's training split.
        seed: of the default batches, the resampling partners and the intervals.

    Returns:
        One row per metric (``loss`` in nats per output; ``token_accuracy``, ``exact_match`` in
        shares of 1): ``metric``, ``clean``, ``ablated``, ``change``, ``ci_low``, ``ci_high``
        (of the change, 95% BCa over sequences), ``n``, ``monte_carlo_error`` (of resample).

    Raises:
        UnknownNameError: a head that the model does not have.
    """
    table = run_variants(
        model,
        as_batch(model, tokens, n=EVALUATED, seed=seed),
        [Variant(_heads(model, heads), _ablation(ablation))],
        reference=reference,
        seed=seed,
    )
    return table.drop(columns=["heads", "ablation"])


def ablate_every_head(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    ablations: Iterable[str] = ABLATIONS,
    reference: Batch | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The exact effect of removing each head alone.

    Args:
        model, tokens, reference, seed: as in `ablate`.
        ablations: the kinds to try.

    Returns:
        One row per head, ablation and metric: ``layer``, ``head``, ``ablation``, ``metric``,
        ``clean``, ``ablated``, ``change``, ``ci_low``, ``ci_high``, ``n``,
        ``monte_carlo_error``.
    """
    kinds = [_ablation(kind) for kind in ablations]
    variants = [Variant((head,), kind) for head in shape(model).heads for kind in kinds]
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    table = run_variants(model, batch, variants, reference=reference, seed=seed)
    index = table.pop("heads")
    table.insert(0, "layer", [int(name.split(".")[0]) for name in index])
    table.insert(1, "head", [int(name.split(".")[1]) for name in index])
    return table


def cumulative_ablation(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    order: Sequence[HeadLike],
    ablations: Iterable[str] = ("zero", "mean"),
    reference: Batch | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Remove heads one after the other, and keep only the first ones, in a given order.

    Args:
        model, tokens, reference, seed: as in `ablate`.
        order: all heads, e.g. by falling anti-diagonal score.
        ablations: the kinds to try.

    Returns:
        One row per mode, ablation and number of heads: ``mode`` (``remove`` the first
        ``n_heads`` of the order, or ``keep`` only these), ``ablation``, ``n_heads``, ``heads``
        (the first ones, ``layer.head``), ``loss`` (nats per output), ``token_accuracy``,
        ``exact_match`` (shares of 1), ``n``.
    """
    heads = _heads(model, order)
    kinds = [_ablation(kind) for kind in ablations]
    rows = [(m, k, n) for m in ("remove", "keep") for k in kinds for n in range(len(heads) + 1)]
    variants = [Variant(heads[:n] if m == "remove" else heads[n:], k) for m, k, n in rows]
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    table = run_variants(model, batch, variants, reference=reference, seed=seed, intervals=False)
    scores = table["ablated"].to_numpy().reshape(len(rows), len(METRICS))
    result = pd.DataFrame(rows, columns=["mode", "ablation", "n_heads"])
    result["heads"] = [" ".join(head_name(*h) for h in heads[:n]) for _, _, n in rows]
    result[list(METRICS)] = scores
    result["n"] = len(batch)
    result.attrs["units"] = UNITS
    return result


def run_variants(
    model: HookedModel,
    batch: Batch,
    variants: Sequence[Variant],
    *,
    reference: Batch | None = None,
    seed: int = 0,
    intervals: bool = True,
) -> pd.DataFrame:
    """Evaluate the clean model and every variant on the same sequences.

    Returns:
        One row per variant and metric, in that order: ``heads``, ``ablation``, ``metric``,
        ``clean``, ``ablated``, ``change``, ``ci_low``, ``ci_high``, ``n``,
        ``monte_carlo_error``.
    """
    replacements = _replacements(model, batch, variants, reference, seed)
    clean, scores, errors = _scores(model, batch, variants, replacements)
    change = scores - clean  # variant sequence metric
    moved = np.moveaxis(change, 1, 0)
    interval = mean_interval(moved, seed=seed) if intervals else None
    undefined = np.full(len(METRICS), np.nan)
    rows = [
        {
            "heads": " ".join(head_name(*head) for head in variant.heads),
            "ablation": variant.ablation,
            "metric": metric,
            "clean": clean[:, j].mean(),
            "ablated": scores[i, :, j].mean(),
            "change": change[i, :, j].mean(),
            "ci_low": (undefined if interval is None else interval.low[i])[j],
            "ci_high": (undefined if interval is None else interval.high[i])[j],
            "n": len(batch),
            "monte_carlo_error": errors[i, j],
        }
        for i, variant in enumerate(variants)
        for j, metric in enumerate(METRICS)
    ]
    table = pd.DataFrame(rows)
    table.attrs["units"] = UNITS
    return table


def mean_z(
    model: HookedModel, reference: Batch, layers: Iterable[int]
) -> dict[int, Float[Tensor, "pos head d_head"]]:
    """Mean of ``z`` per position over reference sequences; pooled over positions when their
    lengths differ (real tokens only)."""
    names = {layer: hook_name("attn.hook_z", layer) for layer in layers}
    sums: dict[int, Tensor] = {}
    fixed = bool((reference.lengths == reference.tokens.shape[1]).all())
    position = torch.arange(reference.tokens.shape[1], device=reference.tokens.device)
    for first in range(0, len(reference), CHUNK):
        part = reference[first : first + CHUNK]
        real = (position < part.lengths[:, None])[..., None, None]
        kept = capture(model, part.tokens, names.values()).activations
        for layer, name in names.items():
            total = torch.where(real, kept[name], 0).double().sum(0)
            sums[layer] = sums.get(layer, 0) + total
    count = len(reference) if fixed else int(reference.lengths.sum())
    pooled = {k: s if fixed else s.sum(0, keepdim=True) for k, s in sums.items()}
    return {layer: (total / count).float() for layer, total in pooled.items()}


def _replacements(
    model: HookedModel,
    batch: Batch,
    variants: Sequence[Variant],
    reference: Batch | None,
    seed: int,
) -> dict[str, list[Replacement]]:
    """By kind, what gives the new ``z`` of a layer for a slice of the sequences; one per draw."""
    kinds = {variant.ablation for variant in variants if variant.heads}
    layers = sorted({layer for variant in variants for layer, _ in variant.heads})
    found: dict[str, list[Replacement]] = {}
    if "zero" in kinds:
        found["zero"] = [lambda layer, rows: torch.zeros(())]
    if "mean" in kinds:
        if reference is None:
            reference = reference_batch(model, seed=seed)
        if reference.tokens.shape[1] != batch.tokens.shape[1]:
            raise InputError(
                f"the reference must have the layout of the tokens, {batch.tokens.shape[1]} "
                f"positions, but has {reference.tokens.shape[1]}"
            )
        means = mean_z(model, reference, layers)
        found["mean"] = [lambda layer, rows: means[layer]]
    if "resample" in kinds:
        z = _all_z(model, batch, layers)
        partners = [_partners(batch, seed, draw) for draw in range(DRAWS)]
        found["resample"] = [partial(_partner_z, z, partner) for partner in partners]
    return found


def _partner_z(z: Mapping[int, Tensor], partner: Tensor, layer: int, rows: slice) -> Tensor:
    return z[layer][partner[rows]]


def _all_z(model: HookedModel, batch: Batch, layers: Sequence[int]) -> dict[int, Tensor]:
    names = [hook_name("attn.hook_z", layer) for layer in layers]
    parts = [
        capture(model, batch.tokens[first : first + CHUNK], names).activations
        for first in range(0, len(batch), CHUNK)
    ]
    return {k: torch.cat([p[n] for p in parts]) for k, n in zip(layers, names, strict=True)}


def _partners(batch: Batch, seed: int, draw: int) -> Tensor:
    """For every sequence another one of the same length: a random cycle through each length."""
    random = np.random.default_rng([seed, draw])
    lengths = batch.lengths.cpu().numpy()
    partner = np.empty(len(lengths), dtype=np.int64)
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        if len(same) < 2:
            raise InputError(
                f"resampling needs two sequences of each length, but length {length} has one"
            )
        order = random.permutation(same)
        partner[order] = np.roll(order, 1)
    return torch.from_numpy(partner).to(batch.tokens.device)


def _scores(
    model: HookedModel,
    batch: Batch,
    variants: Sequence[Variant],
    replacements: Mapping[str, Sequence[Replacement]],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Clean ``[sequence, metric]``, per variant, and the Monte-Carlo error of each variant."""
    rows = common_rows(batch.outputs) if isinstance(model, GPT) else None
    clean, scores = [], []
    for first in range(0, len(batch), CHUNK):
        at = slice(first, first + CHUNK)
        runner = _Runner(model, batch[at], rows)
        clean.append(runner.metrics({}))
        scores.append(
            [
                [runner.metrics(_edits(v, give, at)) for give in replacements[v.ablation]]
                if v.heads
                else [clean[-1]]
                for v in variants
            ]
        )
    each = [torch.cat([torch.stack(chunk[i]) for chunk in scores], 1) for i in range(len(variants))]
    errors = [
        draws.mean(1).std(0) / len(draws) ** 0.5 if len(draws) > 1 else torch.full((3,), torch.nan)
        for draws in each
    ]
    stacked = torch.stack([draws.mean(0) for draws in each]).cpu().numpy()
    return torch.cat(clean).cpu().numpy(), stacked, torch.stack(errors).cpu().numpy()


def _edits(variant: Variant, give: Replacement, rows: slice) -> dict[int, Callable[..., Tensor]]:
    by_layer: dict[int, list[int]] = {}
    for layer, head in variant.heads:
        by_layer.setdefault(layer, []).append(head)

    def edit(z: Tensor, *, hook: Any, layer: int, heads: list[int]) -> Tensor:
        z = z.clone()
        value = give(layer, rows)
        z[..., heads, :] = value[..., heads, :].to(z) if value.ndim else value.to(z)
        return z

    return {layer: partial(edit, layer=layer, heads=heads) for layer, heads in by_layer.items()}


class _Runner:
    """One chunk of sequences, evaluated again and again with different edits of ``z``."""

    def __init__(self, model: HookedModel, batch: Batch, rows: slice | None) -> None:
        self.model, self.batch, self.rows = model, batch, rows
        self.residuals: dict[str, Tensor] = {}
        if isinstance(model, GPT):
            names = [hook_name("hook_resid_pre", layer) for layer in range(len(model.blocks))]
            self.residuals = capture(model, batch.tokens, names).activations

    def metrics(self, edits: Mapping[int, Callable[..., Tensor]]) -> Float[Tensor, "sequence 3"]:
        """Loss, token accuracy and exact match of every sequence."""
        with torch.no_grad(), evaluating(self.model):
            logits = self._logits(edits)
        read, batch = self.rows or slice(None), self.batch
        part = Batch(
            batch.tokens[:, read],
            batch.lengths,
            batch.next_tokens[:, read],
            batch.outputs[:, read],
            batch.target_keys[:, read],
        )
        right = correct_tokens(logits, part).sum(1) / part.outputs.sum(1)
        scores = (sequence_loss(logits, part), right, exact_match(logits, part))
        return torch.stack([score.double() for score in scores], dim=-1)

    def _logits(self, edits: Mapping[int, Callable[..., Tensor]]) -> Tensor:
        hooks = [(hook_name("attn.hook_z", layer), edit) for layer, edit in edits.items()]
        with hooked(self.model, hooks):
            if not self.residuals:
                return self.model(self.batch.tokens, return_type="logits")  # type: ignore[no-any-return]
            first = min(edits, default=len(self.residuals) - 1)
            residual = self.residuals[hook_name("hook_resid_pre", first)]
            if self.rows is None:
                return self.model(residual, start_at_layer=first)  # type: ignore[no-any-return]
            residual = residual if edits else residual[:, : self.rows.stop]
            return self.model(residual, start_at_layer=first, rows=self.rows)  # type: ignore[no-any-return]


def _heads(model: HookedModel, heads: Sequence[HeadLike]) -> tuple[Head, ...]:
    sizes = shape(model)
    return tuple(parse_heads(heads, n_layers=sizes.n_layers, n_heads=sizes.n_heads))


def _ablation(kind: str) -> Ablation:
    return choose("ablation", kind, ABLATIONS)  # type: ignore[return-value]


if __name__ == "__main__":
    run_module("ablation")
