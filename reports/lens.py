"""The logit lens: what a model would predict if its layers ended earlier."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from reports.style import PALETTE, columns, dress, label, say_empty, styled, whole_numbers


@styled
def lens_curve(axes: Axes, frame: pd.DataFrame, *, unit: str = "") -> Axes:
    """Draw a metric against the number of layers that have run, with its interval.

    Args:
        axes: Where to draw.
        frame: One row per number of layers: ``n_layers``, ``metric``, ``value``,
            ``ci_low``, ``ci_high`` (NaN where there is none).
        unit: Of the value.

    Returns:
        The axes.
    """
    columns(frame, ["n_layers", "metric", "value", "ci_low", "ci_high"], of="lens_curve")
    dress(axes)
    if frame.empty or frame["value"].isna().all():
        say_empty(axes)
        return axes
    rows = frame.sort_values("n_layers")
    x = rows["n_layers"].to_numpy(dtype=float)
    low, high = rows["ci_low"].to_numpy(dtype=float), rows["ci_high"].to_numpy(dtype=float)
    axes.fill_between(x, low, high, color=PALETTE[0], alpha=0.2, linewidth=0)
    axes.plot(x, rows["value"].to_numpy(dtype=float), color=PALETTE[0], marker="o", markersize=4)
    whole_numbers(axes)
    name = str(rows["metric"].iloc[0]).replace("_", " ")
    label(axes, "layers that have run", f"{name} ({unit})" if unit else name)
    return axes
