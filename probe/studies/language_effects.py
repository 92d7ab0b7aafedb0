"""What heads of a language model do and write, on the prompts that ask for a capital.

The metric is the logit of the country's own capital above that of the next country of the set.
Heads are removed by the mean over the other prompts that ship, which are not evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.ablation import ablate_every_head
from analyses.attribution import direct_effects
from analyses.metrics import LogitDifference
from analyses.prompts import CAPITALS, PROMPTS
from analyses.random_tokens import repeated_tokens
from analyses.substitution import substitute_pattern
from analyses.tables import KEYS
from models.names import head_name
from models.text_codec import codec_of
from reports.figures import save_figure
from reports.grid import head_grid
from reports.heads import head_map
from reports.page import Figure, Section, Table
from reports.style import new_figure

PATTERNS = ("previous_token", "induction")
MOST = 3  # labelled heads of each pattern whose pattern is replaced
SEQUENCES, BLOCK = 12, 25


def capital_effects(model: Any, *, bos: bool | None = None, seed: int = 0) -> pd.DataFrame:
    """The exact and the direct effect of every head on naming the capital.

    Returns:
        One row per head: ``layer``, ``head``, ``clean`` (logits), ``change`` (without the head,
        mean over the countries), ``smallest``, ``largest`` (too few countries for an interval),
        ``direct`` (logits), ``baseline``, ``n``.
    """
    codec: Any = codec_of(model)
    answers = [codec.encode(capital.capital, bos=False)[0] for capital in CAPITALS]
    metric = LogitDifference(answers, [*answers[1:], answers[0]])
    prompts = [codec.encode(capital.text, bos=bos) for capital in CAPITALS]
    others = [codec.encode(p.text, bos=bos) for p in PROMPTS]
    reference = [ids for ids in others if ids not in prompts]
    effects = ablate_every_head(
        model,
        prompts,
        metric=metric,
        ablation="mean",
        reference=reference,
        seed=seed,
        per_prompt=True,
    )
    table = effects.groupby(KEYS, sort=False).agg(
        clean=("clean", "mean"),
        change=("change", "mean"),
        smallest=("change", "min"),
        largest=("change", "max"),
        baseline=("baseline", "first"),
        n=("change", "count"),
    )
    direct = direct_effects(model, prompts, metric=metric, seed=seed).dropna(subset=["head"])
    direct = direct.astype({"layer": int, "head": int}).set_index(KEYS)
    table.insert(4, "direct", direct["value"])
    return table.reset_index()


def explained_heads(
    model: Any, detection: pd.DataFrame, *, bos: bool | None = None, seed: int = 0
) -> pd.DataFrame:
    """How much of what the clearest labelled heads do is explained by the pattern they show.

    Args:
        model: a hooked model.
        detection: of `analyses.detection.detect_heads`, one way of feeding.
        bos, seed: of the random tokens.

    Returns:
        One row per head: ``head`` (``layer.head``), ``pattern``, ``score``, ``damage`` (change of
        the loss by uniform attention, nats), ``substituted`` (by the ideal pattern), ``explained``,
        ``n``. Empty where no head is labelled.
    """
    batch = repeated_tokens(model, n=SEQUENCES, block=BLOCK, bos=bos, seed=seed + 1)
    rows = []
    for pattern in PATTERNS:
        found = detection[(detection["score"] == pattern) & detection["labelled"].astype(bool)]
        for _, head in found.sort_values("value", ascending=False).head(MOST).iterrows():
            name = head_name(int(head["layer"]), int(head["head"]))
            table = substitute_pattern(model, batch, heads=[name], pattern=pattern, metric="loss")
            only = table.iloc[0]
            rows.append(
                {
                    "head": name,
                    "pattern": pattern,
                    "score": head["value"],
                    "damage": only["uniform_change"],
                    "substituted": only["change"],
                    "explained": only["explained"],
                    "n": only["n"],
                }
            )
    return pd.DataFrame(rows)


def effects_section(
    effects: pd.DataFrame, explained: pd.DataFrame | None, *, model: str, start: str, folder: Path
) -> Section:
    """What each head does and writes, in maps and the largest in a table."""
    items: list[Any] = [*_maps(effects, model, start, folder)]
    if explained is not None and len(explained):
        items.append(
            Table(
                "explained",
                explained,
                f"The clearest labelled heads, on {SEQUENCES} sequences of {BLOCK} random tokens, "
                "repeated once: rise of the loss (nats per output) when the head's attention is "
                "made uniform where the pattern is defined, and when it is made the ideal pattern; "
                "explained is the share of that damage which the pattern undoes, n/a where "
                "uniform attention does none.",
                labels={"damage": "uniform attention", "substituted": "ideal pattern"},
            )
        )
    return Section(
        "What do heads do, and what do they write?",
        "A head is removed by putting the mean of its output over other prompts in its place; "
        "everything after it is recomputed. What it writes is its direct effect: straight to the "
        "logits, the final norm's scale kept.",
        items,
    )


def _maps(effects: pd.DataFrame, model: str, start: str, folder: Path) -> Sequence[Any]:
    n_layers, n_heads = (int(effects[side].max()) + 1 for side in KEYS)
    grid = head_grid(2, n_layers=n_layers, n_heads=n_heads)
    figure = new_figure(*grid.size)
    does, writes = figure.subplots(*grid.shape).ravel()
    head_map(does, effects, value="change", unit="change (logits)", centre=0.0, grid=grid)
    does.set_title("without the head", fontsize=9)
    head_map(writes, effects, value="direct", unit="logits", centre=0.0, grid=grid)
    writes.set_title("what it writes", fontsize=9)
    n, clean = int(effects["n"].iloc[0]), effects["clean"].iloc[0]
    top = effects.reindex(effects["change"].abs().sort_values(ascending=False).index).head(12)
    top = top[[*KEYS, "change", "smallest", "largest", "direct", "n"]].reset_index(drop=True)
    alt = "exact and direct effect of every head on the capital's logit"
    return [
        Figure(
            save_figure(figure, folder, "effects", alt=alt),
            f"{model}: logit of the country's capital above that of another country's (clean "
            f"{clean:z.2f}), mean over {n} countries, fed {start}. Left or above: its change "
            f"without the head ({effects['baseline'].iloc[0]}). The other: what the head writes "
            "straight to that difference.",
            alt,
        ),
        Table(
            "effects_top",
            top,
            "The largest changes, with their range over the countries (too few for an interval).",
        ),
    ]
