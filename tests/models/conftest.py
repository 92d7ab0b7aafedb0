"""Our GPT in every kind of configuration."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

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
