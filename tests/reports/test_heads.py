"""Drawings of one mark per head show the numbers that they were given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from models.errors import InputError
from reports.heads import ablation_dots, head_map, offset_profile, score_against_entropy
from reports.style import PALETTE, new_figure


@pytest.fixture
def axes() -> Axes:
    return new_figure().subplots()


@pytest.fixture
def grid() -> pd.DataFrame:
    """Two layers of three heads in shuffled order, one undefined."""
    rows = [(1, 2, -0.5), (0, 0, 0.25), (1, 0, np.nan), (0, 2, 0.0), (0, 1, 1.0), (1, 1, -0.004)]
    return pd.DataFrame(rows, columns=["layer", "head", "change"])


def legend_texts(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_head_map_puts_each_head_in_its_cell(axes: Axes, grid: pd.DataFrame) -> None:
    assert head_map(axes, grid, value="change", unit="loss (nats)", centre=0) is axes
    cells = axes.images[0].get_array()
    np.testing.assert_array_equal(cells, [[0.25, 1.0, 0.0], [np.nan, -0.004, -0.5]])
    texts = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert texts == {
        (0, 0): "0.25",
        (1, 0): "1.00",
        (2, 0): "0.00",
        (0, 1): "n/a",
        (1, 1): "0.00",
        (2, 1): "−0.50",
    }


def test_a_signed_head_map_is_neutral_at_its_centre(axes: Axes, grid: pd.DataFrame) -> None:
    head_map(axes, grid, value="change", unit="nats", centre=0)
    norm = axes.images[0].norm
    assert float(norm(0.0)) == 0.5
    assert float(norm(1.0)) + float(norm(-1.0)) == pytest.approx(1)


def test_a_head_map_of_equal_values_is_drawn(axes: Axes, grid: pd.DataFrame) -> None:
    head_map(axes, grid.assign(change=0.0), value="change", unit="nats", centre=0)
    head_map(axes, grid.assign(change=np.nan), value="change", unit="nats")
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()


def test_values_beyond_the_colour_scale_are_marked_and_stay_in_their_cells() -> None:
    def bar_and_texts(values: list[float]) -> tuple[str, list[str]]:
        frame = pd.DataFrame({"layer": 0, "head": range(len(values)), "share": values})
        axes = new_figure().subplots()
        head_map(axes, frame, value="share", unit="share", limits=(0, 1))
        bar = axes.images[0].colorbar
        assert bar is not None
        return bar.extend, [text.get_text() for text in axes.texts]

    assert bar_and_texts([0.0, 1.0, np.nan]) == ("neither", ["0.00", "1.00", "n/a"])
    assert bar_and_texts([-191.13, 1.0]) == ("min", ["−191", "1.00"])
    assert bar_and_texts([-12345.0, 12.34]) == ("both", ["<−999", "12.3"])
    assert bar_and_texts([0.0, 9.999, 99.96, 999.7])[1][1:] == ["10.0", "100", ">999"]


def test_two_rows_for_a_head_are_refused(axes: Axes, grid: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="one row per head"):
        head_map(axes, pd.concat([grid, grid]), value="change", unit="nats")


def test_every_defined_head_of_every_model_is_a_point(axes: Axes, heads: pd.DataFrame) -> None:
    score_against_entropy(axes, heads, score="anti_diagonal", entropy="entropy")
    points = np.concatenate([np.ma.getdata(drawn.get_offsets()) for drawn in axes.collections])
    expected = heads[["entropy", "anti_diagonal"]].to_numpy()
    np.testing.assert_array_equal(
        points[np.isfinite(points).all(1)], expected[~heads["entropy"].isna()]
    )
    assert legend_texts(axes) == ["next-token", "_untrained $x$", "chance 0.042"]


def test_models_differ_in_marker_and_in_colour(axes: Axes, heads: pd.DataFrame) -> None:
    score_against_entropy(axes, heads, score="anti_diagonal", entropy="entropy")
    first, second = axes.collections
    assert not np.array_equal(first.get_edgecolor(), second.get_edgecolor())
    assert not np.array_equal(first.get_paths()[0].vertices, second.get_paths()[0].vertices)


def test_the_best_head_is_the_one_at_the_expected_offset(axes: Axes) -> None:
    rows = [
        (layer, head, offset, 0.9 if (layer, head, offset) == (1, 2, 7) else 0.1, 0.2)
        for layer in range(2)
        for head in range(3)
        for offset in range(5, 12)
    ]
    frame = pd.DataFrame(rows, columns=["layer", "head", "offset", "mass", "chance"])
    frame.loc[0, "mass"] = 1.0
    offset_profile(axes, frame, expected=7)
    (best,) = [line for line in axes.lines if line.get_color() == PALETTE[0]]
    np.testing.assert_allclose(best.get_ydata(), [0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1])
    assert legend_texts(axes)[0] == "best head 1.2"
    assert legend_texts(axes)[-1] == "expected: 7"
    other = Figure().subplots()
    offset_profile(other, frame)
    assert legend_texts(other)[0] == "best head 0.0"


def test_a_profile_without_defined_mass_names_no_best_head(axes: Axes) -> None:
    frame = pd.DataFrame(
        {"layer": [0], "head": [0], "offset": [3], "mass": [np.nan], "chance": [0.1]}
    )
    offset_profile(axes, frame, expected=3)
    assert legend_texts(axes)[0] == "other heads"


def test_ablations_stand_side_by_side_over_their_head(axes: Axes) -> None:
    rows = [
        (layer, head, kind, layer + head / 10 + place)
        for place, kind in enumerate(("zero", "mean", "resample"))
        for layer in range(2)
        for head in range(2)
    ]
    frame = pd.DataFrame(rows, columns=["layer", "head", "ablation", "change"])
    frame.index = [0] * len(frame)
    ablation_dots(axes, frame, effect="loss (nats)")
    dots = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert len(dots) == 3
    for place, line in enumerate(dots):
        np.testing.assert_array_equal(np.round(line.get_xdata()), [0, 1, 2, 3])
        np.testing.assert_allclose(line.get_ydata(), np.array([0, 0.1, 1, 1.1]) + place)
    assert dots[0].get_xdata()[0] < dots[1].get_xdata()[0] < dots[2].get_xdata()[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.0", "0.1", "1.0", "1.1"]
    assert to_rgba(axes.lines[0].get_color())[:3] != to_rgba(PALETTE[0])[:3]


def test_missing_columns_and_empty_tables_are_named(axes: Axes, grid: pd.DataFrame) -> None:
    with pytest.raises(InputError, match=r"head_map needs.*score missing, got layer, head, change"):
        head_map(axes, grid, value="score", unit="u")
    with pytest.raises(InputError, match="at least one row"):
        head_map(axes, grid.head(0), value="change", unit="u")
