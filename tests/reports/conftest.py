"""Synthetic results in the shape that the studies hand to `reports`."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

Causal = Callable[[int, int], np.ndarray]


@pytest.fixture
def causal() -> Causal:
    """Make random attention, map by query by key: rows sum to 1 over the keys up to the query."""

    def make(count: int, positions: int) -> np.ndarray:
        scores = np.random.default_rng(0).normal(size=(count, positions, positions))
        weights = np.where(np.tri(positions, dtype=bool), np.exp(scores), 0)
        return weights / weights.sum(-1, keepdims=True)

    return make


@pytest.fixture
def heads() -> pd.DataFrame:
    """Two models, three seeds, two layers of five heads; one entropy undefined."""
    rows = [
        (model, seed, layer, head, 0.05 * head + 0.3 * layer, 0.3 * head)
        for model in ("next-token", "_untrained $x$")
        for seed in range(3)
        for layer in range(2)
        for head in range(5)
    ]
    frame = pd.DataFrame(
        rows, columns=["model", "seed", "layer", "head", "anti_diagonal", "entropy"]
    )
    frame["anti_diagonal_chance"] = 0.0424
    frame.loc[3, "entropy"] = np.nan
    return frame
