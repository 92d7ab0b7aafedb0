"""Curves: training, heads removed and kept, sampling temperature."""

from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

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
    share,
    styled,
    whole_numbers,
)


@styled
def training_curves(figure: Figure | SubFigure, history: pd.DataFrame) -> Figure | SubFigure:
    """Draw loss and exact match against the training step, one thin line per seed.

    Args:
        figure: Where to draw two panels.
        history: ``model``, ``seed``, ``step``, ``loss`` (nats), ``exact_match``
            (0..1); NaN where a step was not evaluated.

    Returns:
        The figure.
    """
    columns(history, ["model", "seed", "step", "loss", "exact_match"], of="training_curves")
    left, right = figure.subplots(1, 2)
    looked = looks(history["model"])
    for axes, value in ((left, "loss"), (right, "exact_match")):
        dress(axes)
        _seed_lines(axes, history, looked, by="model", x="step", y=value)
        whole_numbers(axes)
    if (history["loss"] > 0).any():
        _log_scale(left)
    share(right)
    label(left, "training step", "loss (nats per predicted token)")
    label(right, "training step", "exact match, held-out")
    entries = [
        (key(look), f"{model} ({_seeds(history[history['model'] == model])})")
        for model, look in looked.items()
    ]
    legend(figure, entries, loc="outside upper center", ncols=min(3, len(entries)))
    return figure


@styled
def cumulative_curves(figure: Figure | SubFigure, frame: pd.DataFrame) -> Figure | SubFigure:
    """Draw exact match as heads are removed, and as only some are kept.

    Lines that would cover each other are set apart sideways, by at most a
    seventh of a head.

    Args:
        figure: Where to draw two panels.
        frame: ``seed``, ``mode`` ("remove" or "keep"), ``ablation``,
            ``n_heads``, ``exact_match`` (0..1), ``loss``; heads in order of
            their score, highest first.

    Returns:
        The figure.
    """
    columns(
        frame,
        ["seed", "mode", "ablation", "n_heads", "exact_match", "loss"],
        of="cumulative_curves",
    )
    panels = figure.subplots(1, 2, sharey=True)
    looked = looks(frame["ablation"])
    titles = {
        "remove": "highest-scoring heads removed",
        "keep": "highest-scoring heads kept, all others removed",
    }
    frame = _apart(frame.reset_index(drop=True))
    for axes, (mode, title) in zip(panels, titles.items(), strict=True):
        dress(axes)
        rows = frame[frame["mode"] == mode]
        _seed_lines(axes, rows, looked, by="ablation", x="n_heads", y="exact_match", marker=True)
        whole_numbers(axes)
        share(axes)
        label(axes, title, "exact match" if axes is panels[0] else "")
    entries = [
        (key(look, marker=True), f"{name} ablation ({_seeds(frame[frame['ablation'] == name])})")
        for name, look in looked.items()
    ]
    legend(figure, entries, loc="outside upper center", ncols=min(4, len(entries)))
    return figure


