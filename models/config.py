"""The shape of a GPT: one frozen dataclass, free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import InputError
from models.names import MLP, MLPS, NORMALIZATIONS, POSITIONS, Normalization, Positions, choose

_SIZES = (
    "d_vocab",
    "n_ctx",
    "n_layers",
    "n_heads",
    "d_model",
    "n_key_value_heads",
    "d_head",
    "d_mlp",
    "window",
)


@dataclass(frozen=True)
class GPTConfig:
    """Shape of a `GPT`. Sizes left ``None`` follow from the others.

    ``window`` counts the query's own key: with ``window=2`` a query sees itself and one
    position back. ``mlp="gelu_new"`` is GPT-2's tanh approximation of ``"gelu"``.
    """

    d_vocab: int
    n_ctx: int
    n_layers: int = 2
    n_heads: int = 4
    d_model: int = 64
    n_key_value_heads: int | None = None
    d_head: int | None = None
    d_mlp: int | None = None
    positions: Positions = "learned"
    normalization: Normalization = "layer"
    mlp: MLP = "gelu"
    tied: bool = False
    bias: bool = True
    dropout: float = 0.0
    window: int | None = None
    norm_eps: float = 1e-5
    rotary_base: float = 10_000.0

    def __post_init__(self) -> None:
        choose("positions", self.positions, POSITIONS)
        choose("normalization", self.normalization, NORMALIZATIONS)
        choose("mlp", self.mlp, MLPS)
        for name in _SIZES:
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} must be at least 1, but got {value}")
        if self.d_head is None and self.d_model % self.n_heads:
            raise InputError(
                f"d_model must be a multiple of n_heads, but got {self.d_model} and {self.n_heads}"
            )
        if self.n_heads % self.kv_heads:
            raise InputError(
                f"n_key_value_heads must divide n_heads = {self.n_heads}, but got {self.kv_heads}"
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise InputError(f"rotary positions need an even d_head, but got {self.head_width}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be in [0, 1), but got {self.dropout}")

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Number of key-value heads."""
        return self.n_key_value_heads or self.n_heads

    @property
    def mlp_width(self) -> int:
        """Number of MLP neurons; 0 without an MLP."""
        return 0 if self.mlp == "none" else self.d_mlp or 4 * self.d_model
