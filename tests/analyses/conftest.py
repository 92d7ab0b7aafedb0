"""Small untrained models whose sizes are distinct primes, and the sequences they are given."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.config import GPTConfig
from models.gpt import GPT
from models.tasks import Batch, Task, create

LETTERS = 5  # so a sequence is x1 .. x5 | y1 .. y5


@pytest.fixture(scope="session")
def task() -> Task:
    return create("reversal", length=LETTERS)


@pytest.fixture(scope="session")
def make_model(task: Task) -> Callable[..., GPT]:
    """A function that builds a model with weights so large that all its heads differ."""

    def make(task: Task = task, *, seed: int = 3, std: float = 0.5, **changes: Any) -> GPT:
        sizes = {"n_ctx": task.n_ctx + 2, "n_layers": 2, "n_heads": 3, "d_model": 21, **changes}
        config = GPTConfig(d_vocab=len(task.vocabulary), **sizes)
        model = GPT(config, seed=seed, init_std=std, vocabulary=task.vocabulary)
        model.task = task
        return model.eval()

    return make


@pytest.fixture(scope="session")
def model(make_model: Callable[..., GPT]) -> GPT:
    """Shared: leave it as you found it."""
    return make_model()


@pytest.fixture(scope="session")
def batch(task: Task) -> Batch:
    """Thirteen held-out sequences."""
    return task.heldout(13, seed=1)


@pytest.fixture(scope="session")
def ragged_task() -> Task:
    return create("reversal", length=LETTERS, min_length=2)


@pytest.fixture(scope="session")
def ragged_batch(ragged_task: Task) -> Batch:
    """Seventeen held-out sequences of 2 to 5 letters."""
    return ragged_task.heldout(17, seed=2)


@pytest.fixture
def widen() -> Callable[[Batch, int], Batch]:
    """A function that adds columns of padding to a batch."""

    def wide(batch: Batch, columns: int) -> Batch:
        def pad(part: Tensor, value: int) -> Tensor:
            return torch.nn.functional.pad(part, (0, columns), value=value)

        return replace(
            batch,
            tokens=pad(batch.tokens, 7),
            next_tokens=pad(batch.next_tokens, -1),
            outputs=pad(batch.outputs, 0),
            target_keys=pad(batch.target_keys, -1),
            groups={name: pad(group, 0) for name, group in batch.groups.items()},
        )

    return wide


@pytest.fixture(scope="session", params=["gpt", "bridge"])
def mini(
    request: pytest.FixtureRequest,
    filled_gpt2: Any,
    gpt2_to_ours: Callable[[Any], GPT],
    to_bridge: Callable[[Any], Any],
) -> Any:
    """`filled_gpt2` in either engine. Shared: leave it as you found it."""
    return (gpt2_to_ours if request.param == "gpt" else to_bridge)(filled_gpt2)