@styled
def temperature_curves(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw exact match against sampling temperature: exact as lines, sampled as points.

    Args:
        axes: Where to draw.
        frame: ``model``, ``seed``, ``temperature``, ``exact_match`` (exact,
            0..1), ``sampled``, ``sampled_low``, ``sampled_high`` (NaN where
            nothing was sampled).

    Returns:
        The axes.
    """
    names = ["model", "seed", "temperature", "exact_match"]
    columns(frame, [*names, "sampled", "sampled_low", "sampled_high"], of="temperature_curves")
    dress(axes)
    looked = looks(frame["model"])
    _seed_lines(axes, frame, looked, by="model", x="temperature", y="exact_match")
    for model, look in looked.items():
        _sampled_points(axes, frame[frame["model"] == model], look)
    axes.set_xlim(left=0)
    share(axes)
    label(axes, "sampling temperature", "exact match")
    entries: list[tuple[Line2D, str]] = [
        (key(look, marker=True), f"{model} ({_seeds(frame[frame['model'] == model])})")
        for model, look in looked.items()
    ]
    entries.append((Line2D([], [], color=MUTED), "line: exact probability"))
    if frame["sampled"].notna().any():
        point = Line2D([], [], color=MUTED, marker="o", markersize=4, linestyle="none")
        entries.append((point, "point: sampled, with its interval"))
    legend(axes, entries, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return axes


@styled
def confidence_by_training(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw exact match against temperature after short and long training.

    Args:
        axes: Where to draw.
        frame: ``steps``, ``temperature``, ``exact_match`` (0..1); with
            ``seed`` too, one line per seed.

    Returns:
        The axes.
    """
    columns(frame, ["steps", "temperature", "exact_match"], of="confidence_by_training")
    dress(axes)
    steps = sorted(frame["steps"].unique())
    colours = colormaps["viridis"]([0.72 * n / max(len(steps) - 1, 1) for n in range(len(steps))])
    looked = {
        step: Look(to_hex(colour), look.marker, "-")
        for step, colour, look in zip(steps, colours, looks(steps).values(), strict=True)
    }
    rows = frame if "seed" in frame.columns else frame.assign(seed=0)
    _seed_lines(axes, rows, looked, by="steps", x="temperature", y="exact_match", marker=True)
    half = axes.axhline(0.5, color=MUTED, linestyle=":", linewidth=1, zorder=1)
    axes.set_xlim(left=0)
    share(axes)
    label(axes, "sampling temperature", "exact match")
    entries = [
        (key(look, marker=True), f"{step:,} training steps") for step, look in looked.items()
    ]
    entries.append((half, "half of the sequences"))
    legend(axes, entries, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return axes


def _seed_lines(
    axes: Axes,
    frame: pd.DataFrame,
    looked: dict[Any, Look],
    *,
    by: str,
    x: str,
    y: str,
    marker: bool = False,
) -> None:
    """Draw one thin line per seed and group; undefined values are skipped."""
    defined = frame.dropna(subset=[x, y]).sort_values(x, kind="stable")
    if defined.empty:
        say_empty(axes)
    for (group, _), rows in defined.groupby([by, "seed"], sort=False):
        look = looked[group]
        axes.plot(
            rows[x].to_numpy(dtype=float),
            rows[y].to_numpy(dtype=float),
            color=look.colour,
            linestyle=look.line,
            marker=look.marker if marker or len(rows) == 1 else "none",
            markersize=3.5,
            linewidth=1.1,
            alpha=0.8,
            zorder=3,
        )


def _apart(frame: pd.DataFrame) -> pd.DataFrame:
    """Shift the lines of seeds and ablations a little, so that all can be seen."""
    line = frame.groupby(["seed", "ablation"]).ngroup()
    last = int(line.max())
    return frame.assign(n_heads=frame["n_heads"] + 0.3 * (line / last - 0.5)) if last else frame


def _sampled_points(axes: Axes, rows: pd.DataFrame, look: Look) -> None:
    """Draw samples with their intervals, seeds a little apart so that all can be seen."""
    rows = rows.dropna(subset=["sampled"])
    seeds = sorted(rows["seed"].unique())
    width = 0.005 * float(rows["temperature"].max() or 1) if len(rows) else 0.0
    for place, seed in enumerate(seeds):
        mine = rows[rows["seed"] == seed]
        x = mine["temperature"].to_numpy(dtype=float) + (place - (len(seeds) - 1) / 2) * width
        axes.vlines(
            x, mine["sampled_low"], mine["sampled_high"], color=look.colour, lw=0.9, zorder=4
        )
        axes.plot(
            x,
            mine["sampled"].to_numpy(dtype=float),
            linestyle="none",
            marker=look.marker,
            markersize=3.5,
            color=look.colour,
            markeredgecolor="white",
            markeredgewidth=0.4,
            zorder=5,
        )


def _log_scale(axes: Axes) -> None:
    """Use a log scale with plain numbers, which need no mathtext."""
    axes.set_yscale("log", nonpositive="mask")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _seeds(rows: pd.DataFrame) -> str:
    count = rows["seed"].nunique()
    return f"{count} seed{'' if count == 1 else 's'}"
