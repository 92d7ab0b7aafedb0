"""``probe report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from models.names import Engine
from probe.cli.options import DeviceOption, Force, Model, Seed


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder of the report.")],
    prompts: Annotated[
        Path | None, typer.Option(help="A file of prompts of yours, one a line.")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="TransformerLens, or our own GPT.")] = "lens",
    bos: Annotated[
        bool | None,
        typer.Option(
            help="Begin prompts and random tokens with BOS.", show_default="as the tokenizer does"
        ),
    ] = None,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    force: Force = False,
) -> None:
    """Study a language model's heads and predictions, and write a report.

    Example: probe report gpt2 --out out/gpt2
    """
    from probe.studies.language_model import report as run

    folder, sentences = run(
        model,
        out,
        engine=engine,
        device=device,
        prompts=prompts,
        bos=bos,
        seed=seed,
        force=force,
        stage=_say,
    )
    for sentence in sentences:
        sys.stdout.write(f"- {sentence.text}\n")
    sys.stdout.write(f"{folder / 'index.html'}\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
