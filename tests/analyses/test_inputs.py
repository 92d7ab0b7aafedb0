"""What an analysis measures on, and what may serve as its reference."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from analyses import inputs
from analyses.inputs import as_batch, as_names, read_columns, reference_batch, select, task_of
from analyses.random_tokens import repeated_tokens
from models.errors import InputError, LengthError, VocabularyError
from models.gpt import GPT
from models.tasks import Batch, create


def test_nothing_means_held_outsequences_of_the_task(model: GPT) -> None:
    found = as_batch(model, None, n=7, seed=5)
    expected = task_of(model).heldout(7, seed=5)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.outputs, expected.outputs)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_a_model_without_a_task_gets_repeated_random_tokens(
    request: pytest.FixtureRequest, engine: str
) -> None:
    model = request.getfixturevalue(engine)
    found = as_batch(model, None, n=7, seed=5)
    assert torch.equal(found.tokens, repeated_tokens(model, n=7, seed=5).tokens)
    assert len(as_batch(model, None, n=256)) == 64
    with pytest.raises(InputError, match="not trained on a task of ours: give tokens"):
        task_of(model)


def test_texts_are_read_by_the_model_s_own_vocabulary(model: GPT) -> None:
    ids = [model.to_tokens(text)[0].tolist() for text in ("abc", "de")]
    found = as_batch(model, ["abc", "de"])
    assert torch.equal(found.tokens, as_batch(model, ids).tokens)
    assert torch.equal(as_batch(model, "abc").tokens, as_batch(model, ids[:1]).tokens)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("tokens", "message"), [(["abc", [1, 2]], "but got both"), ("", "empty"), ([""], "empty")]
)
def test_what_is_neither_texts_nor_ids_is_refused(model: GPT, tokens: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_batch(model, tokens)


def test_every_next_token_of_plain_ids_is_an_output(model: GPT) -> None:
    batch = as_batch(model, [[3, 1, 4, 1], [5, 9]])
    assert batch.lengths.tolist() == [4, 2]
    assert batch.tokens[0].tolist() == [3, 1, 4, 1]
    assert batch.next_tokens.tolist() == [[1, 4, 1, -1], [9, -1, -1, -1]]
    assert batch.outputs.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert (batch.target_keys == -1).all()
    tensor = as_batch(model, torch.tensor([[3, 1, 4, 1]]))
    assert torch.equal(tensor.next_tokens, batch.next_tokens[:1])


def test_a_batch_is_checked_and_passed_on(model: GPT, batch: Batch) -> None:
    assert torch.equal(as_batch(model, batch).tokens, batch.tokens)
    with pytest.raises(LengthError, match="context is 13 tokens, but got 41"):
        as_batch(model, create("reversal", length=20).heldout(3))
    with pytest.raises(VocabularyError, match=r"0\.\.26"):
        as_batch(model, [[3, 27]])


@pytest.mark.parametrize("tokens", [[], [[]], torch.tensor([1, 2]), torch.rand(2, 3)])
def test_what_is_no_batch_of_ids_is_refused(model: GPT, tokens: Any) -> None:
    with pytest.raises(InputError, match="tokens must be"):
        as_batch(model, tokens)


def test_a_negative_seed_is_refused(model: GPT) -> None:
    with pytest.raises(InputError, match="seed must be at least 0, but got -1"):
        as_batch(model, None, seed=-1)


def test_the_default_reference_is_of_the_training_split_and_disjoint(model: GPT) -> None:
    batch = as_batch(model, None, n=256)
    reference = reference_batch(model, batch, seed=3)
    assert len(reference) == 256
    assert not set(inputs.sequences(reference)) & set(inputs.sequences(batch))


def test_a_default_reference_leaves_out_what_is_evaluated(model: GPT) -> None:
    """Someone evaluates training sequences: exactly these are dropped."""
    task = task_of(model)
    drawn = task.draw(256, generator=torch.Generator().manual_seed(3), split="train")
    reference = reference_batch(model, drawn[:11], seed=3)
    assert torch.equal(reference.tokens, drawn[11:].tokens)
    with pytest.raises(InputError, match="every training sequence of the task is evaluated"):
        reference_batch(model, drawn, seed=3)


def test_a_reference_that_is_evaluated_too_is_refused(model: GPT, batch: Batch) -> None:
    other = as_batch(model, None, n=17, seed=9)
    assert torch.equal(reference_batch(model, batch, other).tokens, other.tokens)
    mixed = [*other.tokens.tolist()[:3], *batch.tokens.tolist()[:2]]
    with pytest.raises(InputError, match="must not be among those evaluated, but 2 of 5 are"):
        reference_batch(model, batch, mixed)


def test_padding_does_not_hide_that_twosequences_are_one(model: GPT) -> None:
    batch = as_batch(model, [[3, 1, 4], [1, 5, 9, 2]])
    with pytest.raises(InputError, match="1 of 1"):
        reference_batch(model, batch, [[3, 1, 4]])
    longer = reference_batch(model, batch, [[3, 1, 4, 0]])
    assert longer.tokens.tolist() == [[3, 1, 4, 0]], "a prefix is another sequence"


def test_selecting_keeps_every_part_in_step(batch: Batch) -> None:
    rows = torch.tensor([4, 2, 9])
    found = select(batch, rows)
    for name in ("tokens", "lengths", "next_tokens", "outputs", "target_keys"):
        assert torch.equal(getattr(found, name), getattr(batch, name)[rows])
    assert torch.equal(found.groups["separator"], batch.groups["separator"][rows])
    columns = read_columns(batch, slice(5, 10))
    assert columns.outputs.all()
    assert torch.equal(columns.next_tokens, batch.tokens[:, 6:11])


def test_one_name_is_a_list_of_one() -> None:
    assert as_names("mean") == ["mean"]
    assert as_names(["mean", "zero", "mean"]) == ["mean", "zero"]


def test_a_batch_goes_where_the_model_is(
    make_model: Callable[..., GPT], batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without an accelerator the meta device stands for one."""
    moved = inputs.to_device(batch, "meta")
    assert {part.device.type for part in (moved.tokens, moved.lengths, moved.outputs)} == {"meta"}
    assert moved.groups["inputs"].device.type == "meta"
