"""Removing and keeping heads one after the other, in the order of the anti-diagonal score."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analyses.attention_patterns import attention_patterns
from analyses.head_sets import cumulative_ablation
from analyses.inputs import Inputs, as_batch
from analyses.registry import run_module
from models.interface import HookedModel


def cumulative(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    score: str = "anti_diagonal",
    ablation: str | Iterable[str] | None = None,
    reference: Inputs = None,
    seed: int = 0,
) -> pd.DataFrame:
    """`analyses.head_sets.cumulative_ablation` with the heads in falling order of a score.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`.
        score: orders the heads; a tie goes to the earlier head, and heads for which it is
            undefined come last.
        ablation, reference, seed: as in `analyses.head_sets.cumulative_ablation`.

    Returns:
        As `cumulative_ablation`: one row per ``mode``, ``ablation`` and ``n_heads``.
    """
    scores = attention_patterns(model, as_batch(model, tokens, seed=seed), scores=[score])
    order = order_of_heads(scores, score)
    return cumulative_ablation(
        model, tokens, order=order, ablation=ablation, reference=reference, seed=seed
    )


def order_of_heads(scores: pd.DataFrame, score: str) -> list[tuple[int, int]]:
    """Heads in falling order of a score of a long table, undefined ones last."""
    rows = scores[scores["score"] == score]
    rows = rows.sort_values("value", ascending=False, kind="stable", na_position="last")
    return [
        (int(layer), int(head)) for layer, head in zip(rows["layer"], rows["head"], strict=True)
    ]


if __name__ == "__main__":
    run_module("cumulative")
