"""Independent jobs in spawned worker processes, one thread each, with progress messages.

A job's result does not depend on how many run at once: every worker computes on one thread and
gets nothing from the others. With one worker the jobs run here, one after the other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from models.errors import InputError, TrainingError

Job = TypeVar("Job")
Result = TypeVar("Result")
Message = Any

_messages: Any = None


def run_jobs(
    function: Callable[[Job, Callable[[Message], None]], Result],
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    on_message: Callable[[Job, Message], None] = lambda job, message: None,
) -> list[Result]:
    """Call ``function(job, tell)`` for every job; results in the order of the jobs.

    Args:
        function: importable (a module-level function); ``tell(message)`` reaches
            ``on_message(job, message)`` in this process.
        jobs: picklable.
        workers: processes at once; default one per core, at most one per job.

    Raises:
        TrainingError: a worker process died. What a job raises comes through as it is.
    """
    from models.training import one_thread

    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1 process, but got {workers}")
    count = min(workers or os.cpu_count() or 1, len(jobs))
    if count <= 1:
        with one_thread():
            return [function(job, lambda m, job=job: on_message(job, m)) for job in jobs]  # type: ignore[misc]
    context = multiprocessing.get_context("spawn")
    messages = context.SimpleQueue()  # what is put is there at once, before its job's result
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=_initialize, initargs=(messages,)
    ) as pool:
        futures = [pool.submit(_call, function, i, job) for i, job in enumerate(jobs)]
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
                _drain(messages, jobs, on_message)
                for future in done:
                    future.result()
                if pending and any(worker.exitcode is not None for worker in _workers(pool)):
                    raise BrokenProcessPool  # the pool itself may wait for the others first
            _drain(messages, jobs, on_message)
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise TrainingError(
                "a worker process died: if this is a script, put what it runs under "
                'if __name__ == "__main__":, or use workers=1'
            ) from None
        finally:
            for worker in _workers(pool) if pending else []:
                worker.terminate()
            pool.shutdown(cancel_futures=True)


def _workers(pool: ProcessPoolExecutor) -> list[Any]:
    return list((pool._processes or {}).values())


def _initialize(messages: Any) -> None:
    import torch

    global _messages
    _messages = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the caller, who ends us
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose caller was killed has nobody left to work for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[..., Result], index: int, job: Any) -> Result:
    return function(job, lambda message: _messages.put((index, message)))


def _drain(messages: Any, jobs: Sequence[Job], on_message: Callable[[Job, Message], None]) -> None:
    while not messages.empty():
        index, message = messages.get()
        on_message(jobs[index], message)
