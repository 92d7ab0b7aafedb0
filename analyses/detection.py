"""Which heads are previous-token, first-token, duplicate-token and induction heads?

A head is labelled when the lower end of its interval and its best rival allow it (`criteria`).
What follows content must, besides, fall when the copy is taken away: the second block is the same,
at the same positions, after the same block and after a fresh one. An induction head must copy too.

Source: Olsson et al. 2022 (induction heads: prefix matching and copying).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from analyses.attention_patterns import PATTERNS as TARGETS
from analyses.attention_patterns import Cells, target_mass
from analyses.copying import copying
from analyses.criteria import CRITERIA
from analyses.inputs import Inputs, as_batch, real_positions
from analyses.profiles import Profiles
from analyses.random_tokens import fresh_tokens, repeated_tokens
from analyses.registry import run_module
from analyses.statistics import (
    FEWEST_UNITS,
    INTERVAL,
    Array,
    family_p,
    mean_interval,
    mean_where_defined,
)
from analyses.streaming import Prepare, stream_patterns, uniform_scores
from analyses.tables import KEYS, score_table
from models.errors import InputError
from models.interface import HookedModel
from models.tasks import Batch

WORDS = {
    "previous_token": "previous token",
    "current_token": "current token",
    "first_token": "first token",
    "duplicate_token": "duplicate token",
    "induction": "induction",
}
PATTERNS = tuple(WORDS)
CONTENT = ("duplicate_token", "induction")
FEWEST_FLIPPED = 64  # sequences that the family-wise test needs
THRESHOLDS = ("label_floor", "label_ratio", "content_margin", "family_p")
UNITS = {
    "value": "share of attention, 0..1",
    "contrast": "share of attention",
    "copying": "logits",
    "rival_offset": "query - key; for first_token the key",
}


class Detected(NamedTuple):
    """What `measure` returns: the table, the batch, and values of the further reducers."""

    table: pd.DataFrame
    batch: Batch
    values: dict[str, Tensor]


def detect_heads(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    n: int = 64,
    block: int | None = None,
    bos: bool | None = None,
    seed: int = 0,
    thresholds: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """The detection table of every head.

    Args:
        model: a hooked model.
        tokens: your own input, see `analyses.inputs.as_batch`; default random tokens from the
            model's vocabulary, repeated (`analyses.random_tokens.repeated_tokens`).
        n, block, bos: of the random tokens.
        seed: of the random tokens, the resampling and the sign flips.
        thresholds: changes to ``label_floor``, ``label_ratio``, ``content_margin``,
            ``family_p`` of `CRITERIA`; all are recorded in ``attrs["criteria"]``.

    Returns:
        One row per head and pattern: ``layer``, ``head``, ``score`` (the pattern); ``value``,
        ``chance``, ``ci_low``, ``ci_high``, ``smallest``, ``largest``, ``n``, ``skipped`` as in
        `analyses.attention_patterns`; ``rival`` (attention at the best other offset, for
        first_token on the best other key) and ``rival_offset``; for content patterns
        ``contrast`` (mean fall when the copy is taken away) and ``p_family``; for induction
        ``copying`` (direct effect on the logit of the token that followed the copy, in logits)
        with ``copying_ci_low``, ``copying_ci_high``; ``pattern_label`` (floor and rival) and
        ``labelled`` (all that the label needs), bool. NaN where undefined: rivals and contrast
        of content patterns on your own text, p with fewer than 64 sequences, copying in a model
        that defines no direct effect (``attrs["undefined"]`` says why).

    ``p_family`` assumes that under "the mean fall is at most `content_margin`" the falls of a
    sequence, of all heads together, are symmetric around it.
    """
    return measure(model, tokens, n=n, block=block, bos=bos, seed=seed, thresholds=thresholds).table


def measure(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    n: int = 64,
    block: int | None = None,
    bos: bool | None = None,
    seed: int = 0,
    thresholds: Mapping[str, float] | None = None,
    also: Mapping[str, Prepare] | None = None,
) -> Detected:
    """`detect_heads`, with further reducers served by the same pass."""
    limits, repeated = thresholds_of(thresholds), tokens is None
    if tokens is None:
        batch = repeated_tokens(model, n=n, block=block, bos=bos, seed=seed)
    else:
        batch = as_batch(model, tokens, seed=seed)
    also = also or {}
    reducers = {name: target_mass(TARGETS[name][0]) for name in PATTERNS}
    groups = {"all": _later} | ({"second_block": _second} if repeated else {})
    profiles = Profiles(model, batch.tokens.shape[1], groups)
    values = stream_patterns(model, batch, {**also, **reducers}, also=profiles)
    extra = {name: values.pop(name) for name in also}
    chances = uniform_scores(model, batch, reducers)
    table = score_table(values, chances, unit=UNITS["value"], seed=seed)
    wide = {name: np.full(values["induction"].shape[1:], np.nan) for name in _COLUMNS}
    columns = {name: dict.fromkeys(PATTERNS, value) for name, value in wide.items()}
    _add_rivals(columns, profiles, _distance(batch) if repeated else None)
    if repeated:
        fresh = fresh_tokens(model, n=n, block=block, bos=bos, seed=seed)
        _add_contrast(columns, model, fresh, values, _distance(batch), seed, limits)
    undefined = _add_copying(columns, model, batch, seed)
    for name, by_pattern in columns.items():
        table[name] = np.stack([by_pattern[p] for p in PATTERNS], axis=-1).ravel()
    _add_labels(table, limits)
    table.attrs |= {"units": UNITS, "interval": INTERVAL, "criteria": dict(limits)}
    table.attrs["input"] = _input(batch, repeated)
    if undefined:
        table.attrs["undefined"] = undefined
    return Detected(table, batch, extra)


def labels(table: pd.DataFrame) -> pd.DataFrame:
    """One row per head with its labels in words.

    Args:
        table: from `detect_heads`.

    Returns:
        ``layer``, ``head``, ``label``: the patterns a head is labelled for, joined by commas,
        empty for none. "induction pattern" looks like an induction head without all that the
        label needs (the fall without the copy, and copying); "induction (untested)" scores
        high on an input that has neither a rival nor a contrast, such as your own text.
    """
    floor = table.attrs["criteria"]["label_floor"]
    rows = []
    for key, part in table.groupby(KEYS, sort=True):
        words = []
        for row in part.to_dict("records"):
            word = WORDS[row["score"]]
            if row["labelled"]:
                words.append(word)
            elif row["pattern_label"]:
                words.append(f"{word} pattern")
            elif np.isnan(row["rival"]) and row["ci_low"] >= floor:
                words.append(f"{word} (untested)")
        rows.append((*key, ", ".join(words)))
    return pd.DataFrame(rows, columns=[*KEYS, "label"])


def thresholds_of(changes: Mapping[str, float] | None) -> dict[str, float]:
    """The thresholds of labels, with the user's changes."""
    unknown = sorted(set(changes or {}) - set(THRESHOLDS))
    if unknown:
        raise InputError(f"thresholds are {', '.join(THRESHOLDS)}, but got {', '.join(unknown)}")
    return {name: CRITERIA[name].threshold for name in THRESHOLDS} | dict(changes or {})


