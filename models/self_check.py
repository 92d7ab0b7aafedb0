"""Does a bridge compute what the published model computes?

TransformerLens builds attention, norms and unembedding of a model again, and passes over
configuration fields that it does not know (GPT-2's ``scale_attn_weights``). So the original runs
on a few fixed ids before it is bridged, the bridge runs on the same ids after, and a difference of
log-probabilities beyond rounding is refused. Cost: two forward passes of 16 tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.errors import InputError

# the largest difference of log-probabilities that is rounding
ROUNDING = 1e-3  # in float32; measured in 30 kinds of models: 4e-6
COARSE = 0.2  # in half precision and with coarse matrix products; measured: 4e-3
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError)
_TELLING = ("scale", "scaling", "multiplier", "softcap", "clip", "parallel", "residual", "upcast")


def fixed_ids(d_vocab: int, n_ctx: int) -> Int[Tensor, "2 pos"]:
    """Two rows of up to 8 ids, spread over the vocabulary."""
    steps = torch.arange(16).reshape(2, 8)[:, : min(8, n_ctx)]
    return (steps * steps * 7919 + 104729 * steps + 3) % d_vocab


def log_probabilities(model: Any) -> Float[Tensor, "2 pos d_vocab"]:
    """Of a `transformers` model, in evaluation mode, on the fixed ids.

    Raises:
        InputError: it has no language-modelling head.
    """
    config = model.config.get_text_config()
    n_ctx = getattr(config, "max_position_embeddings", None) or 8
    ids = fixed_ids(config.vocab_size, n_ctx).to(model.device)
    try:
        with torch.no_grad():
            logits = getattr(model(ids), "logits", None)
    except _FAILURES as error:
        raise InputError(
            f"transformers cannot run this {type(model).__name__} on ids: {_line(error)}"
        ) from None
    if logits is None or logits.shape[:-1] != ids.shape:
        raise InputError(
            f"a model with a language-modelling head is needed, but {type(model).__name__} gives "
            "no logits of next tokens"
        )
    found: Tensor = logits.float().log_softmax(-1)
    return found


def refuse_difference(published: Float[Tensor, "2 pos d_vocab"], bridge: Any, model: Any) -> None:
    """Refuse a bridge that computes something else than the model it was made from.

    Raises:
        InputError: the log-probabilities differ by more than rounding.
    """
    ids = fixed_ids(model.config.get_text_config().vocab_size, published.shape[1])
    try:
        with torch.no_grad():
            logits = bridge(ids.to(published.device), return_type="logits")
        off = float((logits.float().log_softmax(-1) - published).abs().max())
    except _FAILURES as error:
        raise InputError(
            f"engine lens cannot measure this {type(model).__name__}: TransformerLens cannot run "
            f"it: {_line(error)}"
        ) from None
    if not off <= _tolerance(model.dtype):
        raise InputError(
            f"engine lens cannot measure this {type(model).__name__}: TransformerLens computes "
            f"something else than transformers, log-probabilities differ by up to {off:.2g}"
            f"{_suspects(model.config)}"
        )


def _tolerance(dtype: torch.dtype) -> float:
    fine = torch.finfo(dtype).bits >= 32 and torch.get_float32_matmul_precision() == "highest"
    return ROUNDING if fine else COARSE


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _suspects(config: Any) -> str:
    """The fields that may be to blame: of a telling name, with another value than usual."""
    whole = getattr(config, "has_no_defaults_at_init", False)
    usual = {} if whole else type(config)().to_dict()
    told = [
        f"{name} = {value!r}"
        for name, value in config.to_dict().items()
        if any(part in name for part in _TELLING) and value != usual.get(name)
    ]
    return f" (its configuration has {', '.join(told)})" if told else ""
