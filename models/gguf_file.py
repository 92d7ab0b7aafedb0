"""GGUF files, dequantised with the `gguf` package, in the terms of `transformers`.

Source: llama.cpp's conversion scripts, which name the tensors and interleave the rotary halves
of queries and keys; that order is undone here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor

from models.errors import CheckpointError, InputError

_BLOCK = {
    "gpt2": {
        "attn_norm": "ln_1",
        "ffn_norm": "ln_2",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    "llama": {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
}
_TOP = {
    "gpt2": {
        "token_embd": "wte",
        "position_embd": "wpe",
        "output_norm": "ln_f",
        "output": "lm_head",
    },
    "llama": {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"},
}
_FIELDS = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "vocab_size",
}
_HEAD_WIDTHS = {"attention.key_length", "attention.value_length", "rope.dimension_count"}
# fields that say nothing as long as they have one of these values
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.finetuned": (True, False),
    "rope.scaling.type": ("none",),
}
# what engine lens honours besides, since `transformers` has models with it; None for any value
_SCALED: dict[str, tuple[Any, ...] | None] = {
    "rope.scaling.factor": None,
    "rope.scaling.original_context_length": None,  # of use to yarn only, which is refused
    "rope.scaling.type": ("linear",),
}
FREQUENCIES = "rope_freqs.weight"  # what Llama 3 divides each rotary frequency by


class _Reader(GGUFReader):
    """The package's reader without the cost of slicing a memory map for every string."""

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        kind = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
        return np.frombuffer(self.data, kind, int(count), int(offset))


