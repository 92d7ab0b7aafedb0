import dataclasses

import pytest

from models.config import GPTConfig
from models.errors import InputError


def test_sizes_follow_from_the_others() -> None:
    config = GPTConfig(d_vocab=11, n_ctx=7, n_heads=3, d_model=15)
    assert (config.head_width, config.kv_heads, config.mlp_width) == (5, 3, 60)
    free = GPTConfig(d_vocab=11, n_ctx=7, n_heads=3, d_model=13, d_head=2, d_mlp=17)
    assert (free.head_width, free.mlp_width) == (2, 17)
    assert GPTConfig(d_vocab=11, n_ctx=7, mlp="none").mlp_width == 0


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPTConfig(d_vocab=11, n_ctx=7).n_ctx = 9  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_heads": 3}, "d_model must be a multiple of n_heads, but got 64 and 3"),
        ({"n_key_value_heads": 3}, "n_key_value_heads must divide n_heads = 4, but got 3"),
        ({"n_key_value_heads": 0}, "n_key_value_heads must be at least 1, but got 0"),
        ({"n_layers": 0}, "n_layers must be at least 1, but got 0"),
        ({"d_mlp": -1}, "d_mlp must be at least 1, but got -1"),
        ({"d_head": 5, "positions": "rotary"}, "rotary positions need an even d_head, but got 5"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), but got 1.0"),
        ({"dropout": float("nan")}, r"dropout must be in \[0, 1\), but got nan"),
        ({"window": 0}, "window must be at least 1, but got 0"),
        ({"positions": "alibi"}, "positions must be one of learned, sinusoidal, rotary, none"),
        ({"mlp": "relu"}, "mlp must be one of gelu, gelu_new, swiglu, none"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_shape_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GPTConfig(**{"d_vocab": 11, "n_ctx": 7, **changes})
