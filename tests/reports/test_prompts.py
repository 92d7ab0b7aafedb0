"""Figures of prompts and layers: what is drawn, and that nothing is cut or made up."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from reports.prompts import by_layer, prompt_dots, token_shares
from reports.style import PALETTE, new_figure


def prompts() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "prompt": ["She looked at him and said", "x" * 60],
            "kind": ["open", "given"],
            "top": [",", " Washington"],
            "top_probability": [0.0, 1.0],
        }
    )


def test_no_layer_is_ticked_that_does_not_exist() -> None:
    """Layers 0..29 had a tick at 30."""
    frame = pd.DataFrame([(a, b, 1.0) for a in range(30) for b in range(2)])
    figure = new_figure()
    axes = figure.subplots()
    by_layer(axes, frame.set_axis(["layer", "head", "value"], axis=1), value="value", unit="nats")
    figure.draw_without_rendering()
    assert axes.get_xticks().tolist() == [0, 5, 10, 15, 20, 25]
    one = new_figure().subplots()
    frame = pd.DataFrame({"layer": [0], "head": [0], "value": [1.0]})
    by_layer(one, frame, value="value", unit="nats")
    assert one.get_xticks().tolist() == [0]


def levels(axes: Axes) -> dict[str, set[float]]:
    """The heights of the lines in the legend, by name."""
    legend = axes.get_legend()
    assert legend is not None
    names = {text.get_text() for text in legend.get_texts()}
    drawn = {
        str(line.get_color()): {round(float(y), 6) for y in np.asarray(line.get_ydata())}
        for line in axes.lines
    }
    assert {"chance", "chance without first"} <= names
    return drawn


def test_attention_without_the_first_key_has_a_chance_of_its_own() -> None:
    """One line, 1 / keys, stood for all bars."""
    frame = pd.DataFrame(
        {
            "key": range(4),
            "attention": [0.7, 0.1, 0.1, 0.1],
            "without_first": [np.nan, 0.4, 0.3, 0.3],
            "chance": 0.25,
            "chance_without_first": [np.nan, 1 / 3, 1 / 3, 1 / 3],
        }
    )
    axes = new_figure().subplots()
    token_shares(axes, frame, series=["attention", "without_first"], tokens=["a", "b", "c", "d"])
    drawn = levels(axes)
    assert drawn[PALETTE[1]] == {0.333333}
    assert sorted(len(np.asarray(line.get_xdata())) for line in axes.lines) == [6, 8]
    assert {0.25} in drawn.values()


def test_the_predicted_token_is_set_apart_from_the_prompt() -> None:
    """A comma after a space looked like a part of the prompt."""
    axes = new_figure().subplots()
    prompt_dots(axes, prompts())
    texts = [text.get_text() for text in axes.get_yticklabels()]
    assert texts[0] == "She looked at him and said  →  ,"
    assert texts[1].endswith("x  →  ␣Washington")


def test_a_mark_at_probability_zero_is_whole_and_no_label_touches_the_edge() -> None:
    figure = new_figure(height=2, beside=0.15)
    axes = figure.subplots()
    prompt_dots(axes, prompts())
    figure.draw_without_rendering()
    assert not any(line.get_clip_on() for line in axes.lines if line.get_marker() != "None")
    assert axes.get_xlim() == (-0.02, 1.02)
    left = min(label.get_window_extent().x0 for label in axes.get_yticklabels())
    assert left / figure.dpi >= 0.12
