"""Attention maps: one cell per position pair, literal labels, nothing overlapping."""

import base64
import io
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from models.errors import InputError, LengthError
from reports.figures import save_figure
from reports.grid import map_grid_size
from reports.maps import attention_maps
from reports.style import new_figure
from reports.text import NOTICE

Causal = Callable[[int, int], np.ndarray]

CAT = ["the", " cat", " and", " the", " cat", " and", " the", " cat"]
REVERSAL = [*"interpretability", "SEP", *"ytilibaterpretni"]


def drawn(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def tick_labels(axes: Axes) -> tuple[list[str], list[str]]:
    x, y = axes.get_xticklabels(), axes.get_yticklabels()
    return [text.get_text() for text in x], [text.get_text() for text in y]


def maps_of(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.images]


def test_repeated_tokens_keep_their_own_rows_and_columns(causal: Causal) -> None:
    patterns = causal(1, 8)
    figure = new_figure(*map_grid_size(1))
    attention_maps(figure, patterns, query_labels=CAT)
    (axes,) = maps_of(figure)
    shown = ["the", "␣cat", "␣and", "␣the", "␣cat", "␣and", "␣the", "␣cat"]
    assert tick_labels(axes) == (shown, shown)
    cells = axes.images[0].get_array()
    assert cells is not None
    assert np.ma.count(cells) == 36
    np.testing.assert_array_equal(np.ma.getdata(cells), patterns[0])


def test_every_cell_keeps_its_own_colour_in_the_vector_file(causal: Causal, tmp_path: Path) -> None:
    patterns = causal(1, 7)
    figure = new_figure(*map_grid_size(1))
    attention_maps(figure, patterns)
    svg = save_figure(figure, tmp_path, "maps").svg.read_text()
    images = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(found))))
        for found in re.findall(r"data:image/png;base64,\s*([^\"]+)\"", svg)
    ]
    (cells,) = [image for image in images if image.shape[:2] == (7, 7)]
    expected = colormaps["viridis"](patterns[0], bytes=True)
    visible = np.tri(7, dtype=bool)
    if not np.array_equal(cells[visible], expected[visible]):
        cells = cells[::-1]
    np.testing.assert_array_equal(cells[visible], expected[visible])
    assert (cells[~visible] == cells[0, 6]).all()
    assert "pixelated" in svg


def test_cells_are_equal_squares_in_every_map(causal: Causal) -> None:
    figure = new_figure(*map_grid_size(6, columns=3))
    attention_maps(figure, causal(6, 11), columns=3)
    figure.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in maps_of(figure)]
    assert len(boxes) == 6
    sides = {round(side, 3) for box in boxes for side in (box.width, box.height)}
    assert len(sides) == 1


@pytest.mark.parametrize(
    "text", ["costs $5 and $6", "$\\badcmd$", "x_1^2", "<b>&", "a" + "\u202e" + "bc", "日本語"]
)
def test_awkward_text_is_drawn_literally_and_saved(
    causal: Causal, tmp_path: Path, text: str
) -> None:
    figure = new_figure(*map_grid_size(1))
    attention_maps(figure, causal(1, 3), titles=[text], query_labels=[text, " b", "c\n"])
    files = save_figure(figure, tmp_path, "maps")
    assert files.png.stat().st_size > 5_000
    assert files.svg.stat().st_size > 5_000
    shown = text.replace("\u202e", "\\u202e").replace("日本語", "\\u65e5\\u672c\\u8a9e")
    assert shown in drawn(figure)
    assert not any(label.get_parse_math() for label in figure.findobj(Text))


def test_missing_glyphs_are_explained_once_for_many_maps(causal: Causal) -> None:
    figure = new_figure(*map_grid_size(4))
    attention_maps(figure, causal(4, 3), query_labels=["日", "本", "語"])
    assert [text for text in drawn(figure) if NOTICE in text] == [NOTICE]


def test_crowded_labels_are_thinned_with_their_positions_and_the_figure_says_so(
    causal: Causal,
) -> None:
    figure = new_figure(*map_grid_size(8, columns=8))
    attention_maps(figure, causal(8, 33), query_labels=REVERSAL, columns=8)
    x, y = tick_labels(maps_of(figure)[0])
    assert len(x) == len(y) == 33
    assert [label for label in y if label] == ["0 i", "8 t", "16 SEP", "24 t", "32 i"]
    assert "Labels: every 8th position, counted from 0." in drawn(figure)