_COLUMNS = (
    "rival",
    "rival_offset",
    "contrast",
    "p_family",
    "copying",
    "copying_ci_low",
    "copying_ci_high",
)
Columns = dict[str, dict[str, Array]]


def _later(batch: Batch) -> Tensor:
    """Queries that have a choice of keys."""
    queries = real_positions(batch).clone()
    queries[:, 0] = False
    return queries


def _second(batch: Batch) -> Tensor:
    return batch.groups["second_block"]


def _distance(batch: Batch) -> int:
    """How far back the copy of a token of the second block stands."""
    return int(batch.groups["second_block"][0].sum())


def _add_rivals(columns: Columns, profiles: Profiles, distance: int | None) -> None:
    """The best other offset, or key, of every pattern that means a single one."""
    offsets, keys = profiles.offsets.numpy(), profiles.keys.numpy()
    places = {
        "previous_token": (offsets[:, :, 0], 1),
        "current_token": (offsets[:, :, 0], 0),
        "first_token": (keys[:, :, 0], 0),
    }
    if distance is not None:
        places["duplicate_token"] = (offsets[:, :, 1], distance)
        places["induction"] = (offsets[:, :, 1], distance - 1)
    for name, (profile, own) in places.items():
        others = profile.copy()
        others[..., own] = np.nan
        best = np.where(np.isnan(others), -1.0, others).argmax(-1)
        mass = np.take_along_axis(others, best[..., None], -1)[..., 0]
        columns["rival"][name] = mass
        columns["rival_offset"][name] = np.where(np.isnan(mass), np.nan, best)


def _add_contrast(
    columns: Columns,
    model: HookedModel,
    fresh: Batch,
    values: Mapping[str, Tensor],
    distance: int,
    seed: int,
    limits: Mapping[str, float],
) -> None:
    """How much less attention goes to the same places where the copy is not there."""
    back = {"duplicate_token": distance, "induction": distance - 1}
    reducers = {name: target_mass(partial(_second_back, offset=d)) for name, d in back.items()}
    without = stream_patterns(model, fresh, reducers)
    for name in CONTENT:
        fall = (values[name] - without[name]).numpy()
        columns["contrast"][name] = mean_where_defined(fall, axis=0)
        if len(fall) >= FEWEST_FLIPPED and not np.isnan(fall).any():
            flat = fall.reshape(len(fall), -1)
            p = family_p(flat, null=limits["content_margin"], seed=seed)
            columns["p_family"][name] = p.reshape(fall.shape[1:])


def _second_back(batch: Batch, offset: int) -> Cells:
    """The key ``offset`` back from every query of the second block."""
    sequence, query = batch.groups["second_block"].nonzero().unbind(1)
    return Cells(sequence, query, query - offset, batch.groups["second_block"])


def _add_copying(columns: Columns, model: HookedModel, batch: Batch, seed: int) -> dict[str, str]:
    """Fill in the direct effects; where the model defines none, say why and leave NaN."""
    try:
        effects = copying(model, batch)
    except InputError as error:
        return {"copying": str(error)}
    interval = mean_interval(effects.numpy(), seed=seed)
    for name, part in zip(("", "_ci_low", "_ci_high"), interval[:3], strict=True):
        columns[f"copying{name}"]["induction"] = part
    return {}


def _add_labels(table: pd.DataFrame, limits: Mapping[str, float]) -> None:
    low = table["ci_low"].fillna(table["smallest"].where(table["n"] >= FEWEST_UNITS))
    clear = table["value"] >= limits["label_ratio"] * table["rival"]
    table["pattern_label"] = (low >= limits["label_floor"]) & clear
    content = table["score"].isin(CONTENT)
    falls = ~content | (table["p_family"] < limits["family_p"])
    copies = (table["score"] != "induction") | (table["copying_ci_low"] > 0)
    table["labelled"] = table["pattern_label"] & falls & copies


def _input(batch: Batch, repeated: bool) -> str:
    if not repeated:
        return f"{len(batch)} sequences as given"
    length, block = batch.tokens.shape[1], _distance(batch)
    first = " after BOS" if length > 2 * block else ""
    return f"{len(batch)} sequences of {block} random tokens, repeated{first}"


if __name__ == "__main__":
    run_module("detection")
