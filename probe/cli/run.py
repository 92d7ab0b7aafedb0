"""``probe run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from models.errors import InputError
from probe.cli.options import BosOption, DeviceOption, EngineOption, Force, Prompts, Seed


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    analysis: Annotated[str | None, typer.Argument(help="See --list.", metavar="ANALYSIS")] = None,
    model: Annotated[
        str | None, typer.Argument(help="Folder, GGUF file or hub name.", metavar="MODEL")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for table and figure.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say what there is.")] = False,
    prompt: Prompts = None,
    engine: EngineOption = "lens",
    bos: BosOption = None,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    force: Force = False,
) -> None:
    """Run one analysis by itself and write its table and its figure.

    Example: probe run entropy out/reversal/models/next-token-0 --out out/entropy
    """
    from analyses.registry import ANALYSES, find

    if list_:
        width = max(map(len, ANALYSES))
        for entry in ANALYSES.values():
            sys.stdout.write(f"{entry.name:{width}}  {entry.answers}\n")
        return
    if analysis is None or model is None or out is None:
        raise InputError("name an analysis, a model and --out DIR, or see probe run --list")
    find(analysis)
    from probe.cli.inputs import texts_of
    from probe.cli.show import showing_progress
    from probe.studies.single import run_analysis

    with showing_progress():
        files = run_analysis(
            analysis,
            model,
            out,
            prompts=texts_of(prompt),
            engine=engine,
            bos=bos,
            seed=seed,
            device=device,
            force=force,
        )
    for path in files:
        sys.stdout.write(f"{path}\n")
