"""Figures as files: PNG and SVG, equal bytes for equal figures.

The drawing functions live in `reports.maps` (attention, heads as a grid),
`reports.curves` (training, removal, temperature) and `reports.heads` (one
mark or line per head). All take axes or a figure and return them.
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from models.errors import InputError
from reports.folder import safe_name
from reports.style import literal, styled

DPI = 150
METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}
"""The kinds of file, and what is left out of each."""


@dataclass(frozen=True)
class FigureFiles:
    """The two files of a figure, and what it shows in words.

    Attributes:
        name: File name without ending.
        png: The raster file, 150 dots per inch.
        svg: The vector file, text as paths.
        alt: What a reader who cannot see the figure is told.
    """

    name: str
    png: Path
    svg: Path
    alt: str = ""


@styled
def save_figure(figure: Figure, folder: str | Path, name: str, *, alt: str = "") -> FigureFiles:
    """Write ``name.png`` and ``name.svg`` into a folder, which is made if missing.

    Files carry no date, no software and fixed ids. Text is drawn literally.

    Raises:
        InputError: If the name is not a plain file name.
    """
    if safe_name(name) != name:
        raise InputError(
            f"a figure's name must be a plain file name, got {name!r}; try {safe_name(name)!r}"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = FigureFiles(name, folder / f"{name}.png", folder / f"{name}.svg", alt)
    literal(figure)
    figure.savefig(files.png, format="png", dpi=DPI, metadata=METADATA[".png"])
    figure.savefig(files.svg, format="svg", metadata=METADATA[".svg"])
    return files


@styled
def save_one(figure: Figure, path: str | Path) -> Path:
    """Write a figure into one file, PNG or SVG by its ending.

    Raises:
        InputError: If the ending is another.
    """
    path = check_ending(path)
    literal(figure)
    figure.savefig(path, dpi=DPI, metadata=METADATA[path.suffix])
    return path


def check_ending(path: str | Path) -> Path:
    """The path, if a figure can be written there.

    Raises:
        InputError: If it ends neither in .png nor in .svg.
    """
    path = Path(path)
    if path.suffix not in METADATA:
        raise InputError(f"a figure is a .png or .svg file, got {path.name!r}")
    return path
