"""Empty attention: pattern scores weighted by what the values write.

A head may look at a key whose value carries next to nothing. The norm of ``A_ij v_j W_O``, as a
share of its row, says how much of what the head writes comes from each key.

Source: Kobayashi et al. 2020, "Attention is not only a weight".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.attention_patterns import pattern_reducers
from analyses.inputs import Inputs
from analyses.random_tokens import batch_for
from analyses.registry import run_module
from analyses.streaming import Reduce, Rows, stream_patterns, uniform_scores
from analyses.tables import score_table
from models.interface import HookedModel, shape, weights
from models.names import hook_name
from models.tasks import Batch

UNIT = "share of what the head writes, 0..1"


def value_weighted(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    scores: Iterable[str] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Pattern scores of every head, attention weighted by the norm of what each key's value writes.

    Args:
        model: a hooked model.
        tokens: see `analyses.inputs.as_batch`; default the model's task, or repeated random tokens.
        scores: names from `analyses.attention_patterns.PATTERNS`; default all that are defined.
        seed: of the default batch and of the resampling.

    Returns:
        As `analyses.attention_patterns.attention_patterns`; chance is that of uniform attention
        with values of equal norm.

    Identity: where all values of a head write vectors of one norm, the plain scores.
    """
    batch = batch_for(model, tokens, seed=seed)
    reducers = pattern_reducers(batch, scores)
    W_O = weights(model)["W_O"]
    assert W_O is not None
    norms: dict[int, Tensor] = {}

    def keep(layer: int, v: Tensor, *, hook: Any) -> None:
        norms[layer] = written_norm(v, W_O[layer])

    def prepare(batch: Batch) -> Reduce:
        functions = [prepare(batch) for prepare in reducers.values()]

        def reduce(rows: Rows) -> Tensor:
            norm = norms[rows.layer][:, :, None, : rows.queries.stop]
            mass = rows.pattern * norm.to(rows.pattern.dtype)
            mass /= mass.sum(-1, keepdim=True)  # NaN where nothing at all is written
            weighted = Rows(mass, rows.layer, rows.first)
            return torch.stack([function(weighted) for function in functions], dim=-1)

        return reduce

    layers = range(shape(model).n_layers)
    hooks: list[Any] = [(hook_name("attn.hook_v", i), partial(keep, i)) for i in layers]
    values = stream_patterns(model, batch, {"all": prepare}, hooks=hooks)["all"]
    by_score = dict(zip(reducers, values.unbind(-1), strict=True))
    return score_table(by_score, uniform_scores(model, batch, reducers), unit=UNIT, seed=seed)


def written_norm(
    v: Float[Tensor, "batch pos kv_head d_head"], W_O: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "batch head pos"]:
    """The norm of ``v W_O`` for each head and position."""
    v, W_O = v.detach().float(), W_O.float()
    v = v.repeat_interleave(len(W_O) // v.shape[2], dim=2)
    gram = W_O @ W_O.mT
    squared = torch.einsum("bphd,hde,bphe->bhp", v, gram, v)
    return squared.clamp_min(0).sqrt()


if __name__ == "__main__":
    run_module("value_weighted")
