"""Our GPT in every kind of configuration."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from models.config import GPTConfig
from models.gpt import GPT
from models.load import load

KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {"mlp": "gelu_new", "tied": True},
    "plain": {},
    "sinusoidal": {"positions": "sinusoidal"},
    "no_positions": {"positions": "none"},
    "attention_only": {"mlp": "none"},
    "no_bias": {"bias": False},
    "llama": {
        "positions": "rotary",
        "normalization": "rms",
        "mlp": "swiglu",
        "bias": False,
        "n_key_value_heads": 3,
        "d_head": 10,
    },
    "window": {"window": 3},
    "grouped_window": {"window": 3, "n_key_value_heads": 2, "positions": "rotary", "d_head": 10},
}


def _build(kind: str = "plain", **changes: Any) -> GPT:
    """A model of a kind, with weights that are large enough for everything to matter."""
    sizes = {"d_vocab": 11, "n_ctx": 13, "n_layers": 3, "n_heads": 6, "d_model": 42, "d_mlp": 19}
    return GPT(GPTConfig(**{**sizes, **KINDS[kind], **changes}), seed=1, init_std=0.3).eval()


@pytest.fixture(scope="session")
def build() -> Callable[..., GPT]:
    """The function that builds a model of a kind."""
    return _build


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> GPT:
    """Every kind in turn."""
    return _build(request.param)


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


class Family(NamedTuple):
    """One transformers model in every engine."""

    copied: GPT
    read: GPT
    bridged: Any


@pytest.fixture(scope="module", params=["gpt2", "llama", "mini"])
def family(
    request: pytest.FixtureRequest,
    gpt2: Any,
    filled_gpt2: Any,
    llama: Callable[..., Any],
    gpt2_to_ours: Callable[[Any], GPT],
    llama_to_ours: Callable[[Any], GPT],
    tmp_path_factory: pytest.TempPathFactory,
) -> Family:
    """GPT-2 and Llama shapes with random weights, and the model of known numbers, in turn."""
    grouped = {"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 6}
    if request.param == "llama":
        original = llama("Llama", **grouped)
        copied = llama_to_ours(original)
    else:
        original = gpt2 if request.param == "gpt2" else filled_gpt2
        copied = gpt2_to_ours(original)
    folder = tmp_path_factory.mktemp("published")
    original.save_pretrained(folder)
    return Family(copied, load(folder, engine="gpt"), load(folder))
