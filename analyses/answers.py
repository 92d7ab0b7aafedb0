"""The tokens that a metric asks for: texts become ids, one for each sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from models.errors import InputError
from models.interface import HookedModel, shape
from models.text_codec import codec_of


def token_ids(
    model: HookedModel, tokens: Any, n: int, *, what: str = "answer"
) -> Int[Tensor, " sequence"]:
    """One id for each of ``n`` sequences, on the model's device.

    Raises:
        InputError: a text that is not one token of the model, or another number of them.
    """
    sizes = shape(model)
    if isinstance(tokens, Tensor | np.ndarray | np.generic):
        tokens = tokens.tolist()
    given = [tokens] * n if isinstance(tokens, str | int) else tokens
    if not isinstance(given, list | tuple) or not all(isinstance(t, str | int) for t in given):
        raise InputError(f"{what} must be one token (text or id) or a list, but got {tokens!r}")
    if len(given) != n:
        raise InputError(f"{what} must be one token, or one for each of {n}, but got {len(given)}")
    ids = [token if isinstance(token, int) else single_token(model, token) for token in given]
    if bad := [i for i in ids if not 0 <= i < sizes.d_vocab]:
        raise InputError(f"{what} must be an id 0..{sizes.d_vocab - 1}, but got {bad[0]}")
    return torch.tensor(ids, device=sizes.device)


def single_token(model: HookedModel, text: str) -> int:
    """The id of a text that is one token.

    Raises:
        InputError: it is several; they are listed.
    """
    codec: Any = codec_of(model)
    ids = codec.encode(text, bos=False)
    if len(ids) != 1:
        pieces = [codec.decode([i]) for i in ids]
        raise InputError(
            f"{text!r} must be one token of this model, but is {len(ids)}: {pieces}; "
            "words inside a sentence begin with a space"
        )
    return int(ids[0])
