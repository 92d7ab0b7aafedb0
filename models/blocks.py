"""The parts of a GPT block: norm, attention, MLP, and the block that adds them up.

Work that nobody observes is not done: attention runs through the fused kernel unless its
scores or pattern are watched, and a norm is fused unless its scale or normalised value is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention import attention, rotary_table, rotate, visible_keys
from models.cache import Chunk, LayerCache, Places
from models.config import GPTConfig
from models.hooks import HookPoint, attached

Past = tuple[Chunk, LayerCache]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "swiglu": F.silu,
}
_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_new": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "swiglu": lambda x: F.silu(x, inplace=True),
}


class Norm(nn.Module):
    """Layer or RMS normalisation. ``hook_normalized`` comes before weight and bias."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.centred = config.normalization == "layer"
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.d_model))
        has_bias = self.centred and config.bias
        self.bias = nn.Parameter(torch.zeros(config.d_model)) if has_bias else None
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Normalise, then scale and shift."""
        if not (self.hook_scale.watched or self.hook_normalized.watched):
            if self.centred:
                return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        scale = self.hook_scale((x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        normalized = self.hook_normalized(x / scale) * self.weight
        return normalized if self.bias is None else normalized + self.bias


class Attention(nn.Module):
    """Causal multi-head attention; query head h uses key-value head h // (heads / kv heads)."""

    cos: Float[Tensor, "pos d_head"]
    sin: Float[Tensor, "pos d_head"]

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.n_heads, self.kv_heads, self.d_head = (
            config.n_heads,
            config.kv_heads,
            config.head_width,
        )
        self.split = [n * self.d_head for n in (self.n_heads, self.kv_heads, self.kv_heads)]
        self.qkv = _linear(config.d_model, sum(self.split), config.bias)
        self.out = _linear(self.split[0], config.d_model, config.bias)
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z = HookPoint()
        if config.positions == "rotary":
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
            cos, sin = _rotary_table(config.n_ctx, self.d_head, config.rotary_base)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        rows: slice | None = None,
        past: Past | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Attend. With ``rows`` only these queries are computed, over the keys up to the last.

        With ``past`` all queries are, over the keys that the cache holds and their own.
        """
        if past is None:
            return self.project(self.mix(*self.queries_keys_values(x, rows)))
        chunk, held = past
        q, k, v = self.queries_keys_values(x, places=chunk.places)
        return self.project(self.mix(q, *held.extend(k, v, chunk), visible=chunk.visible))

    def queries_keys_values(
        self,
        x: Float[Tensor, "batch pos d_model"],
        rows: slice | None = None,
        places: Places | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``[batch, pos, head, d_head]``, rotated where that applies.

        ``places`` are the positions of ``x``, from 0 on unless it is said.
        """
        if rows is None:
            q, k, v = self.qkv(x).split(self.split, dim=-1)
        else:
            n, weight = self.split[0], self.qkv.weight
            biases = (self.qkv.bias[:n], self.qkv.bias[n:]) if self.config.bias else (None, None)
            x = x[:, : rows.stop]
            q = F.linear(x[:, rows], weight[:n], biases[0])
            k, v = F.linear(x, weight[n:], biases[1]).split_with_sizes(self.split[1:], dim=-1)
        q = self.hook_q(q.unflatten(-1, (self.n_heads, self.d_head)))
        k = self.hook_k(k.unflatten(-1, (self.kv_heads, self.d_head)))
        v = self.hook_v(v.unflatten(-1, (self.kv_heads, self.d_head)))
        if self.config.positions == "rotary":
            at = slice(k.shape[1]) if places is None else places
            cos, sin, last = self.cos[at], self.sin[at], slice(-q.shape[1], None)
            q = self.hook_rot_q(rotate(q, cos[..., last, :], sin[..., last, :]))
            k = self.hook_rot_k(rotate(k, cos, sin))
        return q, k, v

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None
    ) -> Float[Tensor, "batch query head d_head"]:
        """The values, weighted by attention: fused unless scores or pattern are watched.

        The queries are the last of the keys' positions unless ``visible`` says what they see.
        """
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        dropout = self.config.dropout if self.training else 0.0
        grouped = self.kv_heads != self.n_heads
        n_queries, n_keys = q.shape[2], k.shape[2]
        if self.hook_attn_scores.watched or self.hook_pattern.watched:
            if grouped:
                k, v = (_repeat_heads(t, self.n_heads // self.kv_heads) for t in (k, v))
            z = attention(
                q,
                k,
                v,
                visible=self.visible(n_queries, n_keys, q.device) if visible is None else visible,
                dropout=dropout,
                hook_scores=self.hook_attn_scores,
                hook_pattern=self.hook_pattern,
            )
        else:
            causal = visible is None and self.config.window is None and n_queries == n_keys
            if visible is None and not causal and (self.config.window or n_queries > 1):
                visible = self.visible(n_queries, n_keys, q.device)
            z = F.scaled_dot_product_attention(
                q, k, v, attn_mask=visible, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
            )
        return z.transpose(1, 2)

    def watched_pattern(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Pattern and ``z`` as the hooks leave them; nothing where neither is watched."""
        if not (self.hook_attn_scores.watched or self.hook_pattern.watched):
            return None, None
        kept: list[Tensor] = []

        def keep(pattern: Tensor, *, hook: HookPoint) -> None:
            kept.append(pattern)

        with attached([(self.hook_pattern, keep)]):
            z = self.mix(q, k, v)
        return kept[0], z

    def project(self, z: Float[Tensor, "batch query head d_head"]) -> Tensor:
        """From the heads' outputs to the residual stream."""
        return self.out(self.hook_z(z).flatten(-2))  # type: ignore[no-any-return]

    def visible(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """The mask of the last ``n_queries`` of ``n_keys`` positions."""
        return visible_keys(n_queries, n_keys, window=self.config.window, device=device)

    def keys_values_by_head(
        self, k: Tensor, v: Tensor
    ) -> tuple[Float[Tensor, "b head key d_head"], Float[Tensor, "b head key d_head"]]:
        """Keys and values with one head axis for all, in the order that products read them."""
        n = self.n_heads // self.kv_heads
        k, v = (_repeat_heads(t.transpose(1, 2), n).contiguous() for t in (k, v))
        return k, v

    def pattern_rows(
        self, q: Tensor, k: Float[Tensor, "b head key d_head"], rows: slice
    ) -> Float[Tensor, "b head query seen"]:
        """The pattern of some queries only, over the keys up to the last of them."""
        q, k = q[:, rows].transpose(1, 2), k[:, :, : rows.stop]
        scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.mT
        first = 0 if self.config.window else rows.start  # earlier keys are visible to all
        hidden = ~self.visible(q.shape[2], k.shape[2], q.device)[:, first:]
        scores[..., first:].masked_fill_(hidden, -math.inf)
        return scores.softmax(-1)


class FeedForward(nn.Module):
    """The MLP of a block: GELU, or gated (SwiGLU)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width, self.gated = config.mlp_width, config.mlp == "swiglu"
        self.activation, self.in_place = _ACTIVATIONS[config.mlp], _IN_PLACE[config.mlp]
        self.inner = _linear(config.d_model, width, config.bias)
        self.outer = _linear(width, config.d_model, config.bias)
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()
        if self.gated:
            self.linear = _linear(config.d_model, width, config.bias)
            self.hook_pre_linear = HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Widen, activate (and gate), narrow."""
        pre = self.hook_pre(self.inner(x))
        alone = not (pre.requires_grad or self.hook_pre.watched)  # then nobody else needs it
        post = self.in_place(pre) if alone else self.activation(pre)
        if self.gated:
            post = post * self.hook_pre_linear(self.linear(x))
        return self.outer(self.hook_post(post))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and MLP, each on the normalised residual stream and added to it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln1, self.attn = Norm(config), Attention(config)
        self.dropout = config.dropout
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()
        self.hook_attn_out = HookPoint()
        self.mlp = None
        if config.mlp != "none":
            self.ln2, self.mlp = Norm(config), FeedForward(config)
            self.hook_resid_mid, self.hook_mlp_out = HookPoint(), HookPoint()

    def forward(
        self, x: Tensor, rows: slice | None = None, past: Past | None = None
    ) -> Float[Tensor, "batch query d_model"]:
        """One block; with ``rows`` only these positions come out, with ``past`` all of a chunk."""
        x = self.hook_resid_pre(x)
        attended = self.attn(self.ln1(x), rows, past)
        return self.finish(x if rows is None else x[:, rows], attended)

    def finish(self, x: Tensor, attended: Tensor) -> Float[Tensor, "batch query d_model"]:
        """Add what attention gave, then the MLP."""
        x = x + self._drop(self.hook_attn_out(attended))
        if self.mlp is not None:
            x = self.hook_resid_mid(x)
            x = x + self._drop(self.hook_mlp_out(self.mlp(self.ln2(x))))
        return self.hook_resid_post(x)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.dropout and self.training else x


@lru_cache(maxsize=4)
def _rotary_table(n_ctx: int, d_head: int, base: float) -> tuple[Tensor, Tensor]:
    """One table for the layers of a model; nothing writes to it."""
    return rotary_table(n_ctx, d_head, base=base)


def _linear(d_in: int, d_out: int, bias: bool) -> nn.Linear:
    """A linear layer with bias 0 and its weight left for `GPT.initialize`."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, d_in, d_out, bias=bias)  # type: ignore[no-untyped-call]
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _repeat_heads(x: Float[Tensor, "b kv pos d"], n: int) -> Float[Tensor, "b head pos d"]:
    """Each key-value head n times in a row, so that head h reads head h // n."""
    return x if n == 1 else x.repeat_interleave(n, dim=1)
