"""GGUF files written on the spot, against the Hugging Face model they came from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from models.errors import CheckpointError, InputError
from models.gguf_file import read_header
from models.interface import capture, shape
from models.load import load

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
GPT2_NAMES = {
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
LLAMA_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
Q8 = gguf.GGMLQuantizationType.Q8_0
Make = Callable[..., Any]


def interleaved(weight: Tensor, n_heads: int) -> Tensor:
    """The order of rows that llama.cpp keeps: pairs that turn together side by side."""
    return weight.reshape(n_heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def tensors(model: Any) -> dict[str, Tensor]:
    """The weights under llama.cpp's names and in its layout."""
    config, found = model.config, {}
    for name, weight in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        weight = weight.detach()
        if stem in TOP:
            found[f"{TOP[stem]}.{suffix}"] = weight
            continue
        layer, inner = stem.split(".", 3)[2:]
        if config.model_type == "gpt2":
            inner, weight = GPT2_NAMES[inner], weight.T if weight.ndim == 2 else weight
        else:
            if inner.endswith("q_proj"):
                weight = interleaved(weight, config.num_attention_heads)
            if inner.endswith("k_proj"):
                weight = interleaved(weight, config.num_key_value_heads)
            inner = LLAMA_NAMES[inner]
        found[f"blk.{layer}.{inner}.{suffix}"] = weight
    return found


def write(
    path: Path,
    model: Any,
    *,
    quantize: bool = False,
    more: Any = (),
    without: str = "",
    **fields: Any,
) -> Path:
    config, gpt2 = model.config, model.config.model_type == "gpt2"
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if gpt2:
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        if without != "attention.head_count_kv":
            writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_vocab_size(config.vocab_size)
    for key, value in fields.items():
        writer.add_key_value(f"{config.model_type}.{key}", *value)
    for name, weight in {**tensors(model), **dict(more)}.items():
        values = weight.float().contiguous().numpy()
        if quantize and weight.ndim == 2 and weight.shape[-1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(values, Q8), raw_dtype=Q8)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module", params=["gpt2", "llama", "tied llama"])
def original(request: pytest.FixtureRequest, gpt2: Any, llama: Make) -> Any:
    if request.param == "gpt2":
        return gpt2
    grouped = {"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 6}
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 37.0}}
    return llama("Llama", **grouped, **theta, tie_word_embeddings=request.param != "llama")


def log_probs(model: Any) -> Tensor:
    logits = capture(model, TOKENS, logits=True).logits
    assert logits is not None
    return logits.log_softmax(-1)


def test_a_float_file_is_the_folder_s_model(original: Any, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    original.save_pretrained(folder)
    file = write(tmp_path / "model.gguf", original)
    ours, theirs = load(file, engine="gpt"), load(folder, engine="gpt")
    assert ours.quantization == "F32"
    assert ours.vocabulary is None
    assert shape(ours) == shape(theirs)
    for (name, left), (_, right) in zip(
        ours.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert torch.equal(left, right), name
    # measured: 4.8e-6
    reference = original(TOKENS).logits.log_softmax(-1).detach()
    torch.testing.assert_close(log_probs(ours), reference, atol=1e-4, rtol=0)


def test_a_file_is_read_by_both_engines_each_in_its_own_way(llama: Make, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape_ = {"vocab_size": 23, "n_positions": 17, "n_embd": 15, "n_layer": 2, "n_head": 3}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        gpt2 = GPT2LMHeadModel(GPT2Config(**shape_, **ids, n_inner=60)).eval()
    for model in (gpt2, llama("Llama", num_attention_heads=14, num_key_value_heads=2)):
        file = write(tmp_path / "model.gguf", model)
        reference = model(TOKENS).logits.log_softmax(-1).detach()
        for engine in ("gpt", "lens"):  # measured: 2.6e-6
            found = log_probs(load(file, engine=engine))
            torch.testing.assert_close(found, reference, atol=1e-4, rtol=0)


def test_a_quantised_file_is_dequantised(llama: Make, tmp_path: Path) -> None:
    model = llama(
        "Llama",
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        head_dim=16,
        num_key_value_heads=2,
    )
    file = write(tmp_path / "model.gguf", model, quantize=True)
    with torch.no_grad():  # the reference rounds its weights in the same way
        for weight in model.parameters():
            if weight.ndim == 2 and weight.shape[-1] % 32 == 0:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), Q8), Q8)
                assert not np.array_equal(rounded, weight.numpy())
                weight.copy_(torch.from_numpy(rounded))
        reference = model(TOKENS).logits.log_softmax(-1)
    ours = load(file, engine="gpt")
    assert ours.quantization == "F32, Q8_0"
    # measured: 5.7e-6
    torch.testing.assert_close(log_probs(ours), reference, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention.sliding_window", (4, gguf.GGUFValueType.UINT32)),
        ("rope.scaling.type", ("yarn", gguf.GGUFValueType.STRING)),
        ("rope.scaling.attn_factor", (1.5, gguf.GGUFValueType.FLOAT32)),
        ("expert_count", (8, gguf.GGUFValueType.UINT32)),
        ("logit_scale", (2.0, gguf.GGUFValueType.FLOAT32)),
    ],
)
def test_fields_that_are_not_honoured_are_refused_by_name(
    name: str, value: Any, llama: Make, tmp_path: Path
) -> None:
    file = write(tmp_path / "model.gguf", llama("Llama"), **{name: value})
    for engine in ("gpt", "lens"):
        told = rf"engine {engine} does not honour the field llama\.{name} = .*: no engine does"
        with pytest.raises(InputError, match=told):
            load(file, engine=engine)


