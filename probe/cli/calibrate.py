"""``probe calibrate``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli.heads import check_files, write
from probe.cli.options import Csv, DeviceOption, EngineOption, Json, Seed

if TYPE_CHECKING:
    import pandas as pd


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(calibrate)


def calibrate(
    model: Annotated[
        str | None, typer.Argument(help="Plant in this model's heads.", metavar="[MODEL]")
    ] = None,
    untrained: Annotated[
        int, typer.Option(help="Also label this many untrained models as they are.", min=0)
    ] = 100,
    engine: EngineOption = "lens",
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
) -> None:
    """Print what share of planted heads each detector finds, and its false labels.

    Ideal patterns are mixed into the heads' own at strengths 0 to 1, with decoys among them.
    Without MODEL the heads are those of three small untrained models.

    Example: probe calibrate --untrained 100
    """
    import probe
    from analyses.calibration import N_MODELS, STRENGTHS, labels_on_untrained
    from analyses.calibration import calibrate as curve
    from probe.cli.show import print_table, progress_bar

    check_files(csv, json)
    models = None if model is None else [probe.load(model, engine=engine, device=device)]
    runs = len(STRENGTHS) * (len(models) if models else N_MODELS)
    with progress_bar("planting", runs) as update:
        table = curve(models, seed=seed, tell=lambda i, n: update(i, "planted models"))
    print_table(power_by_strength(table))
    sys.stdout.write(f"{false_labels(table)}\n")
    if untrained:
        with progress_bar("untrained models", untrained) as update:
            plain = labels_on_untrained(untrained, tell=lambda i, n: update(i, "models"))
        heads, labelled = plain["heads"].sum(), plain["labelled"].sum()
        sys.stdout.write(
            f"labels on {untrained} untrained models: {labelled} of {heads} heads "
            f"(highest score {plain['highest'].max():.2f})\n"
        )
    write(table, csv, json)


def power_by_strength(table: pd.DataFrame) -> pd.DataFrame:
    """One row per strength, one column per detector."""
    wide = table.pivot(index="strength", columns="detector", values="power")
    wide.columns.name = None
    return wide[list(table["detector"].unique())].reset_index()


def false_labels(table: pd.DataFrame) -> str:
    """How many heads got a label that is not their own, all detectors and strengths together."""
    others, false = table["others"].sum(), table["false_labels"].sum()
    return f"false labels on heads with another pattern or a decoy: {false} of {others}"
