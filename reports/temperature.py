"""Sampling temperature: output by output, without each head, and on a language model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from reports.style import (
    INK,
    MARKERS,
    MUTED,
    columns,
    dress,
    key,
    label,
    legend,
    looks,
    say_empty,
    share,
    styled,
    whole_numbers,
)

LABELLED = 6
"""Heads that are told apart in one panel."""

MEASURES = {
    "entropy": ("entropy", "nats"),
    "effective_tokens": ("effective tokens", "exp of entropy"),
    "top_probability": ("likeliest token", "probability"),
    "nucleus": ("kept by the filters", "tokens"),
    "repetition": ("repeated 3-grams", "share"),
    "log_likelihood": ("log-likelihood", "nats per token"),
    "agreement": ("same token as greedy", "share"),
}
ON_LOG_AXES = ("effective_tokens", "nucleus")
OTHERS = "#b5b5b5"


@styled
def position_curves(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the probability of the right token output by output, one line per temperature.

    Args:
        axes: Where to draw.
        frame: ``temperature``, ``output`` (from 1), ``probability`` (0..1), ``ci_low``,
            ``ci_high`` (NaN where there is none).

    Returns:
        The axes.
    """
    needed = ["temperature", "output", "probability", "ci_low", "ci_high"]
    columns(frame, needed, of="position_curves")
    dress(axes)
    temperatures = sorted(frame["temperature"].unique())
    shades = colormaps["viridis"](np.linspace(0, 0.88, len(temperatures)))
    entries: list[tuple[Any, str]] = []
    for place, (t, shade) in enumerate(zip(temperatures, shades, strict=True)):
        rows = frame[frame["temperature"] == t].sort_values("output", kind="stable")
        x, y = (rows[name].to_numpy(dtype=float) for name in ("output", "probability"))
        colour, marker = to_hex(shade), MARKERS[place % len(MARKERS)]
        axes.plot(x, y, color=colour, marker=marker, markersize=3.5, zorder=3)
        low, high = (rows[name].to_numpy(dtype=float) for name in ("ci_low", "ci_high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0, zorder=2)
        entries.append((Line2D([], [], color=colour, marker=marker, markersize=5), f"{t:g}"))
    if frame["probability"].isna().all():
        say_empty(axes)
    whole_numbers(axes, within=(1, float(frame["output"].max())))
    share(axes)
    label(axes, "output", "probability of the right token")
    box = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0}
    legend(axes, entries, title="temperature", **box)
    return axes


@styled
def fragility_curves(figure: Figure | SubFigure, frame: pd.DataFrame) -> Figure | SubFigure:
    """Draw exact match against temperature without each head, one panel per ablation.

    The six sets of heads that cost most, averaged over the temperatures and ablations drawn, are
    coloured; the others are grey.

    Args:
        figure: Where to draw.
        frame: ``heads``, ``ablation``, ``temperature``, ``clean``, ``ablated`` (0..1).

    Returns:
        The figure.
    """
    columns(frame, ["heads", "ablation", "temperature", "clean", "ablated"], of="fragility_curves")
    kinds = list(dict.fromkeys(frame["ablation"]))
    worst = costliest(frame)
    coloured = looks(worst)
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        own = frame[frame["ablation"] == kind].sort_values("temperature", kind="stable")
        dress(axes)
        for heads, rows in own.groupby("heads", sort=False):
            look = coloured.get(heads)
            axes.plot(
                rows["temperature"].to_numpy(dtype=float),
                rows["ablated"].to_numpy(dtype=float),
                color=look.colour if look else OTHERS,
                linestyle=look.line if look else "-",
                linewidth=1.1,
                zorder=4 if look else 3,
            )
        clean = own.groupby("temperature")["clean"].mean()
        axes.plot(clean.index.to_numpy(dtype=float), clean.to_numpy(), color=INK, lw=2.6, zorder=2)
        if own["ablated"].isna().all():
            say_empty(axes)
        axes.axhline(0.5, color=MUTED, linestyle=":", linewidth=1, zorder=1)
        axes.set_xlim(left=0)
        share(axes)
        y = "exact match, exact probability" if axes is panels[0] else ""
        label(axes, f"sampling temperature ({kind} ablation)", y)
    entries: list[tuple[Any, str]] = [(Line2D([], [], color=INK, lw=2.6), "all heads")]
    entries += [(key(look), f"without {heads}") for heads, look in coloured.items()]
    if frame["heads"].nunique() > len(worst):
        entries.append((Line2D([], [], color=OTHERS), "without another"))
    legend(figure, entries, loc="outside right upper")
    return figure


@styled
def language_curves(figure: Figure | SubFigure, frame: pd.DataFrame) -> Figure | SubFigure:
    """Draw what temperature does to a language model, factual against open prompts.

    Args:
        figure: Where to draw, up to seven panels in rows of four.
        frame: ``kind``, ``temperature``, ``measure`` (names of `MEASURES`; others are left out),
            ``mean``, ``ci_low``, ``ci_high`` (NaN where there is none).

    Returns:
        The figure.
    """
    needed = ["kind", "temperature", "measure", "mean", "ci_low", "ci_high"]
    columns(frame, needed, of="language_curves")
    known = frame.dropna(subset=["mean"])
    shown = [name for name in MEASURES if (known["measure"] == name).any()]
    looked = looks(frame["kind"])
    n_columns = min(4, max(1, len(shown)))
    n_rows = max(1, -(-len(shown) // n_columns))
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for axes, measure in zip(panels, shown, strict=False):
        dress(axes)
        for kind, look in looked.items():
            rows = known[(known["measure"] == measure) & (known["kind"] == kind)]
            _with_band(axes, rows.sort_values("temperature", kind="stable"), look)
        axes.set_xlim(left=0)
        if measure in ON_LOG_AXES:
            axes.set_yscale("log", nonpositive="mask")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        title, unit = MEASURES[measure]
        axes.set_title(title)
        label(axes, "temperature", unit)
    for axes in panels[len(shown) :]:
        axes.remove() if shown else say_empty(axes)
    entries = [(key(look, marker=True), f"{kind} prompts") for kind, look in looked.items()]
    legend(figure, entries, loc="outside upper center", ncols=max(1, len(entries)))
    return figure


def costliest(frame: pd.DataFrame) -> list[str]:
    """The sets of heads without which exact match is lowest, lowest first."""
    lost = (frame["ablated"] - frame["clean"]).groupby(frame["heads"], sort=False).mean()
    lost = lost[lost < 0].sort_values(kind="stable")
    return [str(heads) for heads in lost.index[:LABELLED]]


def _with_band(axes: Axes, rows: pd.DataFrame, look: Any) -> None:
    x = rows["temperature"].to_numpy(dtype=float)
    axes.plot(
        x,
        rows["mean"].to_numpy(dtype=float),
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        markersize=3.5,
        zorder=3,
    )
    low, high = (rows[name].to_numpy(dtype=float) for name in ("ci_low", "ci_high"))
    axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
