"""Tasks: what a small model is trained on, and what counts as correct.

A task knows its vocabulary and layout; draws batches on a device; says which positions predict
an output, which key each query should look at, and how a sequence is scored. Training and
held-out sequences are split by a hash of the sequence, so that not even short ones are shared.

A task of your own is a subclass registered under a name::

    from models.sequence_tasks import SequenceTask
    from models.tasks import register

    @register
    @dataclass(frozen=True)
    class Copy(SequenceTask):
        name: ClassVar[str] = "copy"

        def answer(self, given):          # [batch, n] -> [batch, n]
            return given

It can then be trained by name, and a checkpoint of it is loaded wherever it is registered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from models.errors import InputError
from models.names import Objective, Split, unknown
from models.vocabulary import Vocabulary


@dataclass(frozen=True)
class Batch:
    """Sequences of a task.

    Args:
        tokens: ids to feed ``[batch, pos]``, padded on the right.
        lengths: real ids per row.
        next_tokens: the right next token at every position; -1 where none is known.
        outputs: the queries that predict an output, i.e. the position *before* it.
        target_keys: for every query the key it should look at; -1 where none is meant.
        groups: further named sets of queries, e.g. ``inputs``, ``predicting``, ``separator``.
    """

    tokens: Int[Tensor, "batch pos"]
    lengths: Int[Tensor, " batch"]
    next_tokens: Int[Tensor, "batch pos"]
    outputs: Bool[Tensor, "batch pos"]
    target_keys: Int[Tensor, "batch pos"]
    groups: Mapping[str, Bool[Tensor, "batch pos"]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice) -> Batch:
        """A slice of the sequences."""
        return Batch(
            self.tokens[rows],
            self.lengths[rows],
            self.next_tokens[rows],
            self.outputs[rows],
            self.target_keys[rows],
            groups={name: group[rows] for name, group in self.groups.items()},
        )

    def read(self, objective: Objective) -> Bool[Tensor, "batch pos"]:
        """The positions whose prediction the objective scores."""
        return self.next_tokens >= 0 if objective == "all" else self.outputs


def common_rows(read: Bool[Tensor, "batch pos"]) -> slice | None:
    """The positions read, as one range, when it is the same for every sequence."""
    first = read[0]
    found = first.nonzero().flatten()
    if not len(found):
        return None
    start, stop = int(found[0]), int(found[-1]) + 1
    contiguous = stop - start == len(found)
    return slice(start, stop) if contiguous and bool((read == first).all()) else None


class Task(ABC):
    """What training and analyses need of a task."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The characters."""

    @property
    @abstractmethod
    def n_ctx(self) -> int:
        """The longest sequence, in tokens."""

    @property
    def fixed_layout(self) -> bool:
        """Whether the outputs are at the same positions in every sequence."""
        return False

    @abstractmethod
    def draw(
        self,
        n: int,
        *,
        generator: torch.Generator,
        split: Split = "train",
    ) -> Batch:
        """``n`` sequences on the generator's device."""

    @abstractmethod
    def prompt(self, text: str) -> tuple[list[int], int]:
        """Ids to feed for what a user typed, and how many tokens to generate."""

    def parameters(self) -> dict[str, Any]:
        """What rebuilds the task: ``create(task.name, **task.parameters())``."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def layout(self) -> list[str]:
        """A label for every position, for axes of figures."""
        return [str(i) for i in range(self.n_ctx)]

    def heldout(self, n: int, *, seed: int = 0, device: torch.device | str = "cpu") -> Batch:
        """``n`` sequences that training never draws, the same for the same seed."""
        generator = torch.Generator(device).manual_seed(seed)
        return self.draw(n, generator=generator, split="heldout")


TaskType = TypeVar("TaskType", bound=type[Task])
_TASKS: dict[str, type[Task]] = {}
_BUILT_IN = {
    "reversal": "models.sequence_tasks",
    "induction": "models.sequence_tasks",
    "text": "models.text",
}


def register(task: TaskType) -> TaskType:
    """Make a task available under its ``name``; the same name twice is an error."""
    known = _TASKS.get(task.name)
    if known is not None and (known.__module__, known.__qualname__) != (
        task.__module__,
        task.__qualname__,
    ):
        raise InputError(f"a task named {task.name!r} is registered already: {known}")
    _TASKS[task.name] = task
    return task


def names() -> list[str]:
    """The registered tasks."""
    return sorted(_TASKS.keys() | _BUILT_IN.keys())


def create(name: str, **parameters: Any) -> Task:
    """A task by name.

    Raises:
        UnknownNameError: no such task; own tasks are registered by importing their module.
        InputError: parameters that it does not take.
    """
    if name in _BUILT_IN:
        import_module(_BUILT_IN[name])
    if name not in _TASKS:
        raise unknown("task", name, names())
    try:
        return _TASKS[name](**parameters)
    except TypeError:
        known = ", ".join(field.name for field in fields(_TASKS[name]))  # type: ignore[arg-type]
        raise InputError(f"task {name} takes {known}, but got {', '.join(parameters)}") from None


def sequence_loss(
    logits: Float[Tensor, "batch pos d_vocab"],
    batch: Batch,
    *,
    objective: Objective = "outputs",
) -> Float[Tensor, " batch"]:
    """Mean cross-entropy in nats per sequence, over the positions the objective reads."""
    read = batch.read(objective)
    losses = F.cross_entropy(
        logits.transpose(1, 2), batch.next_tokens, reduction="none", ignore_index=-1
    )
    return (losses * read).sum(1) / read.sum(1)


def correct_tokens(
    logits: Float[Tensor, "batch pos d_vocab"], batch: Batch
) -> Bool[Tensor, "batch pos"]:
    """Outputs whose most likely token is the right one, given the right prefix."""
    return (logits.argmax(-1) == batch.next_tokens) & batch.outputs


def exact_match(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Bool[Tensor, " batch"]:
    """Sequences with every output right.

    Identity: this equals greedy generation being right, because a wrong token ends both.
    """
    return (correct_tokens(logits, batch) | ~batch.outputs).all(1)
