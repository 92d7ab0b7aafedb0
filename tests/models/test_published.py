"""Every field of a published configuration is honoured, harmless, or refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from models.errors import CheckpointError, InputError
from models.gpt import GPT
from models.interface import capture
from models.load import load
from models.published import FAMILIES, gpt_config, read_into_gpt

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
GPT2 = {
    **{"model_type": "gpt2", "vocab_size": 23, "n_positions": 17, "n_embd": 15, "n_layer": 2},
    "n_head": 3,
}
LLAMA = {
    **{"model_type": "llama", "vocab_size": 23, "max_position_embeddings": 17, "hidden_size": 42},
    **{"num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 29},
    "head_dim": 10,
}


def assert_same(ours: GPT, theirs: Any) -> None:
    with torch.no_grad():
        reference = theirs(TOKENS).logits.log_softmax(-1)
    logits = capture(ours, TOKENS, logits=True).logits
    assert logits is not None
    # measured: 5.2e-6
    torch.testing.assert_close(logits.log_softmax(-1), reference, atol=1e-4, rtol=0)


def make_gpt2(**changes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 23, "n_positions": 17, "n_embd": 15, "n_layer": 2, "n_head": 3}
    config = GPT2Config(
        **{**sizes, "initializer_range": 0.4, "bos_token_id": 0, "eos_token_id": 0, **changes}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "gelu"},
        {"activation_function": "gelu_pytorch_tanh"},
        {"layer_norm_epsilon": 0.3},
        {"n_inner": 31},
        {"tie_word_embeddings": False},
        {"n_layer": 1},  # DistilGPT-2 is a GPT-2 with fewer layers
    ],
)
def test_fields_of_gpt2_are_honoured(changes: dict[str, Any]) -> None:
    model = make_gpt2(**changes)
    assert_same(load(model, engine="gpt"), model)


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": 0.3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 37.0}},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 6, "head_dim": 4},
    ],
)
def test_fields_of_llama_are_honoured(changes: dict[str, Any], llama: Callable[..., Any]) -> None:
    model = llama("Llama", **changes)
    assert_same(load(model, engine="gpt"), model)


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (GPT2, "activation_function", "relu"),
        (GPT2, "scale_attn_weights", False),
        (GPT2, "scale_attn_by_inverse_layer_idx", True),
        (GPT2, "reorder_and_upcast_attn", True),
        (GPT2, "add_cross_attention", True),
        (GPT2, "quantization_config", {"bits": 4}),
        (GPT2, "rotary_dim", 4),
        (LLAMA, "hidden_act", "gelu"),
        (LLAMA, "attention_bias", True),
        (LLAMA, "mlp_bias", True),
        (LLAMA, "rope_scaling", {"type": "linear", "factor": 2.0}),
        (LLAMA, "rope_parameters", {"rope_type": "llama3", "rope_theta": 1e4}),
        (LLAMA, "rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        (LLAMA, "sliding_window", 4),
        (LLAMA, "layer_types", ["full_attention"]),
        (LLAMA, "embedding_multiplier", 12.0),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(
    config: dict[str, Any], field: str, value: Any
) -> None:
    gpt_config(config)
    with pytest.raises(InputError, match=f"{field} = .*use engine lens"):
        gpt_config({**config, field: value})


def test_every_field_that_transformers_writes_is_known() -> None:
    from transformers import GPT2Config, LlamaConfig

    for config in (GPT2Config(), LlamaConfig()):
        gpt_config(config.to_dict())
    for family in FAMILIES.values():
        assert not family.honoured & family.required.keys()


def test_missing_sizes_are_named() -> None:
    config = {key: value for key, value in GPT2.items() if key not in ("n_head", "n_embd")}
    with pytest.raises(CheckpointError, match="the configuration lacks n_embd, n_head"):
        gpt_config(config)


def test_a_tied_head_that_differs_from_the_embedding_is_refused() -> None:
    model = make_gpt2()
    weights = model.state_dict()
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    with pytest.raises(CheckpointError, match="set tie_word_embeddings to false"):
        read_into_gpt(model.config.to_dict(), weights)
    del weights["transformer.wte.weight"]
    weights["lm_head.weight"] = weights["lm_head.weight"] - 1
    assert_same(read_into_gpt(model.config.to_dict(), weights), model)


def test_a_llama_without_keys_is_refused(llama: Callable[..., Any]) -> None:
    model = llama("Llama")
    weights = model.state_dict()
    del weights["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(CheckpointError, match=r"lack layers\.1\.self_attn\.k_proj\.weight"):
        read_into_gpt(model.config.to_dict(), weights)
    weights = {**model.state_dict(), "model.layers.0.self_attn.q_proj.bias": torch.ones(60)}
    with pytest.raises(CheckpointError, match=r"more than the model: .*q_proj\.bias"):
        read_into_gpt(model.config.to_dict(), weights)


def test_a_further_head_is_left_over_and_named() -> None:
    model = make_gpt2()
    weights = {**model.state_dict(), "score.weight": nn.Linear(15, 2).weight}
    with pytest.raises(CheckpointError, match=r"more than the model: score\.weight"):
        read_into_gpt(model.config.to_dict(), weights)
