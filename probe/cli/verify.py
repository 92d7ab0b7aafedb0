"""``probe verify``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli.heads import check_files, write
from probe.cli.options import Csv, Json, Model

if TYPE_CHECKING:
    import pandas as pd


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(verify)


def verify(
    model: Model,
    prompt: Annotated[
        str | None,
        typer.Option(help="Text to run on.", show_default="two rows of random tokens"),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print every hook point of every layer.")
    ] = False,
    csv: Csv = None,
    json: Json = None,
) -> None:
    """Compare the two engines on a published model, point by point.

    Both run on the same tokens. Prints, for every kind of hook point, the largest difference of
    activations (of scores and patterns on visible keys), its layer, the largest value there, and
    how many points there are; then of the log-probabilities. Exits with 1 if these differ by more
    than 0.001. --csv and --json hold every point.

    Example: probe verify gpt2
    """
    import analyses.verify as analysis
    from models.errors import ProbeError
    from models.load import trained_here

    check_files(csv, json)
    if trained_here(model):
        sys.stdout.write(
            f"{model} was trained here: there is one engine for it, nothing to verify\n"
        )
        return
    table = analysis.verify(model, text=prompt)
    _print(table if every else analysis.summary(table))
    write(table, csv, json)
    if message := analysis.check(table):
        raise ProbeError(message)


def _print(table: pd.DataFrame) -> None:
    """Differences with three digits, whatever their size; nothing where there is no layer."""
    columns = [[str(name), *map(_cell, table[name])] for name in table]
    widths = [max(len(cell) for cell in cells) for cells in columns]
    for point, *rest in zip(*columns, strict=True):
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        sys.stdout.write("  ".join([point.ljust(widths[0]), *cells]) + "\n")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None or str(value) == "<NA>" else str(value)
