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
from analyses.detection import labels, measure
from analyses.entropy import entropy_reducers
from analyses.head_roles import head_roles
from analyses.inputs import Inputs, as_batch, as_names, has_task
from analyses.random_tokens import batch_for
from analyses.registry import run_module
from analyses.streaming import Prepare, Visitor, stream_patterns, uniform_scores
from analyses.tables import KEYS, score_table, wide
from models.interface import HookedModel, shape
from models.names import head_name
from models.tasks import Batch

UNIT = "share of attention, 0..1; entropies in nats"


def head_table(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    ablation: str | Iterable[str] | None = None,
    reference: Inputs = None,
    bos: bool | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Pattern scores, entropies, label and ablation effects of every head.

    All pattern scores and entropies come from one forward pass.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default held-out sequences of the model's task,
            64 for scores and 256 for effects, or repeated random tokens without a task.
        ablation: kinds whose effects are joined, ``()`` for scores only; default all that the
            input allows, see `analyses.ablation.ablate_every_head`, and none on the random tokens.
        reference: sequences for ``mean``; default the task's.
        bos: whether the random tokens begin with BOS; default as the tokenizer does.
        seed: of the default batches and of the resampling.

    Returns:
        One row per head: ``layer``, ``head``, ``name`` (``layer.head``); per score
        ``<score>``, ``<score>_chance``, ``<score>_ci_low``, ``<score>_ci_high`` (shares of
        attention 0..1; entropies in nats); on inputs with an anti-diagonal ``labelled``
        (bool), ``rival``, ``rival_offset``; without a task ``label`` (see
        `analyses.detection.labels`), ``induction_contrast``, ``induction_p``, ``copying`` (logits)
        and its interval; per ablation ``<metric>_change_<ablation>`` with its interval (``loss``
        in nats per output, ``exact_match`` and ``token_accuracy`` in shares of 1), and the
        columns of `analyses.head_roles.head_roles` (``direct``, ``explained``).
    """
    table, batch = _looks(model, tokens, bos, seed)
    if tokens is None and not has_task(model):
        tokens = batch
        ablation = () if ablation is None else ablation
    if ablation is None or (ablation := as_names(ablation)):
        effects = ablate_every_head(
            model, tokens, ablation=ablation, reference=reference, seed=seed
        )
        table = table.merge(wide_effects(effects), on=KEYS)
        table = table.merge(head_roles(model, tokens, seed=seed), on=KEYS)
    names = [head_name(*key) for key in zip(table["layer"], table["head"], strict=True)]
    table.insert(2, "name", names)
    table.attrs["units"] = {"scores": UNIT, "loss": "nats per output", "copying": "logits"}
    table.attrs["units"] |= {"direct": "logits", "explained": "share"}
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


def _looks(
    model: HookedModel, tokens: Inputs, bos: bool | None, seed: int
) -> tuple[pd.DataFrame, Batch]:
    """Scores and labels of every head, and what they were measured on."""
    if not has_task(model):
        return _detected(model, tokens, bos, seed)
    batch = as_batch(model, tokens, seed=seed)
    scores, profile = scores_and_profile(model, batch, seed=seed)
    return with_labels(scores, profile), batch


def scores_and_profile(
    model: HookedModel, batch: Batch, *, also: Visitor | None = None, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """All pattern scores and entropies of a batch, and its anti-diagonal profile, from one pass.

    Args:
        model: a hooked model.
        batch: the sequences.
        also: is shown the patterns too, see `analyses.streaming.stream_patterns`.
        seed: of the resampling.

    Returns:
        The scores as `analyses.tables.score_table`, and the profile as
        `analyses.anti_diagonal.anti_diagonal`; ``None`` for a batch without an anti-diagonal.
    """
    scores = {**pattern_reducers(batch), **entropy_reducers(batch, shape(model).window)}
    reducers: dict[str, Prepare] = dict(scores)
    if is_anti_diagonal(batch):
        reducers["profile"] = offset_mass(profile_offsets(batch))
    values = stream_patterns(model, batch, reducers, also=also)
    profile = values.pop("profile", None)
    table = score_table(values, uniform_scores(model, batch, scores), unit=UNIT, seed=seed)
    return table, None if profile is None else profile_table(model, batch, profile, seed=seed)


def with_labels(scores: pd.DataFrame, profile: pd.DataFrame | None) -> pd.DataFrame:
    """One row per head from `scores_and_profile`, labelled where there is a profile."""
    table = wide(scores)
    return table if profile is None else table.merge(label_anti_diagonal(profile), on=KEYS)


def _detected(
    model: HookedModel, tokens: Inputs, bos: bool | None, seed: int
) -> tuple[pd.DataFrame, Batch]:
    """The same for a model without a task, with the labels of `analyses.detection`."""
    batch = batch_for(model, tokens, bos=bos, seed=seed)
    further = entropy_reducers(batch, shape(model).window)
    found = measure(model, tokens, bos=bos, seed=seed, also=further)
    chances = uniform_scores(model, batch, further)
    entropies = score_table(found.values, chances, unit=UNIT, seed=seed)
    induction = found.table[found.table["score"] == "induction"].set_index(KEYS)
    joined = induction[["contrast", "p_family", "copying", "copying_ci_low", "copying_ci_high"]]
    joined = joined.rename(columns={"contrast": "induction_contrast", "p_family": "induction_p"})
    table = wide(pd.concat([found.table, entropies])).merge(joined.reset_index(), on=KEYS)
    table = table.merge(labels(found.table), on=KEYS)
    table.attrs |= {name: found.table.attrs[name] for name in ("criteria", "input")}
    return table, batch


if __name__ == "__main__":
    run_module("head_table")
