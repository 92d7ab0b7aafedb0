"""The reversal task on a CUDA device in one go: train, measure speed, analyse.

It trains the default model until its last step and notes when no answer was wrong in 2,000
held-out sequences; times training steps at the default size and at sizes where a GPU has
something to do; times the analyses and compares their pattern scores with the CPU's on the same
sequences. A limit of its own stops it between steps and between analyses; what was measured by
then is printed. Without a CUDA device it says so. ``--device cpu`` tries the script out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from _common import Cell, one_thread, print_table

from analyses.attention_patterns import attention_patterns
from analyses.cumulative import cumulative
from analyses.head_table import head_table
from analyses.inputs import to_device
from analyses.temperature import temperature
from models import tasks
from models.gpt import GPT
from models.training import (
    Run,
    TrainingConfig,
    _rows,
    _take_step,
    advance,
    evaluate,
    model_config,
    start,
)

HELDOUT = 2000
UNTIMED_STEPS = 5
SIZES: dict[str, list[tuple[dict[str, int], int]]] = {
    "cuda": [
        ({}, 64),
        ({}, 1024),
        ({"n_layers": 4, "n_heads": 8, "d_model": 256}, 1024),
        ({"n_layers": 8, "n_heads": 12, "d_model": 768}, 256),
    ],
    "cpu": [({}, 64), ({"d_model": 128}, 64)],
}
ANALYSES: dict[str, Callable[..., pd.DataFrame]] = {
    "head_table": head_table,
    "cumulative": cumulative,
    "temperature": temperature,
}


class TimeUpError(Exception):
    """The limit is reached."""


@dataclass
class Session:
    """The device, the limit, and what has been measured so far."""

    device: torch.device
    limit: float
    begin: float = field(default_factory=time.monotonic)
    results: dict[str, Any] = field(default_factory=dict)

    def check(self, run: Run | None = None) -> None:
        """Stop when time is up; also the report that training calls after every step."""
        if time.monotonic() - self.begin > self.limit:
            raise TimeUpError

    def synchronize(self) -> None:
        """Wait for the device: its work is queued, not done, when a call returns."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, function: Callable[[], Any]) -> tuple[float, Any]:
        """Wall time of a call, its work on the device included, and what it returned."""
        self.check()
        self.synchronize()
        begin = time.perf_counter()
        value = function()
        self.synchronize()
        return time.perf_counter() - begin, value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--limit-seconds", type=float, default=240.0)
    parser.add_argument("--json", type=Path, help="write all figures to this file too")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing is measured (--device cpu tries the script out)")
        return
    one_thread()
    session = Session(torch.device(options.device), options.limit_seconds)
    session.results["device"] = device_name(session.device)
    session.results["torch"] = torch.__version__
    print(f"device: {session.results['device']}, torch {torch.__version__}")
    try:
        model = train_to_the_end(session, options.steps)
        time_steps(session)
        time_analyses(session, model)
    except TimeUpError:
        session.results["stopped"] = f"the limit of {options.limit_seconds:g} s was reached"
        print(f"\nstopped: {session.results['stopped']}")
    session.results["seconds"] = time.monotonic() - session.begin
    print(f"\n{session.results['seconds']:.1f} s in all")
    if options.json is not None:
        options.json.write_text(json.dumps(session.results, indent=1) + "\n", encoding="utf-8")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, one thread"


@contextmanager
def table(title: str, *columns: str) -> Iterator[list[list[Cell]]]:
    """Rows to be filled; they are printed at the end, also when time is up before it."""
    rows: list[list[Cell]] = []
    try:
        yield rows
    finally:
        print_table(title, columns, rows)


def train_to_the_end(session: Session, steps: int) -> GPT:
    """Train, and note the first step without an error in 2,000."""
    task = tasks.create("reversal")
    heldout = task.heldout(HELDOUT, device=session.device)
    config = TrainingConfig(steps=steps)
    run = start(task, config=config, device=session.device.type)
    found: dict[str, Any] = {"step_of_no_error": None, "seconds_to_no_error": None}
    session.results["training"] = found
    taken = 0.0
    with table("Training, 64 sequences a step", "", "step", "seconds") as rows:
        try:
            while run.step < steps:
                stop = run.step + config.evaluate_every
                taken += session.seconds(partial(advance, run, until=stop, report=session.check))[0]
                scores = evaluate(run.model, heldout)
                found |= {"step": run.step, "seconds": taken, **scores}
                if scores["exact_match"] == 1.0 and found["step_of_no_error"] is None:
                    found |= {"step_of_no_error": run.step, "seconds_to_no_error": taken}
                    rows.append(["no error in 2,000, first", str(run.step), taken])
        finally:
            end = f"end, exact match {found.get('exact_match', float('nan')):.2%}"
            rows.append([end, str(found.get("step", 0)), taken])
    return run.model


def time_steps(session: Session) -> None:
    """Steps per second at several sizes."""
    task = tasks.create("reversal")
    session.results["steps"] = []
    with table("Training steps", "model", "steps/s", "tokens/s") as rows:
        for sizes, batch_size in SIZES[session.device.type]:
            shape = model_config(task, **sizes)
            config = TrainingConfig(steps=10_000, batch_size=batch_size)
            run = start(task, shape, config, device=session.device.type)
            try:
                rate = steps_per_second(session, run)
            except torch.OutOfMemoryError:
                rate = float("nan")
            layers, width = shape.n_layers, shape.d_model
            session.results["steps"].append(
                {"n_layers": layers, "d_model": width, "batch": batch_size, "per_second": rate}
            )
            name = f"{layers} layers, width {width}, batch {batch_size}"
            rows.append([name, rate, f"{rate * batch_size * task.n_ctx:,.0f}"])


def steps_per_second(session: Session, run: Run) -> float:
    """Over 100 steps or 4 seconds, whichever is less, after some that are not timed."""
    rows, n = _rows(run), 0
    run.model.train()
    for _ in range(UNTIMED_STEPS):
        _take_step(run, rows)
    session.synchronize()
    begin = time.perf_counter()
    while n < 100 and time.perf_counter() - begin < 4:
        _take_step(run, rows)
        n += 1
        session.check()
    session.synchronize()
    return n / (time.perf_counter() - begin)


def time_analyses(session: Session, model: GPT) -> None:
    """Seconds of each analysis, and what they find; pattern scores against the CPU's."""
    found: dict[str, Any] = session.results.setdefault("analyses", {})
    tables = {}
    with table("Analyses", "analysis", "first, s", "again, s") as rows:
        for name, analyse in ANALYSES.items():
            first, _ = session.seconds(partial(analyse, model))
            again, tables[name] = session.seconds(partial(analyse, model))
            found[name] = {"first_seconds": first, "seconds": again}
            rows.append([name, first, again])
    batch = tasks.create("reversal").heldout(64, device=session.device)
    here = attention_patterns(model, batch)
    there = attention_patterns(deepcopy(model).cpu(), to_device(batch, "cpu"))
    cold = tables["temperature"].set_index("temperature")["exact_match"][0.1]
    found["best_anti_diagonal"] = float(tables["head_table"]["anti_diagonal"].max())
    found["exact_match_at_0.1"] = float(cold)
    found["largest_difference_from_cpu"] = float((here["value"] - there["value"]).abs().max())
    for name in ("best_anti_diagonal", "exact_match_at_0.1", "largest_difference_from_cpu"):
        print(f"  {name}: {found[name]:.3g}")


if __name__ == "__main__":
    main()
