"""Seeds one after the other beside seeds in worker processes, start-up of the workers included.

Each seed trains the default reversal model for some steps on one thread: in this process one
after the other, then in spawned processes. Both orders are timed in turn. What was trained must be
the same to the last bit, however many ran at once. Workers pay their start-up once (every one
imports PyTorch), so the gain grows with the steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from _common import one_thread, print_table

from models import tasks
from models.training import TrainingConfig, train
from models.workers import run_jobs

Job = tuple[int, int]  # seed, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="20 steps, once")
    options = parser.parse_args()
    steps, repeats = (20, 1) if options.quick else (options.steps, options.repeats)
    one_thread()
    jobs = [(seed, steps) for seed in range(options.seeds)]
    times: dict[int, list[float]] = {1: [], options.workers: []}
    results: list[list[float]] = []
    for _ in range(repeats):
        for workers, taken in times.items():
            begin = time.perf_counter()
            results.append(run_jobs(weigh, jobs, workers=workers))
            taken.append(time.perf_counter() - begin)
    assert all(result == results[0] for result in results), "seeds depend on their company"
    begin = time.perf_counter()
    run_jobs(nothing, jobs, workers=options.workers)
    idle = time.perf_counter() - begin
    single, parallel = (statistics.median(taken) for taken in times.values())
    title = f"{len(jobs)} seeds of {steps} steps on {os.cpu_count()} cores, trained the same bits"
    rows = [
        ("one after the other", single, 1.0),
        (f"{options.workers} worker processes", parallel, single / parallel),
        ("  of it their start-up", idle, None),
    ]
    print_table(title, ("way", "seconds", "times as fast"), rows)


def weigh(job: Job, tell: Callable[[object], None]) -> float:
    """Train one seed and return a number that any change of its weights would change."""
    seed, steps = job
    run = train(
        tasks.create("reversal"), config=TrainingConfig(steps=steps, seed=seed), device="cpu"
    )
    weights = torch.cat([p.detach().flatten() for p in run.model.parameters()]).double()
    return float(weights @ torch.arange(1.0, len(weights) + 1, dtype=torch.float64))


def nothing(job: Job, tell: Callable[[object], None]) -> None:
    """What a worker needs before it can train."""


if __name__ == "__main__":
    main()
