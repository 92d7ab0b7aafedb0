"""``probe heads`` and ``probe ablate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli.options import Csv, DeviceOption, Json, Model, Seed

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "name": "head",
    "anti_diagonal": "anti_diagonal",
    "anti_diagonal_chance": "chance",
    "rival": "rival",
    "labelled": "labelled",
    "previous_token": "previous",
    "current_token": "current",
    "first_token": "first",
    "separator": "separator",
    "induction": "induction",
    "entropy": "entropy",
    "entropy_predicting": "entropy_out",
    "loss_change_zero": "loss_zero",
    "loss_change_mean": "loss_mean",
    "exact_match_change_zero": "exact_zero",
    "exact_match_change_mean": "exact_mean",
}


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(heads)
    app.command()(ablate)


def heads(
    model: Model,
    effects: Annotated[bool, typer.Option(help="Ablate every head too.")] = True,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
) -> None:
    """Print one row per head: pattern scores, entropies, and what is lost without it.

    Scores are shares of attention over 64 held-out sequences of the model's task, entropies
    are in nats, effects are changes over 256 sequences. --csv and --json hold all columns.

    Example: probe heads out/reversal/models/next-token-0
    """
    import probe
    from probe.cli.show import print_table

    _check_files(csv, json)
    table = probe.head_table(
        probe.load(model, device=device), ablations=("zero", "mean") if effects else (), seed=seed
    )
    print_table(table, COLUMNS)
    _write(table, csv, json)


def ablate(
    model: Model,
    head: Annotated[list[str], typer.Option(help="layer.head; may be given several times.")],
    ablation: Annotated[
        str | None,
        typer.Option(help="zero, mean or resample.", show_default="mean for a task"),
    ] = None,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
) -> None:
    """Remove heads together and compare the model with and without them.

    Example: probe ablate out/reversal/models/next-token-0 --head 0.1 --head 0.2
    """
    import probe
    from probe.cli.show import print_table

    _check_files(csv, json)
    table = probe.ablate(probe.load(model, device=device), heads=head, ablation=ablation, seed=seed)
    print_table(table)
    _write(table, csv, json)


def _check_files(*paths: Path | None) -> None:
    from models.errors import OutputExistsError

    for path in paths:
        if path is not None and path.is_dir():
            raise OutputExistsError(f"{path} is a folder: name a file")
        if path is not None and not path.parent.is_dir():
            raise OutputExistsError(f"there is no folder {path.parent} to write {path.name} into")


def _write(table: pd.DataFrame, csv: Path | None, json: Path | None) -> None:
    import json as encoder

    from reports.tables import records, write_csv

    if csv is not None:
        write_csv(table, csv)
        sys.stderr.write(f"{csv}\n")
    if json is not None:
        json.write_text(encoder.dumps(records(table), indent=1) + "\n", encoding="utf-8")
        sys.stderr.write(f"{json}\n")
