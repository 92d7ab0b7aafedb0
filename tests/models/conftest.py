"""Our GPT in every kind of configuration."""

from collections.abc import Callable
from typing import Any

import pytest

from models.config import GPTConfig
from models.gpt import GPT

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
