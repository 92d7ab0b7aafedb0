"""The figure of a patching table: heads, layers and residual positions, or paths, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from models.errors import InputError
from reports.heads import head_map
from reports.patching import patch_map
from reports.style import new_figure

MOST_RECEIVERS = 4

Panel = tuple[str, Callable[[Axes], Any]]


def patching_figure(
    table: pd.DataFrame, *, tokens: Sequence[Any] | None = None, centre: float = 0.0
) -> Any:
    """Draw what `probe.activation_patching` or `probe.path_patching` found, one mode.

    Args:
        table: of either.
        tokens: one text per position, where one prompt was patched.
        centre: the neutral value: 0 for denoising, 1 for noising.
    """
    panels = _paths(table, centre) if "sender" in table else _sites(table, tokens, centre)
    if not panels:
        raise InputError("there is nothing to draw: the table has no rows")
    layers = int(table["layer"].max()) + 1 if "layer" in table else 12
    figure = new_figure(3.6 * len(panels) + 1.2, max(3.2, 0.2 * layers + 1.4))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, draw) in zip(axes, panels, strict=True):
        draw(ax)
        ax.set_title(title)
    return figure


def _sites(table: pd.DataFrame, tokens: Sequence[Any] | None, centre: float) -> list[Panel]:
    panels: list[Panel] = []
    together = table["position"].isna()
    heads = table[(table["kind"] == "head") & together]
    if not heads.empty:
        panels.append(("head outputs", _heads(heads, "recovered", centre)))
    outputs = table[table["kind"].isin(("attn", "mlp")) & together]
    if not outputs.empty:
        by_kind = outputs.assign(position=outputs["kind"])
        draw = partial(patch_map, frame=by_kind, unit="recovered", centre=centre)
        panels.append(("layer outputs", draw))
    for kind, name in (("resid", "residual stream"), ("attn", "attention"), ("mlp", "MLP")):
        rows = table[(table["kind"] == kind) & ~together]
        if not rows.empty:
            draw = partial(patch_map, frame=rows, unit="recovered", tokens=tokens, centre=centre)
            panels.append((name, draw))
    return panels


def _paths(table: pd.DataFrame, centre: float) -> list[Panel]:
    panels: list[Panel] = []
    for receiver, rows in list(table.groupby("receiver", sort=False))[:MOST_RECEIVERS]:
        parts = rows["sender"].str.split(".", expand=True).astype(int)
        frame = rows.assign(layer=parts[0], head=parts[1])
        panels.append((f"direct to {receiver}", _heads(frame, "share", centre)))
    return panels


def _heads(frame: pd.DataFrame, unit: str, centre: float) -> Callable[[Axes], Any]:
    whole = frame.astype({"layer": int, "head": int})
    return partial(head_map, frame=whole, value="value", unit=unit, centre=centre, annotate=False)
