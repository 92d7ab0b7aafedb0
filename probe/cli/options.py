"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from models.names import Device, Engine

Model = Annotated[
    str,
    typer.Argument(
        help="Folder of a trained or published model, GGUF file, or hub name.", metavar="MODEL"
    ),
]
EngineOption = Annotated[
    Engine, typer.Option("--engine", help="For published models: TransformerLens, or our own GPT.")
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where to compute.")]
LARGEST_SEED = 2**63 - 1
Seed = Annotated[
    int, typer.Option(help="Of sequences, samples and intervals.", min=0, max=LARGEST_SEED)
]
Force = Annotated[bool, typer.Option("--force", help="Replace results of ours that are there.")]
Csv = Annotated[Path | None, typer.Option(help="Also write the whole table to this file.")]
Json = Annotated[Path | None, typer.Option(help="Also write the whole table to this file.")]
