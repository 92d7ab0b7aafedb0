"""Where small multiples stand: sizes in inches, nothing overlapping.

Maps of equal cells have a fixed shape, which Matplotlib's own layout engines
space badly and slowly. Here margins follow from the labels' measured widths,
and the cell is as large as both sides of the figure allow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.style import PAGE_WIDTH
from reports.text import printable, text_width

LINE = 0.135
"""Inches that one line of 8 point type takes."""

LARGEST = 4.6
"""Inches of the largest map that is worth drawing."""

_NAME = 0.22  # the name of an axis
_PAD = 0.06
_BAR = (0.14, 0.12, 0.74)  # gap, width, and room for the colour bar's numbers and name
_ACROSS = 0.13  # between maps side by side
_SMALLEST_CELL = 0.002

_BESIDE = 1.25  # beside a map of heads: labels, and a colour bar with its name
_ABOVE = 0.8  # above and below it: title, labels
_TALLEST = 8.0
_LARGEST_CELL = 0.9


@dataclass(frozen=True)
class Margins:
    """Inches around the maps.

    Attributes:
        left: Name of the queries' axis, row names, labels.
        top: Titles of the first row.
        right: The colour bar.
        bottom: Labels, name of the keys' axis, notice.
        between: From one row of maps to the next.
    """

    left: float
    top: float
    right: float
    bottom: float
    between: float


@dataclass(frozen=True)
class Grid:
    """Maps of equal cells on a figure; all sizes in inches, from the top left corner."""

    size: tuple[float, float]
    shape: tuple[int, int]
    cells: tuple[int, int]
    margins: Margins

    @property
    def cell(self) -> float:
        """The side of one cell."""
        (width, height), (down, across) = self.size, self.shape
        queries, keys = self.cells
        margins = self.margins
        wide = width - margins.left - margins.right - (across - 1) * _ACROSS
        high = height - margins.top - margins.bottom - (down - 1) * margins.between
        return max(min(wide / (across * keys), high / (down * queries)), _SMALLEST_CELL)

    @property
    def map_size(self) -> tuple[float, float]:
        """Width and height of one map."""
        queries, keys = self.cells
        return keys * self.cell, queries * self.cell

    @property
    def span(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom edge of all maps; spare width goes to both sides."""
        (down, across), (wide, high) = self.shape, self.map_size
        used = across * wide + (across - 1) * _ACROSS
        spare = self.size[0] - self.margins.left - self.margins.right - used
        left, top = self.margins.left + max(spare, 0) / 2, self.margins.top
        return left, top, left + used, top + down * high + (down - 1) * self.margins.between

    def map_box(self, place: int) -> tuple[float, float, float, float]:
        """Return where a map stands, as fractions of the figure: left, bottom, width, height."""
        row, column = divmod(place, self.shape[1])
        wide, high = self.map_size
        left, top, _, _ = self.span
        return self.box(
            left + column * (wide + _ACROSS), top + row * (high + self.margins.between), wide, high
        )

    def bar_box(self) -> tuple[float, float, float, float]:
        """Return where the colour bar stands."""
        _, top, right, bottom = self.span
        gap, width, _ = _BAR
        return self.box(right + gap, top, width, bottom - top)

    def box(
        self, left: float, top: float, wide: float, high: float
    ) -> tuple[float, float, float, float]:
        """Return inches from the top left corner as fractions from the bottom left one."""
        width, height = self.size
        return left / width, 1 - (top + high) / height, wide / width, high / height


def margins(
    *,
    label_width: float,
    label_height: float,
    titles: bool = True,
    every_title: bool = True,
    row_names: bool = True,
    notice: bool = True,
) -> Margins:
    """Return the margins that labels of these sizes need, in inches."""
    title = LINE + _PAD if titles else 0.0
    return Margins(
        left=_NAME + (_NAME if row_names else 0.0) + label_width + _PAD,
        top=_PAD + title,
        right=sum(_BAR),
        bottom=label_height + _PAD + _NAME + (LINE if notice else 0.0) + _PAD,
        between=0.13 + (title if every_title else 0.0),
    )


def map_grid_size(
    n_maps: int,
    *,
    columns: int = 4,
    labels: Sequence[str] = ("32 SEP",),
    row_labels: bool = False,
    width: float = PAGE_WIDTH,
) -> tuple[float, float]:
    """Return the size in inches that so many square maps need at page width.

    Pass it to `new_figure`, as in ``new_figure(*map_grid_size(8))``. A figure
    of another size works too; its maps are as large as it allows.

    Args:
        n_maps: Number of maps.
        columns: Maps side by side.
        labels: The tokens that will label the positions.
        row_labels: Whether rows are named, and titles stand above the first row only.
        width: Inches.
    """
    across = min(columns, n_maps)
    down = math.ceil(n_maps / across)
    widest = min(max((text_width(printable(text)) for text in labels), default=0.0), 1.1)
    around = margins(
        label_width=widest,
        label_height=widest,
        every_title=not row_labels,
        row_names=row_labels,
    )
    side = (width - around.left - around.right - (across - 1) * _ACROSS) / across
    side = min(side, LARGEST)
    return width, around.top + around.bottom + down * side + (down - 1) * around.between


@dataclass(frozen=True)
class HeadGrid:
    """Maps of heads, one cell a head, that fill the width of a page.

    Attributes:
        shape: Rows and columns of maps.
        layers_across: Whether layers run along the x axis: the longer side does.
        cell: The side of one cell, in inches.
        size: Of the figure, in inches: `reports.style.new_figure` takes it.
    """

    shape: tuple[int, int]
    layers_across: bool
    cell: float
    size: tuple[float, float]


def head_grid(n_maps: int, *, n_layers: int, n_heads: int) -> HeadGrid:
    """Return how maps of so many heads stand best: large cells, and little left blank.

    Args:
        n_maps: Number of maps.
        n_layers: Cells of one side.
        n_heads: Cells of the other.
    """
    turned = n_layers > n_heads
    across, down = (n_layers, n_heads) if turned else (n_heads, n_layers)
    found = []
    for columns in range(1, n_maps + 1):
        rows = -(-n_maps // columns)
        wide = (PAGE_WIDTH / columns - _BESIDE) / across
        cell = min(wide, (_TALLEST / rows - _ABOVE) / down, _LARGEST_CELL)
        if cell > 0 and rows * columns == n_maps:
            filled = columns * (cell * across + _BESIDE) / PAGE_WIDTH
            size = PAGE_WIDTH, rows * (cell * down + _ABOVE)
            found.append((cell * filled, HeadGrid((rows, columns), turned, cell, size)))
    return max(found, key=lambda one: one[0])[1]
