"""What each head writes, and how much of what it does its pattern explains: two columns more."""

from __future__ import annotations

import pandas as pd

from analyses.ablation import EVALUATED
from analyses.attribution import direct_effects
from analyses.inputs import Inputs, as_batch
from analyses.substitution import explained_by_pattern
from analyses.tables import KEYS
from models.interface import HookedModel


def head_roles(model: HookedModel, tokens: Inputs = None, *, seed: int = 0) -> pd.DataFrame:
    """The direct effect of every head, and what the ideal pattern explains of its work.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default 256 held-out sequences.
        seed: of the default sequences and the intervals.

    Returns:
        One row per head: ``layer``, ``head``; ``direct``, ``direct_ci_low``, ``direct_ci_high``
        (logits of the right token above the mean over the vocabulary, see
        `analyses.attribution.direct_effects`); and, where the task says which key to look at,
        ``explained`` (share of the damage that uniform attention does which the ideal pattern
        undoes, see `analyses.substitution.explained_by_pattern`; NaN where there is no damage).
    """
    batch = as_batch(model, tokens, n=EVALUATED, seed=seed)
    direct = direct_effects(model, batch, metric="loss", seed=seed).dropna(subset=["head"])
    table = direct.astype({"layer": int, "head": int})[[*KEYS, "value", "ci_low", "ci_high"]]
    table.columns = pd.Index([*KEYS, "direct", "direct_ci_low", "direct_ci_high"])
    table = table.reset_index(drop=True)
    if bool((batch.target_keys >= 0).any()):
        found = explained_by_pattern(model, batch, pattern="ideal", metric="loss", seed=seed)
        table = table.merge(found[[*KEYS, "explained"]], on=KEYS)
    return table
