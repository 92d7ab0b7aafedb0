"""Jobs in worker processes: their results do not depend on how many run at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from models.errors import InputError, TrainingError
from models.workers import run_jobs

JOBS = """
import os
import time

import torch

from models.errors import LengthError
from models.tasks import create
from models.training import TrainingConfig, model_config, train


def trained(seed, tell):
    task = create("reversal", length=5)
    shape = model_config(task, n_layers=1, n_heads=2, d_model=14, dropout=0.1)
    config = TrainingConfig(steps=9, evaluate_every=3, batch_size=7, seed=seed)
    run = train(task, shape, config, device="cpu", report=lambda run: tell(run.step))
    weights = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    return weights.numpy().tobytes(), run.history, torch.get_num_threads()


def raises(job, tell):
    if job == 1:
        raise LengthError("job 1 does not fit")
    time.sleep(30)


def dies(job, tell):
    if job == 1:
        os._exit(3)
    time.sleep(30)


def process(job, tell):
    tell(os.getpid())
    return os.getpid()


def sleeps(job, tell):
    tell(os.getpid())
    time.sleep(30)
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that worker processes can import: they search where this process does."""
    (tmp_path / "jobs_of_the_test.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jobs_of_the_test", raising=False)
    return __import__("jobs_of_the_test")


def test_results_are_the_same_for_any_number_of_workers(jobs: ModuleType) -> None:
    seeds = [5, 3, 8]
    told: dict[int, list[int]] = {seed: [] for seed in seeds}
    alone = run_jobs(jobs.trained, seeds, workers=1)
    together = run_jobs(
        jobs.trained, seeds, workers=2, on_message=lambda seed, step: told[seed].append(step)
    )
    assert together == alone, "weights and histories, bit for bit, in the order of the jobs"
    assert len({weights for weights, _, _ in alone}) == 3
    assert {threads for _, _, threads in together} == {1}
    assert all(steps == list(range(1, 10)) for steps in told.values()), "every message arrives"


def test_one_job_or_one_worker_runs_in_this_process(jobs: ModuleType) -> None:
    told: list[tuple[int, int]] = []
    threads = torch.get_num_threads()
    here = os.getpid()
    for todo, workers in (([7], 4), ([7, 9], 1)):
        told.clear()
        found = run_jobs(
            jobs.process, todo, workers=workers, on_message=lambda *message: told.append(message)
        )
        assert found == [here] * len(todo)
        assert told == [(job, here) for job in todo]
    assert run_jobs(jobs.process, [], workers=3) == []
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_job_raises_comes_through_and_ends_the_others(
    jobs: ModuleType, workers: int
) -> None:
    from models.errors import LengthError

    began = time.monotonic()
    with pytest.raises(LengthError, match="job 1 does not fit"):
        run_jobs(jobs.raises, [1, 2] if workers == 1 else [2, 1], workers=workers)
    assert time.monotonic() - began < 25, "the other job sleeps for 30 seconds"


def test_a_worker_that_dies_is_said_clearly(jobs: ModuleType) -> None:
    with pytest.raises(TrainingError, match=r"a worker process died: .* or use workers=1"):
        run_jobs(jobs.dies, [1, 2], workers=2)


def test_no_workers_at_all_are_refused(jobs: ModuleType) -> None:
    with pytest.raises(InputError, match="workers must be at least 1 process, but got 0"):
        run_jobs(jobs.process, [1, 2], workers=0)


SCRIPT = """
import sys

from jobs_of_the_test import sleeps
from models.workers import run_jobs

if __name__ == "__main__":
    try:
        run_jobs(sleeps, [1, 2], workers=2, on_message=lambda job, pid: print(pid, flush=True))
    except KeyboardInterrupt:
        print("interrupted")
        sys.exit(130)
"""


@pytest.mark.skipif(os.name == "nt", reason="process groups are POSIX")
def test_an_interrupt_from_the_keyboard_ends_every_worker(tmp_path: Path) -> None:
    (tmp_path / "jobs_of_the_test.py").write_text(JOBS)
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == "interrupted\n"
    assert "Traceback" not in err
    assert not [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if os.path.exists("/proc") else True
    )
