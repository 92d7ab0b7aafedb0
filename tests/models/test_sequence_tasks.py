import itertools
from typing import Any

import pytest
import torch

from models.errors import InputError, LengthError, VocabularyError
from models.sequence_tasks import HELD_OUT_SHARE, is_heldout
from models.tasks import Batch, Task, create


def draw(task: Task, n: int, split: Any = "train", seed: int = 0) -> Batch:
    return task.draw(n, generator=torch.Generator().manual_seed(seed), split=split)


def words(task: Task, batch: Batch) -> list[str]:
    rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    return [task.vocabulary.decode(row[:length]) for row, length in rows]


def test_the_output_is_the_input_reversed() -> None:
    task = create("reversal", length=5)
    for word in words(task, draw(task, 31)):
        given, answer = word.split("|")
        assert len(given) == 5
        assert answer == given[::-1]


def test_the_answer_of_a_range_follows_each_length() -> None:
    task = create("reversal", length=5, min_length=2)
    drawn = words(task, draw(task, 400))
    assert {len(word.split("|")[0]) for word in drawn} == {2, 3, 4, 5}
    for word in drawn:
        given, answer = word.split("|")
        assert answer == given[::-1]
    batch = draw(task, 50)
    padding = torch.arange(task.n_ctx) >= batch.lengths[:, None]
    assert (batch.next_tokens[padding] == -1).all()
    assert not batch.outputs[padding].any()


def test_each_output_is_predicted_at_the_position_before_it() -> None:
    """Query n + j - 1 predicts y_j and should look at key n - j, where the same letter stands."""
    for task in (create("reversal", length=5), create("reversal", length=5, min_length=2)):
        batch = draw(task, 37)
        n = (batch.lengths - 1) // 2
        for row, length in enumerate(n.tolist()):
            queries = batch.outputs[row].nonzero().flatten()
            assert queries.tolist() == list(range(length, 2 * length))
            keys = batch.target_keys[row, queries]
            assert (queries + keys == 2 * length - 1).all(), "the anti-diagonal"
            right = batch.next_tokens[row, queries]
            assert torch.equal(batch.tokens[row, keys], right), "it holds the letter to write"
            others = ~batch.outputs[row]
            assert (batch.target_keys[row, others] == -1).all()
        assert torch.equal(batch.groups["predicting"], batch.outputs)
        assert (batch.groups["separator"].sum(1) == 1).all()
        assert torch.equal(batch.groups["inputs"].sum(1), n)


def test_induction_repeats_a_block_of_distinct_letters() -> None:
    task = create("induction", length=7)
    batch = draw(task, 41)
    first, second = batch.tokens[:, :7], batch.tokens[:, 7:]
    assert torch.equal(first, second)
    assert all(len(set(row)) == 7 for row in first.tolist())
    queries = batch.outputs[0].nonzero().flatten()
    assert queries.tolist() == list(range(7, 13)), "the last letter has no successor"
    keys = batch.target_keys[:, queries]
    assert torch.equal(keys[0], queries - 6), "the letter after the earlier copy"
    assert torch.equal(batch.tokens.gather(1, keys), batch.next_tokens[:, queries])


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("reversal", {"length": 1}),
        ("reversal", {"length": 2}),
        ("reversal", {"length": 3}),
        ("reversal", {"length": 3, "min_length": 1}),
        ("reversal", {"length": 5, "min_length": 2}),
        ("reversal", {"length": 16}),
        ("induction", {"length": 2}),
        ("induction", {"length": 5}),
    ],
)
def test_training_and_held_out_sequences_are_never_shared(name: str, sizes: dict[str, int]) -> None:
    task = create(name, **sizes)
    seen = set(words(task, draw(task, 5_000)))
    heldout = words(task, draw(task, 500, "heldout", seed=1))
    assert not seen & set(heldout)


def test_one_sequence_in_ten_is_held_out() -> None:
    given = torch.tensor(list(itertools.product(range(26), repeat=3)))
    share = is_heldout(given, torch.full((len(given),), 3)).float().mean()
    assert float(share) == pytest.approx(1 / HELD_OUT_SHARE, abs=0.01)


def test_the_split_depends_on_the_sequence_and_not_on_the_longest_one() -> None:
    given = torch.tensor(list(itertools.product(range(26), repeat=2)))
    lengths = torch.full((len(given),), 2)
    wider = torch.nn.functional.pad(given, (0, 3))
    assert torch.equal(is_heldout(given, lengths), is_heldout(wider, lengths))
    longer = is_heldout(wider, lengths + 1)
    assert not torch.equal(is_heldout(given, lengths), longer), "a trailing a is another sequence"


def test_drawn_letters_are_uniform() -> None:
    batch = draw(create("reversal", length=7), 5_000)
    counts = torch.bincount(batch.tokens[:, :7].flatten(), minlength=26)[:26]
    assert counts.min() > 1_200  # expected 1,346, standard deviation 36
    assert counts.max() < 1_500


def test_a_word_becomes_a_prompt() -> None:
    task = create("reversal", length=5)
    assert task.prompt("Probe") == ([15, 17, 14, 1, 4, 26], 5)
    assert create("induction", length=5).prompt("abcde") == ([0, 1, 2, 3, 4, 0], 4)
    assert create("reversal", length=5, min_length=2).prompt("ab") == ([0, 1, 26], 2)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("abcd", LengthError, "words of 5 letters, but 'abcd' has 4"),
        ("abcdef", LengthError, "words of 5 letters, but 'abcdef' has 6"),
        ("", LengthError, "but '' has 0"),
        ("ab1d!", VocabularyError, "one of 'a-z|', but got '!', '1'"),
        ("ab|cd", InputError, "without the separator"),
    ],
)
def test_a_word_that_does_not_fit_is_refused(text: str, error: Any, message: str) -> None:
    with pytest.raises(error, match=message.replace("|", r"\|")):
        create("reversal", length=5).prompt(text)
    with pytest.raises(LengthError, match="words of 2 to 5 letters, but 'a' has 1"):
        create("reversal", length=5, min_length=2).prompt("a")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("reversal", {"length": 0}),
        ("reversal", {"length": 3, "min_length": 4}),
        ("reversal", {"length": 3, "min_length": 0}),
        ("induction", {"length": 1}),
        ("induction", {"length": 27}),
    ],
)
def test_a_length_that_cannot_be_is_refused(name: str, sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="length"):
        create(name, **sizes)


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(InputError, match="split must be one of train, heldout, but got 'test'"):
        draw(create("reversal", length=5), 3, "test")
