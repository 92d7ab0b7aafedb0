"""Do two implementations of one model agree? Every hook point and the log-probabilities.

The same published weights are read by TransformerLens and into our own GPT, and both run on the
same tokens. Where they agree to rounding, an error would have to be in both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from models.errors import InputError
from models.gpt import GPT
from models.interface import HookedModel, TokensLike, capture, shape
from models.load import load, trained_here
from models.text_codec import codec_of

TOLERANCE = 1e-3  # of log-probabilities, in nats
LOG_PROBS = "log_probs"
_LAYER = r"^blocks\.(\d+)\."


def verify(
    model: Any, tokens: TokensLike | None = None, *, text: str | None = None, seed: int = 0
) -> pd.DataFrame:
    """Largest differences between the two engines on a published model.

    Args:
        model: what `models.load.load` takes with either engine: a folder, a GGUF file, a hub
            name, or a `transformers` model.
        tokens: ids to run on; default ``text``, or two rows of random ids.
        text: a prompt to run on.
        seed: of the random ids.

    Returns:
        As `compare`.

    Raises:
        InputError: a model of our own, for which there is one engine only.
    """
    if isinstance(model, GPT) or (isinstance(model, str | Path) and trained_here(model)):
        raise InputError(
            "this model was trained here: there is one engine for it, nothing to verify"
        )
    ours = load(model, engine="gpt")
    if tokens is None and text is not None:
        tokens = [codec_of(ours).encode(text)]
    return compare(ours, load(model, engine="lens"), tokens, seed=seed)


def compare(
    model: HookedModel, other: HookedModel, tokens: TokensLike | None = None, *, seed: int = 0
) -> pd.DataFrame:
    """Largest differences between two models that should be one, point by point.

    Args:
        model, other: hooked models of one shape; the points are those of ``model``.
        tokens: ids to run on; default two rows of random ids, at most 32 long.
        seed: of the random ids.

    Returns:
        One row per hook point, and a last one ``log_probs`` (nats): ``point``, ``difference``
        (largest absolute difference; of scores and patterns on visible keys), ``largest``
        (largest absolute value, which rounding is relative to).

    Identity: two copies of one model differ by 0.
    """
    if tokens is None:
        sizes = shape(model)
        draw = torch.Generator().manual_seed(seed)
        tokens = torch.randint(sizes.d_vocab, (2, min(32, sizes.n_ctx)), generator=draw)
    names = list(model.hook_dict)
    ours, theirs = (capture(each, tokens, names, logits=True) for each in (model, other))
    rows = [_row(name, ours.activations[name], theirs.activations[name]) for name in names]
    log_probs = [
        found.logits.log_softmax(-1) for found in (ours, theirs) if found.logits is not None
    ]
    return pd.DataFrame([*rows, _row(LOG_PROBS, *log_probs)])


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """The largest difference of every kind of hook point, over the layers.

    Args:
        table: from `compare` or `verify`.

    Returns:
        One row per kind, in the order of the table: ``point`` (``*`` for the layer),
        ``difference`` (the largest), ``layer`` (where it is; missing outside the blocks),
        ``largest`` (the largest absolute value there), ``points`` (how many there are). A
        difference that is NaN counts as the largest of all.

    Identity: the largest ``difference`` is that of the whole table; ``points`` sum to its rows.
    """
    parts = table["point"].str.extract(_LAYER)
    kinds = table["point"].str.replace(_LAYER, "blocks.*.", regex=True)
    ranked = table.assign(layer=pd.to_numeric(parts[0]).astype("Int64"), kind=kinds)
    ranked["points"] = ranked.groupby("kind")["point"].transform("size")
    ranked = ranked.sort_values("difference", ascending=False, kind="stable", na_position="first")
    worst = ranked.groupby("kind").head(1).set_index("kind").loc[kinds.unique()]
    worst = worst.drop(columns="point").rename_axis("point").reset_index()
    return worst[["point", "difference", "layer", "largest", "points"]]


def check(table: pd.DataFrame) -> str | None:
    """What is wrong with a table of `compare` in one sentence; ``None`` where nothing is."""
    worst = float(table.loc[table["point"] == LOG_PROBS, "difference"].iloc[0])
    if worst <= TOLERANCE:
        return None
    return f"the engines disagree: log-probabilities differ by {worst:.2g}, more than {TOLERANCE:g}"


def _row(point: str, left: Tensor, right: Tensor) -> dict[str, Any]:
    left, right = left.double().cpu(), right.double().cpu()
    if point.endswith(("hook_attn_scores", "hook_pattern")):
        seen = left.isfinite() & torch.ones_like(left, dtype=torch.bool).tril()
        left, right = left[seen], right[seen]
    return {
        "point": point,
        "difference": float((left - right).abs().max()),
        "largest": float(left.abs().max()),
    }
