"""Do the detectors find what is there, and nothing else? Patterns planted in untrained heads.

A head's pattern is mixed with an ideal one, ``(1 - s) A + s I`` on the queries where the ideal is
defined, by a hook on its pattern; each detector must find its own heads as the strength s grows,
and label none of the decoys: two keys back, one fixed key, duplicates where induction is asked.
What an untrained model shows by itself must not be labelled at all.

Copying is not planted: for induction the label of the pattern and its contrast is calibrated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses.detection import PATTERNS, detect_heads
from models.config import GPTConfig
from models.errors import InputError
from models.gpt import GPT
from models.interface import HookedModel, hooked, shape
from models.names import POSITIONS, hook_name

STRENGTHS = (0.0, 0.2, 0.3, 0.35, 0.38, 0.4, 0.42, 0.45, 0.5, 0.6, 0.8, 1.0)
N_MODELS = 3
FIXED_KEY = 3
DECOYS = ("two_back", "fixed_key")
PLANTED = (*PATTERNS, *DECOYS)


def calibrate(
    models: Sequence[HookedModel] | None = None,
    *,
    strengths: Sequence[float] = STRENGTHS,
    n: int = 64,
    seed: int = 0,
    tell: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """The operating curve of every detector on planted heads.

    In each model the heads are dealt out in turn: the five patterns, then the decoys.

    Args:
        models: hooked models; default three untrained ones.
        strengths: of the planted pattern, 0 (nothing) to 1 (the ideal).
        n: sequences per model.
        seed: of the sequences and intervals.
        tell: is called with how many runs are done, and of how many.

    Returns:
        One row per detector and strength: ``detector``, ``strength``; ``planted`` heads,
        ``found`` (labelled) and ``power`` (their share); ``others``, the heads with another
        pattern or a decoy, and ``false_labels`` among them.
    """
    if any(not 0 <= s <= 1 for s in strengths):
        raise InputError(f"strengths are 0..1, but got {list(strengths)}")
    models = [untrained(s) for s in range(N_MODELS)] if models is None else models
    found = []
    for i, model in enumerate(models):
        kinds = deal(model)
        for j, strength in enumerate(strengths):
            table = with_planted(model, kinds, strength, n=n, seed=seed)
            found.append(table.assign(strength=strength))
            if tell is not None:
                tell(i * len(strengths) + j + 1, len(models) * len(strengths))
    rows = pd.concat(found)
    own = rows["planted"] == rows["score"]
    keys = ["detector", "strength"]
    rows = rows.rename(columns={"score": "detector"})
    hits = rows[own].groupby(keys, sort=False)["label"].agg(["size", "sum"])
    false = rows[~own].groupby(keys, sort=False)["label"].agg(["size", "sum"])
    table = pd.DataFrame(
        {
            "planted": hits["size"],
            "found": hits["sum"],
            "power": hits["sum"] / hits["size"],
            "others": false["size"],
            "false_labels": false["sum"],
        }
    ).reset_index()
    table.attrs["units"] = {"power": "share, 0..1", "strength": "0..1"}
    return table


def with_planted(
    model: HookedModel, kinds: Sequence[str], strength: float, *, n: int = 64, seed: int = 0
) -> pd.DataFrame:
    """`detect_heads` on a model with a planted pattern in every head.

    Args:
        model: a hooked model.
        kinds: what each head gets, from `PLANTED`, in the order of ``shape(model).heads``.
        strength, n, seed: see `calibrate`.

    Returns:
        The detection table with ``planted`` (the head's kind) and ``label`` (the label, for
        induction without the copying that it also needs).
    """
    same: list[Tensor] = []
    heads = shape(model).n_heads

    def embed(x: Tensor, *, hook: Any) -> None:
        # one embedding, one token: a few of its numbers tell tokens apart
        few = x[..., :4]
        same[:] = [(few[:, :, None] == few[:, None]).all(-1).tril(-1)]

    def plant(layer: int, pattern: Tensor, *, hook: Any) -> Tensor:
        pattern = pattern.clone()
        for head in range(heads):
            ideal = ideal_pattern(kinds[layer * heads + head], same[0])
            rows = ideal.sum(-1, keepdim=True) > 0
            mixed = (1 - strength) * pattern[:, head] + strength * ideal.to(pattern.dtype)
            pattern[:, head] = torch.where(rows, mixed, pattern[:, head])
        return pattern

    layers = range(shape(model).n_layers)
    hooks: list[Any] = [(hook_name("attn.hook_pattern", i), partial(plant, i)) for i in layers]
    with hooked(model, [("hook_embed", embed), *hooks]):
        table = detect_heads(model, n=n, seed=seed)
    limit = table.attrs["criteria"]["family_p"]
    table["planted"] = [
        kinds[i * heads + j] for i, j in zip(table["layer"], table["head"], strict=True)
    ]
    falls = table["pattern_label"] & (table["p_family"] < limit)
    table["label"] = table["labelled"] | ((table["score"] == "induction") & falls)
    return table


def ideal_pattern(kind: str, copies: Tensor) -> Tensor:
    """The ideal pattern of a kind, ``[batch, query, key]``; rows of 0 where it is not defined.

    Args:
        kind: from `PLANTED`.
        copies: which keys are strictly earlier copies of the query's token, bool.
    """
    n = copies.shape[-1]
    if kind in ("duplicate_token", "induction"):
        target = copies.float()
        target = target if kind == "duplicate_token" else target.roll(1, -1)
        return target / target.sum(-1, keepdim=True).clamp_min(1)
    query, key = torch.arange(n)[:, None], torch.arange(n)[None]
    target = {
        "previous_token": key == query - 1,
        "current_token": (key == query) & (query > 0),
        "first_token": (key == 0) & (query > 0),
        "two_back": key == query - 2,
        "fixed_key": (key == FIXED_KEY) & (query >= FIXED_KEY),
    }[kind]
    return target.float().to(copies.device).expand(copies.shape)


def labels_on_untrained(
    n_models: int = 100, *, n: int = 64, tell: Callable[[int, int], None] | None = None
) -> pd.DataFrame:
    """What is labelled in untrained models, which should be nothing.

    Returns:
        One row per model: ``seed``, ``positions``, ``heads``, ``labelled`` (heads with any
        label), ``highest`` (the largest score of a pattern, 0..1).
    """
    rows = []
    for seed in range(n_models):
        model = untrained(seed)
        table = detect_heads(model, n=n, seed=seed)
        labelled = int(table.groupby(["layer", "head"])["labelled"].any().sum())
        sizes = len(shape(model).heads)
        rows.append((seed, model.config.positions, sizes, labelled, table["value"].max()))
        if tell is not None:
            tell(seed + 1, n_models)
    return pd.DataFrame(rows, columns=["seed", "positions", "heads", "labelled", "highest"])


def deal(model: HookedModel) -> list[str]:
    """A kind for every head, in turn."""
    return [PLANTED[i % len(PLANTED)] for i in range(len(shape(model).heads))]


def untrained(seed: int) -> GPT:
    """A small model with random weights; the kind of positions changes with the seed."""
    config = GPTConfig(
        97, 64, n_layers=2, n_heads=7, d_model=42, positions=POSITIONS[seed % len(POSITIONS)]
    )
    return GPT(config, seed=seed).eval()
