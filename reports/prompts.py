"""Figures about prompts and layers of a language model.

Position is the key and the token only a label, so that equal tokens stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from reports.style import (
    INK,
    MUTED,
    PALETTE,
    columns,
    dress,
    label,
    legend,
    looks,
    share,
    styled,
    whole_numbers,
)
from reports.text import printable

ARROW = "→"


@styled
def by_layer(axes: Axes, frame: pd.DataFrame, *, value: str, unit: str) -> Axes:
    """Draw one dot per head against its layer, and the mean of each layer as a line.

    Args:
        axes: Where to draw.
        frame: ``layer``, ``head`` and the value; NaN is left out.
        value: The column to draw.
        unit: What the axis says.

    Returns:
        The axes.
    """
    columns(frame, ["layer", "head", value], of="by_layer")
    dress(axes)
    axes.plot(frame["layer"], frame[value], "o", color=PALETTE[0], markersize=3, alpha=0.6)
    means = frame.groupby("layer")[value].mean()
    (line,) = axes.plot(means.index.to_numpy(), means.to_numpy(), color=PALETTE[1])
    whole_numbers(axes, within=(frame["layer"].min(), frame["layer"].max()))
    axes.set_ylim(bottom=0)
    label(axes, "layer", unit)
    legend(axes, [(line, "mean of the layer")], loc="upper left", bbox_to_anchor=(1.01, 1))
    return axes


@styled
def token_shares(
    axes: Axes, frame: pd.DataFrame, *, series: Sequence[str], tokens: Sequence[str | bytes]
) -> Axes:
    """Draw several shares of attention side by side for every key of a prompt.

    Args:
        axes: Where to draw.
        frame: One row per key, in order: ``key``, ``chance`` and the series; NaN is no bar. A
            series that has a chance of its own brings a column ``chance_<series>``, drawn as a
            line of its colour.
        series: Columns to draw.
        tokens: The text of each key.

    Returns:
        The axes.
    """
    columns(frame, ["key", "chance", *series], of="token_shares")
    dress(axes)
    width = 0.8 / len(series)
    keys = frame["key"].to_numpy(dtype=float)
    entries: list[tuple[Artist, str]] = []
    chances = [("chance", INK)]
    for place, (name, look) in enumerate(zip(series, looks(series).values(), strict=True)):
        x = keys + (place - (len(series) - 1) / 2) * width
        bars = axes.bar(x, frame[name].to_numpy(dtype=float), width * 0.92, color=look.colour)
        entries.append((bars[0], name.replace("_", " ")))
        if f"chance_{name}" in frame:
            chances.append((f"chance_{name}", look.colour))
    for name, colour in chances:
        entries.append((_across(axes, keys, frame[name], colour), name.replace("_", " ")))
    names = [printable(token) for token in tokens]
    axes.set_xticks(keys, names, parse_math=False)
    share(axes)
    label(axes, "key", "attention of the last token, mean over heads")
    legend(axes, entries, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return axes


@styled
def prompt_dots(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the probability of the likeliest token after every prompt, coloured by kind.

    Args:
        axes: Where to draw; a third of an inch a prompt is a good height. Beside each row stand
            the prompt, an arrow and the predicted token.
        frame: ``prompt``, ``kind``, ``top``, ``top_probability`` (0..1).

    Returns:
        The axes.
    """
    columns(frame, ["prompt", "kind", "top", "top_probability"], of="prompt_dots")
    dress(axes, grid="x")
    entries = []
    places = range(len(frame))
    for kind, look in looks(frame["kind"]).items():
        own = [i for i, k in enumerate(frame["kind"]) if k == kind]
        (dots,) = axes.plot(
            frame["top_probability"].to_numpy(dtype=float)[own],
            own,
            look.marker,
            color=look.colour,
            markersize=6,
            clip_on=False,
            zorder=3,
        )
        entries.append((dots, str(kind)))
    texts = [
        f"{printable(_short(prompt), spaces=False)}  {ARROW}  {printable(top)}"
        for prompt, top in zip(frame["prompt"], frame["top"], strict=True)
    ]
    axes.set_yticks(list(places), texts, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(-0.02, 1.02)
    axes.axvline(0.9, color=MUTED, linestyle=":", linewidth=1)
    label(axes, "probability of the likeliest next token", "")
    legend(axes, entries, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return axes


def _across(axes: Axes, keys: np.ndarray, values: pd.Series[float], colour: str) -> Line2D:
    """Draw a level over every key that defines it, as wide as its bars."""
    level = values.to_numpy(dtype=float)
    known = np.isfinite(level)
    ends = np.stack([keys[known] - 0.45, keys[known] + 0.45], axis=1).ravel()
    (line,) = axes.plot(ends, level[known].repeat(2), color=colour, linestyle=":", zorder=3)
    return line


def _short(text: str, longest: int = 52) -> str:
    return text if len(text) <= longest else f"…{text[1 - longest :]}"
