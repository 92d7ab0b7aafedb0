"""What an activation carries, layer by position."""

from collections.abc import Sequence
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from models.errors import InputError, LengthError
from reports.style import BLANK, INK, MUTED, columns, label, styled
from reports.text import labels, printable, shorten, text_width

_LONGEST = 14
_NAMES = 0.5  # inches above and below the map for its names
_LETTER = 0.08  # inches that one letter of 9 points takes
_ROW = 0.16  # inches that one label of 8 points takes across its line


@styled
def patch_map(
    axes: Axes,
    frame: pd.DataFrame,
    *,
    value: str = "value",
    unit: str = "recovered (1: as clean)",
    tokens: Sequence[str | bytes] | None = None,
    centre: float = 0.0,
) -> Axes:
    """Draw what patching each layer at each position gives, in colours that diverge at 0.

    Args:
        axes: Where to draw.
        frame: One row per layer and position: ``layer``, ``position`` (a number, or a name such
            as ``END``) and the value. Select one kind of site and one mode first.
        value: The column to draw; NaN is left blank.
        unit: What the colour bar says.
        tokens: One text per position, from 0; positions, or their names, if left out. Equal
            tokens keep their own columns.
        centre: The neutral value: 1 suits noising, where 1 is "nothing lost".

    Returns:
        The axes.

    Raises:
        InputError: If there are several rows for one layer and position, or none with a position.
        LengthError: If the tokens do not fit the positions.
    """
    columns(frame, ["layer", "position", value], of="patch_map")
    rows = frame.dropna(subset=["position"])
    if rows.empty:
        raise InputError('patch_map needs rows with a position, got none; patch positions="each"')
    if rows.duplicated(["layer", "position"]).any():
        raise InputError(
            "patch_map needs one row per layer and position, got several; select one kind and mode"
        )
    places = list(dict.fromkeys(rows["position"]))
    grid = rows.pivot(index="layer", columns="position", values=value).sort_index()[places]
    cells = grid.to_numpy(dtype=float, na_value=np.nan)
    image = axes.imshow(
        cells,
        cmap=colormaps["RdBu_r"].with_extremes(bad=BLANK),
        norm=CenteredNorm(centre, _reach(cells, centre)),
        aspect="auto",
    )
    texts, notice = _texts(places, tokens)
    box, figure = axes.get_window_extent(), axes.get_figure(root=True)
    dpi = 100.0 if figure is None else figure.dpi
    numbers = None if tokens is None else [str(place) for place in places]
    step = _ticks(axes.xaxis, texts, 0.8 * box.width / dpi, numbers)
    _ticks(axes.yaxis, [str(layer) for layer in grid.index], 0.7 * box.height / dpi)
    widest = max(map(text_width, texts)) + (0.0 if step == 1 else text_width("000 "))
    upright = widest > 0.9 * step * 0.8 * box.width / dpi / len(texts)
    axes.tick_params(axis="x", labelrotation=90 if upright else 0)
    axes.spines[:].set_visible(False)
    ordinal = f"{step}{'nd' if step == 2 else 'rd' if step == 3 else 'th'}"
    thinned = f"Labels: every {ordinal} position, counted from 0." if step > 1 else None
    label(axes, "position" if tokens is None else "token", "layer")
    if said := "  ".join(part for part in (thinned, notice) if part):
        axes.set_title(said, fontsize=8, color=MUTED)
    high = box.height / dpi - (widest if upright else 0.0) - _NAMES
    _colour_bar(axes, image, fill(printable(unit, spaces=False), max(8, int(high / _LETTER))))
    return axes


def _reach(cells: np.ndarray, centre: float) -> float:
    """How far the colours go to either side."""
    away = np.abs(cells[np.isfinite(cells)] - centre)
    return float(away.max(initial=0.0)) or 1.0


def _texts(
    places: Sequence[object], tokens: Sequence[str | bytes] | None
) -> tuple[list[str], str | None]:
    """One label per column, and what has to be said about them."""
    if tokens is None:
        return [printable(str(place), spaces=False) for place in places], None
    numbers = [int(place) for place in places if isinstance(place, int | np.integer)]
    if len(numbers) < len(places) or not all(0 <= at < len(tokens) for at in numbers):
        raise LengthError(
            "tokens: these rows need a text for every position from 0, "
            f"got {len(tokens)} for {', '.join(map(str, places))}"
        )
    made = labels(tokens)
    return [shorten(made.texts[at], _LONGEST) for at in numbers], made.notice


def _ticks(
    axis: Axis, texts: Sequence[str], room: float, numbers: Sequence[str] | None = None
) -> int:
    """Label as many cells as there is room for; where not all, with their numbers."""
    step = max(1, int(np.ceil(len(texts) * _ROW / max(room, _ROW))))
    shown = [
        "" if at % step else f"{numbers[at]} {text}" if numbers and step > 1 else text
        for at, text in enumerate(texts)
    ]
    axis.set_ticks(range(len(texts)), shown, fontsize=8, parse_math=False)
    axis.set_tick_params(length=0, colors=INK)
    return step


def _colour_bar(axes: Axes, image: AxesImage, unit: str) -> None:
    """Draw a colour bar as tall as the map."""
    figure = axes.get_figure(root=True)
    if isinstance(figure, Figure):
        bar = figure.colorbar(image, cax=axes.inset_axes((1.02, 0, 0.025, 1)))
        bar.set_label(unit, fontsize=9, color=INK)
        bar.ax.tick_params(labelsize=8, colors=INK)
        bar.outline.set_visible(False)
