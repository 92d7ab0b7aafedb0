"""What the benchmarks share: interleaved timing and one form of table."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

Cell = str | float | None


def interleaved(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 10
) -> dict[str, float]:
    """Median seconds of each contender, all taking one turn per round.

    Whatever slows the machine for a while slows all of them; who begins changes every round.
    """
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(-warmup, rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            begin = time.perf_counter()
            contenders[name]()
            if i >= 0:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A small table in plain text; numbers are right-aligned, ``None`` is empty."""
    cells = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(columns))]
    print(f"\n{title}")
    for i, row in enumerate(cells):
        line = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]
        print("  " + "  ".join(line).rstrip())
        if i == 0:
            print("  " + "  ".join("-" * width for width in widths))


def against(ratio: float, target: float | None) -> str:
    """The target of a ratio, and whether it is reached."""
    if target is None:
        return ""
    return f">= {target:g} {'reached' if ratio >= target else 'missed'}"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:.3g}" if abs(cell) < 100 else f"{cell:.0f}"
