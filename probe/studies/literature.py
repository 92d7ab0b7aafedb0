"""Heads of GPT-2 small that the literature names, beside what is measured here.

The papers used their own inputs, which are named; "agrees" says only that the head is labelled
on this study's inputs.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from models.interface import shape
from models.names import parse_head

_WANG = (
    "Wang et al. 2022, arXiv 2211.00593: prompts with two names (indirect object identification)"
)
NAMED = {
    "previous_token": (("4.11", "2.2"), _WANG),
    "duplicate_token": (("0.1", "0.10", "3.0"), _WANG),
    "induction": (
        ("5.1", "5.5", "6.9", "7.2", "7.10"),
        "Olsson et al. 2022, arXiv 2209.11895, and Wang et al. 2022: repeated random tokens",
    ),
}


def is_gpt2_small(model: Any, name: str) -> bool:
    """Whether this is the published GPT-2 small, as far as name and shape can tell."""
    sizes = shape(model)
    shaped = (sizes.n_layers, sizes.n_heads, sizes.d_model, sizes.d_vocab) == (12, 12, 768, 50257)
    return shaped and name.rstrip("/").split("/")[-1] in ("gpt2", "gpt2-small")


def compare_with_literature(model: Any, name: str, detection: pd.DataFrame) -> pd.DataFrame:
    """One row per named head; no rows for another model.

    Returns:
        ``score``, ``head``, ``value`` (share of attention), ``chance``, ``labelled``, ``agrees``
        (in words), ``source``.
    """
    if not is_gpt2_small(model, name):
        return pd.DataFrame()
    sizes, rows = shape(model), []
    for score, (heads, source) in NAMED.items():
        for head in heads:
            layer, index = parse_head(head, n_layers=sizes.n_layers, n_heads=sizes.n_heads)
            found = detection[
                (detection["score"] == score)
                & (detection["layer"] == layer)
                & (detection["head"] == index)
            ].iloc[0]
            agrees = "agrees: labelled" if found["labelled"] else "not labelled on these inputs"
            rows.append(
                (score, head, found["value"], found["chance"], found["labelled"], agrees, source)
            )
    columns = ["score", "head", "value", "chance", "labelled", "agrees", "source"]
    return pd.DataFrame(rows, columns=columns)
