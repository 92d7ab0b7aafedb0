"""What a model would write next after a prompt, with and without some of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.ablation import Positions, ablation_runs
from analyses.inputs import Inputs, as_batch
from analyses.reruns import as_hooks
from models.errors import InputError
from models.interface import HookedModel, capture, pad
from models.names import HeadLike
from models.tasks import Batch
from models.text_codec import codec_of


def next_tokens(
    model: HookedModel,
    tokens: Inputs,
    *,
    heads: Sequence[HeadLike] = (),
    ablation: str | None = None,
    positions: Positions = None,
    reference: Inputs = None,
    top: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """The likeliest next tokens after each prompt, before and after an ablation.

    Args:
        model: a hooked model with a tokenizer.
        tokens: prompts, as texts or ids.
        heads, ablation, positions, reference, seed: as in `analyses.ablation.ablate`. With
            ``resample`` the probabilities are means over the draws.
        top: how many of each.

    Returns:
        One row per prompt and rank: ``prompt`` (from 0), ``rank`` (from 1), ``clean_token``,
        ``clean_probability``, ``ablated_token``, ``ablated_probability``; and, for the tokens of
        the clean model, ``clean_token_ablated`` (their probability after the ablation).

    Raises:
        InputError: no prompt, ``top`` under 1, or what `analyses.ablation.ablate` refuses.
    """
    if tokens is None:
        raise InputError("next tokens are looked at after prompts: give at least one")
    if top < 1:
        raise InputError(f"top must be at least 1, but got {top}")
    batch, codec = as_batch(model, tokens, seed=seed), codec_of(model)
    how: Any = {"positions": positions, "reference": reference, "seed": seed}
    runs = ablation_runs(model, batch, heads, ablation=ablation, **how)
    clean = _distribution(model, batch, [])
    ablated = torch.stack([_distribution(model, batch, as_hooks(batch, run)) for run in runs])
    rows: list[dict[str, Any]] = []
    for prompt, (before, after) in enumerate(zip(clean, ablated.mean(0), strict=True)):
        top = min(top, len(before))
        likely = zip(before.topk(top).indices, after.topk(top).indices, strict=True)
        for rank, (first, second) in enumerate(likely, start=1):
            rows.append(
                {
                    "prompt": prompt,
                    "rank": rank,
                    "clean_token": codec.decode([int(first)]),
                    "clean_probability": float(before[first]),
                    "clean_token_ablated": float(after[first]),
                    "ablated_token": codec.decode([int(second)]),
                    "ablated_probability": float(after[second]),
                }
            )
    table = pd.DataFrame(rows)
    table.attrs["units"] = {"clean_probability": "probability"}
    return table


def _distribution(model: HookedModel, batch: Batch, hooks: Any) -> Float[Tensor, "prompt d_vocab"]:
    """The distribution after each prompt, float64 on the CPU."""
    pad(model, batch.tokens, batch.lengths)
    logits = capture(model, batch.tokens, logits=True, hooks=hooks).logits
    assert logits is not None
    rows = torch.arange(len(batch), device=logits.device)
    return logits[rows, batch.lengths - 1].double().softmax(-1).cpu()
