"""``probe train``."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from models.errors import InputError, TrainingError
from models.names import MLP, Normalization, Objective, Positions
from probe.cli.options import LARGEST_SEED, DeviceOption, Force

if TYPE_CHECKING:
    from models.training import Run


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(help="reversal, induction or text.", metavar="TASK")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the model.", show_default="out/TASK")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Letters, or characters of a window.", show_default="16; 64")
    ] = None,
    min_length: Annotated[
        int | None, typer.Option(help="Train all lengths from this one.", show_default="LENGTH")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="The file of the text task.")] = None,
    layers: Annotated[int, typer.Option(help="Layers.")] = 2,
    heads: Annotated[int, typer.Option(help="Heads per layer.")] = 4,
    width: Annotated[int, typer.Option(help="Width of the residual stream.")] = 64,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key-value heads.", show_default="HEADS")
    ] = None,
    positions: Annotated[Positions, typer.Option(help="How positions are marked.")] = "learned",
    norm: Annotated[Normalization, typer.Option(help="Normalisation.")] = "layer",
    mlp: Annotated[MLP, typer.Option(help="The MLP.")] = "gelu",
    tied: Annotated[bool, typer.Option("--tied", help="Unembed with the embedding.")] = False,
    dropout: Annotated[float, typer.Option(help="Dropout in training.")] = 0.0,
    window: Annotated[
        int | None, typer.Option(help="Keys a query sees, its own included.", show_default="all")
    ] = None,
    objective: Annotated[
        Objective, typer.Option(help="Predict at all positions, or outputs only.")
    ] = "all",
    steps: Annotated[int, typer.Option(help="Training steps.")] = 300,
    batch_size: Annotated[int, typer.Option(help="Sequences per batch.")] = 64,
    accumulation: Annotated[int, typer.Option(help="Batches per step.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Peak rate.")] = 3e-3,
    warmup: Annotated[int, typer.Option(help="Steps of linear warm-up.")] = 20,
    weight_decay: Annotated[float, typer.Option(help="Of matrices.")] = 0.1,
    clip: Annotated[float, typer.Option(help="Largest gradient norm.")] = 1.0,
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations.")] = 20,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Of everything random.", min=0, max=LARGEST_SEED)] = 0,
    device: DeviceOption = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the model in OUT.")] = False,
    force: Force = False,
) -> None:
    """Train a model on a task and keep it in a folder.

    Example: probe train reversal --length 8 --objective outputs --out out/eight

    A stopped training goes on with: probe train reversal --out out/eight --resume
    """
    from models import tasks
    from models.checkpoints import load_run, prepare_folder
    from models.training import TrainingConfig, model_config, process_group, start

    options = dict(ctx.params)
    folder = Path("out", task) if out is None else out
    if resume:
        run = load_run(folder, device=None if device == "auto" else device)
        _check_resumed(ctx, run, task)
        if text is not None:
            _relocate(run, text)
        if run.step >= run.config.steps:
            sys.stderr.write(f"{folder} is trained already: all {run.step} steps are done\n")
    else:
        if task == "text" and text is None:
            raise InputError("the text task needs a file: give --text FILE")
        given = {"length": length, "min_length": min_length, "path": text and str(text)}
        what = tasks.create(task, **{k: v for k, v in given.items() if v is not None})
        shape = model_config(
            what,
            n_layers=layers,
            n_heads=heads,
            d_model=width,
            n_key_value_heads=kv_heads,
            positions=positions,
            normalization=norm,
            mlp=mlp,
            tied=tied,
            dropout=dropout,
            window=window,
        )
        names = {field.name for field in fields(TrainingConfig)}
        config = TrainingConfig(**{k: v for k, v in options.items() if k in names})
        prepare_folder(folder, force=force)
        run = start(what, shape, config, device=device)
    with process_group() as rank:
        _advance(run, folder, save_every, quiet=rank > 0)


def _advance(run: Run, folder: Path, save_every: int, *, quiet: bool) -> None:
    from models.checkpoints import save_run
    from models.training import advance
    from probe.cli.show import progress_bar

    with _stop_request() as stopping, progress_bar(_title(run), run.config.steps) as update:

        def report(run: Run) -> None:
            if quiet:
                return
            last = run.history[-1] if run.history else None
            note = f"loss {last['loss']:.3f}, exact match {last['exact_match']:.1%}" if last else ""
            update(run.step, note)
            if run.step < run.config.steps and (run.step % save_every == 0 or stopping()):
                save_run(folder, run)
            if stopping():
                raise TrainingError(
                    f"stopped at step {run.step}, which is kept: go on with "
                    f"probe train {run.task.name} --out {folder} --resume"
                )

        advance(run, report=report)
    if quiet:
        return
    save_run(folder, run)
    last = run.history[-1]
    sys.stdout.write(
        f"{folder}: step {run.step}, loss {last['loss']:.4f} nats, held-out loss "
        f"{last['heldout_loss']:.4f} nats, exact match {last['exact_match']:.2%}\n"
    )


def _title(run: Run) -> str:
    return f"training {run.task.name}"


@contextmanager
def _stop_request() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits for the end of the step, so that what is kept can be resumed bit for bit."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = [(number, signal.signal(number, ask)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield lambda: asked
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _relocate(run: Run, text: Path) -> None:
    """The text has moved; it must still be the same."""
    if run.task.name != "text":
        raise InputError(f"--text belongs to the text task, but the model is of {run.task.name}")
    run.task = replace(run.task, path=str(text.resolve()))  # type: ignore[type-var]
    run.model.task = run.task


# options of the command, and where a checkpoint keeps them
_SHAPE = {
    "layers": "n_layers",
    "heads": "n_heads",
    "width": "d_model",
    "kv_heads": "n_key_value_heads",
    "norm": "normalization",
    **{name: name for name in ("positions", "mlp", "tied", "dropout", "window")},
}
_FREE = {"task", "out", "device", "resume", "force", "save_every", "text", "help"}


def _check_resumed(ctx: typer.Context, run: Run, task: str) -> None:
    """What was typed must agree with the checkpoint."""
    kept: dict[str, Any] = {**vars(run.config), **run.task.parameters()}
    kept |= {option: getattr(run.model.config, name) for option, name in _SHAPE.items()}
    if task != run.task.name:
        raise InputError(f"the model was trained on {run.task.name}, but {task} was asked for")
    for name, value in ctx.params.items():
        source = ctx.get_parameter_source(name)
        typed = source is not None and source.name == "COMMANDLINE"
        if typed and name not in _FREE and kept.get(name) != value:
            raise InputError(
                f"the checkpoint has --{name.replace('_', '-')} {kept.get(name)}, but {value} was "
                "asked for: leave the option out to resume, or train anew in another folder"
            )
