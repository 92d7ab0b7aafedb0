"""What a head writes about the token it should copy: its direct effect on that token's logit.

For a query whose token stood earlier, the token that followed (the latest copy) is what induction
predicts. A head adds ``z W_O`` to the residual stream; its direct effect on a logit is that,
normalised by the final norm with its scale frozen, times the token's unembedding minus the mean
over the vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.attention_patterns import earlier_copies
from analyses.inputs import real_positions
from analyses.streaming import chunks, mean_over, run_until
from models.blocks import Norm
from models.interface import HookedModel, shape, weights
from models.names import hook_name
from models.tasks import Batch

FINAL_SCALE = "ln_final.hook_scale"


def copying(model: HookedModel, batch: Batch) -> Float[Tensor, "sequence layer head"]:
    """Mean direct effect of every head on the logit of the token that followed the earlier copy.

    In logits, relative to the mean over the vocabulary; averaged over the queries whose token
    has a strictly earlier copy, NaN for a sequence without one. Float64 on the CPU. No logits
    are computed.
    """
    matrices = weights(model)
    W_O, W_U = matrices["W_O"], matrices["W_U"]
    assert W_O is not None
    assert W_U is not None
    return torch.cat([_effects(model, chunk, W_O, W_U) for chunk in chunks(model, batch)])


def _effects(model: HookedModel, batch: Batch, W_O: Tensor, W_U: Tensor) -> Tensor:
    copies = earlier_copies(batch)
    defined = copies.any(-1) & real_positions(batch)
    position = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    latest = torch.where(copies, position, -1).amax(-1).clamp_min(0)
    following = batch.tokens.gather(1, (latest + 1).clamp_max(batch.tokens.shape[1] - 1))
    weight, centred = final_norm(model)
    direction = (W_U.T[following] - W_U.mean(1)).float() * weight
    if centred:  # what a layer norm subtracts from the stream cannot reach the logit
        direction = direction - direction.mean(-1, keepdim=True)
    effects: dict[int, Tensor] = {}
    scale: list[Tensor] = []

    def write(layer: int, z: Tensor, *, hook: Any) -> None:
        read = torch.einsum("bqm,hdm->bqhd", direction, W_O[layer].float())
        effects[layer] = (z.float() * read).sum(-1).transpose(1, 2)

    def keep(value: Tensor, *, hook: Any) -> None:
        scale.append(value.float().reshape(len(batch), 1, -1))

    layers = range(shape(model).n_layers)
    hooks: list[Any] = [(hook_name("attn.hook_z", i), partial(write, i)) for i in layers]
    run_until(model, batch.tokens, FINAL_SCALE, hooks=[*hooks, (FINAL_SCALE, keep)])
    means = [mean_over(effects[i] / scale[0], defined[:, None]) for i in layers]
    return torch.stack(means, dim=1).cpu().double()


def final_norm(model: Any) -> tuple[Float[Tensor, " d_model"], bool]:
    """The final norm's weight, and whether it subtracts the mean (layer norm, not RMS norm)."""
    norm = model.ln_final
    centred = norm.centred if isinstance(norm, Norm) else not norm.uses_rms_norm
    return norm.weight.detach().float(), bool(centred)
