"""Attention maps as small multiples.

The position is the key of a cell, the token only its label: equal tokens keep
their own rows and columns. Cells are equal squares, drawn one by one, never
smoothed. Where there is no room for every label, every n-th is drawn with its
position, and the figure says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage

from models.errors import InputError, LengthError
from reports.grid import LINE, Grid, margins
from reports.style import BLANK, INK, MUTED, styled
from reports.text import Labels, labels, printable, shorten, shorten_to, text_width

Patterns = Float[np.ndarray, "map query key"]
Cell = tuple[int, int]

MARK = "white"
_LONGEST = 14


@dataclass(frozen=True)
class _Ticks:
    """Labels along one side of a map: one text per position, blank where there is no room."""

    texts: tuple[str, ...]
    step: int
    upright: bool

    @property
    def width(self) -> float:
        return max(map(text_width, self.texts))

    @property
    def height(self) -> float:
        return self.width if self.upright else LINE


@dataclass(frozen=True)
class _Names:
    """Every text of the figure, checked and printable."""

    queries: Labels
    keys: Labels
    titles: tuple[str, ...]
    rows: tuple[str, ...]

    def repeats(self, across: int) -> bool:
        """Return whether every row of maps has the titles of the first."""
        return all(title == self.titles[n % across] for n, title in enumerate(self.titles))


@styled
def attention_maps(
    figure: Figure | SubFigure,
    patterns: Patterns,
    *,
    titles: Sequence[str] | None = None,
    row_labels: Sequence[str] | None = None,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    marks: Sequence[Cell] | None = None,
    columns: int = 4,
) -> Figure | SubFigure:
    """Draw attention patterns as small multiples on one colour scale, 0 to 1.

    Args:
        figure: Where to draw; see `map_grid_size` for a size. Maps are placed
            by this function, so the figure's layout engine is switched off.
        patterns: Attention weights, map by query by key, in 0..1. Cells of a
            square map above the diagonal, and NaN, are left blank.
        titles: One per map, such as ``"head 1.2"``; titles that repeat from
            row to row are drawn once.
        row_labels: One per row of maps, such as ``"seed 0"``.
        query_labels: One token per query; positions if left out.
        key_labels: One token per key; the queries' if left out and square.
        marks: Cells (query, key) to outline in white, such as an ideal pattern.
        columns: Maps side by side.

    Returns:
        The figure.

    Raises:
        InputError: If weights lie outside 0..1, or there is nothing to draw.
        LengthError: If a list of labels does not fit the patterns.
    """
    _check_patterns(patterns)
    n_maps, n_queries, n_keys = patterns.shape
    across = min(columns, n_maps)
    down = -(-n_maps // across)
    if key_labels is None and n_queries == n_keys:
        key_labels = query_labels
    names = _Names(
        _axis_labels("query labels", query_labels, n_queries),
        _axis_labels("key labels", key_labels, n_keys),
        _texts("titles", titles, n_maps),
        _texts("row labels", row_labels, down),
    )
    if isinstance(figure, Figure):
        figure.set_layout_engine("none")
    grid, rows, below = _layout(figure, names, (down, across), (n_queries, n_keys))
    maps = [figure.add_axes(grid.map_box(place)) for place in range(n_maps)]
    images = [
        _draw_map(axes, pattern, marks or (), grid.cell)
        for axes, pattern in zip(maps, patterns, strict=True)
    ]
    _label_maps(maps, across, rows, below)
    _name_maps(maps, grid, names)
    _colour_bar(figure, grid, images[0])
    _name_axes(figure, grid, rows, below, _notice(names, rows, below))
    return figure


def _check_patterns(patterns: Patterns) -> None:
    if patterns.ndim != 3 or 0 in patterns.shape:
        raise InputError(
            "attention_maps needs patterns of shape map, query, key, none of them 0; "
            f"got {patterns.shape}"
        )
    defined = patterns[~np.isnan(patterns)]
    if defined.size and (defined.min() < -1e-4 or defined.max() > 1 + 1e-4):
        raise InputError(
            "attention weights lie in 0..1, "
            f"got {defined.min():g} to {defined.max():g}; pass patterns, not scores"
        )


def _check_count(what: str, given: Sequence[str], expected: int) -> None:
    if len(given) != expected:
        raise LengthError(f"{what}: these patterns need {expected}, got {len(given)}")


def _axis_labels(what: str, given: Sequence[str] | None, count: int) -> Labels:
    if given is None:
        return Labels(("",) * count, None)
    _check_count(what, given, count)
    made = labels(given)
    return Labels(tuple(shorten(text, _LONGEST) for text in made.texts), made.notice)


def _texts(what: str, given: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if given is None:
        return ()
    _check_count(what, given, count)
    return tuple(printable(text, spaces=False) for text in given)


def _layout(
    figure: Figure | SubFigure, names: _Names, shape: tuple[int, int], cells: tuple[int, int]
) -> tuple[Grid, _Ticks, _Ticks]:
    """Place the maps; labels decide the margins, and the room left decides the labels."""
    size = (figure.bbox.width / figure.dpi, figure.bbox.height / figure.dpi)
    rows = below = _Ticks(("32 SEP",), 1, upright=True)
    for _ in range(3):
        around = margins(
            label_width=rows.width,
            label_height=below.height,
            titles=bool(names.titles),
            every_title=bool(names.titles) and not names.repeats(shape[1]),
            row_names=bool(names.rows),
            notice=bool(_notice(names, rows, below)),
        )
        grid = Grid(size, shape, cells, around)
        rows, below = _ticks(names.queries, grid.cell), _ticks(names.keys, grid.cell)
    return grid, rows, below


def _ticks(made: Labels, cell: float) -> _Ticks:
    step = 1
    while step * cell < LINE and step < len(made.texts):
        step *= 2
    texts = tuple(
        "" if position % step else _tick_text(position, text, step)
        for position, text in enumerate(made.texts)
    )
    return _Ticks(texts, step, max(map(text_width, texts)) > step * cell * 0.9)


def _tick_text(position: int, text: str, step: int) -> str:
    return f"{position} {text}".rstrip() if step > 1 or not text else text


def _draw_map(axes: Axes, pattern: np.ndarray, marks: Sequence[Cell], cell: float) -> AxesImage:
    image = axes.imshow(
        _blanked(pattern), cmap=_colours(), vmin=0, vmax=1, aspect="equal", interpolation="none"
    )
    axes.spines[:].set_visible(False)
    if marks:
        axes.add_collection(_outlines(marks, cell), autolim=False)
    return image


def _blanked(pattern: np.ndarray) -> np.ma.MaskedArray[tuple[int, ...], np.dtype[np.float64]]:
    values = np.asarray(pattern, dtype=float)
    hidden = np.isnan(values)
    if values.shape[0] == values.shape[1]:
        hidden |= ~np.tri(values.shape[0], dtype=bool)
    return np.ma.MaskedArray(values, mask=hidden)


def _colours() -> Colormap:
    return colormaps["viridis"].with_extremes(bad=BLANK)


def _outlines(marks: Sequence[Cell], cell: float) -> PolyCollection:
    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)])
    squares = [corners + np.array([key, query]) for query, key in marks]
    width = float(np.clip(cell * 72 * 0.1, 0.2, 1.2))
    return PolyCollection(squares, facecolors="none", edgecolors=MARK, linewidths=width, alpha=0.7)


def _label_maps(maps: Sequence[Axes], across: int, rows: _Ticks, below: _Ticks) -> None:
    for place, axes in enumerate(maps):
        _set_ticks(axes.yaxis, rows if place % across == 0 else None, upright=False)
        lowest = place + across >= len(maps)
        _set_ticks(axes.xaxis, below if lowest else None, upright=below.upright)


def _set_ticks(axis: Axis, ticks: _Ticks | None, *, upright: bool) -> None:
    if ticks is None:
        axis.set_ticks([])
        return
    axis.set_ticks(range(len(ticks.texts)), ticks.texts, parse_math=False, fontsize=8)
    axis.set_tick_params(length=0, pad=2, colors=INK, labelrotation=90 if upright else 0)


def _name_maps(maps: Sequence[Axes], grid: Grid, names: _Names) -> None:
    across = grid.shape[1]
    wide, high = grid.map_size
    repeats = names.repeats(across)
    for place, (axes, title) in enumerate(zip(maps, names.titles, strict=False)):
        if place < across or not repeats:
            axes.set_title(shorten_to(title, wide + 0.06), fontsize=8, pad=3, color=INK)
    left = grid.span[0]
    for axes, name in zip(maps[::across], names.rows, strict=False):
        middle = (-(left - 0.33) / wide, 0.5)
        axes.annotate(
            shorten_to(name, high, size=9),
            middle,
            xycoords="axes fraction",
            rotation=90,
            ha="center",
            va="center",
            fontsize=9,
            color=INK,
            annotation_clip=False,
        )


def _notice(names: _Names, rows: _Ticks, below: _Ticks) -> str:
    step = max(rows.step, below.step)
    thinned = f"Labels: every {step}{'nd' if step == 2 else 'th'} position, counted from 0."
    parts = (thinned if step > 1 else None, names.queries.notice or names.keys.notice)
    return "  ".join(part for part in parts if part)


def _name_axes(
    figure: Figure | SubFigure, grid: Grid, rows: _Ticks, below: _Ticks, notice: str
) -> None:
    left, top, right, bottom = grid.span
    width, height = grid.size
    under = 1 - (bottom + below.height + 0.1) / height
    across, down = (left + right) / 2 / width, 1 - (top + bottom) / 2 / height
    figure.text(across, under, "key (position that is looked at)", ha="center", va="top", color=INK)
    beside = (left - grid.margins.left + 0.13) / width
    figure.text(
        beside,
        down,
        "query (position that looks)",
        rotation=90,
        ha="center",
        va="center",
        color=INK,
    )
    figure.text(
        across, under - 0.18 / height, notice, ha="center", va="top", fontsize=8, color=MUTED
    )


def _colour_bar(figure: Figure | SubFigure, grid: Grid, image: AxesImage) -> None:
    bar = figure.colorbar(image, cax=figure.add_axes(grid.bar_box()))
    bar.set_label("attention weight", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.outline.set_visible(False)
