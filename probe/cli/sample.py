"""``probe sample``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from probe.cli.options import LARGEST_SEED, DeviceOption, Model


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sample)


def sample(
    model: Model,
    prompt: Annotated[str, typer.Option(help="What to continue: a word, for a word task.")],
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    n: Annotated[
        int | None, typer.Option(help="Tokens to write.", show_default="what the task asks for")
    ] = None,
    samples: Annotated[int, typer.Option(help="How many, with their own random streams.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the samples.", min=0, max=LARGEST_SEED)] = 0,
    device: DeviceOption = "cpu",
) -> None:
    """Let a trained model write, one line per sample; a line end is shown as an escape.

    Example: probe sample out/reversal/models/next-token-0 --prompt interpretability
    """
    import probe
    from analyses.inputs import task_of
    from models.errors import InputError
    from models.sampling import check_temperature
    from reports.text import visible

    check_temperature(temperature)
    if samples < 1:
        raise InputError(f"samples must be at least 1, but got {samples}")
    loaded = probe.load(model, device=device)
    ids, wanted = task_of(loaded).prompt(prompt)
    written = probe.generate(
        loaded,
        [ids] * samples,
        wanted if n is None else n,
        temperature=temperature,
        seed=seed,
    )
    for row in written:
        text = visible(loaded.to_string(row), spaces=False)
        sys.stdout.write(f"{text}\n")
