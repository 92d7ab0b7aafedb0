"""Scaled dot-product attention, explicit and fused, and the ways to mark positions.

Explicit attention forms the scores and the pattern, so that they can be watched and replaced;
fused attention is `torch.nn.functional.scaled_dot_product_attention`, which does not. Both
compute ``softmax(q kᵀ / sqrt(d_head)) v`` over the keys that the mask leaves visible.

Sources: Vaswani et al. 2017, "Attention is all you need" (section 3.2.1 and 3.5);
Su et al. 2021, "RoFormer" (rotary positions).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from models.hooks import HookPoint


def visible_keys(
    n_queries: int,
    n_keys: int,
    *,
    window: int | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "query key"]:
    """Which keys each query may look at: itself and earlier ones, at most ``window`` in all.

    The queries are the last ``n_queries`` of ``n_keys`` positions.

    >>> visible_keys(4, 4, window=2)[3].tolist()
    [False, False, True, True]
    """
    query = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
    key = torch.arange(n_keys, device=device)[None, :]
    visible = key <= query
    return visible if window is None else visible & (key > query - window)


def attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch head key d_head"],
    v: Float[Tensor, "batch head key d_head"],
    *,
    visible: Bool[Tensor, "*rows query key"] | None = None,
    dropout: float = 0.0,
    hook_scores: HookPoint | None = None,
    hook_pattern: HookPoint | None = None,
) -> Float[Tensor, "batch head query d_head"]:
    """Explicit attention: scores, softmax over the visible keys, weighted sum of values.

    Args:
        q, k, v: queries, keys and values, one head axis for all three.
        visible: which keys each query sees, the same for all rows or ``[batch 1 query key]``;
            default all.
        dropout: applied to the pattern after the hooks.
        hook_scores, hook_pattern: run on the scaled, masked scores and on the pattern.

    Identity: every row of the pattern sums to 1 over its visible keys.
    """
    scores = attention_scores(q, k, visible=visible)
    if hook_scores is not None:
        scores = hook_scores(scores)
    pattern = scores.softmax(-1)
    if hook_pattern is not None:
        pattern = hook_pattern(pattern)
    return F.dropout(pattern, dropout, training=dropout > 0) @ v


def attention_scores(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch head key d_head"],
    *,
    visible: Bool[Tensor, "*rows query key"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """``q kᵀ / sqrt(d_head)``, with ``-inf`` where a key is not visible."""
    scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]))
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def sinusoidal_positions(
    n_positions: int, d_model: int, *, base: float = 10_000.0
) -> Float[Tensor, "pos d_model"]:
    """The fixed table of Vaswani et al. 3.5: sines in the even columns, cosines in the odd.

    Identity: ``PE(p + k)`` is the same rotation of ``PE(p)`` for every ``p``.
    """
    frequency = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequency
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
    return table[:, :d_model].float()


def rotary_table(
    n_positions: int, d_head: int, *, base: float = 10_000.0
) -> tuple[Float[Tensor, "pos d_head"], Float[Tensor, "pos d_head"]]:
    """Cosines and sines for `rotate`; dimension i turns together with i + d_head/2."""
    frequency = base ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().float(), angle.sin().float()


def rotate(
    x: Float[Tensor, "batch pos head d_head"],
    cos: Float[Tensor, "*rows pos d_head"],
    sin: Float[Tensor, "*rows pos d_head"],
) -> Float[Tensor, "batch pos head d_head"]:
    """Rotate each pair of dimensions by an angle that grows with the position.

    Identity: the product of a rotated query and a rotated key depends on their distance only.
    """
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return x * cos.unsqueeze(-2) + turned * sin.unsqueeze(-2)
