"""A tested set of heads among the sets that it is compared with."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from reports.style import MUTED, PALETTE, columns, dress, label, legend, say_empty, styled
from reports.text import printable

_BINS = 80
_STEP = 0.09


@styled
def null_distribution(
    axes: Axes, sets: pd.DataFrame, *, claim: str = "necessary", effect: str = "loss (nats)"
) -> Axes:
    """Draw what every matched set does, the tested one marked: a row per seed and ablation.

    Dots that would cover each other are stacked around the middle of their row.

    Args:
        axes: Where to draw.
        sets: One row per set: ``tested``, ``claim``, ``ablation``, ``value``; NaN is
            left out. With ``seed`` too, a row for each seed.
        claim: ``necessary``: change on removal; ``sufficient``: share retained.
        effect: What is changed on removal, with its unit.

    Returns:
        The axes.
    """
    columns(sets, ["tested", "claim", "ablation", "value"], of="null_distribution")
    rows = sets[(sets["claim"] == claim) & sets["value"].notna()]
    dress(axes, grid="")
    by = [name for name in ("seed", "ablation") if name in sets.columns]
    groups = list(rows.groupby(by, sort=False))
    names = [_name(by, key) for key, _ in groups]
    values = rows["value"].to_numpy(dtype=float)
    bins = np.linspace(values.min(), values.max(), _BINS) if len(values) else np.zeros(1)
    ends = (1.0,) if claim == "sufficient" else ()
    for x in (0.0, *ends):
        axes.axvline(x, color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
    for place, (_, group) in enumerate(groups):
        _row(axes, group, place, bins)
    if rows.empty:
        say_empty(axes)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    x_label = "share retained when kept alone"
    label(axes, x_label if claim == "sufficient" else f"change in {effect} on removal", "")
    tested = Line2D([], [], linestyle="none", marker="D", color=PALETTE[1], markersize=6)
    other = Line2D([], [], linestyle="none", marker="o", color="#9a9a9a", markersize=4)
    entries = [(tested, "tested set"), (other, "matched sets")]
    legend(axes, entries, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)
    return axes


def _row(axes: Axes, group: pd.DataFrame, place: int, bins: np.ndarray) -> None:
    tested = group["tested"].to_numpy(dtype=bool)
    values = group["value"].to_numpy(dtype=float)
    others = np.sort(values[~tested])
    axes.plot(
        others,
        place + _stacked(others, bins),
        linestyle="none",
        marker="o",
        markersize=4,
        color="#9a9a9a",
        markeredgecolor="white",
        markeredgewidth=0.3,
        zorder=2,
    )
    axes.plot(
        values[tested],
        np.full(int(tested.sum()), float(place)),
        linestyle="none",
        marker="D",
        markersize=6,
        color=PALETTE[1],
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=3,
    )


def _stacked(values: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """How far from the middle of its row each dot is, at most 0.4."""
    column = np.digitize(values, bins)
    shift = np.zeros(len(values))
    for one in np.unique(column):
        some = np.flatnonzero(column == one)
        step = min(_STEP, 0.8 / max(len(some) - 1, 1))
        shift[some] = (np.arange(len(some)) - (len(some) - 1) / 2) * step
    return shift


def _name(by: list[str], key: tuple[object, ...]) -> str:
    parts = [
        f"seed {one}" if name == "seed" else str(one) for name, one in zip(by, key, strict=True)
    ]
    return printable(", ".join(parts), spaces=False)
