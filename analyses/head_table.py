"""One row per head: what it looks like and what it does."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analyses.ablation import ablate_every_head
from analyses.anti_diagonal import (
    label_anti_diagonal,
    offset_mass,
    profile_offsets,
    profile_table,
)
from analyses.attention_patterns import is_anti_diagonal, pattern_reducers
from analyses.entropy import entropy_reducers
from analyses.inputs import Inputs, as_batch
from analyses.registry import run_module
from analyses.streaming import Prepare, stream_patterns, uniform_scores
from analyses.tables import KEYS, score_table, wide
from models.interface import HookedModel, shape
from models.names import head_name

UNIT = "share of attention, 0..1; entropies in nats"


def head_table(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    ablations: Iterable[str] | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Pattern scores, entropies, label and ablation effects of every head.

    All pattern scores and entropies come from one forward pass.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default held-out sequences of the model's task,
            64 for scores and 256 for effects.
        ablations: kinds whose effects are joined, ``()`` for scores only; default all that the
            input allows, see `analyses.ablation.ablate_every_head`.
        reference: sequences for ``mean``; default the task's.
        seed: of the default batches and of the resampling.

    Returns:
        One row per head: ``layer``, ``head``, ``name`` (``layer.head``); per score
        ``<score>``, ``<score>_chance``, ``<score>_ci_low``, ``<score>_ci_high`` (shares of
        attention 0..1; entropies in nats); on inputs with an anti-diagonal ``labelled``
        (bool), ``rival``, ``rival_offset``; per ablation ``<metric>_change_<ablation>`` with
        its interval (``loss`` in nats per output, ``exact_match`` and ``token_accuracy`` in
        shares of 1).
    """
    table = _looks(model, tokens, seed)
    if ablations is None or (ablations := list(ablations)):
        effects = ablate_every_head(
            model, tokens, ablations=ablations, reference=reference, seed=seed
        )
        table = table.merge(wide_effects(effects), on=KEYS)
    names = [head_name(*key) for key in zip(table["layer"], table["head"], strict=True)]
    table.insert(2, "name", names)
    table.attrs["units"] = {"scores": UNIT, "loss": "nats per output"}
    return table


def wide_effects(effects: pd.DataFrame) -> pd.DataFrame:
    """One row per head from `ablate_every_head`: ``<metric>_change_<ablation>`` and intervals."""
    parts = []
    for (metric, kind), rows in effects.groupby(["metric", "ablation"], sort=False):
        kept = rows.set_index(KEYS)[["change", "ci_low", "ci_high"]]
        stem = f"{metric}_change_{kind}"
        kept.columns = pd.Index([stem, f"{stem}_ci_low", f"{stem}_ci_high"])
        parts.append(kept)
    return pd.concat(parts, axis=1).reset_index()


def _looks(model: HookedModel, tokens: Inputs, seed: int) -> pd.DataFrame:
    """Scores of every head and, where there is an anti-diagonal, its label."""
    batch = as_batch(model, tokens, seed=seed)
    scores = {**pattern_reducers(batch), **entropy_reducers(batch, shape(model).window)}
    reducers: dict[str, Prepare] = dict(scores)
    if is_anti_diagonal(batch):
        reducers["profile"] = offset_mass(profile_offsets(batch))
    values = stream_patterns(model, batch, reducers)
    profile = values.pop("profile", None)
    table = wide(score_table(values, uniform_scores(model, batch, scores), unit=UNIT, seed=seed))
    if profile is None:
        return table
    labels = label_anti_diagonal(profile_table(model, batch, profile, seed=seed))
    return table.merge(labels, on=KEYS)


if __name__ == "__main__":
    run_module("head_table")
