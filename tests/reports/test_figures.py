"""Figures as files: equal bytes, literal text, settings left alone."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from models.errors import InputError
from reports.figures import save_figure
from reports.grid import map_grid_size
from reports.heads import score_against_entropy
from reports.maps import attention_maps
from reports.style import house_style, new_figure


def scatter(heads: pd.DataFrame) -> Figure:
    figure = new_figure()
    score_against_entropy(figure.subplots(), heads, score="anti_diagonal", entropy="entropy")
    return figure


@pytest.fixture
def maps(causal: Callable[[int, int], np.ndarray]) -> Callable[[], Figure]:
    def make() -> Figure:
        figure = new_figure(*map_grid_size(2))
        attention_maps(figure, causal(2, 7), marks=[(6, 0)])
        return figure

    return make


def test_equal_figures_are_equal_byte_for_byte(
    heads: pd.DataFrame, maps: Callable[[], Figure], tmp_path: Path
) -> None:
    for name in ("first", "second"):
        save_figure(scatter(heads), tmp_path / name, "scatter")
        save_figure(maps(), tmp_path / name, "maps")
    for path in sorted((tmp_path / "first").iterdir()):
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def test_another_value_gives_another_file(heads: pd.DataFrame, tmp_path: Path) -> None:
    changed = heads.assign(anti_diagonal=heads["anti_diagonal"] + 0.1)
    one, two = (
        save_figure(scatter(frame), tmp_path, name)
        for name, frame in (("a", heads), ("b", changed))
    )
    assert one.png.read_bytes() != two.png.read_bytes()
    assert one.svg.read_bytes() != two.svg.read_bytes()


def test_files_are_dated_by_nothing_and_sized_for_a_page(
    heads: pd.DataFrame, tmp_path: Path
) -> None:
    files = save_figure(scatter(heads), tmp_path, "scatter", alt="every head")
    assert files.alt == "every head"
    svg = files.svg.read_text(encoding="utf-8")
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "<text" not in svg
    assert not re.search(r"dc:date|Matplotlib v|20\d\d-\d\d", svg)
    with Image.open(files.png) as image:
        assert image.size == (1350, 510)
        assert "Software" not in image.info


def test_the_vector_file_stands_alone(maps: Callable[[], Figure], tmp_path: Path) -> None:
    svg = save_figure(maps(), tmp_path, "maps").svg.read_text(encoding="utf-8")
    links = re.findall(r'(?:href|src)="([^"]{0,30})', svg)
    assert [link for link in links if not link.startswith(("#", "data:image/png"))] == []


def test_text_of_a_figure_made_elsewhere_is_literal_too(tmp_path: Path) -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.set_title("$\\badcmd$ costs $5")
    axes.plot([1, 2], label="$x_1^2$")
    axes.legend()
    assert save_figure(figure, tmp_path, "literal").svg.exists()


def test_a_users_settings_neither_matter_nor_change(heads: pd.DataFrame, tmp_path: Path) -> None:
    plain = save_figure(scatter(heads), tmp_path, "plain")
    odd = {"font.size": 31, "savefig.dpi": 20, "axes.facecolor": "black", "text.parse_math": True}
    with matplotlib.rc_context(odd):
        before = dict(matplotlib.rcParams)
        styled = save_figure(scatter(heads), tmp_path, "styled")
        assert dict(matplotlib.rcParams) == before
    with Image.open(plain.png) as one, Image.open(styled.png) as two:
        assert one.size == two.size
        assert one.getpixel((5, 5)) == two.getpixel((5, 5))


def test_settings_come_back_after_an_error() -> None:
    before = dict(matplotlib.rcParams)
    with pytest.raises(RuntimeError), house_style():
        raise RuntimeError
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", ["a/b", "../up", "", "a b"])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="plain file name"):
        save_figure(new_figure(), tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_registered_with_pyplot(heads: pd.DataFrame) -> None:
    scatter(heads)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []
