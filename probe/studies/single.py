"""One analysis by itself: its table, its figure, and how they were made."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.inputs import typed
from analyses.registry import find
from models.errors import OutputExistsError
from models.load import load
from reports.attention_temperature import attention_temperature_curves
from reports.curves import cumulative_curves, temperature_curves
from reports.figures import save_figure
from reports.heads import ablation_dots, head_map, offset_profile
from reports.hypotheses import null_distribution
from reports.lens import lens_curve
from reports.provenance import provenance
from reports.style import new_figure
from reports.tables import jsonable, records, write_csv
from reports.temperature import fragility_curves

Draw = Callable[[pd.DataFrame], Any]


def run_analysis(
    name: str,
    model: str | Path,
    out: str | Path,
    *,
    prompts: list[str] | None = None,
    engine: str = "lens",
    bos: bool | None = None,
    seed: int = 0,
    device: str = "cpu",
    force: bool = False,
) -> list[Path]:
    """Run a registered analysis and write ``NAME.csv``, ``.png``, ``.svg`` and ``.json``.

    Args:
        name: of the analysis.
        model: see `models.load.load`.
        out: the folder; made if missing. Other files in it are left alone.
        prompts: texts to run on; default what the analysis takes by itself.
        engine: see `models.load.load`.
        bos: whether prompts and random tokens begin with BOS; default as the tokenizer does.
        seed: of the sequences and intervals.
        device: where to compute.
        force: replace files of these names.

    Returns:
        The files.

    Raises:
        OutputExistsError: a file of these names is there already.
    """
    analysis, out = find(name), Path(out)
    files = [out / f"{name}.{kind}" for kind in ("csv", "png", "svg", "json")]
    _check(out, files, force=force)
    begin = time.perf_counter()
    loaded = load(model, engine=engine, device=device)
    table = analysis.load()(loaded, typed(loaded, prompts, bos), seed=seed)
    figure = FIGURES[name](table)
    record = provenance(
        command=sys.argv,
        configuration={
            "analysis": name,
            "model": str(model),
            "engine": engine,
            "prompts": prompts,
            "bos": bos,
            "device": device,
        },
        seeds=[seed],
        timings={"seconds": time.perf_counter() - begin},
    )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".writing-") as temporary:
        folder = Path(temporary)
        write_csv(table, folder / f"{name}.csv")
        save_figure(figure, folder, name, alt=analysis.answers)
        content = {**record, "units": table.attrs.get("units", {}), "rows": records(table)}
        text = json.dumps(jsonable(content), indent=1, allow_nan=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        for path in files:
            os.replace(folder / path.name, path)
    return files


def _check(out: Path, files: list[Path], *, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise OutputExistsError(f"{out} is a file: name a folder")
    there = [path for path in files if path.exists()]
    if there and not force:
        raise OutputExistsError(f"{there[0]} is there already: use --force or another folder")


def _maps(table: pd.DataFrame, columns: list[str]) -> Any:
    """Heat maps, layer by head, of some columns of a table with one row per head."""
    rows = (len(columns) + 1) // 2
    figure = new_figure(height=2.6 * rows)
    axes = figure.subplots(rows, 2, squeeze=False).ravel()
    for ax, column in zip(axes, columns, strict=False):
        head_map(ax, table, value=column, **_scale(column))
        ax.set_title(column.replace("_", " "))
    for ax in axes[len(columns) :]:
        ax.remove()
    return figure


def _scale(column: str) -> dict[str, Any]:
    """Unit and colour scale of a column: shares from 0 to 1, changes around 0."""
    if column.startswith("loss_change"):
        return {"unit": "nats per output", "centre": 0.0}
    if column == "direct":
        return {"unit": "logits", "centre": 0.0}
    if column == "explained":
        return {"unit": "share", "limits": (0, 1)}
    if column.startswith("entropy") and column != "entropy_normalized":
        return {"unit": "nats"}
    unit = "share of the most" if column == "entropy_normalized" else "share of attention"
    return {"unit": unit, "limits": (0, 1)}


def _heads(table: pd.DataFrame) -> Any:
    wanted = ("anti_diagonal", "induction", "previous_token", "entropy")
    effects = ("loss_change_mean", "loss_change_resample")
    return _maps(table, [column for column in (*wanted, *effects) if column in table])


def _score_maps(table: pd.DataFrame) -> Any:
    wide = table.pivot(index=["layer", "head"], columns="score", values="value").reset_index()
    return _maps(wide, list(table["score"].unique()))


def _effects(table: pd.DataFrame) -> Any:
    figure = new_figure(height=3.4)
    loss = table[table["metric"] == "loss"]
    ablation_dots(figure.subplots(), loss, effect="loss (nats per output)")
    return figure


def effect_maps(table: pd.DataFrame) -> Any:
    """Heat maps of the effects of a sweep, one for each metric and ablation, centred on 0."""
    value = "change" if "estimate" not in table else "estimate"
    groups = list(table.groupby(["metric", "ablation"], sort=False))
    n_layers, n_heads = table["layer"].nunique(), table["head"].nunique()
    across = 2 if len(groups) > 1 else 1
    down = -(-len(groups) // across)
    height = max(2.4, 0.24 * n_layers + 1.2) * down
    figure = new_figure(height=min(height, 40.0))
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for ax, ((metric, ablation), rows) in zip(axes, groups, strict=False):
        unit = table.attrs.get("units", {}).get(metric, "")
        head_map(ax, rows, value=value, unit=unit, centre=0.0, annotate=n_layers * n_heads <= 64)
        what = "change" if value == "change" else "estimated change"
        ax.set_title(f"{what} of {str(metric).replace('_', ' ')}, {ablation}")
    for ax in axes[len(groups) :]:
        ax.remove()
    return figure


def control_sets(sets: pd.DataFrame) -> Any:
    """The matched sets of a hypothesis, and the tested one among them, for each claim."""
    rows = len(sets.groupby([c for c in ("seed", "ablation") if c in sets], sort=False))
    figure = new_figure(height=1.6 + 0.42 * rows)
    claims = list(sets["claim"].unique())
    metric = str(sets["metric"].iloc[0]).replace("_", " ")
    for ax, claim in zip(figure.subplots(1, len(claims), squeeze=False)[0], claims, strict=True):
        null_distribution(ax, sets, claim=claim, effect=metric)
    return figure


def _offsets(table: pd.DataFrame) -> Any:
    figure = new_figure(height=3.2)
    offset_profile(figure.subplots(), table, expected=0, axis="query + key − (2n − 1)")
    return figure


def _cumulative(table: pd.DataFrame) -> Any:
    figure = new_figure(height=3.4)
    cumulative_curves(figure, table.assign(seed=0))
    return figure


def _temperature(table: pd.DataFrame) -> Any:
    figure = new_figure(height=3.8)
    temperature_curves(figure.subplots(), table.assign(model="model", seed=0))
    return figure


def _fragility(table: pd.DataFrame) -> Any:
    figure = new_figure(height=3.8)
    fragility_curves(figure, table)
    return figure


def _direct(table: pd.DataFrame) -> Any:
    heads = table.dropna(subset=["head"]).astype({"layer": int, "head": int})
    return _maps(heads.rename(columns={"value": "direct"}), ["direct"])


def _blurred(table: pd.DataFrame) -> Any:
    """The heads that lose most at any temperature."""
    metric = table["metric"].iloc[0]
    rows = table[table["metric"] == metric]
    size = rows["change"].abs().groupby([rows["layer"], rows["head"]]).max()
    chosen = size.sort_values(ascending=False, kind="stable").index[:5]
    pairs = list(zip(rows["layer"], rows["head"], strict=True))
    figure = new_figure(height=3.6)
    attention_temperature_curves(figure, rows[[pair in chosen for pair in pairs]], metric=metric)
    return figure


def _lens(table: pd.DataFrame) -> Any:
    figure = new_figure(height=3.4)
    metric = str(table["metric"].iloc[0])
    rows = table[table["metric"] == metric]
    lens_curve(figure.subplots(), rows, unit=table.attrs["units"].get(metric, ""))
    return figure


FIGURES: dict[str, Draw] = {
    "head_table": _heads,
    "attention_patterns": _score_maps,
    "anti_diagonal": _offsets,
    "entropy": _score_maps,
    "ablation": _effects,
    "detection": _score_maps,
    "content_dependence": _score_maps,
    "value_weighted": _score_maps,
    "attribution": _direct,
    "substitution": lambda table: _maps(table, ["explained"]),
    "attention_temperature": _blurred,
    "lens": _lens,
    "cumulative": _cumulative,
    "temperature": _temperature,
    "temperature_heads": _fragility,
}
