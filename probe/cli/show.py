"""Printing tables, and progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from probe.studies.jobs import Job


def print_table(table: pd.DataFrame, names: Mapping[str, str] | None = None) -> None:
    """A table in plain text; undefined numbers as n/a. ``names`` picks and renames columns."""
    if names is not None:
        table = table[[c for c in names if c in table]].rename(columns=dict(names))
    text = table.to_string(index=False, na_rep="n/a", float_format=lambda x: f"{x:.3f}")
    sys.stdout.write(text + "\n")


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Any]:
    """A bar on standard error; yields ``update(done, note)``.

    Where standard error is no terminal, a line is written every tenth of the way.
    """
    if sys.stderr.isatty():
        with _rich_bar() as bar:
            task = bar.add_task(description, total=total, note="")
            yield lambda done, note: bar.update(task, completed=done, note=note)
        return
    written = -1

    def update(done: int, note: str) -> None:
        nonlocal written
        if (tenth := 10 * done // max(1, total)) > written:
            written = tenth
            sys.stderr.write(f"{description}: {done}/{total} {note}\n")
            sys.stderr.flush()

    yield update


PATIENCE = 2.0  # seconds before anything is said


@contextmanager
def showing_progress() -> Iterator[None]:
    """Say on standard error how far analyses in this block are, once they take over two seconds."""
    from analyses.progress import listening

    begin, said = time.monotonic(), -1
    bar = _rich_bar() if sys.stderr.isatty() else None
    tasks: dict[str, Any] = {}

    def hear(what: str, done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - begin < PATIENCE:
            return
        if bar is not None:
            bar.start()
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total, note="")
            bar.update(tasks[what], completed=done, total=total, note=f"{done}/{total}")
        elif (tenth := 10 * done // max(1, total)) > said or done == total:
            said = -1 if done == total else tenth
            sys.stderr.write(f"{what}: {done}/{total}\n")
            sys.stderr.flush()

    try:
        with listening(hear):
            yield
    finally:
        if bar is not None:
            bar.stop()


class StudyProgress:
    """Progress of a study: one bar over all training steps, and what every job is doing."""

    def __init__(self) -> None:
        self._work: dict[Job, int] = {}
        self._bar: Any = None
        self._finished = 0
        self._next_line = 0

    def start(self, jobs: Sequence[Job]) -> None:
        """Called once with all jobs."""
        self._work = dict.fromkeys(jobs, 0)
        self._total = sum(job.work for job in jobs)
        if sys.stderr.isatty():
            self._bar = _rich_bar()
            self._bar.start()
            self._task = self._bar.add_task("study", total=self._total, note="starting workers")
        else:
            self._write(f"study: {len(jobs)} models, {self._total:,} training steps")

    def update(self, job: Job, message: Mapping[str, Any]) -> None:
        """Called with a job's message."""
        if "step" in message:
            self._work[job] = message["step"]
        note = self._note(message)
        if message.get("done"):
            self._work[job] = job.work
            self._finished += 1
        done = sum(self._work.values())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=f"{job.name}: {note}")
        elif "step" not in message or done >= self._next_line:
            self._next_line = done + self._total // 20
            share = f"{100 * done / self._total:3.0f}%"
            self._write(f"{share} [{self._finished}/{len(self._work)}] {job.name}: {note}")

    def stage(self, text: str) -> None:
        """What follows the models."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self._total, note=text)
        else:
            self._write(text)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    @staticmethod
    def _note(message: Mapping[str, Any]) -> str:
        if message.get("done"):
            return "done"
        if "stage" in message:
            return str(message["stage"])
        note = f"step {message['step']}"
        if message.get("loss") is not None:
            note += f", loss {message['loss']:.3f}, exact match {message['exact']:.0%}"
        return note

    @staticmethod
    def _write(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
