"""Attention temperature: what a model loses as heads are sharpened and blurred."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from models.errors import InputError
from reports.style import (
    MUTED,
    Look,
    columns,
    dress,
    key,
    label,
    legend,
    looks,
    say_empty,
    styled,
)

MOST = 7
"""Heads that can be told apart in one panel."""


@styled
def attention_temperature_curves(
    figure: Figure | SubFigure, frame: pd.DataFrame, *, metric: str | None = None
) -> Figure | SubFigure:
    """Draw a metric against the attention temperature, and the entropy of the rows beside it.

    Args:
        figure: Where to draw two panels.
        frame: ``temperature``, ``metric``, ``clean``, ``value``, ``ci_low``,
            ``ci_high`` (of the change from clean; NaN where there is none),
            ``entropy`` (nats); with ``layer`` and ``head`` too, one line per head.
        metric: Which one; default the first.

    Returns:
        The figure.

    Raises:
        InputError: If the metric is not in the frame, or there are over seven heads.
    """
    needed = ["temperature", "metric", "clean", "value", "ci_low", "ci_high", "entropy"]
    columns(frame, needed, of="attention_temperature_curves")
    known = list(dict.fromkeys(frame["metric"]))
    name = known[0] if metric is None else metric
    if name not in known:
        raise InputError(f"metric must be one of {', '.join(known)}, but got {name!r}")
    frame = frame[frame["metric"] == name].sort_values("temperature", kind="stable")
    each = {"layer", "head"} <= set(frame.columns)
    lines = frame["layer"].astype(str) + "." + frame["head"].astype(str) if each else "heads"
    frame = frame.assign(line=lines)
    if frame["line"].nunique() > MOST:
        raise InputError(
            f"at most {MOST} heads can be told apart, but got {frame['line'].nunique()}: "
            "choose some"
        )
    left, right = figure.subplots(1, 2)
    looked = looks(frame["line"])
    for line, look in looked.items():
        rows = frame[frame["line"] == line]
        _band(left, rows, look)
        _curve(left, rows, "value", look)
        _curve(right, rows, "entropy", look)
    for axes, column in ((left, "value"), (right, "entropy")):
        dress(axes)
        _temperatures(axes, frame["temperature"])
        if frame[column].isna().all():
            say_empty(axes)
    right.set_ylim(bottom=0)
    left.axhline(float(frame["clean"].mean()), color=MUTED, linestyle=":", linewidth=1, zorder=1)
    label(left, "attention temperature", name.replace("_", " "))
    label(right, "attention temperature", "entropy of these rows (nats)")
    dotted = Line2D([], [], color=MUTED, linestyle=":", linewidth=1)
    entries = [(key(look, marker=True), f"head {line}") for line, look in looked.items() if each]
    entries.append((dotted, "unchanged model (temperature 1)"))
    legend(figure, entries, loc="outside upper center", ncols=min(5, len(entries)))
    return figure


def _curve(axes: Axes, rows: pd.DataFrame, column: str, look: Look) -> None:
    rows = rows.dropna(subset=[column])
    axes.plot(
        rows["temperature"].to_numpy(dtype=float),
        rows[column].to_numpy(dtype=float),
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        markersize=3.5,
        linewidth=1.1,
        zorder=3,
    )


def _band(axes: Axes, rows: pd.DataFrame, look: Look) -> None:
    """The interval of the change, set on the unchanged model."""
    known = rows.dropna(subset=["ci_low", "ci_high"])
    clean = known["clean"].to_numpy(dtype=float)
    axes.fill_between(
        known["temperature"].to_numpy(dtype=float),
        clean + known["ci_low"].to_numpy(dtype=float),
        clean + known["ci_high"].to_numpy(dtype=float),
        color=look.colour,
        alpha=0.15,
        linewidth=0,
        zorder=2,
    )


def _temperatures(axes: Axes, temperatures: pd.Series[float]) -> None:
    """A log axis whose ticks are some of the temperatures, as plain numbers."""
    axes.set_xscale("log")
    values = np.unique(temperatures.to_numpy(dtype=float))
    shown = values[
        np.unique(np.linspace(0, len(values) - 1, min(len(values), 9)).round().astype(int))
    ]
    axes.xaxis.set_major_locator(FixedLocator(shown.tolist()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axvline(1, color=MUTED, linestyle=":", linewidth=1, zorder=1)
