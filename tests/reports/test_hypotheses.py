"""The tested set is drawn among the sets that it is compared with."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from models.errors import InputError
from reports.hypotheses import null_distribution
from reports.style import PALETTE, new_figure


@pytest.fixture
def axes() -> Axes:
    return new_figure().subplots()


@pytest.fixture
def sets() -> pd.DataFrame:
    """Two seeds of five sets, the third of which is the tested one; one value undefined."""
    rows = [
        (seed, kind, claim, n == 2, np.nan if (seed, n) == (1, 4) else seed + n / 4)
        for seed in range(2)
        for claim in ("necessary", "sufficient")
        for kind in ("mean", "_odd $x$")
        for n in range(5)
    ]
    return pd.DataFrame(rows, columns=["seed", "ablation", "claim", "tested", "value"])


def marks(axes: Axes, marker: str) -> list[tuple[list[float], list[float]]]:
    lines = [line for line in axes.lines if line.get_marker() == marker]
    return [(np.asarray(x).tolist(), np.asarray(y).tolist()) for x, y in map(_data, lines)]


def _data(line: object) -> tuple[object, object]:
    return line.get_data()  # type: ignore[attr-defined, no-any-return]


def test_every_set_is_a_mark_and_the_tested_one_another(axes: Axes, sets: pd.DataFrame) -> None:
    assert null_distribution(axes, sets) is axes
    assert [x for x, _ in marks(axes, "o")] == [[0, 0.25, 0.75, 1]] * 2 + [[1, 1.25, 1.75]] * 2
    assert marks(axes, "D") == [([0.5], [0]), ([0.5], [1]), ([1.5], [2]), ([1.5], [3])]
    colours = {line.get_color() for line in axes.lines if line.get_marker() == "D"}
    assert colours == {PALETTE[1]}


def test_rows_are_named_literally_and_run_downwards(axes: Axes, sets: pd.DataFrame) -> None:
    null_distribution(axes, sets)
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["seed 0, mean", "seed 0, _odd $x$", "seed 1, mean", "seed 1, _odd $x$"]
    low, high = axes.get_ylim()
    assert low > high
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()


def test_sets_with_one_value_are_stacked_inside_their_row(axes: Axes, sets: pd.DataFrame) -> None:
    many = pd.concat([sets[(sets["seed"] == 0)].assign(value=1.0)] * 50)
    null_distribution(axes, many.drop(columns="seed"))
    for place, (x, y) in enumerate(marks(axes, "o")):
        assert x == [1.0] * 200
        assert len(set(y)) == 200
        assert max(abs(np.array(y) - place)) <= 0.4 + 1e-9


def test_each_claim_says_what_its_axis_is(sets: pd.DataFrame) -> None:
    first, second = new_figure().subplots(1, 2)
    null_distribution(first, sets, effect="logit difference (logits)")
    null_distribution(second, sets, claim="sufficient")
    assert first.get_xlabel() == "change in logit difference (logits) on removal"
    assert second.get_xlabel() == "share retained when kept alone"


def test_nothing_defined_says_so(axes: Axes, sets: pd.DataFrame) -> None:
    null_distribution(axes, sets.assign(value=np.nan))
    assert [text.get_text() for text in axes.texts] == ["no defined values"]


def test_a_missing_column_is_named(axes: Axes, sets: pd.DataFrame) -> None:
    with pytest.raises(InputError, match=r"null_distribution needs.*tested missing"):
        null_distribution(axes, sets.drop(columns="tested"))
