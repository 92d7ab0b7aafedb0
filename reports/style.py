"""One look for all figures, and what keeps user text out of trouble.

Every drawing function runs inside `house_style`: Matplotlib's own defaults plus the
settings below, restored on the way out, so a user's ``matplotlibrc`` neither
changes a report nor is changed by one. Mathtext is off: a ``$`` is a dollar.
Colours are those of Okabe and Ito (2008), which colour-blind readers can tell
apart; models also differ in marker and line style.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import matplotlib
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from models.errors import InputError
from reports.text import FONT, printable

P = ParamSpec("P")
R = TypeVar("R")

PAGE_WIDTH = 9.0
"""Inches; shown 900 pixels wide, one point of type is 1.4 pixels."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (6, 1.5)), (0, (4, 1, 1, 1, 1, 1)), (0, (1, 1)))
INK = "#333333"
MUTED = "#767676"
BLANK = "#ececec"

_SETTINGS: dict[str, Any] = {
    "font.family": [FONT],
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "figure.titlesize": 10,
    "figure.labelsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.2,
    "image.interpolation": "none",
    "text.usetex": False,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "transformer-probe",
}


@dataclass(frozen=True)
class Look:
    """How one model, ablation or mode is drawn, everywhere in a figure."""

    colour: str
    marker: str
    line: Any


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the house style; the caller's settings come back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(cast(Any, _SETTINGS))
        yield


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Run a drawing function inside `house_style`."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with house_style():
            return function(*args, **kwargs)

    return wrapper


@styled
def new_figure(
    width: float = PAGE_WIDTH, height: float = 3.4, *, beside: float | None = None
) -> Figure:
    """Return an empty figure in inches, outside pyplot, laid out without overlaps.

    Args:
        width: Inches.
        height: Inches.
        beside: Inches left free at both sides, where long labels would touch the edge.
    """
    layout = ConstrainedLayoutEngine() if beside is None else ConstrainedLayoutEngine(w_pad=beside)
    return Figure(figsize=(width, height), layout=layout)


def looks(names: Iterable[object]) -> dict[object, Look]:
    """Return one look per distinct name, in order of first appearance."""
    distinct = list(dict.fromkeys(names))
    return {
        name: Look(
            PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)], LINES[place % len(LINES)]
        )
        for place, name in enumerate(distinct)
    }


def dress(axes: Axes, *, grid: str = "y") -> None:
    """Give axes that a caller made the house look."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8, colors=INK, width=0.6, length=3)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(True, axis="both" if grid == "both" else "y", color="#e3e3e3", linewidth=0.6)


def label(axes: Axes, x: str, y: str) -> None:
    """Set both axis labels, literally."""
    axes.set_xlabel(printable(x, spaces=False), fontsize=9, color=INK)
    axes.set_ylabel(printable(y, spaces=False), fontsize=9, color=INK)


def whole_numbers(axes: Axes, *, within: tuple[float, float] | None = None) -> None:
    """Tick the x axis at few round whole numbers.

    Args:
        axes: Whose axis.
        within: The smallest and largest number that exists; no tick stands outside.
    """
    locator = MaxNLocator(10, integer=True, steps=[1, 2, 5, 10])
    if within is None:
        axes.xaxis.set_major_locator(locator)
        return
    low, high = within
    axes.set_xticks([tick for tick in locator.tick_values(low, high) if low <= tick <= high])


def legend(
    owner: Axes | Figure | SubFigure, entries: Sequence[tuple[Artist, str]], **options: Any
) -> Legend:
    """Draw a legend whose texts are literal, also where they begin with ``_``."""
    handles = [handle for handle, _ in entries]
    drawn = owner.legend(handles=handles, labels=[str(n) for n in range(len(entries))], **options)
    for text, (_, content) in zip(drawn.get_texts(), entries, strict=True):
        text.set_text(printable(content, spaces=False))
    return drawn


def key(look: Look, *, line: bool = True, marker: bool = False) -> Line2D:
    """Return a handle for a legend: a line, a marker, or both."""
    return Line2D(
        [],
        [],
        color=look.colour,
        linestyle=look.line if line else "none",
        marker=look.marker if marker else "none",
        markersize=5,
    )


def share(axes: Axes, *, margin: float = 0.03) -> None:
    """Let the y axis run from 0 to 1, with room for lines at both ends."""
    axes.set_ylim(-margin, 1 + margin)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])


def say_empty(axes: Axes, reason: str = "no defined values") -> None:
    """Say why axes are empty instead of leaving them blank."""
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def literal(figure: Figure) -> None:
    """Switch mathtext off in every text of a figure, whoever drew it."""
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_parse_math(False)


def columns(frame: pd.DataFrame, needed: Sequence[str], *, of: str) -> pd.DataFrame:
    """Return the frame if it has rows and the needed columns.

    Raises:
        InputError: Naming what is missing.
    """
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise InputError(
            f"{of} needs the columns {', '.join(needed)}; {', '.join(missing)} missing, "
            f"got {', '.join(map(str, frame.columns)) or 'none'}"
        )
    if frame.empty:
        raise InputError(f"{of} needs at least one row, got an empty table; leave the figure out")
    return frame
