"""Clean and corrupted prompts in pairs, and how much of their difference a patch makes.

Normalised, 0 is the corrupted run and 1 the clean one: ``(patched - corrupted) / (clean -
corrupted)``, as a ratio of means over prompts. The mean of the prompts' own ratios is not used: a
single pair that hardly differs would decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.effects import units_of
from analyses.inputs import Inputs, as_batch
from analyses.metrics import KL, Metric, MetricLike, as_metrics
from analyses.reruns import Array, score_runs
from analyses.statistics import ratio_intervals
from models.errors import InputError, LengthError
from models.interface import HookedModel
from models.names import choose
from models.tasks import Batch
from models.text_codec import codec_of

MODES = ("denoise", "noise")
INTERVAL = "95% BCa over prompts (over templates where prompts share one) of the ratio of means"
ROUNDING = 1e-6  # of the larger value: a smaller difference is float32 rounding


@dataclass(frozen=True)
class Prompts:
    """Prompts of which some share a template.

    Args:
        ids: token ids, one tuple for each.
        units: which template each is of; the independent unit of intervals.
    """

    ids: tuple[tuple[int, ...], ...]
    units: tuple[int, ...]


PromptsLike = Prompts | str | Sequence[str] | Inputs
"""A text, several texts, or what `analyses.inputs.as_batch` takes."""


@dataclass(frozen=True)
class Pairs:
    """Clean prompts, and for each a corrupted one of the same length.

    Args:
        clean, corrupt: the same number of sequences, equally wide. Both are judged by the clean
            prompts' targets.
        units: the independent unit that each pair is of.
    """

    clean: Batch
    corrupt: Batch
    units: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.units)

    def runs_on(self, mode: str) -> tuple[Batch, Batch]:
        """The prompts that are run, and those whose activations are put in."""
        sides = (self.corrupt, self.clean)
        return sides if mode == "denoise" else sides[::-1]

    def describe(self) -> dict[str, list[list[int]]]:
        """The ids that were fed."""
        return {"clean": _ids(self.clean), "corrupt": _ids(self.corrupt)}


def as_pairs(model: HookedModel, clean: PromptsLike, corrupt: PromptsLike) -> Pairs:
    """Pair prompts up.

    Raises:
        InputError: another number of corrupted prompts.
        LengthError: a pair of unequal length, which position by position has no counterpart.
    """
    first, second = _as_batch(model, clean), _as_batch(model, corrupt)
    if len(first) != len(second):
        raise InputError(
            f"every clean prompt needs one corrupted prompt, but got {len(first)} and {len(second)}"
        )
    lengths = zip(first.lengths.tolist(), second.lengths.tolist(), strict=True)
    for pair, (ours, theirs) in enumerate(lengths):
        if ours != theirs:
            raise LengthError(
                "a clean and a corrupted prompt must be equally long in tokens, but pair "
                f"{pair} has {ours} and {theirs}: replace words by words of as many tokens"
            )
    width = int(first.lengths.max())
    given = next((p.units for p in (clean, corrupt) if isinstance(p, Prompts)), range(len(first)))
    judged = replace(first, tokens=second.tokens[:, :width], **_targets(first, width))
    return Pairs(
        replace(first, tokens=first.tokens[:, :width], **_targets(first, width)),
        judged,
        np.unique(np.asarray(given), return_inverse=True)[1].ravel(),
    )


def pair_metric(model: HookedModel, pairs: Pairs, metric: MetricLike) -> list[Metric]:
    """The one metric that both runs are judged by."""
    metrics = as_metrics(model, pairs.clean, metric)
    if len(metrics) != 1 or isinstance(metrics[0], KL):
        names = ", ".join(one.name for one in metrics)
        raise InputError(
            "patching needs one metric that has a value in the corrupted run as in the clean one, "
            f"such as a logit difference, but got {names}"
        )
    return metrics


def modes_of(mode: str | Sequence[str]) -> list[str]:
    """The modes that a user named, checked."""
    given = [mode] if isinstance(mode, str) else list(dict.fromkeys(mode))
    if not given:
        raise InputError(f"name at least one mode of {', '.join(MODES)}")
    return [choose("mode", one, MODES) for one in given]


def clean_and_corrupted(
    model: HookedModel, pairs: Pairs, metrics: Sequence[Metric]
) -> tuple[Array, Array]:
    """What the metric says of each clean and of each corrupted prompt, ``[pair]``."""
    both = (score_runs(model, side, metrics, [])[0][:, 0] for side in (pairs.clean, pairs.corrupt))
    clean, corrupted = both
    return clean, corrupted


class Normalized(NamedTuple):
    """What patches recover, one entry per site.

    Args:
        clean, corrupted, patched: means over units, in the metric's unit.
        value: ``(patched - corrupted) / (clean - corrupted)``, of these means; NaN where the
            denominator is under 2 standard errors (of one unit: where it is 0 but for rounding).
        low, high: the interval of ``value``; NaN under 10 units.
        n: units.
        n_prompts: pairs of prompts.
    """

    clean: Array
    corrupted: Array
    patched: Array
    value: Array
    low: Array
    high: Array
    n: NDArray[np.int64]
    n_prompts: NDArray[np.int64]


def patched_table(
    model: HookedModel,
    pairs: Pairs,
    metrics: Sequence[Metric],
    names: dict[str, Any],
    patch: Callable[[str], Array],
    *,
    mode: str | Sequence[str],
    seed: int,
) -> pd.DataFrame:
    """What patching gives, beside the clean and the corrupted run, for each mode.

    Args:
        names: columns that say what was patched.
        patch: from a mode to the metric of what was patched, ``[patch, pair]``.
        others: as in `analyses.patching.activation_patching`.
    """
    whole = clean_and_corrupted(model, pairs, metrics)
    tables = []
    for one in modes_of(mode):
        found = normalize(patch(one), *whole, pairs.units, seed=seed)._asdict()
        tables.append(pd.DataFrame({**names, "mode": one, **found}))
    table = pd.concat(tables, ignore_index=True).rename(
        columns={"low": "ci_low", "high": "ci_high"}
    )
    units = {**units_of(metrics), "value": "share: 0 is corrupted, 1 is clean"}
    table.attrs |= {"units": units, "interval": INTERVAL, "ids": pairs.describe()}
    return table


def normalize(
    patched: Array, clean: Array, corrupted: Array, units: NDArray[np.int64], *, seed: int = 0
) -> Normalized:
    """Put patched runs on the scale from corrupted (0) to clean (1).

    Args:
        patched: ``[site, pair]``; NaN where a pair has no such site.
        clean, corrupted: ``[pair]``.
        units: ``[pair]``; prompts of one unit are averaged first.
        seed: of the resampling.
    """
    out = np.full((6, len(patched)), np.nan)
    n, n_prompts = np.zeros((2, len(patched)), dtype=np.int64)
    defined = ~(np.isnan(patched) | np.isnan(clean) | np.isnan(corrupted))
    if len(patched):
        _, group = np.unique(defined, axis=0, return_inverse=True)
        for rows in (np.flatnonzero(group.ravel() == i) for i in range(int(group.max()) + 1)):
            kept = defined[rows[0]]
            n_prompts[rows] = kept.sum()
            if kept.any():
                both = (clean[kept], corrupted[kept])
                stacked = np.stack([*both, *patched[rows][:, kept]])
                means = _by_unit(stacked, units[kept])
                n[rows] = means.shape[1]
                out[:, rows] = _ratios(means, seed)
    clean_mean, corrupted_mean, mean, value, low, high = out
    return Normalized(clean_mean, corrupted_mean, mean, value, low, high, n, n_prompts)


def _ratios(by_unit: Array, seed: int) -> Array:
    """Of ``[clean, corrupted, *sites; unit]``: the means, the ratio and its interval, by site."""
    mean, (clean, corrupted) = by_unit.mean(1), by_unit[:2]
    gap = clean - corrupted
    n, n_sites = len(gap), len(by_unit) - 2
    value, low, high = np.full((3, n_sites), np.nan)
    error = gap.std(ddof=1) / n**0.5 if n > 1 else 0.0
    floor = max(2 * error, ROUNDING * float(np.abs(mean[:2]).max()))
    if abs(gap.mean()) > floor:
        recovered = by_unit[2:] - corrupted
        value = recovered.mean(1) / gap.mean()
        low, high = ratio_intervals(recovered, gap, seed=seed)
    return np.stack(
        [np.full(n_sites, mean[0]), np.full(n_sites, mean[1]), mean[2:], value, low, high]
    )


def _by_unit(values: Array, units: NDArray[np.int64]) -> Array:
    """Mean over the prompts of each unit, ``[..., unit]``."""
    _, at, times = np.unique(units, return_inverse=True, return_counts=True)
    if len(times) == len(units):
        return values
    total = np.zeros((len(times), len(values)))
    np.add.at(total, at.ravel(), values.T)
    mean: Array = (total / times[:, None]).T
    return mean


def _as_batch(model: HookedModel, prompts: PromptsLike) -> Batch:
    if prompts is None:
        raise InputError("patching needs clean and corrupted prompts, but got None")
    given: Any = prompts
    if isinstance(prompts, Prompts):
        given = [list(row) for row in prompts.ids]
    elif isinstance(prompts, str):
        given = [prompts]
    if isinstance(given, list | tuple) and given and isinstance(given[0], str):
        codec = codec_of(model)
        given = [codec.encode(text) for text in given]
    return as_batch(model, given)


def _targets(batch: Batch, width: int) -> dict[str, Any]:
    return {
        "next_tokens": batch.next_tokens[:, :width],
        "outputs": batch.outputs[:, :width],
        "target_keys": batch.target_keys[:, :width],
        "groups": {},
    }


def _ids(batch: Batch) -> list[list[int]]:
    rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    return [row[:length] for row, length in rows]
