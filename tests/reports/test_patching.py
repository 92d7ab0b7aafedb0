"""Maps of patching show the numbers that they were given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from models.errors import InputError, LengthError
from reports.patching import patch_map
from reports.style import new_figure

TOKENS = ["When", " Mary", " $x_1$", "\n", "日本", " to", " to"]


@pytest.fixture
def axes() -> Axes:
    return new_figure().subplots()


def table(n_layers: int = 3, n_positions: int = 7) -> pd.DataFrame:
    layer, position = np.indices((n_layers, n_positions)).reshape(2, -1)
    value = np.random.default_rng(0).normal(size=len(layer))
    return pd.DataFrame(
        {"layer": layer, "position": pd.array(position, dtype="Int64"), "value": value}
    )


def test_every_layer_and_position_has_its_cell(axes: Axes) -> None:
    frame = table()
    frame.loc[4, "value"] = np.nan
    shuffled = frame.sort_values("value", ascending=False).sort_values("position", kind="stable")
    assert patch_map(axes, shuffled, tokens=TOKENS) is axes
    cells = np.ma.filled(axes.images[0].get_array().astype(float), np.nan)
    np.testing.assert_array_equal(cells, frame["value"].to_numpy().reshape(3, 7))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1", "2"]


def test_zero_is_neutral_and_both_signs_reach_equally_far(axes: Axes) -> None:
    patch_map(axes, table())
    norm = axes.images[0].norm
    assert float(norm(0.0)) == 0.5
    assert float(norm(0.7)) + float(norm(-0.7)) == pytest.approx(1)


def test_tokens_are_escaped_and_equal_ones_keep_their_columns(axes: Axes) -> None:
    patch_map(axes, table(), tokens=TOKENS)
    texts = [text.get_text() for text in axes.get_xticklabels()]
    assert texts == ["When", "␣Mary", "␣$x_1$", "\\n", "\\u65e5\\u672c", "␣to", "␣to"]
    assert "font lacks" in axes.get_title()
    assert not any(text.get_parse_math() for text in axes.get_xticklabels())


def test_named_positions_keep_their_order(axes: Axes) -> None:
    frame = table(3, 2)
    patch_map(axes, frame.assign(position=frame["position"].map({0: "S2", 1: "END"})))
    assert [text.get_text() for text in axes.get_xticklabels()] == ["S2", "END"]


def test_where_there_is_no_room_labels_carry_their_position(axes: Axes) -> None:
    n = 211
    patch_map(axes, table(2, n), tokens=[f"t{i}" for i in range(n)])
    shown = [text.get_text() for text in axes.get_xticklabels() if text.get_text()]
    assert len(shown) < 60
    assert all(label == f"{label.split()[0]} t{label.split()[0]}" for label in shown)
    assert "Labels: every" in axes.get_title()


def test_undefined_maps_are_drawn(axes: Axes) -> None:
    patch_map(axes, table().assign(value=np.nan))
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]


def test_rows_of_several_modes_are_refused(axes: Axes) -> None:
    with pytest.raises(InputError, match="select one kind and mode"):
        patch_map(axes, pd.concat([table(), table()]))


def test_rows_without_positions_are_refused(axes: Axes) -> None:
    with pytest.raises(InputError, match='patch positions="each"'):
        patch_map(axes, table().assign(position=pd.array([None] * 21, dtype="Int64")))


def test_tokens_that_do_not_fit_are_refused(axes: Axes) -> None:
    with pytest.raises(LengthError, match="got 2 for 0, 1"):
        patch_map(axes, table(), tokens=["a", "b"])