def with_rope(llama: Make, **parameters: Any) -> Any:
    return llama("Llama", rope_parameters={"rope_theta": 37.0, **parameters})


@pytest.mark.parametrize("named", [True, False])
def test_the_factor_of_linear_rope_scaling_is_not_dropped(
    named: bool, llama: Make, tmp_path: Path
) -> None:
    model = with_rope(llama, rope_type="linear", factor=8.0)
    fields = {"rope.scaling.factor": (8.0, gguf.GGUFValueType.FLOAT32)}
    if named:  # without a type, llama.cpp scales linearly
        fields["rope.scaling.type"] = ("linear", gguf.GGUFValueType.STRING)
    file = write(tmp_path / "model.gguf", model, **fields)
    reference = model(TOKENS).logits.log_softmax(-1).detach()
    plain = with_rope(llama, rope_type="default")(TOKENS).logits.log_softmax(-1).detach()
    assert float((plain - reference).abs().max()) > 0.1
    # measured: 9.5e-7
    torch.testing.assert_close(log_probs(load(file)), reference, atol=1e-4, rtol=0)
    with pytest.raises(InputError, match=r"field llama\.rope\.scaling\..*: use engine lens"):
        load(file, engine="gpt")


def test_the_divisors_of_llama_3_frequencies_are_not_dropped(llama: Make, tmp_path: Path) -> None:
    scaled = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = with_rope(llama, rope_type="llama3", **scaled, original_max_position_embeddings=16)
    plain = with_rope(llama, rope_type="default")
    divisors = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq
    assert float(divisors.max()) > 2
    file = write(tmp_path / "model.gguf", model, more={"rope_freqs.weight": divisors})
    reference = model(TOKENS).logits.log_softmax(-1).detach()
    # measured: 9.5e-7
    torch.testing.assert_close(log_probs(load(file)), reference, atol=1e-4, rtol=0)
    with pytest.raises(InputError, match=r"by rope_freqs\.weight: use engine lens"):
        load(file, engine="gpt")
    linear = {
        "rope.scaling.factor": (8.0, gguf.GGUFValueType.FLOAT32),
        "rope.scaling.type": ("linear", gguf.GGUFValueType.STRING),
    }
    file = write(tmp_path / "both.gguf", model, more={"rope_freqs.weight": divisors}, **linear)
    with pytest.raises(InputError, match=r"type together with rope_freqs\.weight"):
        load(file)


def test_tensors_that_transformers_passes_over_are_refused(llama: Make, tmp_path: Path) -> None:
    for name in ("blk.0.attn_q.bias", "rope_factors_long.weight"):
        file = write(tmp_path / "model.gguf", llama("Llama"), more={name: torch.ones(60)})
        with pytest.raises(InputError, match=rf"no engine reads the tensor {name}"):
            load(file)
    file = write(tmp_path / "model.gguf", llama("Llama"), without="attention.head_count_kv")
    with pytest.raises(InputError, match=r"lacks it: use engine gpt"):
        load(file)


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("attention.head_count", 4, False),
        ("rope.dimension_count", 8, False),
        ("rope.dimension_count", 4, True),
        ("rope.scaling.factor", 4, True),
    ],
)
def test_fields_of_other_families_that_transformers_passes_over_are_refused(
    name: str, value: int, refused: bool, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen2")
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    if name != "attention.head_count":
        writer.add_uint32(f"qwen2.{name}", value)
    writer.add_tensor("token_embd.weight", np.ones((23, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if refused:
        with pytest.raises(InputError, match=rf"no engine honours the field qwen2\.{name} = "):
            read_header(tmp_path / "model.gguf")
    else:
        assert read_header(tmp_path / "model.gguf") == (None, "F32")


def test_neutral_fields_are_read(llama: Make, tmp_path: Path) -> None:
    plain = {"rope.scaling.type": ("none", gguf.GGUFValueType.STRING)}
    load(write(tmp_path / "model.gguf", llama("Llama"), **plain), engine="gpt")


def test_damaged_files_are_refused(gpt2: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", gpt2)
    data = file.read_bytes()
    for spoilt in (data[: len(data) // 2], data[:40], b"", b"PK\x03\x04" + data):
        file.write_bytes(spoilt)
        for engine in ("gpt", "lens"):
            with pytest.raises(CheckpointError, match="is not a whole GGUF file"):
                load(file, engine=engine)


def test_missing_weights_are_named(gpt2: Any, tmp_path: Path, monkeypatch: Any) -> None:
    kept = {name: weight for name, weight in tensors(gpt2).items() if "blk.1.ffn" not in name}
    monkeypatch.setattr(f"{__name__}.tensors", lambda model: kept)
    with pytest.raises(CheckpointError, match=r"lack blocks\.1\.ln2\.bias, .*mlp\.inner"):
        load(write(tmp_path / "model.gguf", gpt2), engine="gpt")
