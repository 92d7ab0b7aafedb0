"""A decoder-only, pre-norm transformer with hook points, in one file.

    x = embed(tokens) + positions
    for each block:  x = x + attn(ln1(x));  x = x + mlp(ln2(x))
    logits = ln_final(x) @ W_U

`GPTConfig` chooses positions, normalisation, MLP, grouped key-value heads, a tied or untied
head, biases, dropout and an attention window; with these it is GPT-2 (Radford et al. 2019)
and it is a Llama (Touvron et al. 2023). Hook names and shapes are TransformerLens's.

Work that nobody observes is not done: attention runs through the fused kernel unless that
layer's scores or pattern are watched, norms are fused unless their scale or normalised value
is, ``stop_at_layer`` stops and ``start_at_layer`` starts there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention import sinusoidal_positions
from models.blocks import Block, Norm
from models.cache import KeyValueCache, Places
from models.config import GPTConfig
from models.errors import InputError, LengthError, UnknownNameError
from models.hooks import HookedModule, HookPoint
from models.names import RETURN_TYPES
from models.text_codec import TextCodec
from models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from models.tasks import Task


class LiveConfig:
    """Read-only view of a model's configuration, with its present device and dtype."""

    __slots__ = ("_model",)
    _model: GPT

    def __init__(self, model: GPT) -> None:
        object.__setattr__(self, "_model", model)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"cfg is read-only: {name} was fixed when the model was built; build another GPT"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._model.config, name)

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self._model.config.head_width

    @property
    def d_mlp(self) -> int:
        """Number of MLP neurons; 0 without an MLP."""
        return self._model.config.mlp_width

    @property
    def n_key_value_heads(self) -> int:
        """Number of key-value heads."""
        return self._model.config.kv_heads

    @property
    def device(self) -> torch.device:
        """Where the weights are now."""
        return self._model.W_E.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights now."""
        return self._model.W_E.dtype


class GPT(HookedModule):
    """The from-scratch model.

    Args:
        config: its shape.
        seed: of the initial weights; the global random state is not touched. ``None`` leaves
            the weights unset, for a caller that sets them all.
        init_std: standard deviation of the initial weights; those that write to the residual
            stream are smaller by ``sqrt(2 * n_layers)``, as in GPT-2.
        vocabulary: lets ``to_tokens`` and ``to_string`` work on text.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        seed: int | None = 0,
        init_std: float = 0.02,
        vocabulary: Vocabulary | TextCodec | None = None,
    ) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.task: Task | None = None  # what it was trained on
        self.quantization: str | None = None  # of the file it was read from
        self.W_E = nn.Parameter(torch.empty(config.d_vocab, config.d_model))
        self.hook_embed = HookPoint()
        if config.positions == "learned":
            self.W_pos = nn.Parameter(torch.empty(config.n_ctx, config.d_model))
        elif config.positions == "sinusoidal":
            table = sinusoidal_positions(config.n_ctx, config.d_model)
            self.register_buffer("W_pos", table, persistent=False)
        if config.positions in ("learned", "sinusoidal"):
            self.hook_pos_embed = HookPoint()
        blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.blocks = cast(Sequence[Block], blocks)
        self.ln_final = Norm(config)
        if not config.tied:
            self.unembed = nn.Parameter(torch.empty(config.d_vocab, config.d_model))
        self.name_hook_points()
        if seed is not None:
            self.initialize(seed=seed, std=init_std)

    def initialize(self, *, seed: int, std: float) -> None:
        """Fill the weights from ``seed``; biases 0, norms 1."""
        generator = torch.Generator().manual_seed(seed)
        narrow = std / math.sqrt(2 * self.config.n_layers)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.ndim == 2:
                    writes = name.endswith(("attn.out.weight", "mlp.outer.weight"))
                    values = torch.empty(weight.shape)
                    values.normal_(0, narrow if writes else std, generator=generator)
                    weight.copy_(values)

    @property
    def cfg(self) -> LiveConfig:
        """The configuration as analyses and TransformerLens's tools read it."""
        return LiveConfig(self)

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Query weights."""
        return self._qkv(0)

    @property
    def W_K(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        """Key weights."""
        return self._qkv(1)

    @property
    def W_V(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        """Value weights."""
        return self._qkv(2)

    @property
    def W_O(self) -> Float[Tensor, "layer head d_head d_model"]:
        """Output weights."""
        return _heads(self._stack("attn.out"), self.config.head_width)

    @property
    def W_in(self) -> Float[Tensor, "layer d_model d_mlp"] | None:
        """Weights into the MLP (of the gate, when there is one, see `W_gate`)."""
        return self._mlp_stack("linear" if self.config.mlp == "swiglu" else "inner")

    @property
    def W_gate(self) -> Float[Tensor, "layer d_model d_mlp"] | None:
        """Weights of the gate before activation; ``None`` for an MLP without one."""
        return self._mlp_stack("inner") if self.config.mlp == "swiglu" else None

    @property
    def W_out(self) -> Float[Tensor, "layer d_mlp d_model"] | None:
        """Weights out of the MLP."""
        return self._mlp_stack("outer")

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The unembedding; with a tied head the transposed embedding, the same storage."""
        return (self.W_E if self.config.tied else self.unembed).T

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"] | Float[Tensor, "batch pos d_model"],
        *,
        return_type: str | None = "logits",
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        rows: slice | None = None,
        cache: KeyValueCache | None = None,
    ) -> Any:
        """Run the model.

        Args:
            tokens: ids; with ``start_at_layer`` the residual stream entering that layer.
            return_type: ``"logits"``, ``"loss"`` (mean next-token cross-entropy in nats),
                ``"both"`` (logits, loss), or ``None``.
            start_at_layer, stop_at_layer: run the blocks of this range only; with
                ``stop_at_layer`` the residual stream before that layer is returned.
            rows: the positions whose logits are wanted, without a step; in the last block only
                these queries are computed, unless something watches that block.
            cache: the tokens go on where it ends, and are in it afterwards; see `models.cache`.
        """
        if return_type is not None and return_type not in RETURN_TYPES:
            raise InputError(
                f"return_type must be logits, loss, both or None, but got {return_type!r}"
            )
        start, stop = self._layers(start_at_layer, stop_at_layer)
        if cache is None:
            x = self._enter(tokens, None if start_at_layer is None else start)
        elif start_at_layer is None and stop == len(self.blocks):
            x = self._continue(tokens, cache)
            start = stop  # its blocks have run
        else:
            raise InputError("a cache holds all layers: leave out start_at_layer, stop_at_layer")
        if stop_at_layer is not None:
            if rows is not None:
                raise InputError("rows are positions of the logits: leave out stop_at_layer")
            return self._run_blocks(x, start, stop)
        rows = self._rows(rows, x.shape[1])
        late = rows is None or cache is not None or self._watched_from(len(self.blocks) - 1)
        x = self._run_blocks(x, start, stop, None if late else rows)
        x = x[:, rows] if late and rows is not None else x
        if return_type is None:
            self.ln_final(x)  # its hooks fire
            return None
        logits = self.logits(x)
        if return_type == "logits":
            return logits
        if start_at_layer is not None or rows is not None or cache is not None:
            raise InputError(
                "a loss needs all tokens: leave out start_at_layer and rows, and the cache"
            )
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return loss if return_type == "loss" else (logits, loss)

    def embed(
        self, tokens: Int[Tensor, "batch pos"], places: Places | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Token embedding plus positions, which are 0, 1, ... unless ``places`` says them."""
        x = self.hook_embed(F.embedding(tokens, self.W_E))
        if self.config.positions in ("learned", "sinusoidal"):
            positions = self.W_pos[slice(tokens.shape[1]) if places is None else places]
            if self.hook_pos_embed.watched:  # a hook may edit in place: never the table itself
                positions = self.hook_pos_embed(positions.expand_as(x).clone())
            x = x + positions
        return F.dropout(x, self.config.dropout) if self.config.dropout and self.training else x

    def logits(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Final norm and unembedding of the residual stream."""
        return F.linear(self.ln_final(x), self.W_E if self.config.tied else self.unembed)

    @torch.no_grad()
    def stream_patterns(
        self, tokens: Int[Tensor, "batch pos"], query_chunk: int = 128
    ) -> Iterator[tuple[int, int, Float[Tensor, "batch head query key"]]]:
        """Yield ``(layer, first query, pattern rows)`` without ever holding a whole pattern.

        The rows end at the last of their queries' keys. Where a layer's scores or pattern are
        watched, its whole pattern is formed, so that the rows are those the hooks left.
        """
        if query_chunk < 1:
            raise InputError(f"query_chunk must be at least 1, but got {query_chunk}")
        x = self._enter(tokens, None)
        n = x.shape[1]
        chunks = [slice(i, min(i + query_chunk, n)) for i in range(0, n, query_chunk)]
        for layer, block in enumerate(self.blocks):
            x = block.hook_resid_pre(x)
            q, k, v = block.attn.queries_keys_values(block.ln1(x))
            pattern, z = block.attn.watched_pattern(q, k, v)
            part, mixed = None, []  # what the rows give, while they are at hand
            last = layer + 1 == len(self.blocks)
            keys, values = block.attn.keys_values_by_head(k, v)
            for rows in chunks:
                if pattern is not None:
                    yield layer, rows.start, pattern[:, :, rows, : rows.stop]
                    continue
                part = block.attn.pattern_rows(q, keys, rows)
                yield layer, rows.start, part
                if not last:
                    mixed.append(part @ values[:, :, : rows.stop])
            if not last:
                z = torch.cat(mixed, dim=2).transpose(1, 2) if z is None else z
                part = pattern = None  # the MLP needs the memory
                del q, k, v, keys, values, mixed
                x = block.finish(x, block.attn.project(z))

    def to_tokens(
        self, text: Any, prepend_bos: bool | None = None, **_: Any
    ) -> Int[Tensor, "batch pos"]:
        """Ids of a text, a list of texts of one length, or ids, on the model's device."""
        if not isinstance(text, Tensor):
            texts = [text] if isinstance(text, str) else text
            codec = self._vocabulary()
            rows = [codec.encode(t, bos=prepend_bos) if isinstance(t, str) else t for t in texts]
            if len({len(row) for row in rows}) != 1 or not len(rows[0]):
                raise InputError("texts must have one length of at least 1 to become one tensor")
            text = torch.tensor(rows)
        return torch.as_tensor(text, dtype=torch.long, device=self.W_E.device)

    def to_string(self, tokens: Any) -> str | list[str]:
        """The text of one sequence of ids; a list of texts for ``[batch, pos]``."""
        ids = torch.as_tensor(tokens)
        if ids.ndim == 2:
            return [self._vocabulary().decode(row) for row in ids.tolist()]
        return self._vocabulary().decode(ids.flatten().tolist())

    def to_str_tokens(self, text: Any) -> list[str]:
        """The text of each token of one sequence."""
        ids = self.to_tokens(text) if isinstance(text, str) else torch.as_tensor(text)
        if ids.ndim == 2 and len(ids) != 1:
            raise InputError(f"the tokens of one sequence are wanted, but got {len(ids)}")
        return [self._vocabulary().decode([i]) for i in ids.flatten().tolist()]

    def _stack(self, module: str) -> Tensor:
        modules = [cast(nn.Linear, block.get_submodule(module)) for block in self.blocks]
        return torch.stack([linear.weight.T for linear in modules])

    def _mlp_stack(self, name: str) -> Tensor | None:
        return None if self.config.mlp == "none" else self._stack(f"mlp.{name}")

    def _qkv(self, part: int) -> Tensor:
        weight = self._stack("attn.qkv").split_with_sizes(self.blocks[0].attn.split, dim=-1)[part]
        return _heads(weight.transpose(1, 2), self.config.head_width).transpose(2, 3)

    def _vocabulary(self) -> Vocabulary | TextCodec:
        if self.vocabulary is None:
            raise InputError("this model has no vocabulary: give token ids instead of text")
        return self.vocabulary

    def _run_blocks(self, x: Tensor, start: int, stop: int, rows: slice | None = None) -> Tensor:
        last = len(self.blocks) - 1
        for layer in range(start, stop):
            x = self.blocks[layer](x, rows if layer == last else None)
        return x

    def _enter(self, tokens: Tensor, start: int | None) -> Tensor:
        """The residual stream to start from: of ids, or as it was given."""
        if tokens.ndim != (2 if start is None else 3):
            raise InputError(
                "tokens must be ids [batch, pos], or [batch, pos, d_model] with start_at_layer, "
                f"but got shape {tuple(tokens.shape)}"
            )
        if (n := tokens.shape[1]) > self.config.n_ctx:
            raise LengthError(f"the model's context is {self.config.n_ctx} tokens, but got {n}")
        if start is None:
            return self.embed(tokens)
        watched = start < len(self.blocks) and self.blocks[start].hook_resid_pre.watched
        return tokens.clone() if watched else tokens  # a hook may edit in place

    def _continue(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """The residual stream after all blocks, of tokens that go on where the cache ends."""
        if tokens.ndim != 2:
            raise InputError(f"tokens must be ids [batch, pos], but got {tuple(tokens.shape)}")
        chunk = cache.chunk(tokens, self.config)
        x = self.embed(tokens, chunk.places)
        for layer, block in enumerate(self.blocks):
            x = block(x, past=(chunk, cache[layer]))
        cache.advance(tokens)
        return x

    def _layers(self, start: int | None, stop: int | None) -> tuple[int, int]:
        n = len(self.blocks)

        def resolve(layer: int | None, default: int) -> int:
            if layer is not None and not -n <= layer <= n:
                raise UnknownNameError(f"layers are 0..{n - 1}, but got {layer}")
            return default if layer is None else layer if layer >= 0 else n + layer

        return resolve(start, 0), resolve(stop, n)

    @staticmethod
    def _rows(rows: slice | None, n: int) -> slice | None:
        """The rows as ``slice(start, stop)``; ``None`` when they are all."""
        if rows is None:
            return None
        start, stop, step = rows.indices(n)
        if step != 1 or start >= stop:
            raise InputError(f"rows must name positions of 0..{n - 1} in order, but got {rows}")
        return None if stop - start == n else slice(start, stop)

    def _watched_from(self, layer: int) -> bool:
        prefixes = (f"blocks.{layer}.", "ln_final.")
        return any(p.watched for name, p in self.hook_dict.items() if name.startswith(prefixes))


def _heads(
    x: Float[Tensor, "layer wide d_model"], d_head: int
) -> Float[Tensor, "layer head d_head d_model"]:
    return x.reshape(len(x), -1, d_head, x.shape[-1])
