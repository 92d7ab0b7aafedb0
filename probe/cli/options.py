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
BosOption = Annotated[
    bool | None,
    typer.Option("--bos/--no-bos", help="Begin with BOS.", show_default="as the tokenizer does"),
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt",
        help="Your own text, as it is fed, or @FILE with one a line; may be repeated.",
        show_default="the task's sequences, or random tokens",
    ),
]
Reference = Annotated[
    list[str] | None,
    typer.Option(help="Texts for the mean, or @FILE; none of them is measured on."),
]
Ablation = Annotated[
    str | None,
    typer.Option(
        help="zero, mean or resample.",
        show_default="mean for a task, resample for several texts, else zero",
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="loss, token_accuracy, exact_match, logit_difference, logit, probability, "
        "log_probability, rank or kl.",
        show_default="loss, or what the answer asks for",
    ),
]
Answer = Annotated[
    list[str] | None,
    typer.Option(help='A token, as in " Paris"; one for all prompts, or one for each.'),
]
Distractor = Annotated[
    list[str] | None, typer.Option(help="The token that the answer is compared with; likewise.")
]
Figure = Annotated[Path | None, typer.Option(help="Also draw it into this .png or .svg file.")]
