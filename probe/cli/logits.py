"""``probe logits``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli.heads import check_files, write
from probe.cli.options import BosOption, Csv, DeviceOption, EngineOption, Json, Model

if TYPE_CHECKING:
    import pandas as pd

HEADING = ("rank", "id", "token", "logit", "logit / t", "p", "top-k", "top-p", "cut by")


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(logits)


def logits(
    model: Model,
    prompt: Annotated[str, typer.Option(help="Your text, read as it is.")],
    position: Annotated[
        int, typer.Option(help="Whose next token; negative counts from the end.")
    ] = -1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k likeliest tokens.", show_default="all")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Then the likeliest with this mass.", show_default="1"),
    ] = None,
    top: Annotated[int, typer.Option(help="Tokens to show, the likeliest first.", min=1)] = 20,
    engine: EngineOption = "lens",
    bos: BosOption = None,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
) -> None:
    """Show how logits become the distribution that the next token is drawn from.

    One line per token: logit, logit / temperature, its probability p before the filters and
    after each, and which filter cut it.

    Example: probe logits gpt2 --prompt "The capital of France is" --temperature 0.7 --top-p 0.9
    """
    import probe
    from analyses.inputs import encode_texts
    from analyses.logit_view import logit_view

    check_files(csv, json)
    loaded = probe.load(model, engine=engine, device=device)
    table = logit_view(
        loaded,
        encode_texts(loaded, [prompt], bos=bos),
        position=position,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        top=top,
    )
    _say_where(loaded, table)
    _print(table)
    write(table, csv, json)


def _say_where(model: object, table: pd.DataFrame) -> None:
    """The prompt up to the position, so that nobody has to count tokens."""
    from models.text_codec import codec_of
    from reports.text import visible

    ids, at = [int(i) for i in table.attrs["ids"].split()], table.attrs["position"]
    read = visible(codec_of(model).decode(ids[: at + 1]), spaces=False)
    sys.stdout.write(f"after position {at} of {len(ids)} tokens: {read}\n")


def _print(table: pd.DataFrame) -> None:
    from reports.text import visible

    lines: list[tuple[str, ...]] = [HEADING]
    for row in table.to_dict("records"):
        scaled = "n/a" if row["scaled"] != row["scaled"] else f"{row['scaled']:.3f}"
        chances = (f"{row[name]:.6f}" for name in ("before", "after_top_k", "after_top_p"))
        token, cut = visible(row["token"]), row["cut_by"].replace("_", "-")
        lines.append(
            (str(row["rank"]), str(row["id"]), token, f"{row['logit']:.3f}", scaled, *chances, cut)
        )
    rest = table.attrs["rest"]
    if rest["n"]:
        chances = (f"{rest[name]:.6f}" for name in ("before", "after_top_k", "after_top_p"))
        kept = f"{rest['n_kept']:,} kept"
        lines.append(("", "", f"{rest['n']:,} more", "", "", *chances, kept))
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADING))]
    for line in lines:
        cells = [
            cell.ljust(width) if i in (2, 8) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        sys.stdout.write(f"{'  '.join(cells).rstrip()}\n")
