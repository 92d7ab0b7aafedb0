"""One row per head: what it looks like and what it does."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analyses.ablation import ABLATIONS, ablate_every_head
from analyses.anti_diagonal import anti_diagonal, label_anti_diagonal
from analyses.attention_patterns import is_anti_diagonal, pattern_reducers
from analyses.entropy import entropy_reducers
from analyses.inputs import Inputs, as_batch
from analyses.tables import KEYS, score_heads, wide
from analyses.registry import run_module
from models.interface import HookedModel, shape
from models.names import head_name


def head_table(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    ablations: Iterable[str] = ABLATIONS,
    seed: int = 0,
) -> pd.DataFrame:
    """Pattern scores, entropies, label and ablation effects of every head.

    All pattern scores and entropies come from one forward pass.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default held-out sequences of the model's task,
            64 for scores and 256 for effects.
        ablations: kinds whose effects are joined; none for scores only. ``mean`` needs a
            model with a task.
        seed: of the default batches and of the resampling.

    Returns:
        One row per head: ``layer``, ``head``, ``name`` (``layer.head``); per score
        ``<score>``, ``<score>_chance``, ``<score>_ci_low``, ``<score>_ci_high`` (shares of
        attention 0..1; entropies in nats); on inputs with an anti-diagonal ``labelled``
        (bool), ``rival``, ``rival_offset``; per ablation ``<metric>_change_<ablation>`` with
        its interval (``loss`` in nats per output, ``exact_match`` and ``token_accuracy`` in
        shares of 1).
    """
    scored = as_batch(model, tokens, seed=seed)
    reducers = {**pattern_reducers(scored), **entropy_reducers(scored, shape(model).window)}
    unit = "share of attention, 0..1; entropies in nats"
    table = wide(score_heads(model, scored, reducers, unit=unit, seed=seed))
    if is_anti_diagonal(scored):
        profile = anti_diagonal(model, scored, seed=seed)
        table = table.merge(label_anti_diagonal(profile), on=KEYS)
    if kinds := list(ablations):
        effects = ablate_every_head(model, tokens, ablations=kinds, seed=seed)
        table = table.merge(wide_effects(effects), on=KEYS)
    names = [head_name(*key) for key in zip(table["layer"], table["head"], strict=True)]
    table.insert(2, "name", names)
    table.attrs["units"] = {"scores": unit, "loss": "nats per output"}
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


if __name__ == "__main__":
    run_module("head_table")
