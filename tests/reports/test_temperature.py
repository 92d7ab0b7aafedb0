"""Temperature figures: what is drawn, what is named, and what is left out."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from models.errors import InputError
from reports.style import INK, new_figure
from reports.temperature import (
    LABELLED,
    MEASURES,
    OTHERS,
    fragility_curves,
    language_curves,
    position_curves,
)

STEPS = [0.5, 1.0, 2.0]


@pytest.fixture
def position() -> pd.DataFrame:
    rows = [(t, j, p := 1 / (t + j), p - 0.1, p + 0.1) for t in STEPS for j in (1, 2, 3)]
    names = ["temperature", "output", "probability", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=names)


@pytest.fixture
def fragile() -> pd.DataFrame:
    """Head k loses k hundredths, the first gains."""
    rows = [
        (f"0.{head}", kind, t, 1 / t, 1 / t + 0.05 * (head == 0) - head / 100)
        for head in range(9)
        for kind in ("mean", "resample")
        for t in STEPS
    ]
    names = ["heads", "ablation", "temperature", "clean", "ablated"]
    return pd.DataFrame(rows, columns=names)


@pytest.fixture
def sweep() -> pd.DataFrame:
    rows = [
        (kind, t, measure, t + i, t + i - 0.5, np.nan if kind == "open" else t + i + 0.5)
        for kind in ("factual", "open")
        for t in STEPS
        for i, measure in enumerate(MEASURES)
    ]
    names = ["kind", "temperature", "measure", "mean", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=names)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_by_position_there_is_a_line_and_a_band_per_temperature(position: pd.DataFrame) -> None:
    axes = new_figure().subplots()
    assert position_curves(axes, position.sample(frac=1, random_state=0)) is axes
    assert len(axes.lines) == len(axes.collections) == 3
    for line, t in zip(axes.lines, STEPS, strict=True):
        own = position[position["temperature"] == t]
        assert np.asarray(line.get_xdata()).tolist() == [1, 2, 3]
        assert np.asarray(line.get_ydata()).tolist() == own["probability"].tolist()
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["0.5", "1", "2"]
    assert len({line.get_color() for line in axes.lines}) == 3


def test_one_output_and_undefined_intervals_are_drawn(position: pd.DataFrame) -> None:
    one = position[position["output"] == 1].assign(ci_low=np.nan, ci_high=np.nan)
    figure = new_figure()
    position_curves(figure.subplots(), one)
    figure.draw_without_rendering()
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["1"]


def test_the_six_costliest_heads_are_named_and_the_others_grey(fragile: pd.DataFrame) -> None:
    figure = new_figure()
    assert fragility_curves(figure, fragile) is figure
    assert len(figure.axes) == 2
    named = [f"without 0.{head}" for head in (8, 7, 6, 5, 4, 3)]
    assert texts(figure) == ["all heads", *named, "without another"]
    assert len(named) == LABELLED
    for axes in figure.axes:
        assert sum(line.get_color() == OTHERS for line in axes.lines) == 3
        clean = [line for line in axes.lines if line.get_color() == INK]
        assert len(clean) == 1
        assert np.asarray(clean[0].get_ydata()).tolist() == [2, 1, 0.5]
        thick = clean[0].get_linewidth()
        assert all(line.get_linewidth() < thick for line in axes.lines if line is not clean[0])
    assert "mean ablation" in figure.axes[0].get_xlabel()


def test_a_head_that_costs_nothing_is_not_named(fragile: pd.DataFrame) -> None:
    figure = new_figure()
    fragility_curves(figure, fragile[fragile["heads"].isin(["0.0", "0.1"])])
    assert texts(figure) == ["all heads", "without 0.1", "without another"]


def test_a_language_model_gets_a_panel_per_measure(sweep: pd.DataFrame) -> None:
    figure = new_figure()
    other = sweep.assign(measure="agreed_tokens")
    assert language_curves(figure, pd.concat([sweep, other])) is figure
    assert len(figure.axes) == len(MEASURES)
    assert [axes.get_title() for axes in figure.axes] == [title for title, _ in MEASURES.values()]
    assert [axes.get_ylabel() for axes in figure.axes] == [unit for _, unit in MEASURES.values()]
    assert texts(figure) == ["factual prompts", "open prompts"]
    logarithmic = [axes.get_title() for axes in figure.axes if axes.get_yscale() == "log"]
    assert logarithmic == ["effective tokens", "kept by the filters"]
    for i, axes in enumerate(figure.axes):
        for line in axes.lines:
            assert np.asarray(line.get_ydata()).tolist() == [t + i for t in STEPS]


def test_measures_without_values_get_no_panel(sweep: pd.DataFrame) -> None:
    undefined = sweep.copy()
    undefined.loc[undefined["measure"].isin(["repetition", "agreement"]), "mean"] = np.nan
    figure = new_figure()
    language_curves(figure, undefined)
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 5
    assert "repeated 3-grams" not in titles
    nothing = new_figure()
    language_curves(nothing, sweep.assign(mean=np.nan))
    assert [text.get_text() for text in nothing.axes[0].texts] == ["no defined values"]


def test_missing_columns_and_empty_tables_are_named(position: pd.DataFrame) -> None:
    for function in (fragility_curves, language_curves):
        with pytest.raises(InputError, match="missing"):
            function(new_figure(), position)
    with pytest.raises(InputError, match="at least one row"):
        position_curves(new_figure().subplots(), position.head(0))
