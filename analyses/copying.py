"""What a head writes about the token it should copy: its direct effect on that token's logit.

For a query whose token stood earlier, the token that followed (the latest copy) is what induction
predicts. A head adds ``z W_O`` to the residual stream; its direct effect on a logit is that,
normalised by the final norm with its scale frozen, times the token's unembedding minus the mean
over the vocabulary.

What the final norm multiplies by is asked of the norm itself, since models keep it in different
forms (Gemma's weight is an offset from 1). On a bridge both steps are checked on one short
sequence: a model whose heads do not write ``z W_O`` to the stream (a norm after attention, a
multiplier) is refused, and one whose logits are not what the normalised stream and the unembedding
give (a soft cap, a logit scale).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.attention_patterns import earlier_copies
from analyses.inputs import real_positions
from analyses.streaming import chunks, mean_over, run_until
from models.blocks import Norm
from models.errors import InputError
from models.gpt import GPT
from models.interface import HookedModel, capture, evaluating, shape, weights
from models.names import hook_name
from models.tasks import Batch

FINAL_SCALE = "ln_final.hook_scale"
PROBE = 1024.0  # size of the numbers a norm is asked with: its epsilon is nothing beside them
CLOSE = 0.1  # what two ways to the same vector may differ by, of its size, in half precision too
EXACT = 1e-3  # the same in float32; measured: 2e-6
SHORT = 16  # tokens of the sequence that the direct effect is checked on


class FinalNorm(NamedTuple):
    """What the final norm does after dividing by its scale; its bias moves no direct effect."""

    weight: Float[Tensor, " d_model"]
    centred: bool  # whether it subtracts the mean (layer norm, not RMS norm)


def copying(model: HookedModel, batch: Batch) -> Float[Tensor, "sequence layer head"]:
    """Mean direct effect of every head on the logit of the token that followed the earlier copy.

    In logits, relative to the mean over the vocabulary; averaged over the queries whose token
    has a strictly earlier copy, NaN for a sequence without one. Float64 on the CPU. No logits
    are computed.

    Raises:
        InputError: the direct effect is not defined by ``z W_O`` and the final norm: there is no
            final norm, it is neither a layer norm nor an RMS norm, what a head writes is
            changed on its way to the residual stream, or the logits are.
    """
    norm = final_norm(model)
    matrices = weights(model)
    W_O, W_U = matrices["W_O"], matrices["W_U"]
    assert W_O is not None
    assert W_U is not None
    if not isinstance(model, GPT):
        _check_writes(model, batch, W_O)
        _check_logits(model, batch, W_U, norm)
    return torch.cat([_effects(model, chunk, W_O, W_U, norm) for chunk in chunks(model, batch)])


def _effects(model: HookedModel, batch: Batch, W_O: Tensor, W_U: Tensor, norm: FinalNorm) -> Tensor:
    copies = earlier_copies(batch)
    defined = copies.any(-1) & real_positions(batch)
    position = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    latest = torch.where(copies, position, -1).amax(-1).clamp_min(0)
    following = batch.tokens.gather(1, (latest + 1).clamp_max(batch.tokens.shape[1] - 1))
    direction = (W_U.T[following] - W_U.mean(1)).float() * norm.weight
    if norm.centred:  # what a layer norm subtracts from the stream cannot reach the logit
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


def final_norm(model: Any) -> FinalNorm:
    """What the final norm multiplies by, and whether it is centred, in any engine.

    Of our own norm it is read. Any other is asked: what it makes of x and of -x differs by its
    effect without a bias, and on equal numbers that is 0 if it subtracts the mean. A further
    vector checks that nothing else happens in it.

    Raises:
        InputError: no final norm, or one that does something else.
    """
    norm = getattr(model, "ln_final", None)
    if isinstance(norm, Norm):
        return FinalNorm(norm.weight.detach().float(), norm.centred)
    if norm is None or FINAL_SCALE not in model.hook_dict:
        raise InputError("copying is not defined for this model: it has no final norm")
    inner = getattr(norm, "original_component", None) or norm  # without the hooks around it
    at = torch.arange(shape(model).d_model)
    asked = torch.stack([torch.ones(len(at)), (2.0 * (at % 2) - 1), (at * at).cos()]) * PROBE
    like = next(inner.parameters(), weights(model)["W_E"])
    with evaluating(model), torch.no_grad():
        plus, minus = (inner((sign * asked[:, None]).to(like)).float()[:, 0] for sign in (1, -1))
    odd, bias = (plus - minus) / 2, (plus + minus)[1] / 2
    centred = bool(odd[0].abs().max() <= CLOSE / 100 * odd[1].abs().max())
    x = asked - asked.mean(-1, keepdim=True) if centred else asked
    normalized = (x / x.square().mean(-1, keepdim=True).sqrt()).to(odd)
    weight = odd[1] / normalized[1]
    wrong = (normalized[2] * weight + bias - plus[2]).norm()
    if not wrong <= CLOSE * plus[2].norm():
        raise InputError(
            f"copying is not defined for this model: its final norm ({type(inner).__name__}) is "
            "neither a layer norm nor an RMS norm"
        )
    return FinalNorm(weight, centred)


def _check_writes(model: HookedModel, batch: Batch, W_O: Float[Tensor, "l h d m"]) -> None:
    """Refuse a model whose heads reach the residual stream in another form than z W_O.

    Without its first head, the stream after the first layer's attention (after the last layer,
    where the MLP runs beside attention) must change by what that head wrote.
    """
    last = shape(model).n_layers - 1
    layer, point = 0, hook_name("hook_resid_mid", 0)
    if point not in model.hook_dict:
        layer, point = last, hook_name("hook_resid_post", last)
    z_name = hook_name("attn.hook_z", layer)
    tokens = batch.tokens[:1, :SHORT]
    kept = capture(model, tokens, [point, z_name]).activations
    without = capture(model, tokens, [point], hooks=[(z_name, _without_head)]).activations
    written = kept[z_name][:, :, 0].float() @ W_O[layer, 0].float()
    changed = kept[point].float() - without[point].float()
    rounding = 4 * torch.finfo(W_O.dtype).eps * kept[point].float().norm()
    if not (changed - written).norm() <= _allowed(W_O.dtype) * changed.norm() + rounding:
        raise InputError(
            f"copying is not defined for {_kind(model)}: what its heads write (z W_O) is "
            "normalised or scaled before it is added to the residual stream"
        )


def _without_head(z: Tensor, *, hook: Any) -> Tensor:
    kept = z.clone()
    kept[:, :, 0] = 0
    return kept


def _check_logits(model: HookedModel, batch: Batch, W_U: Tensor, norm: FinalNorm) -> None:
    """Refuse a model whose logits are not the stream, normalised, times the unembedding.

    Positions and tokens are compared with each other, so that no bias counts.
    """
    stream = hook_name("hook_resid_post", shape(model).n_layers - 1)
    names = [stream, FINAL_SCALE]
    kept = capture(model, batch.tokens[:1, :SHORT], names, logits=True)
    assert kept.logits is not None
    x, scale = (kept.activations[name].float() for name in names)
    x = x - x.mean(-1, keepdim=True) if norm.centred else x
    expected = x / scale.reshape(*x.shape[:2], 1) * norm.weight @ W_U.float()
    found = kept.logits.float()
    for axis in (1, 2):
        expected, found = (value - value.mean(axis, keepdim=True) for value in (expected, found))
    if not (found - expected).norm() <= _allowed(W_U.dtype) * found.norm():
        raise InputError(
            f"copying is not defined for {_kind(model)}: its logits are scaled or capped after the "
            "unembedding"
        )


def _allowed(dtype: torch.dtype) -> float:
    return EXACT if dtype == torch.float32 else CLOSE


def _kind(model: Any) -> str:
    return type(getattr(model, "original_model", model)).__name__