def read_gguf(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """Configuration and float32 weights under their `transformers` names, and the quantisation.

    Raises:
        InputError: another architecture, or one that is not read whole.
        CheckpointError: not a GGUF file, or damaged.
    """
    reader = _open(path)
    fields = _described(reader)
    kind = fields.get("general.architecture")
    if kind not in _BLOCK:
        raise InputError(
            f"engine gpt reads GGUF files of {' and '.join(_BLOCK)} models, but {path} is {kind!r}"
        )
    _refuse_unknown(fields, kind, path, engine="gpt")
    config = _config(reader, path)
    weights: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        if tensor.name.startswith("rope_"):
            raise InputError(
                f"engine gpt reads plain rotary positions, but {path} scales them by "
                f"{tensor.name}: {_other_engine(tensor.name == FREQUENCIES)}"
            )
        values = np.require(dequantize(tensor.data, tensor.tensor_type), requirements="W")
        weights.update(_renamed(kind, tensor.name, torch.from_numpy(values), config))
    return config, weights, _quantization(reader)


def read_header(path: str | Path) -> tuple[dict[str, Any] | None, str]:
    """Configuration (of families that are known here) and the types of the tensors.

    For `transformers`, which reads the weights of these files itself and passes over fields and
    tensors that it does not know.

    Raises:
        InputError: a field or tensor that `transformers` would pass over.
        CheckpointError: not a GGUF file, or damaged.
    """
    reader = _open(path)
    fields = _described(reader)
    kind = fields.get("general.architecture")
    if kind not in _BLOCK:
        _refuse_dropped(reader, fields, str(kind), path)
        return None, _quantization(reader)
    _refuse_unknown(fields, kind, path, engine="lens")
    config = _config(reader, path)
    for tensor in reader.tensors:
        if not _known_tensor(kind, tensor.name):
            raise InputError(f"no engine reads the tensor {tensor.name} of {path}")
    if kind == "llama" and "llama.attention.head_count_kv" not in fields:
        raise InputError(
            f"engine lens needs the field llama.attention.head_count_kv, but {path} lacks it: "
            "use engine gpt"
        )
    return config, _quantization(reader)


def _known_tensor(kind: str, name: str) -> bool:
    stem, _, suffix = name.rpartition(".")
    parts = stem.split(".", 2)
    known = parts[2] in _BLOCK[kind] if parts[0] == "blk" and len(parts) > 2 else stem in _TOP[kind]
    suffixes = ("weight", "bias") if kind == "gpt2" else ("weight",)
    return (known and suffix in suffixes) or (kind == "llama" and name == FREQUENCIES)


def _refuse_dropped(reader: GGUFReader, fields: dict[str, Any], kind: str, path: Any) -> None:
    """Refuse what `transformers` passes over in a file of a family that is not known here."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    spelled = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}.get(kind, kind.replace("-", "_"))
    read: Any = GGUF_CONFIG_MAPPING.get(spelled)
    if read is None:
        return  # transformers refuses it
    heads, width = (fields.get(f"{kind}.{n}") for n in ("attention.head_count", "embedding_length"))
    d_head = width // heads if isinstance(heads, int) and width else None
    for key, value in fields.items():
        name = key.removeprefix(f"{kind}.")
        neutral = name in _NEUTRAL and value in _NEUTRAL[name]
        usual = name in _HEAD_WIDTHS and value == fields.get(f"{kind}.attention.key_length", d_head)
        taken = read.get(name) not in (None, -1)
        if name != key and not (neutral or usual or taken):
            raise InputError(f"no engine honours the field {key} = {value!r} of {path}")
    for tensor in reader.tensors:
        if tensor.name.startswith("rope_"):
            raise InputError(f"no engine reads the tensor {tensor.name} of {path}")


def _described(reader: GGUFReader) -> dict[str, Any]:
    return {key: field.contents() for key, field in reader.fields.items() if key[:5] != "token"}


def _config(reader: GGUFReader, path: str | Path) -> dict[str, Any]:
    fields = _described(reader)
    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    if "token_embd.weight" not in shapes:
        raise CheckpointError(f"the weights in {path} lack token_embd.weight")
    try:
        gpt2 = fields["general.architecture"] == "gpt2"
        config = _gpt2_config(fields) if gpt2 else _llama_config(fields)
        if not gpt2:
            config["rope_parameters"] = _rotary(reader, fields, config)
    except KeyError as error:
        raise CheckpointError(f"{path} lacks the field {error.args[0]}") from None
    config["vocab_size"] = int(shapes["token_embd.weight"][-1])
    config["tie_word_embeddings"] = "output.weight" not in shapes
    return config


def _quantization(reader: GGUFReader) -> str:
    return ", ".join(sorted({tensor.tensor_type.name for tensor in reader.tensors}))


def _open(path: str | Path) -> GGUFReader:
    try:
        return _Reader(str(path))
    except (ValueError, OSError, IndexError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{path} is not a whole GGUF file: {error}") from None


def _renamed(kind: str, name: str, values: Tensor, config: dict[str, Any]) -> dict[str, Tensor]:
    stem, _, suffix = name.rpartition(".")
    parts = stem.split(".")
    if parts[0] != "blk":
        return {f"{_TOP[kind].get(stem, stem)}.{suffix}": values}
    inner = _BLOCK[kind].get(".".join(parts[2:]), ".".join(parts[2:]))
    if kind == "gpt2":
        # llama.cpp keeps (out, in), a Conv1D (in, out)
        values = values.T if values.ndim == 2 else values
        return {f"h.{parts[1]}.{inner}.{suffix}": values}
    if inner in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = "num_attention_heads" if "q_proj" in inner else "num_key_value_heads"
        values = _uninterleaved(values, config[heads])
    return {f"layers.{parts[1]}.{inner}.{suffix}": values}


def _uninterleaved(weight: Tensor, n_heads: int) -> Tensor:
    """Rows in halves again, where llama.cpp has pairs."""
    pairs = weight.reshape(n_heads, -1, 2, weight.shape[-1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _refuse_unknown(fields: dict[str, Any], kind: str, path: Any, *, engine: str) -> None:
    """Every field that describes the model is honoured, or refused by name."""
    for key, value in fields.items():
        name = key.removeprefix(f"{kind}.")
        neutral = name in _NEUTRAL and value in _NEUTRAL[name]
        if name == key or name in _FIELDS or neutral:
            continue
        allowed = _SCALED.get(name, ()) if kind == "llama" else ()
        by_lens = allowed is None or value in allowed
        if engine == "gpt" or not by_lens:
            raise InputError(
                f"engine {engine} does not honour the field {key} = {value!r} of {path}: "
                f"{_other_engine(by_lens)}"
            )


def _other_engine(by_lens: bool) -> str:
    return "use engine lens" if by_lens else "no engine does"


def _rotary(reader: GGUFReader, fields: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Rotary positions in the terms of `transformers`; without a type, a factor is linear."""
    base = {"rope_theta": fields.get("llama.rope.freq_base", 10_000.0)}
    scaled = "llama.rope.scaling.factor" in fields or "llama.rope.scaling.type" in fields
    linear = scaled and fields.get("llama.rope.scaling.type", "linear") == "linear"
    divisors = [tensor for tensor in reader.tensors if tensor.name == FREQUENCIES]
    if linear and divisors:
        raise InputError(f"no engine honours llama.rope.scaling.type together with {FREQUENCIES}")
    if linear:
        factor = float(fields["llama.rope.scaling.factor"])
        return {**base, "rope_type": "linear", "factor": factor}
    if not divisors:
        return base
    each = dequantize(divisors[0].data, divisors[0].tensor_type).reshape(-1).tolist()
    return {
        **base,
        "rope_type": "longrope",  # the one type of transformers with a divisor for each frequency
        "short_factor": each,
        "long_factor": each,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _gpt2_config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_positions": fields["gpt2.context_length"],
        "n_embd": fields["gpt2.embedding_length"],
        "n_layer": fields["gpt2.block_count"],
        "n_head": fields["gpt2.attention.head_count"],
        "n_inner": fields["gpt2.feed_forward_length"],
        "activation_function": "gelu_new",
        "layer_norm_epsilon": fields["gpt2.attention.layer_norm_epsilon"],
    }


def _llama_config(fields: dict[str, Any]) -> dict[str, Any]:
    heads = fields["llama.attention.head_count"]
    width = fields["llama.embedding_length"]
    d_head = fields.get("llama.attention.key_length", width // heads)
    for name in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if fields.get(name, d_head) != d_head:
            raise InputError(
                f"{name} must be {d_head} (the width of a head) in either engine, but got "
                f"{fields[name]}"
            )
    return {
        "model_type": "llama",
        "max_position_embeddings": fields["llama.context_length"],
        "hidden_size": width,
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": d_head,
        "intermediate_size": fields["llama.feed_forward_length"],
        "hidden_act": "silu",
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
    }
