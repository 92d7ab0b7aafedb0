"""From logits to the distribution that is drawn from, token by token, at one position.

The steps are those of `models.sampling.filter_distribution`: divide by the temperature, softmax,
top-k, top-p, each time renormalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from analyses.inputs import encode_texts
from analyses.language_temperature import next_logits
from models.errors import InputError
from models.interface import HookedModel, TokensLike, pad
from models.sampling import CUT_BY, check_filters, filter_distribution
from models.text_codec import codec_of

TOP = 20
SUMMED = ("before", "after_top_k", "after_top_p")


def logit_view(
    model: HookedModel,
    tokens: TokensLike | str | Sequence[str],
    *,
    position: int = -1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    top: int = TOP,
) -> pd.DataFrame:
    r"""What temperature and filters make of every token that may come next, at one position.

    Args:
        model: a hooked model.
        tokens: one prompt, as a text or as ids ``[1, pos]``.
        position: whose prediction, 0..pos - 1; negative ones count from the end.
        temperature: 0 is greedy: the first token is kept and all others are cut by it.
        top_k, top_p: as in `models.sampling.filter_distribution`; ``None`` for none.
        top: how many rows.

    Returns:
        One row per token, largest logit first, of equal ones the smaller id: ``rank`` (from 1),
        ``id``, ``token`` (its text; part of a character as ``\xf0``; the id without a
        tokenizer); ``logit``, ``scaled`` (logit / t; NaN at 0); ``before``, ``after_top_k``,
        ``after_top_p`` (probabilities, 0..1, each renormalised); ``kept``; ``cut_by`` (``top_k``,
        ``top_p``, ``temperature`` where that is 0, else empty). In ``attrs``: ``rest``, of the
        tokens that are not shown ``n``, ``n_kept`` and their three probabilities; ``ids`` and
        ``position``, what was fed and where.

    Raises:
        InputError: not one prompt, no such position, a bad temperature or filter, ``top`` under 1.
        LengthError: a prompt longer than the context.

    Identity: rows and rest together have probability 1 in each of the three columns.
    """
    check_filters(temperature=temperature, top_k=top_k, top_p=top_p)
    if top < 1:
        raise InputError(f"top must be at least 1, but got {top}")
    ids, at = _prompt(model, tokens, position)
    logits = next_logits(model, ids[: at + 1])
    found = filter_distribution(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    cut_by = np.array(CUT_BY)[found.cut_by.numpy()].astype(object)
    if temperature == 0:
        cut_by = np.where(found.before.numpy() > 0, "", "temperature").astype(object)
    order = logits.argsort(descending=True, stable=True)
    shown, rest = order[:top], order[top:]
    columns = {"logit": found.logits.double(), "scaled": found.scaled}
    columns |= {name: getattr(found, name) for name in SUMMED}
    kept = cut_by == ""
    table = pd.DataFrame(
        {
            "rank": np.arange(1, len(shown) + 1),
            "id": shown.numpy(),
            "token": _texts(model, ids, shown.tolist()),
            **{name: value[shown].numpy() for name, value in columns.items()},
            "kept": kept[shown.numpy()],
            "cut_by": cut_by[shown.numpy()],
        }
    )
    summed = {name: float(columns[name][rest].sum()) for name in SUMMED}
    n_kept = int(kept[rest.numpy()].sum())
    table.attrs["units"] = {"logit": "logits", **dict.fromkeys(SUMMED, "probability")}
    table.attrs |= {"rest": {"n": len(rest), "n_kept": n_kept, **summed}}
    table.attrs |= {"ids": " ".join(map(str, ids)), "position": at}
    return table


def _prompt(model: HookedModel, tokens: Any, position: int) -> tuple[list[int], int]:
    """The ids of the one prompt, and the position counted from its beginning."""
    rows = encode_texts(model, tokens)
    padded = pad(model, rows if isinstance(rows, Tensor) else list(rows))
    if len(padded.tokens) != 1:
        raise InputError(f"the logits of one prompt are looked at, but got {len(padded.tokens)}")
    ids = padded.tokens[0].tolist()
    if not -len(ids) <= position < len(ids):
        raise InputError(
            f"a position must be 0..{len(ids) - 1} here, or -{len(ids)}..-1 from the end, "
            f"but got {position}"
        )
    return ids, position % len(ids)


def _texts(model: HookedModel, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    """Each token's own text, bytes that are no character escaped."""
    try:
        codec: Any = codec_of(model)
    except InputError:  # no tokenizer, and none is needed
        return [str(i) for i in ids]
    # after others: a tokenizer may take a space from the first
    labels = codec.labels([*prompt, *ids, *ids])[-len(ids) :]
    return [x if isinstance(x, str) else "".join(f"\\x{byte:02x}" for byte in x) for x in labels]
