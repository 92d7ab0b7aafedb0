"""Published weights read into our own GPT: the GPT-2 and the Llama family.

Every field of a configuration is honoured, known to have no effect on a forward pass, or
refused by name; weights that are missing or left over are an error that lists them. Sources:
`transformers` configurations and checkpoints, and GGUF files (see `models.gguf_file`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.config import GPTConfig
from models.errors import CheckpointError, InputError
from models.gpt import GPT

Weights = Mapping[str, Tensor]


def _fields(names: str) -> frozenset[str]:
    return frozenset(names.split())


# fields that change nothing in a forward pass without dropout
_HARMLESS = _fields("""
    _attn_implementation _name_or_path _num_labels architectures attention_dropout
    attn_implementation attn_pdrop bad_words_ids begin_suppress_tokens bos_token_id
    chunk_size_feed_forward cls_token_id decoder_start_token_id do_sample dtype early_stopping
    embd_pdrop eos_token_id finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing id2label initializer_range is_decoder is_llama_config label2id
    length_penalty max_length min_length model_type n_ctx n_special no_repeat_ngram_size
    num_beams num_labels num_return_sequences output_attentions output_hidden_states output_past
    pad_token_id predict_special_tokens prefix pretraining_tp problem_type repetition_penalty
    resid_pdrop return_dict rope_interleaved sep_token_id summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tokenizer_class top_k top_p torch_dtype torchscript
    transformers.js_config transformers_version typical_p unk_token_id use_bfloat16 use_cache
    """)
_ACTIVATIONS = {"gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "gelu": "gelu"}


@dataclass(frozen=True)
class Family:
    """How one family of models is read.

    Args:
        name: ``model_type`` in its configuration.
        sizes: fields that a configuration must have.
        honoured: further fields that end up in the `GPTConfig`.
        required: fields that must have one of these values.
    """

    name: str
    sizes: frozenset[str]
    honoured: frozenset[str]
    required: Mapping[str, tuple[Any, ...]]


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "gpt2",
            _fields("vocab_size n_positions n_embd n_layer n_head"),
            _fields("n_inner activation_function layer_norm_epsilon tie_word_embeddings"),
            {
                "scale_attn_weights": (True,),
                "scale_attn_by_inverse_layer_idx": (False,),
                "reorder_and_upcast_attn": (False,),
                "add_cross_attention": (False,),
                "is_encoder_decoder": (False,),
                "quantization_config": (None,),
                "pruned_heads": ({}, None),
            },
        ),
        Family(
            "llama",
            _fields(
                "vocab_size max_position_embeddings hidden_size num_hidden_layers "
                "num_attention_heads intermediate_size"
            ),
            _fields(
                "num_key_value_heads head_dim rms_norm_eps rope_theta rope_parameters "
                "tie_word_embeddings"
            ),
            {
                "hidden_act": ("silu", "swish"),
                "attention_bias": (False,),
                "mlp_bias": (False,),
                "rope_scaling": (None,),
                "sliding_window": (None,),
                "is_encoder_decoder": (False,),
                "quantization_config": (None,),
            },
        ),
    )
}


def gpt_config(config: Mapping[str, Any]) -> GPTConfig:
    """The shape of our GPT that a `transformers` configuration describes.

    Raises:
        InputError: a model of another family, or a field that would not be honoured.
        CheckpointError: fields are missing.
    """
    family = _family(config)
    if missing := sorted(family.sizes - config.keys()):
        raise CheckpointError(f"the configuration lacks {', '.join(missing)}")
    for field, value in config.items():
        if field in family.required:
            if value not in family.required[field]:
                wanted = " or ".join(map(repr, family.required[field]))
                raise InputError(
                    f"engine gpt reads {family.name} models with {field} = {wanted}, but this one "
                    f"has {value!r}: use engine lens"
                )
        elif field not in family.sizes | family.honoured | _HARMLESS:
            raise InputError(
                f"engine gpt does not know the configuration field {field} = {value!r} of this "
                f"{family.name} model: use engine lens"
            )
    return _gpt2_config(config) if family.name == "gpt2" else _llama_config(config)


def read_into_gpt(config: Mapping[str, Any], weights: Weights) -> GPT:
    """Our GPT with published weights, in evaluation mode.

    Args:
        config: a `transformers` configuration as a dict.
        weights: by their `transformers` names, with or without the model's prefix.

    Raises:
        CheckpointError: weights missing, left over or of another shape; all are listed.
    """
    shape = gpt_config(config)
    gpt2 = config["model_type"] == "gpt2"
    model = GPT(shape, seed=None)
    renamed = dict(_gpt2_weights(weights) if gpt2 else _llama_weights(weights))
    if shape.tied:
        _drop_tied_copy(renamed)
    own = model.state_dict()
    if missing := sorted(own.keys() - renamed.keys()):
        raise CheckpointError(f"the weights lack {', '.join(missing)}")
    if extra := sorted(renamed.keys() - own.keys()):
        raise CheckpointError(f"the weights have more than the model: {', '.join(extra)}")
    wrong = [
        f"{name} {tuple(renamed[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if renamed[name].shape != own[name].shape
    ]
    if wrong:
        raise CheckpointError(f"weights have another shape: {'; '.join(wrong)}")
    model.load_state_dict({name: weight.float() for name, weight in renamed.items()})
    return model.eval()


def _family(config: Mapping[str, Any]) -> Family:
    name = config.get("model_type")
    if name not in FAMILIES:
        raise InputError(
            f"engine gpt reads models of type {' and '.join(FAMILIES)}, but this one is {name!r}: "
            "use engine lens"
        )
    return FAMILIES[name]


def _gpt2_config(config: Mapping[str, Any]) -> GPTConfig:
    activation = config.get("activation_function", "gelu_new")
    if activation not in _ACTIVATIONS:
        raise InputError(
            f"engine gpt knows the activation functions {', '.join(_ACTIVATIONS)}, but this model "
            f"has activation_function = {activation!r}: use engine lens"
        )
    return GPTConfig(
        d_vocab=config["vocab_size"],
        n_ctx=config["n_positions"],
        n_layers=config["n_layer"],
        n_heads=config["n_head"],
        d_model=config["n_embd"],
        d_mlp=config.get("n_inner"),
        mlp=_ACTIVATIONS[activation],  # type: ignore[arg-type]
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        tied=config.get("tie_word_embeddings", True),
    )


def _llama_config(config: Mapping[str, Any]) -> GPTConfig:
    rope = config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    unknown = sorted(rope.keys() - {"rope_type", "type", "rope_theta"})
    if kind != "default" or unknown:
        raise InputError(
            f"engine gpt reads plain rotary positions, but this model has rope_parameters = "
            f"{dict(rope)!r}: use engine lens"
        )
    return GPTConfig(
        d_vocab=config["vocab_size"],
        n_ctx=config["max_position_embeddings"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_key_value_heads=config.get("num_key_value_heads"),
        d_model=config["hidden_size"],
        d_head=config.get("head_dim"),
        d_mlp=config["intermediate_size"],
        positions="rotary",
        normalization="rms",
        mlp="swiglu",
        bias=False,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rotary_base=rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
        tied=config.get("tie_word_embeddings", False),
    )


_GPT2_BLOCK = {
    "ln_1": "ln1",
    "ln_2": "ln2",
    "attn.c_attn": "attn.qkv",
    "attn.c_proj": "attn.out",
    "mlp.c_fc": "mlp.inner",
    "mlp.c_proj": "mlp.outer",
}
_LLAMA_BLOCK = {
    "input_layernorm": "ln1",
    "post_attention_layernorm": "ln2",
    "self_attn.o_proj": "attn.out",
    "mlp.gate_proj": "mlp.inner",
    "mlp.up_proj": "mlp.linear",
    "mlp.down_proj": "mlp.outer",
}


def _gpt2_weights(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    top = {
        "wte.weight": "W_E",
        "wpe.weight": "W_pos",
        "ln_f.weight": "ln_final.weight",
        "ln_f.bias": "ln_final.bias",
        "lm_head.weight": "unembed",
    }
    for key, weight in weights.items():
        name = key.removeprefix("transformer.")
        parts = name.split(".")
        if name in top:
            yield top[name], weight
        elif name.endswith((".attn.bias", ".attn.masked_bias")):
            continue  # the causal mask, kept by old checkpoints
        elif parts[0] == "h" and ".".join(parts[2:-1]) in _GPT2_BLOCK:
            ours = f"blocks.{parts[1]}.{_GPT2_BLOCK['.'.join(parts[2:-1])]}.{parts[-1]}"
            # a Conv1D keeps (in, out), a Linear (out, in)
            yield ours, weight.T if weight.ndim == 2 else weight
        else:
            yield name, weight


def _llama_weights(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    top = {
        "embed_tokens.weight": "W_E",
        "norm.weight": "ln_final.weight",
        "lm_head.weight": "unembed",
    }
    names = {key.removeprefix("model."): key for key in weights}
    for name, key in names.items():
        parts = name.split(".")
        inner = ".".join(parts[2:-1])
        if name in top:
            yield top[name], weights[key]
        elif parts[0] == "layers" and inner in _LLAMA_BLOCK:
            yield f"blocks.{parts[1]}.{_LLAMA_BLOCK[inner]}.{parts[-1]}", weights[key]
        elif parts[0] == "layers" and inner == "self_attn.q_proj" and parts[-1] == "weight":
            rest = [f"layers.{parts[1]}.self_attn.{p}_proj.weight" for p in "kv"]
            if missing := [other for other in rest if other not in names]:
                raise CheckpointError(f"the weights lack {', '.join(missing)}")
            qkv = [weights[key], *(weights[names[other]] for other in rest)]
            yield f"blocks.{parts[1]}.attn.qkv.weight", torch.cat(qkv)
        elif inner in ("self_attn.k_proj", "self_attn.v_proj") and parts[-1] == "weight":
            continue  # joined with the queries
        elif name.endswith("rotary_emb.inv_freq"):
            continue  # a function of the base, kept by old checkpoints
        else:
            yield name, weights[key]


def _drop_tied_copy(weights: dict[str, Tensor]) -> None:
    """A tied head may be stored twice; the copy must be one."""
    copy = weights.pop("unembed", None)
    if "W_E" not in weights and copy is not None:
        weights["W_E"] = copy  # some files keep the head's name only
    elif copy is not None and not torch.equal(copy, weights["W_E"]):
        raise CheckpointError(
            "the configuration ties the head to the embedding, but the weights hold two different "
            "ones: set tie_word_embeddings to false, or use engine lens"
        )
