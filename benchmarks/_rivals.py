"""Our default model and recipe as others would write them: nanoGPT, Hugging Face transformers.

The model is nanoGPT's ``model.py`` (https://github.com/karpathy/nanoGPT): fused ``c_attn``,
`scaled_dot_product_attention` with ``is_causal``, exact GELU; or ``GPT2LMHeadModel`` with its own
loss. Both have an untied unembedding and no dropout, as ours. The loop is nanoGPT's ``train.py``;
optimiser, rates, clipping and batch size are those of our recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import GPTConfig
from models.gpt import GPT
from models.training import TrainingConfig, make_optimizer

N_LETTERS, LENGTH = 26, 16


class Loop:
    """A plain training loop around a model, one step at a time."""

    def __init__(
        self, model: nn.Module, loss: Callable[[Tensor], Tensor], config: TrainingConfig
    ) -> None:
        self.model, self.loss, self.config = model.train(), loss, config
        self.optimizer = make_optimizer(model, config)
        self.steps = 0

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.steps)
        loss = self.loss(draw(self.config.batch_size)) / self.config.accumulation
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1


def draw(n: int) -> Tensor:
    """Letters, the separator, the letters back to front: ids ``[n, 33]``."""
    x = torch.randint(N_LETTERS, (n, LENGTH))
    return torch.cat([x, torch.full((n, 1), N_LETTERS), x.flip(1)], dim=1)


def nano_loop(ours: GPT, config: TrainingConfig) -> Loop:
    """The nanoGPT model with our weights; for outputs only, other targets are -1."""
    model = NanoGPT(ours.config)
    _copy_weights(ours, model, prefix="", transposed=False)

    def loss(tokens: Tensor) -> Tensor:
        targets = tokens[:, 1:].contiguous()
        if config.objective == "outputs":
            targets[:, :LENGTH] = -1
        return model(tokens[:, :-1], targets)[1]  # type: ignore[no-any-return]

    return Loop(model, loss, config)


def transformers_loop(ours: GPT, config: TrainingConfig, **options: Any) -> Loop:
    """``GPT2LMHeadModel`` with our weights; for outputs only, other labels are -100."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    shape = ours.config
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=shape.d_vocab,
            n_positions=shape.n_ctx,
            n_embd=shape.d_model,
            n_layer=shape.n_layers,
            n_head=shape.n_heads,
            tie_word_embeddings=shape.tied,
            bos_token_id=None,
            eos_token_id=None,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **options,
        )
    )
    _copy_weights(ours, model, prefix="transformer.", transposed=True)

    def loss(tokens: Tensor) -> Tensor:
        labels = tokens
        if config.objective == "outputs":
            labels = tokens.clone()
            labels[:, : LENGTH + 1] = -100
        return model(input_ids=tokens, labels=labels).loss  # type: ignore[no-any-return]

    return Loop(model, loss, config)


def logits_of(model: Callable[..., object], tokens: Tensor) -> Tensor:
    """Logits of any of the models."""
    out = model(tokens)
    out = out[0] if isinstance(out, tuple) else getattr(out, "logits", out)
    assert isinstance(out, Tensor)
    return out


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.d_model, 3 * config.d_model)
        self.c_proj = nn.Linear(config.d_model, config.d_model)
        self.resid_dropout = nn.Dropout(0.0)
        self.n_head, self.n_embd = config.n_heads, config.d_model

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.d_model, 4 * config.d_model)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.d_model, config.d_model)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        self.attn, self.mlp = CausalSelfAttention(config), MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class NanoGPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.d_vocab, config.d_model)
        self.wpe = nn.Embedding(config.n_ctx, config.d_model)
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.ln_f = nn.LayerNorm(config.d_model)
        self.lm_head = nn.Linear(config.d_model, config.d_vocab, bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        flat = logits.view(-1, logits.size(-1))
        return logits, F.cross_entropy(flat, targets.view(-1), ignore_index=-1)


_THEIR_NAMES = {
    "W_E": "wte.weight",
    "W_pos": "wpe.weight",
    "blocks.": "h.",
    "ln1.": "ln_1.",
    "ln2.": "ln_2.",
    "attn.qkv.": "attn.c_attn.",
    "attn.out.": "attn.c_proj.",
    "mlp.inner.": "mlp.c_fc.",
    "mlp.outer.": "mlp.c_proj.",
    "ln_final.": "ln_f.",
}


@torch.no_grad()
def _copy_weights(ours: GPT, theirs: nn.Module, *, prefix: str, transposed: bool) -> None:
    """Start from the same weights: steps to a goal then differ by the batches alone."""
    parameters = dict(theirs.named_parameters())
    for our_name, value in ours.named_parameters():
        name = our_name
        for our_part, their_part in _THEIR_NAMES.items():
            name = name.replace(our_part, their_part)
        name = "lm_head.weight" if our_name == "unembed" else prefix + name
        turned = transposed and value.ndim == 2 and ".c_" in name
        parameters.pop(name).copy_(value.T if turned else value)
    assert not parameters, f"no weights of ours for {', '.join(parameters)}"
