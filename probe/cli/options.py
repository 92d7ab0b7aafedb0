"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from models.names import Device

Model = Annotated[str, typer.Argument(help="Folder of a trained model.", metavar="MODEL")]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where to compute.")]
Seed = Annotated[int, typer.Option(help="Seed of the sequences, samples and intervals.", min=0)]
Force = Annotated[bool, typer.Option("--force", help="Replace results of ours that are there.")]
Csv = Annotated[Path | None, typer.Option(help="Also write the whole table to this file.")]
Json = Annotated[Path | None, typer.Option(help="Also write the whole table to this file.")]
