"""``probe verify``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from probe.cli.options import Csv, Model


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(verify)


def verify(
    model: Model,
    prompt: Annotated[
        str | None,
        typer.Option(help="Text to run on.", show_default="two rows of random tokens"),
    ] = None,
    csv: Csv = None,
) -> None:
    """Compare the two engines on a published model, point by point.

    Both run on the same tokens. Prints the largest difference of every activation (of scores and
    patterns on visible keys), beside its largest value, and of the log-probabilities; exits with
    1 if these differ by more than 0.001.

    Example: probe verify gpt2
    """
    import analyses.verify as analysis
    from models.errors import ProbeError
    from models.load import trained_here
    from reports.tables import write_csv

    if trained_here(model):
        sys.stdout.write(
            f"{model} was trained here: there is one engine for it, nothing to verify\n"
        )
        return
    table = analysis.verify(model, text=prompt)
    rows = [f"{r.point:40}  {r.difference:10.3g}  {r.largest:10.3g}" for r in table.itertuples()]
    head = f"{'point':40}  {'difference':>10}  {'largest':>10}"
    sys.stdout.write("\n".join([head, *rows]) + "\n")
    if csv is not None:
        write_csv(table, csv)
        sys.stderr.write(f"{csv}\n")
    if message := analysis.check(table):
        raise ProbeError(message)
