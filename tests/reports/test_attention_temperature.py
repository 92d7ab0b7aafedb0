"""Attention temperature curves: a line and a band per head, plain numbers on a log axis."""

import numpy as np
import pandas as pd
import pytest

from models.errors import InputError
from reports.attention_temperature import attention_temperature_curves
from reports.style import new_figure

TEMPERATURES = [0.25, 1.0, 4.0, 1e6]


@pytest.fixture
def frame() -> pd.DataFrame:
    rows = [
        (t, metric, 0.1, 0.1 + np.log1p(t), 0.9 * np.log1p(t), 1.1 * np.log1p(t), np.log1p(t) / 5)
        for t in TEMPERATURES
        for metric in ("loss", "exact_match")
    ]
    names = ["temperature", "metric", "clean", "value", "ci_low", "ci_high", "entropy"]
    return pd.DataFrame(rows, columns=names)


def test_the_metric_and_the_entropy_are_drawn_against_the_temperature(frame: pd.DataFrame) -> None:
    figure = new_figure()
    assert attention_temperature_curves(figure, frame.sample(frac=1, random_state=0)) is figure
    left, right = figure.axes
    loss = frame[frame["metric"] == "loss"]
    for axes, column in ((left, "value"), (right, "entropy")):
        x, y = (np.asarray(part).tolist() for part in axes.lines[0].get_data())
        assert x == TEMPERATURES
        assert y == pytest.approx(loss[column].tolist())
        assert axes.get_xscale() == "log"
    assert left.get_ylabel() == "loss"
    assert len(left.collections) == 1, "the interval"
    figure.draw_without_rendering()
    ticks = [text.get_text() for text in left.get_xticklabels()]
    assert ticks == ["0.25", "1", "4", "1e+06"]


def test_another_metric_may_be_named(frame: pd.DataFrame) -> None:
    figure = new_figure()
    attention_temperature_curves(figure, frame, metric="exact_match")
    assert figure.axes[0].get_ylabel() == "exact match"
    with pytest.raises(InputError, match="one of loss, exact_match, but got 'rank'"):
        attention_temperature_curves(new_figure(), frame, metric="rank")


def test_each_head_gets_a_line_and_too_many_are_refused(frame: pd.DataFrame) -> None:
    heads = pd.concat([frame.assign(layer=1, head=head) for head in (0, 3)])
    figure = new_figure()
    attention_temperature_curves(figure, heads)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["head 1.0", "head 1.3", "unchanged model (temperature 1)"]
    many = pd.concat([frame.assign(layer=1, head=head) for head in range(8)])
    with pytest.raises(InputError, match="at most 7 heads can be told apart, but got 8"):
        attention_temperature_curves(new_figure(), many)


def test_undefined_values_are_skipped_and_said(frame: pd.DataFrame) -> None:
    figure = new_figure()
    attention_temperature_curves(figure, frame.assign(entropy=np.nan, ci_low=np.nan))
    assert [text.get_text() for text in figure.axes[1].texts] == ["no defined values"]
    with pytest.raises(InputError, match="entropy missing"):
        attention_temperature_curves(new_figure(), frame.drop(columns="entropy"))
