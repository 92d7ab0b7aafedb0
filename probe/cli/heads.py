"""``probe heads``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli.options import Csv, DeviceOption, EngineOption, Json, Model, Seed

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "name": "head",
    "label": "label",
    "anti_diagonal": "anti_diagonal",
    "anti_diagonal_chance": "chance",
    "rival": "rival",
    "labelled": "labelled",
    "previous_token": "previous",
    "current_token": "current",
    "first_token": "first",
    "separator": "separator",
    "duplicate_token": "duplicate",
    "induction": "induction",
    "induction_contrast": "contrast",
    "copying": "copying",
    "entropy": "entropy",
    "entropy_predicting": "entropy_out",
    "loss_change_zero": "loss_zero",
    "loss_change_mean": "loss_mean",
    "exact_match_change_zero": "exact_zero",
    "exact_match_change_mean": "exact_mean",
}


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(heads)


def heads(
    model: Model,
    engine: EngineOption = "lens",
    text: Annotated[
        list[str] | None, typer.Option(help="Your own text; may be given several times.")
    ] = None,
    bos: Annotated[
        bool | None, typer.Option(help="Begin with BOS.", show_default="as the tokenizer does")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Sort by this column, largest first.")] = None,
    top: Annotated[int | None, typer.Option(help="Print only this many rows.", min=1)] = None,
    effects: Annotated[
        bool | None, typer.Option(help="Ablate every head too.", show_default="for a task")
    ] = None,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
) -> None:
    """Print one row per head: labels, pattern scores, entropies, and what is lost without it.

    Scores are shares of attention, over 64 held-out sequences of the model's task; a model
    without a task gets 64 sequences of random tokens, repeated. Entropies are in nats, copying in
    logits, effects are changes over 256 sequences. --csv and --json hold all columns and rows.

    Example: probe heads gpt2 --top 10 --by induction
    """
    import probe

    check_files(csv, json)
    loaded = probe.load(model, engine=engine, device=device)
    from analyses.tables import top_heads  # loads what a wrong name should not wait for
    from probe.cli.show import print_table

    table = _table(loaded, text, bos, effects, seed)
    print_table(top_heads(table, by=by, top=top), COLUMNS)
    for line in _notes(table):
        sys.stdout.write(f"{line}\n")
    write(table, csv, json)


def _table(
    model: Any, text: list[str] | None, bos: bool | None, effects: bool | None, seed: int
) -> pd.DataFrame:
    import probe
    from analyses.inputs import has_task
    from models.text_codec import codec_of

    if effects is None:
        effects = has_task(model)
    tokens: Any = None
    if text:
        codec: Any = codec_of(model)
        tokens = [codec.encode(t) if bos is None else codec.encode(t, bos=bos) for t in text]
    ablations = ("zero", "mean") if has_task(model) and not text else ("zero",)
    kinds = ablations if effects else ()
    return probe.head_table(model, tokens, ablation=kinds, bos=bos, seed=seed)


def _notes(table: pd.DataFrame) -> list[str]:
    """What the labels were given on, and by which thresholds."""
    if "label" not in table:
        return []
    limits = table.attrs["criteria"]
    rule = ", ".join(f"{name} {value:g}" for name, value in limits.items())
    return [f"on {table.attrs['input']}; labels: {rule}"]


def check_files(*paths: Path | None, figure: Path | None = None) -> None:
    """Refuse files that cannot be written, before anything is computed."""
    from models.errors import OutputExistsError

    if figure is not None:
        from reports.figures import check_ending

        check_ending(figure)
    for path in (*paths, figure):
        if path is not None and path.is_dir():
            raise OutputExistsError(f"{path} is a folder: name a file")
        if path is not None and not path.parent.is_dir():
            raise OutputExistsError(f"there is no folder {path.parent} to write {path.name} into")


def write(table: pd.DataFrame, csv: Path | None, json: Path | None) -> None:
    """The whole table into the files that were asked for."""
    import json as encoder

    from reports.tables import records, write_csv

    if csv is not None:
        write_csv(table, csv)
        sys.stderr.write(f"{csv}\n")
    if json is not None:
        json.write_text(encoder.dumps(records(table), indent=1) + "\n", encoding="utf-8")
        sys.stderr.write(f"{json}\n")
