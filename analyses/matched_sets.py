"""Sets of heads that match a given one, and what removing or keeping each of them does.

Matched sets have as many heads in every layer as the given one; it is one of them. All of them
are tried where they are few, otherwise distinct ones drawn at random. Every set is removed
together and kept alone, on the same sequences, with the same substitutes and the same draws.
Cost: two runs per set and ablation (times ten for resample), all in one batched call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.ablation import Metrics, Variant, ablations_of, parts_of, score_variants
from analyses.hypothesis_words import CLAIMS
from analyses.inputs import Inputs, as_batch
from analyses.metrics import Metric, as_metrics
from analyses.reruns import Array
from analyses.statistics import mean_where_defined
from analyses.substitutes import Ablation, possible_ablations
from models.errors import InputError
from models.interface import HookedModel, shape
from models.names import Head, HeadLike, head_name

CONTROLS = 200

HeadSet = tuple[Head, ...]


@dataclass(frozen=True)
class MatchedSets:
    """A set of heads and those it is compared with.

    Args:
        sets: the given set first.
        total: how many sets match, the given one included.
    """

    sets: tuple[HeadSet, ...]
    total: int

    @property
    def enumerated(self) -> bool:
        """Whether these are all of them."""
        return len(self.sets) == self.total


@dataclass(frozen=True)
class SetScores:
    """What every set scores when it is removed and when it is kept alone.

    Args:
        matched: the sets.
        metric: one.
        ablations: the kinds.
        clean: ``[sequence]``.
        removed, kept: ``[ablation, set, sequence]``; NaN where nothing could stand in.
        none: ``[ablation, sequence]``: all heads removed, the MLPs kept.
        errors: Monte-Carlo errors of the given set, ``[removed | kept | none, ablation]``; NaN
            without random draws.
        baselines: what stood in, by ablation.
        seed: of the draws.
    """

    matched: MatchedSets
    metric: Metric
    ablations: tuple[Ablation, ...]
    clean: Array
    removed: Array
    kept: Array
    none: Array
    errors: Array
    baselines: tuple[str, ...]
    seed: int

    @property
    def effects(self) -> Array:
        """Mean change on removal, ``[ablation, set]``, in the metric's unit."""
        return mean_where_defined(self.removed - self.clean, axis=2)

    @property
    def gaps(self) -> Array:
        """What all heads give, clean - none, ``[ablation]``.

        NaN under two standard errors, and where clean is worse than none.
        """
        difference = self.clean - self.none
        n = (~np.isnan(difference)).sum(1)
        mean = mean_where_defined(difference, axis=1)
        square = mean_where_defined((difference - mean[:, None]) ** 2, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(n > 1, np.sqrt(square / (n - 1)), np.nan)
        large = (np.abs(mean) >= 2 * error) & (mean != 0)
        return np.where(large & ~self._worse(mean), mean, np.nan)

    @property
    def retained(self) -> Array:
        """(keep only - none) / (clean - none), ``[ablation, set]``; not clipped."""
        kept = mean_where_defined(self.kept - self.none[:, None], axis=2)
        share: Array = kept / self.gaps[:, None]
        return share

    @property
    def costs(self) -> Array:
        """(clean - removed) / (clean - none), ``[ablation, set]``; not clipped."""
        share: Array = -self.effects / self.gaps[:, None]
        return share

    def _worse(self, gap: Array) -> NDArray[np.bool_]:
        """Whether clean - none says that clean is worse."""
        return self.metric.better * gap < 0

    def values(self, claim: str) -> Array:
        """What a claim is about, ``[ablation, set]``: the effect, or the share retained."""
        return self.effects if claim == "necessary" else self.retained

    def extremity(self, claim: str) -> Array:
        """The same, so that larger is more extreme; NaN where clean is worse than none."""
        if claim == "sufficient":
            return self.retained
        better, effects = self.metric.better, self.effects
        gap = mean_where_defined(self.clean - self.none, axis=1)[:, None]
        worse = -better * effects if better else np.abs(effects)
        return np.where(self._worse(gap), np.nan, worse)


def measure_sets(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    metric: Metrics = "loss",
    ablation: str | Iterable[str] | None = None,
    n_controls: int = CONTROLS,
    reference: Inputs = None,
    seed: int = 0,
) -> SetScores:
    """Remove, and keep alone, a set of heads and every set that it is compared with.

    Args:
        model, reference: as in `analyses.ablation.ablate`.
        tokens: see `analyses.inputs.as_batch`; default 64 held-out sequences.
        heads: the set, e.g. ``["1.2", "0.3"]``, or ``"1.*"`` for a layer's.
        metric: one, see `analyses.metrics.as_metrics`.
        ablation: the kind, or several; default all that the input allows.
        n_controls: see `matched_sets`.
        seed: of the default batches, the sets drawn and the resampling partners.

    Raises:
        UnknownNameError: a head that the model does not have.
        InputError: no head, one named twice, or a layer; several metrics; ``n_controls`` under 1.
    """
    matched = matched_sets(model, heads, n_controls=n_controls, seed=seed)
    batch = as_batch(model, tokens, seed=seed)
    metrics = as_metrics(model, batch, "loss" if metric is None else metric)
    if len(metrics) != 1:
        raise InputError(f"a hypothesis needs one metric, but got {len(metrics)}: test each alone")
    allowed = possible_ablations(model, batch, reference)
    kinds = ablations_of(allowed if ablation is None else ablation)
    everything = tuple(shape(model).heads)
    rest = [tuple(h for h in everything if h not in some) for some in matched.sets]
    removals = [*matched.sets, *rest, everything]
    variants = [Variant(some, kind) for kind in kinds for some in removals]
    scored = score_variants(model, batch, metrics, variants, reference=reference, seed=seed)
    n, n_kinds = len(matched.sets), len(kinds)
    ablated = scored.ablated[..., 0].reshape(n_kinds, len(removals), len(batch))
    errors = scored.errors[..., 0].reshape(n_kinds, len(removals))
    return SetScores(
        matched=matched,
        metric=metrics[0],
        ablations=tuple(kinds),
        clean=scored.clean[:, 0],
        removed=ablated[:, :n],
        kept=ablated[:, n : 2 * n],
        none=ablated[:, -1],
        errors=errors[:, [0, n, 2 * n]].T,
        baselines=tuple(scored.baselines[:: len(removals)]),
        seed=seed,
    )


def hypothesis_sets(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    metric: Metrics = "loss",
    ablation: str | Iterable[str] | None = None,
    n_controls: int = CONTROLS,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """What removing, and keeping alone, every matched set does: see `set_table`.

    Args:
        all: as in `measure_sets`.
    """
    return set_table(
        measure_sets(
            model,
            tokens,
            heads=heads,
            metric=metric,
            ablation=ablation,
            n_controls=n_controls,
            reference=reference,
            seed=seed,
        )
    )


def set_table(scores: SetScores) -> pd.DataFrame:
    """The reference set as a table.

    Returns:
        One row per claim, ablation and set, the tested set first: ``heads``, ``tested``,
        ``claim`` (``necessary``: the set is removed; ``sufficient``: it is kept alone),
        ``ablation``, ``metric``, ``value`` (mean change of the metric on removal, in its unit; or
        the share retained, 1 = as clean, 0 = as without any head, not clipped).
    """
    names = [set_name(some) for some in scores.matched.sets]
    parts = [
        pd.DataFrame(
            {
                "heads": names,
                "tested": [True] + [False] * (len(names) - 1),
                "claim": claim,
                "ablation": kind,
                "metric": scores.metric.name,
                "value": scores.values(claim)[i],
            }
        )
        for claim in CLAIMS
        for i, kind in enumerate(scores.ablations)
    ]
    table = pd.concat(parts, ignore_index=True)
    table.attrs["units"] = {"value": units_of_claims(scores.metric)}
    return table


def units_of_claims(metric: Metric) -> str:
    """The unit of ``value`` in both kinds of rows."""
    return f"necessary: {metric.unit}; sufficient: share of clean - none"


def matched_sets(
    model: HookedModel,
    heads: Sequence[HeadLike],
    *,
    n_controls: int = CONTROLS,
    seed: int = 0,
) -> MatchedSets:
    """The sets with as many heads in every layer as a given one.

    All of them where no more than ``n_controls`` others match; otherwise the given one and
    ``n_controls`` distinct others, every one equally likely.

    Raises:
        UnknownNameError: a head that the model does not have.
        InputError: no head, one named twice, or a layer; ``n_controls`` under 1.
    """
    if n_controls < 1:
        raise InputError(f"n_controls must be at least 1, but got {n_controls}")
    parts = parts_of(model, heads)
    if not parts:
        raise InputError('a hypothesis needs at least one head, but got none: heads=["1.2"]')
    tested: list[Head] = []
    for part in parts:
        if part.head is None:
            raise InputError(f"a hypothesis is about heads, but got {part}: name heads, as in 1.2")
        tested.append((part.layer, part.head))
    given = tuple(sorted(tested))
    n_heads = shape(model).n_heads
    sizes = {layer: sum(at == layer for at, _ in given) for layer, _ in given}
    total = prod(comb(n_heads, size) for size in sizes.values())
    if total - 1 <= n_controls:
        others = [some for some in _every(sizes, n_heads) if some != given]
    else:
        others = _draws(sizes, n_heads, given, n_controls, seed)
    return MatchedSets((given, *others), total)


def set_name(heads: Iterable[Head]) -> str:
    """Heads as in tables: ``0.1 1.2``."""
    return " ".join(head_name(*head) for head in heads)


def _every(sizes: dict[int, int], n_heads: int) -> Iterator[HeadSet]:
    by_layer = [
        [tuple((layer, head) for head in some) for some in combinations(range(n_heads), size)]
        for layer, size in sizes.items()
    ]
    return (tuple(head for part in parts for head in part) for parts in product(*by_layer))


def _draws(sizes: dict[int, int], n_heads: int, given: HeadSet, n: int, seed: int) -> list[HeadSet]:
    random = np.random.default_rng(seed)
    drawn: dict[HeadSet, None] = {}
    while len(drawn) < n:
        picks = {
            layer: sorted(random.choice(n_heads, size, replace=False).tolist())
            for layer, size in sizes.items()
        }
        some = tuple((layer, head) for layer, chosen in picks.items() for head in chosen)
        if some != given:
            drawn[some] = None
    return list(drawn)
