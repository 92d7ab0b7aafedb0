"""``probe reversal``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from probe.cli.options import DeviceOption, Force


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(reversal)


def reversal(
    length: Annotated[int, typer.Option(help="Letters per sequence.")] = 16,
    layers: Annotated[int, typer.Option(help="Layers of every model.")] = 2,
    heads: Annotated[int, typer.Option(help="Heads per layer.")] = 4,
    width: Annotated[int, typer.Option(help="Width of the residual stream.")] = 64,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 5,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 300,
    device: DeviceOption = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes at once.", show_default="one per core")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("out/reversal"),
    force: Force = False,
) -> None:
    """Train models to reverse words, measure and ablate every head, and write a report.

    Example: probe reversal --seeds 1 --out out/quick
    """
    from models.training import TrainingConfig
    from probe.cli.show import StudyProgress
    from probe.studies.reversal import ReversalStudy
    from probe.studies.reversal import reversal as run

    study = ReversalStudy(
        length=length,
        layers=layers,
        heads=heads,
        width=width,
        seeds=seeds,
        device=device,
        workers=workers,
        training=TrainingConfig(steps=steps),
    )
    progress = StudyProgress()
    try:
        folder, sentences = run(
            out,
            study=study,
            force=force,
            started=progress.start,
            progress=progress.update,
            stage=progress.stage,
        )
    finally:
        progress.close()
    for sentence in sentences:
        sys.stdout.write(f"- {sentence.text}\n")
    sys.stdout.write(f"{folder / 'index.html'}\n")
