"""``probe sample``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli.options import LARGEST_SEED, DeviceOption, EngineOption, Model

if TYPE_CHECKING:
    from models.sampling import Step

WORDS = 32
COLUMNS = "sample  token  probability  of the model   rank  removed  their mass  text"


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sample)


def sample(
    model: Model,
    prompt: Annotated[str, typer.Option(help="What to continue: a word, for a word task.")],
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the k likeliest tokens.", show_default="all")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Then from the likeliest with this mass.", show_default="1"),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text of a token to end with; may be repeated.")
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(help="Tokens to write.", show_default=f"what the task asks for, or {WORDS}"),
    ] = None,
    samples: Annotated[int, typer.Option(help="How many, with their own random streams.")] = 1,
    details: Annotated[
        bool, typer.Option("--details", help="One line per token, with its probability.")
    ] = False,
    bos: Annotated[
        bool | None,
        typer.Option("--bos/--no-bos", help="Begin with BOS.", show_default="as the tokenizer"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the samples.", min=0, max=LARGEST_SEED)] = 0,
    engine: EngineOption = "lens",
    device: DeviceOption = "cpu",
) -> None:
    """Let a model write, one line per sample; a line end is shown as an escape.

    Example: probe sample out/reversal/models/next-token-0 --prompt interpretability
    """
    import probe
    from models.errors import InputError
    from models.sampling import check_filters, context_notice, stream
    from models.text_codec import codec_of

    check_filters(temperature=temperature, top_k=top_k, top_p=top_p)
    if samples < 1:
        raise InputError(f"samples must be at least 1, but got {samples}")
    loaded = probe.load(model, engine=engine, device=device)
    codec = codec_of(loaded)
    ids, wanted = _prompt(loaded, codec, prompt, bos)
    steps = stream(
        loaded,
        [ids] * samples,
        wanted if n is None else n,
        stop=[_one_token(codec, text) for text in stop or []],
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    if details:
        sys.stdout.write(f"{COLUMNS}\n")
    lines = [_Line(codec) for _ in range(samples)]
    if full := _write(steps, lines, details=details):
        sys.stderr.write(f"probe: {context_notice(loaded, full)}\n")


def _write(steps: Iterator[Step], lines: list[_Line], *, details: bool) -> int:
    """Write the first line, or the details, as they come, then all lines; how many got full."""
    full = 0
    try:
        for step in steps:
            full += int(step.context_full.sum())
            for i, line in enumerate(lines):
                if (token := int(step.tokens[i])) < 0:
                    continue
                line.ids.append(token)
                if details:
                    sys.stdout.write(_details(step, i, line.codec.labels([token])[0]))
                elif i == 0:
                    line.write()
            sys.stdout.flush()
    finally:  # what was begun ends its line, whatever stopped it
        if lines[0].written:
            lines[0].end()
            sys.stdout.flush()
    for line in lines:
        if not line.ended:
            line.end()
    return full


class _Line:
    """One sample, written as far as its characters are complete."""

    def __init__(self, codec: Any) -> None:
        self.codec, self.ids, self.written, self.ended = codec, list[int](), 0, False

    def write(self, *, to_the_end: bool = False) -> None:
        from reports.text import visible

        text = self.codec.decode(self.ids)
        # what ends within a character may read otherwise with the next token
        shown = visible(text if to_the_end else text.rstrip("\ufffd"), spaces=False)
        sys.stdout.write(shown[self.written :])
        self.written = max(self.written, len(shown))

    def end(self) -> None:
        self.write(to_the_end=True)
        sys.stdout.write("\n")
        self.ended = True


def _prompt(model: Any, codec: Any, text: str, bos: bool | None) -> tuple[list[int], int]:
    """The ids to continue, and how many to write."""
    from analyses.inputs import has_task, task_of
    from models.errors import InputError

    if not has_task(model):
        return codec.encode(text, bos=bos), WORDS
    if bos:
        raise InputError("the tasks of this toolkit have no BOS token: leave out --bos")
    return task_of(model).prompt(text)


def _one_token(codec: Any, text: str) -> int:
    from models.errors import InputError

    ids = codec.encode(text, bos=False) if text else []
    if len(ids) != 1:
        raise InputError(f"--stop must be the text of one token, but {text!r} gives {len(ids)}")
    return int(ids[0])


def _details(step: Step, i: int, label: str | bytes) -> str:
    from reports.text import visible

    return (
        f"{i + 1:6}  {int(step.tokens[i]):5}  {float(step.probability[i]):11.6f}  "
        f"{float(step.model_probability[i]):12.6f}  {int(step.rank[i]):5}  "
        f"{int(step.n_removed[i]):7}  {float(step.mass_removed[i]):10.6f}  {visible(label)}\n"
    )
