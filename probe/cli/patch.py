"""``probe patch``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from models.errors import InputError
from probe.cli.ablate import chosen_metric
from probe.cli.heads import check_files, write
from probe.cli.options import (
    Answer,
    BosOption,
    Csv,
    DeviceOption,
    Distractor,
    EngineOption,
    Figure,
    Json,
    MetricOption,
    Model,
    Seed,
)

if TYPE_CHECKING:
    import pandas as pd


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(patch)


def patch(
    model: Model,
    clean: Annotated[
        list[str] | None, typer.Option(help="A prompt, or @FILE with one a line; may be repeated.")
    ] = None,
    corrupt: Annotated[
        list[str] | None, typer.Option(help="Its counterpart of equal length; likewise.")
    ] = None,
    ioi: Annotated[
        int | None,
        typer.Option(help="Use this many prompts of indirect object identification.", min=1),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="head, attn, mlp or resid; may be repeated.", show_default="all"),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="denoise: clean into corrupted; noise: the other way.")
    ] = "denoise",
    receiver: Annotated[
        list[str] | None,
        typer.Option(help="Patch direct paths instead, to 9.6.q, 9.6.k, 9.6.v or logits."),
    ] = None,
    metric: MetricOption = None,
    answer: Answer = None,
    distractor: Distractor = None,
    top: Annotated[int | None, typer.Option(help="Print only this many rows.", min=1)] = 20,
    engine: EngineOption = "lens",
    bos: BosOption = None,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
    figure: Figure = None,
) -> None:
    """Put activations of one prompt into the run of another: 0 is corrupted, 1 is clean.

    Example: probe patch gpt2 --engine gpt --clean "The capital of France is"
    --corrupt "The capital of Italy is" --answer " Paris" --distractor " Rome"
    """
    import probe
    from probe.cli.show import print_table, showing_progress

    check_files(csv, json, figure=figure)
    loaded = probe.load(model, engine=engine, device=device)
    how: dict[str, Any] = {"mode": mode, "seed": seed}
    named, labels = None, None
    if ioi is not None:
        if clean or corrupt or metric or answer or distractor:
            raise InputError("--ioi brings its own prompts and answers: leave out the others")
        task = probe.ioi(loaded, n=ioi, seed=seed, bos=bos)
        pair: tuple[Any, Any] = (task.clean, task.abc)
        how["metric"], named = task.metric, task.positions
    else:
        pair = _pair(loaded, clean, corrupt, bos)
        how["metric"] = chosen_metric(loaded, metric, answer, distractor) or "loss"
        labels = _labels(loaded, pair[0])
    with showing_progress():
        if receiver:
            table = probe.path_patching(loaded, *pair, receivers=receiver, **how)
        else:
            table = _sites(loaded, pair, site, named, how)
    neutral = 0.0 if mode == "denoise" else 1.0
    order = (table["value"] - neutral).abs().sort_values(ascending=False, kind="stable").index
    shown = table.loc[order].drop(columns=["n_prompts", "mode"])
    print_table(shown if top is None else shown.head(top))
    write(table, csv, json)
    if figure is not None:
        from probe.studies.patching_figure import patching_figure
        from reports.figures import save_one

        save_one(patching_figure(table, tokens=labels, centre=neutral), figure)
        sys.stderr.write(f"{figure}\n")


def _sites(model: Any, pair: Any, sites: Any, named: Any, how: dict[str, Any]) -> pd.DataFrame:
    """Named positions are for the residual stream; all else is patched at all positions."""
    import pandas as pd

    import probe

    if named is None:
        return probe.activation_patching(model, *pair, sites=sites, **how)
    wanted = sites or ["head", "attn", "mlp", "resid"]
    rest = [site for site in wanted if site != "resid"]
    tables = [probe.activation_patching(model, *pair, sites=rest, **how)] if rest else []
    if "resid" in wanted:
        tables.append(
            probe.activation_patching(model, *pair, sites=["resid"], positions=named, **how)
        )
    return pd.concat(tables, ignore_index=True)


def _pair(
    model: Any, clean: list[str] | None, corrupt: list[str] | None, bos: bool | None
) -> tuple[Any, Any]:
    from probe.cli.inputs import measured

    if not clean or not corrupt:
        raise InputError("give --clean and --corrupt prompts, or --ioi N")
    pair = measured(model, clean, bos), measured(model, corrupt, bos)
    if pair[0] == pair[1]:
        raise InputError("--clean and --corrupt are the same, so there is nothing to patch")
    return pair


def _labels(model: Any, ids: Any) -> list[Any] | None:
    """Token labels for a figure, where there is one prompt."""
    from models.text_codec import codec_of

    return list(codec_of(model).labels(ids[0])) if len(ids) == 1 else None
