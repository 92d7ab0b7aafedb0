"""Curves show every seed, skip what is undefined and keep user text literal."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from models.errors import InputError
from reports.curves import (
    confidence_by_training,
    cumulative_curves,
    temperature_curves,
    training_curves,
)
from reports.style import new_figure


@pytest.fixture
def history() -> pd.DataFrame:
    rows = [
        (model, seed, step, 3.0 / (step + 1) + seed, step / 40 if step % 20 == 0 else np.nan)
        for model in ("next-token", "_odd $x$")
        for seed in range(3)
        for step in range(0, 41, 10)
    ]
    return pd.DataFrame(rows, columns=["model", "seed", "step", "loss", "exact_match"])


@pytest.fixture
def sweep() -> pd.DataFrame:
    rows = [
        ("a", seed, t, 1 - t / 4, 1 - t / 4 + 0.01, 1 - t / 4 - 0.02, 1 - t / 4 + 0.03)
        for seed in range(2)
        for t in (0.1, 1.0, 3.0)
    ]
    names = [
        "model",
        "seed",
        "temperature",
        "exact_match",
        "sampled",
        "sampled_low",
        "sampled_high",
    ]
    return pd.DataFrame(rows, columns=names)


def data_lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    lines = [line for line in axes.lines if len(line.get_xdata()) > 2]
    return [
        (np.asarray(x).tolist(), np.asarray(y).tolist()) for x, y in (n.get_data() for n in lines)
    ]


def test_training_draws_a_line_for_every_seed(history: pd.DataFrame) -> None:
    figure = new_figure()
    assert training_curves(figure, history.sample(frac=1, random_state=0)) is figure
    loss, match = figure.axes
    assert len(data_lines(loss)) == len(data_lines(match)) == 6
    seed_0 = ([0, 10, 20, 30, 40], [3.0 / (step + 1) for step in range(0, 41, 10)])
    assert seed_0 in data_lines(loss)
    assert loss.get_yscale() == "log"


def test_steps_without_an_evaluation_are_skipped_not_zero(history: pd.DataFrame) -> None:
    figure = new_figure()
    training_curves(figure, history)
    assert data_lines(figure.axes[1])[0] == ([0, 20, 40], [0, 0.5, 1.0])


def test_the_legend_counts_seeds_and_keeps_names_literal(history: pd.DataFrame) -> None:
    figure = new_figure()
    training_curves(figure, history)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["next-token (3 seeds)", "_odd $x$ (3 seeds)"]
    figure.draw_without_rendering()


def test_log_ticks_are_plain_numbers(history: pd.DataFrame) -> None:
    figure = new_figure()
    training_curves(figure, history.assign(loss=10.0 ** -history["step"].astype(float) / 10))
    figure.draw_without_rendering()
    texts = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert texts
    assert not any("$" in text for text in texts)


def test_a_curve_without_defined_values_says_so(history: pd.DataFrame) -> None:
    figure = new_figure()
    training_curves(figure, history.assign(exact_match=np.nan))
    assert [text.get_text() for text in figure.axes[1].texts] == ["no defined values"]


def test_cumulative_curves_separate_removing_from_keeping() -> None:
    rows = [
        (seed, mode, "mean", n, float((n < 2) == (mode == "remove")), 0.1)
        for seed in range(3)
        for mode in ("keep", "remove")
        for n in range(5)
    ]
    names = ["seed", "mode", "ablation", "n_heads", "exact_match", "loss"]
    figure = new_figure()
    cumulative_curves(figure, pd.DataFrame(rows, columns=names))
    removed, kept = figure.axes
    assert [y for _, y in data_lines(removed)] == [[1, 1, 0, 0, 0]] * 3
    assert [y for _, y in data_lines(kept)] == [[0, 0, 1, 1, 1]] * 3
    starts = [x[0] for x, _ in data_lines(removed)]
    assert len(set(starts)) == 3
    assert np.round(starts).tolist() == [0, 0, 0]


def test_one_line_alone_is_not_shifted() -> None:
    frame = pd.DataFrame(
        {"seed": 0, "mode": "remove", "ablation": "mean", "n_heads": [0, 1, 2], "loss": 0.1}
    )
    figure = new_figure()
    cumulative_curves(figure, frame.assign(exact_match=[1.0, 0.5, 0.0]))
    assert data_lines(figure.axes[0]) == [([0, 1, 2], [1, 0.5, 0])]


def test_temperature_shows_the_exact_line_and_the_samples(sweep: pd.DataFrame) -> None:
    axes = new_figure().subplots()
    temperature_curves(axes, sweep)
    exact = [1 - t / 4 for t in (0.1, 1.0, 3.0)]
    drawn = [y for _, y in data_lines(axes)]
    assert drawn.count(exact) == 2
    assert sum(np.allclose(y, np.array(exact) + 0.01) for y in drawn) == 2
    assert len(axes.collections) == 2


def test_without_samples_no_points_are_promised(sweep: pd.DataFrame) -> None:
    axes = new_figure().subplots()
    temperature_curves(axes, sweep.assign(sampled=np.nan))
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "a (2 seeds)",
        "line: exact probability",
    ]


def test_confidence_orders_training_lengths() -> None:
    rows = [
        (steps, t, 1 / (1 + t * 100 / steps)) for steps in (1000, 100, 300) for t in (0.5, 1, 2)
    ]
    axes = new_figure().subplots()
    confidence_by_training(
        axes, pd.DataFrame(rows, columns=["steps", "temperature", "exact_match"])
    )
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "100 training steps",
        "300 training steps",
        "1,000 training steps",
        "half of the sequences",
    ]
    assert len(data_lines(axes)) == 3


def test_a_missing_column_is_named(history: pd.DataFrame) -> None:
    with pytest.raises(InputError, match=r"training_curves needs.*loss missing"):
        training_curves(new_figure(), history.drop(columns="loss"))