def test_only_outer_maps_carry_labels(causal: Causal) -> None:
    figure = new_figure(*map_grid_size(5, columns=3))
    attention_maps(figure, causal(5, 4), columns=3)
    has = [tuple(bool(side) for side in tick_labels(axes)) for axes in maps_of(figure)]
    assert has == [(False, True), (False, False), (True, False), (True, True), (True, False)]


def test_titles_that_repeat_by_row_are_drawn_once(causal: Causal) -> None:
    figure = new_figure(*map_grid_size(4, columns=2, row_labels=True))
    attention_maps(
        figure,
        causal(4, 5),
        titles=["head 0.0", "head 0.1"] * 2,
        row_labels=["seed 0", "seed 1"],
        columns=2,
    )
    texts = drawn(figure)
    assert [texts.count(text) for text in ("head 0.0", "head 0.1", "seed 0", "seed 1")] == [1] * 4


@pytest.mark.parametrize(
    ("count", "columns", "labels", "row_labels"),
    [
        (1, 4, REVERSAL, False),
        (8, 4, REVERSAL, False),
        (40, 8, REVERSAL, True),
        (3, 3, [*CAT[:5], " internationalisation", "日本", "\n\n\n"], False),
        (2, 2, None, False),
    ],
)
def test_nothing_overlaps_and_nothing_is_cut(
    causal: Causal, count: int, columns: int, labels: list[str] | None, row_labels: bool
) -> None:
    size = len(labels) if labels else 13
    figure = new_figure(*map_grid_size(count, columns=columns, row_labels=row_labels))
    attention_maps(
        figure,
        causal(count, size),
        titles=[f"head {n % columns}.0" for n in range(count)],
        row_labels=[f"seed {n}" for n in range(-(-count // columns))] if row_labels else None,
        query_labels=labels,
        columns=columns,
    )
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    page = figure.bbox
    for text, box in boxes:
        assert page.x0 <= box.x0, text
        assert box.x1 <= page.x1, text
        assert page.y0 <= box.y0, text
        assert box.y1 <= page.y1, text
    for (first, one), (second, other) in itertools.combinations(boxes, 2):
        inner = one.padded(-1.2)
        assert not inner.overlaps(other.padded(-1.2)), (first, second)
    for axes in maps_of(figure):
        area = axes.get_window_extent().padded(-1)
        assert not [text for text, box in boxes if area.overlaps(box.padded(-1))]


def test_marked_cells_are_outlined_where_they_are(causal: Causal) -> None:
    figure = new_figure(*map_grid_size(1))
    attention_maps(figure, causal(1, 5), marks=[(4, 1), (3, 2)])
    (outlines,) = maps_of(figure)[0].collections
    centres = [path.vertices[:4].mean(0).tolist() for path in outlines.get_paths()]
    assert centres == [[1.0, 4.0], [2.0, 3.0]]


def test_undefined_cells_are_blank_not_dark(causal: Causal) -> None:
    patterns = causal(1, 5)
    patterns[0, 4, 0] = np.nan
    figure = new_figure(*map_grid_size(1))
    attention_maps(figure, patterns)
    cells = maps_of(figure)[0].images[0].get_array()
    assert np.ma.getmaskarray(cells)[4, 0]


def test_it_draws_into_a_part_of_a_figure(causal: Causal, tmp_path: Path) -> None:
    figure = new_figure(9, 7)
    top, bottom = figure.subfigures(2, 1)
    for part in (top, bottom):
        assert attention_maps(part, causal(2, 5)) is part
    assert len(maps_of(figure)) == 4
    assert save_figure(figure, tmp_path, "both").png.exists()


@pytest.mark.parametrize("what", ["query_labels", "key_labels", "titles", "row_labels"])
def test_a_wrong_number_of_labels_is_refused(causal: Causal, what: str) -> None:
    with pytest.raises(LengthError, match=r"need \d+, got 3"):
        attention_maps(new_figure(), causal(2, 5), **{what: ["a", "b", "c"]})


@pytest.mark.parametrize(
    "patterns", [np.full((1, 2, 2), 1.5), np.full((1, 2, 2), -0.1), np.zeros((0, 2, 2))]
)
def test_what_is_no_pattern_is_refused(patterns: np.ndarray) -> None:
    with pytest.raises(InputError):
        attention_maps(new_figure(), patterns)
