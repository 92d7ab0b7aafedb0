"""What every task guarantees, and the functions that score one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from models import tasks
from models.checkpoints import load_run, save_run
from models.errors import InputError, UnknownNameError
from models.gpt import GPT
from models.sampling import generate
from models.sequence_tasks import SequenceTask
from models.tasks import Batch, Task, common_rows, correct_tokens, exact_match, sequence_loss
from models.training import TrainingConfig, model_config, start, train


@pytest.fixture(params=["reversal", "reversal_range", "induction", "text"])
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    if request.param == "text":
        path = tmp_path / "corpus.txt"
        path.write_text("the cat sat on the mat. " * 40, encoding="utf-8")
        return tasks.create("text", path=str(path), length=17)
    if request.param == "reversal_range":
        return tasks.create("reversal", length=7, min_length=3)
    return tasks.create(request.param, length=7)


def draw(task: Task, n: int = 53, seed: int = 0, **options: Any) -> Batch:
    return task.draw(n, generator=torch.Generator().manual_seed(seed), **options)


def test_a_batch_is_consistent(task: Task) -> None:
    batch = draw(task)
    position = torch.arange(batch.tokens.shape[1])
    real = position < batch.lengths[:, None]
    assert len(batch) == 53
    assert int(batch.tokens.max()) < len(task.vocabulary)
    assert batch.tokens.shape[1] <= task.n_ctx
    known = batch.next_tokens[:, :-1] >= 0
    assert torch.equal(batch.next_tokens[:, :-1][known], batch.tokens[:, 1:][known])
    assert (batch.next_tokens[batch.outputs] >= 0).all(), "every output has a right answer"
    assert not (batch.outputs & ~real).any()
    assert (batch.target_keys <= position).all(), "no query looks ahead"
    assert not ((batch.target_keys >= 0) & ~real).any()
    assert task.fixed_layout == bool((batch.outputs == batch.outputs[0]).all())


def test_a_seed_gives_the_same_batch(task: Task) -> None:
    first, same, other = draw(task, seed=1), draw(task, seed=1), draw(task, seed=2)
    assert torch.equal(first.tokens, same.tokens)
    assert not torch.equal(first.tokens, other.tokens)


def test_a_slice_of_a_batch_is_a_batch(task: Task) -> None:
    batch = draw(task)
    part = batch[11:17]
    assert torch.equal(part.tokens, batch.tokens[11:17])
    assert torch.equal(part.outputs, batch.outputs[11:17])
    assert torch.equal(part.lengths, batch.lengths[11:17])
    for name, group in batch.groups.items():
        assert torch.equal(part.groups[name], group[11:17])


def test_its_parameters_rebuild_it(task: Task) -> None:
    again = tasks.create(task.name, **task.parameters())
    assert again == task
    assert torch.equal(draw(again).tokens, draw(task).tokens)


def test_a_prompt_leads_to_an_answer_that_fits_the_context(task: Task) -> None:
    text = {"reversal": "abcdefg", "induction": "abcdefg", "text": "the cat"}[task.name]
    ids, n = task.prompt(text)
    assert task.vocabulary.decode(ids).startswith(text)
    assert len(ids) + n - 1 <= task.n_ctx
    model = GPT(model_config(task))
    assert generate(model, [ids], n).shape == (1, n)


def test_every_position_has_a_label(task: Task) -> None:
    assert len(task.layout()) == task.n_ctx


def test_the_objectives_read_outputs_or_everything_known(task: Task) -> None:
    batch = draw(task)
    assert torch.equal(batch.read("outputs"), batch.outputs)
    assert torch.equal(batch.read("all"), batch.next_tokens >= 0)
    assert (batch.read("all") | ~batch.outputs).all()


def test_unknown_tasks_and_parameters_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean reversal"):
        tasks.create("reversl")
    with pytest.raises(InputError, match="task reversal takes length, min_length, but got lenght"):
        tasks.create("reversal", lenght=5)


def test_a_task_of_the_users_own_trains_saves_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_TASKS", dict(tasks._TASKS))

    @tasks.register
    @dataclass(frozen=True)
    class Copy(SequenceTask):
        name: ClassVar[str] = "copy"

        def answer(self, given: Tensor) -> Tensor:
            return given

    assert "copy" in tasks.names()
    run = start(tasks.create("copy", length=3), config=TrainingConfig(steps=2), device="cpu")
    save_run(tmp_path / "run", run)
    assert isinstance(load_run(tmp_path / "run").task, Copy)
    assert (run.task.heldout(5).target_keys == -1).all()

    del tasks._TASKS["copy"]
    with pytest.raises(UnknownNameError, match="no task named 'copy'"):
        load_run(tmp_path / "run")

    class Other(Copy):
        name: ClassVar[str] = "reversal"

    tasks.create("reversal", length=3)
    with pytest.raises(InputError, match="'reversal' is registered already"):
        tasks.register(Other)


# --- scores


@pytest.fixture
def scored() -> tuple[Tensor, Batch]:
    """Two sequences with outputs at positions 1 and 2; logits by hand, in three tokens."""
    following = torch.tensor([[1, 2, 0, -1], [1, 0, 2, -1]])
    outputs = torch.tensor([[False, True, True, False]] * 2)
    tokens = torch.zeros(2, 4, dtype=torch.long)
    batch = Batch(tokens, torch.tensor([4, 4]), following, outputs, torch.full_like(tokens, -1))
    logits = torch.zeros(2, 4, 3)
    logits[0, 1, 2], logits[0, 2, 0] = 1.0, 2.0  # both right
    logits[1, 1, 0], logits[1, 2, 1] = 1.0, 2.0  # right, wrong
    return logits, batch


def test_scores_by_hand(scored: tuple[Tensor, Batch]) -> None:
    logits, batch = scored
    assert correct_tokens(logits, batch).tolist() == [
        [False, True, True, False],
        [False, True, False, False],
    ]
    assert exact_match(logits, batch).tolist() == [True, False]

    def cross_entropy(right: float, others: float = 0.0) -> float:
        values = torch.tensor([right, others, 0.0])
        return -float(values.log_softmax(0)[0])

    by_hand = [
        (cross_entropy(1) + cross_entropy(2)) / 2,
        (cross_entropy(1) + cross_entropy(0, 2)) / 2,
    ]
    assert sequence_loss(logits, batch).tolist() == pytest.approx(by_hand)
    with_all = [(2 * value + cross_entropy(0)) / 3 for value in by_hand]
    assert sequence_loss(logits, batch, objective="all").tolist() == pytest.approx(with_all)


def test_a_sequence_without_outputs_has_no_loss(scored: tuple[Tensor, Batch]) -> None:
    logits, batch = scored
    batch.outputs[0] = False
    loss = sequence_loss(logits, batch)
    assert loss[0].isnan()
    assert loss[1].isfinite()


def test_exact_match_of_one_pass_is_greedy_generation() -> None:
    """For a model that still errs, too: a wrong token ends both."""
    task = tasks.create("reversal", length=5)
    run = train(task, config=TrainingConfig(steps=40), device="cpu")
    batch = task.heldout(200)
    with torch.no_grad():
        one_pass = exact_match(run.model(batch.tokens), batch)
    written = generate(run.model, batch.tokens[:, :6], 5)
    assert torch.equal((written == batch.tokens[:, 6:]).all(1), one_pass)
    assert 0.1 < float(one_pass.float().mean()) < 0.9, "some right, some wrong"


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        ([[0, 1, 1, 0], [0, 1, 1, 0]], slice(1, 3)),
        ([[1, 1, 1, 1], [1, 1, 1, 1]], slice(0, 4)),
        ([[0, 1, 1, 0], [0, 1, 0, 0]], None),
        ([[0, 1, 0, 1], [0, 1, 0, 1]], None),
        ([[0, 0, 0, 0], [0, 0, 0, 0]], None),
    ],
)
def test_common_rows_are_one_range_or_none(read: list[list[int]], rows: slice | None) -> None:
    assert common_rows(torch.tensor(read).bool()) == rows
