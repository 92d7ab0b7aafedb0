"""Maps of heads fill the page, whatever the shape of the model."""

import numpy as np
import pandas as pd
import pytest

from reports.grid import head_grid
from reports.heads import head_map
from reports.style import PAGE_WIDTH, new_figure


@pytest.mark.parametrize(("n_layers", "n_heads"), [(30, 9), (12, 12), (24, 16), (6, 8), (4, 16)])
@pytest.mark.parametrize("n_maps", [1, 2, 4])
def test_thirty_layers_of_nine_heads_left_half_the_width_blank(
    n_maps: int, n_layers: int, n_heads: int
) -> None:
    grid = head_grid(n_maps, n_layers=n_layers, n_heads=n_heads)
    rows, columns = grid.shape
    across, down = (n_layers, n_heads) if grid.layers_across else (n_heads, n_layers)
    assert rows * columns == n_maps
    assert grid.size[0] == PAGE_WIDTH
    assert grid.size[1] <= 8.01
    assert columns * across * grid.cell <= PAGE_WIDTH
    assert rows * down * grid.cell <= grid.size[1]
    if n_maps > 1:
        assert columns * across * grid.cell >= 0.5 * PAGE_WIDTH
    assert grid.layers_across == (n_layers > n_heads)


def test_layers_along_the_x_axis_hold_the_same_numbers() -> None:
    rows = [(layer, head, layer + head / 10) for layer in range(30) for head in range(9)]
    frame = pd.DataFrame(rows, columns=["layer", "head", "score"])
    grid = head_grid(4, n_layers=30, n_heads=9)
    axes = new_figure(*grid.size).subplots(*grid.shape).ravel()[0]
    head_map(axes, frame, value="score", unit="share", grid=grid)
    cells = axes.images[0].get_array()
    np.testing.assert_allclose(cells, frame["score"].to_numpy().reshape(30, 9).T)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "head")
    assert not axes.texts, "numbers that do not fit are left out"
    shown = [text.get_text() for text in axes.get_xticklabels() if text.get_text()]
    assert shown == [str(layer) for layer in range(0, 30, 2)]


def test_numbers_that_fit_are_written() -> None:
    frame = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "score": 0.5})
    grid = head_grid(4, n_layers=2, n_heads=2)
    axes = new_figure(*grid.size).subplots(*grid.shape).ravel()[0]
    head_map(axes, frame, value="score", unit="share", grid=grid)
    assert [text.get_text() for text in axes.texts] == ["0.50"] * 4
