"""One mark per head: a grid, a scatter, offset profiles, effects of ablations."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import CenteredNorm, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from models.errors import InputError
from reports.grid import HeadGrid
from reports.style import (
    BLANK,
    INK,
    MUTED,
    PALETTE,
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
from reports.text import printable

_MOST_LABELS = 32
_LABEL = 0.2  # inches of a cell whose label does not touch its neighbour's
_NUMBER = 0.34  # inches of a cell that a number fits into


@styled
def head_map(
    axes: Axes,
    frame: pd.DataFrame,
    *,
    value: str,
    unit: str,
    centre: float | None = None,
    limits: tuple[float, float] | None = None,
    annotate: bool = True,
    grid: HeadGrid | None = None,
) -> Axes:
    """Draw one number per head as a grid, layer by head.

    Args:
        axes: Where to draw.
        frame: One row per head: ``layer``, ``head`` and the value.
        value: The column to draw; NaN is left blank and says "n/a".
        unit: What the colour bar says.
        centre: The neutral value of a signed quantity: colours diverge there.
        limits: Ends of the colour scale, such as ``(0, 1)``; the data's if left out.
        annotate: Write the numbers, where cells are large enough.
        grid: Where `reports.grid.head_grid` lays the map out: it decides which axis is which,
            and labels and numbers that would not fit its cells are left out.

    Returns:
        The axes.
    """
    columns(frame, ["layer", "head", value], of="head_map")
    if frame.duplicated(["layer", "head"]).any():
        raise InputError("head_map needs one row per head, got several; select one model and seed")
    turned = grid is not None and grid.layers_across
    down, across = ("head", "layer") if turned else ("layer", "head")
    table = frame.pivot(index=down, columns=across, values=value).sort_index().sort_index(axis=1)
    cells = table.to_numpy(dtype=float)
    colours = colormaps["viridis" if centre is None else "RdBu_r"].with_extremes(bad=BLANK)
    image = axes.imshow(cells, cmap=colours, norm=_scale(cells, centre, limits), aspect="equal")
    side = _LABEL if grid is None else grid.cell
    _grid_ticks(axes.xaxis, [str(name) for name in table.columns], side)
    _grid_ticks(axes.yaxis, [str(name) for name in table.index], side)
    _separate(axes, cells.shape[0], cells.shape[1])
    label(axes, across, down)
    fits = cells.shape[1] <= 16 and cells.shape[0] <= 32 if grid is None else side >= _NUMBER
    if annotate and fits:
        _annotate(axes, cells, image)
    _colour_bar(axes, image, cells, unit)
    return axes


@styled
def score_against_entropy(
    axes: Axes,
    heads: pd.DataFrame,
    *,
    score: str,
    entropy: str,
    chance: float | None = None,
) -> Axes:
    """Draw every head of every model and seed: its score against its entropy.

    Args:
        axes: Where to draw.
        heads: One row per head: ``model``, ``seed``, ``layer``, ``head``, both columns.
        score: A column in 0..1.
        entropy: A column in nats.
        chance: The score of uniform attention, drawn as a line; the mean of
            the column ``<score>_chance``, if there is one, when left out.

    Returns:
        The axes.
    """
    columns(heads, ["model", "seed", "layer", "head", score, entropy], of="score_against_entropy")
    dress(axes, grid="both")
    looked = looks(heads["model"])
    for place, (model, look) in enumerate(looked.items()):
        rows = heads[heads["model"] == model]
        axes.scatter(
            rows[entropy].to_numpy(dtype=float),
            rows[score].to_numpy(dtype=float),
            s=30,
            marker=look.marker,
            facecolors=to_rgba(look.colour, 0.25),
            edgecolors=to_rgba(look.colour, 0.9),
            linewidths=0.9,
            zorder=3 + place,
            clip_on=False,
        )
    entries = [(key(look, line=False, marker=True), str(model)) for model, look in looked.items()]
    if chance is None and f"{score}_chance" in heads:
        chance = float(heads[f"{score}_chance"].mean())
    if chance is not None:
        line = axes.axhline(chance, color=MUTED, linestyle="--", linewidth=1)
        entries.append((line, f"chance {chance:.3f}"))
    if heads[[score, entropy]].dropna().empty:
        say_empty(axes)
    share(axes)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    label(axes, "entropy of attention (nats)", f"{score.replace('_', '-')} score")
    legend(axes, entries, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return axes


@styled
def offset_profile(
    axes: Axes, frame: pd.DataFrame, *, expected: int | None = None, axis: str = "query + key"
) -> Axes:
    """Draw where attention goes by offset: one line per head, the best in colour.

    The best head has the largest mass at the expected offset, or anywhere if
    none is given.

    Args:
        axes: Where to draw.
        frame: ``layer``, ``head``, ``offset``, ``mass`` (0..1), ``chance``; with
            ``seed`` too, one line per seed and head.
        expected: The offset that the task asks for.
        axis: What an offset is, in terms of query and key.

    Returns:
        The axes.
    """
    columns(frame, ["layer", "head", "offset", "mass", "chance"], of="offset_profile")
    dress(axes)
    by = [name for name in ("seed", "layer", "head") if name in frame.columns]
    best = _best(frame, by, expected)
    for name, rows in frame.sort_values("offset").groupby(by):
        top = name == best
        axes.plot(
            rows["offset"].to_numpy(dtype=float),
            rows["mass"].to_numpy(dtype=float),
            color=PALETTE[0] if top else "#b5b5b5",
            linewidth=1.8 if top else 0.8,
            zorder=4 if top else 2,
        )
    chance = frame.groupby("offset")["chance"].mean()
    axes.plot(chance.index.to_numpy(dtype=float), chance.to_numpy(), color=INK, ls=":", zorder=3)
    entries = _profile_entries(best, by)
    if expected is not None:
        line = axes.axvline(expected, color=PALETTE[1], linestyle="--", linewidth=1, zorder=1)
        entries.append((line, f"expected: {expected}"))
    share(axes)
    whole_numbers(axes)
    label(axes, axis, "attention mass at this offset")
    legend(axes, entries, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return axes


@styled
def ablation_dots(axes: Axes, frame: pd.DataFrame, *, effect: str) -> Axes:
    """Draw what removing each head changes, the kinds of ablation side by side.

    Args:
        axes: Where to draw.
        frame: ``layer``, ``head``, ``ablation``, ``change``; several rows for
            one head and ablation, such as seeds, give several marks. With
            ``ci_low`` and ``ci_high`` too, intervals are drawn.
        effect: What is changed, with its unit, such as "loss (nats)".

    Returns:
        The axes.
    """
    needed = ["layer", "head", "ablation", "change"]
    frame = columns(frame, needed, of="ablation_dots").reset_index(drop=True)
    dress(axes)
    heads = frame[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
    names = [f"{layer}.{head}" for layer, head in heads.itertuples(index=False, name=None)]
    places = {name: place for place, name in enumerate(names)}
    at = (frame["layer"].astype(str) + "." + frame["head"].astype(str)).map(places)
    looked = looks(frame["ablation"])
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1)
    _stripes(axes, len(names))
    for kind, (name, look) in enumerate(looked.items()):
        rows = frame[frame["ablation"] == name]
        shift = (kind - (len(looked) - 1) / 2) * 0.7 / max(len(looked), 2)
        x = at[rows.index].to_numpy(dtype=float) + shift
        axes.plot(
            x,
            rows["change"].to_numpy(dtype=float),
            linestyle="none",
            marker=look.marker,
            color=look.colour,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.4,
            alpha=0.85,
            zorder=3,
        )
        if {"ci_low", "ci_high"} <= set(frame.columns):
            axes.vlines(x, rows["ci_low"], rows["ci_high"], color=look.colour, lw=1, zorder=2)
    _grid_ticks(axes.xaxis, names)
    axes.set_xlim(-0.6, len(names) - 0.4)
    label(axes, "head removed", f"change in {effect}")
    entries = [(key(look, line=False, marker=True), str(name)) for name, look in looked.items()]
    legend(axes, entries, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return axes


def _scale(
    cells: np.ndarray, centre: float | None, limits: tuple[float, float] | None
) -> Normalize:
    defined = cells[np.isfinite(cells)]
    low, high = limits or (
        (float(defined.min()), float(defined.max())) if defined.size else (0.0, 1.0)
    )
    if centre is not None:
        reach = max(abs(high - centre), abs(centre - low)) or 1.0
        return CenteredNorm(centre, reach)
    return Normalize(low, high if high > low else low + 1.0)


def _grid_ticks(axis: Axis, texts: Sequence[str], cell: float = _LABEL) -> None:
    step = max(-(-len(texts) // _MOST_LABELS), math.ceil(_LABEL / cell))
    shown = [text if place % step == 0 else "" for place, text in enumerate(texts)]
    axis.set_ticks(range(len(texts)), shown, fontsize=8, parse_math=False)
    axis.set_tick_params(length=0, colors=INK)


def _separate(axes: Axes, down: int, across: int) -> None:
    """Draw white lines between the cells."""
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(across + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(down + 1) - 0.5, minor=True)
    axes.grid(True, which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)


def _annotate(axes: Axes, cells: np.ndarray, image: AxesImage) -> None:
    for (layer, head), value in np.ndenumerate(cells):
        text = "n/a" if np.isnan(value) else _short(value)
        red, green, blue, _ = image.cmap(image.norm(value)) if text != "n/a" else (1, 1, 1, 1)
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        colour = "white" if dark else "#111111"
        axes.text(head, layer, text, ha="center", va="center", fontsize=8, color=colour)


def _short(value: float) -> str:
    """At most five characters, so that it stays in its cell: fewer digits, then only a bound."""
    if abs(value) >= 999.5:
        return ">999" if value > 0 else "<−999"
    text = f"{value:z.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
    return text.replace("-", "−")


def _colour_bar(axes: Axes, image: AxesImage, cells: np.ndarray, unit: str) -> None:
    """Draw a colour bar as tall as the grid."""
    figure = axes.get_figure(root=True)
    if isinstance(figure, Figure):
        bar = figure.colorbar(
            image, cax=axes.inset_axes((1.03, 0, 0.035, 1)), extend=_beyond(image, cells)
        )
        bar.set_label(printable(unit, spaces=False), fontsize=9, color=INK)
        bar.ax.tick_params(labelsize=8, colors=INK)
        bar.outline.set_visible(False)


def _beyond(image: AxesImage, cells: np.ndarray) -> Literal["neither", "min", "max", "both"]:
    """The ends of the colour scale beyond which there are values."""
    shares = np.asarray(image.norm(cells[np.isfinite(cells)]))
    under, over = bool((shares < -1e-9).any()), bool((shares > 1 + 1e-9).any())
    if under:
        return "both" if over else "min"
    return "max" if over else "neither"


def _best(frame: pd.DataFrame, by: list[str], expected: int | None) -> tuple[int, ...]:
    rows = frame if expected is None else frame[frame["offset"] == expected]
    rows = rows.dropna(subset=["mass"])
    if rows.empty:
        return ()
    top = rows.sort_values("mass", ascending=False, kind="stable").iloc[0]
    return tuple(int(top[name]) for name in by)


def _profile_entries(best: tuple[int, ...], by: list[str]) -> list[tuple[Line2D, str]]:
    entries = []
    if best:
        seed = f" (seed {best[0]})" if "seed" in by else ""
        name = f"best head {best[-2]}.{best[-1]}{seed}"
        entries.append((Line2D([], [], color=PALETTE[0], linewidth=1.8), name))
    entries.append((Line2D([], [], color="#b5b5b5", linewidth=0.8), "other heads"))
    entries.append((Line2D([], [], color=INK, linestyle=":"), "chance"))
    return entries


def _stripes(axes: Axes, count: int) -> None:
    for place in range(0, count, 2):
        axes.axvspan(place - 0.5, place + 0.5, color="#f6f6f6", zorder=0, linewidth=0)
