from pathlib import Path

import pytest
import torch

from models.errors import InputError, LengthError, VocabularyError
from models.gpt import GPT
from models.tasks import create
from models.text import Text
from models.training import TrainingConfig, model_config, train


def corpus(folder: Path, text: str | bytes, name: str = "corpus.txt") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def starts(task: Text, split: str = "train", n: int = 400) -> set[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(0)
    return {tuple(row) for row in task.draw(n, generator=generator, split=split).tokens.tolist()}


def test_a_windows_file_leaves_neither_mark_nor_carriage_return(tmp_path: Path) -> None:
    path = corpus(tmp_path, b"\xef\xbb\xbfab\r\ncd\r\n" * 30)
    task = create("text", path=path, length=5)
    assert task.text == "ab\ncd\n" * 30
    assert task.vocabulary.tokens == ("\n", "a", "b", "c", "d")


@pytest.mark.parametrize(("size", "held_out"), [(60, 1), (70, 2), (73, 3)])
def test_every_window_of_a_part_is_drawn(tmp_path: Path, size: int, held_out: int) -> None:
    """N characters hold N - T windows of T characters and their successors, the last included."""
    length = 5
    path = corpus(tmp_path, "".join(chr(ord("!") + i) for i in range(size)))  # all distinct
    task = Text(path=path, length=length)
    cut = int(0.9 * size)
    assert size - cut == length + held_out
    expected = {tuple(range(i, i + length)) for i in range(cut - length)}
    assert starts(task, n=2_000) == expected
    expected = {tuple(range(cut + i, cut + i + length)) for i in range(held_out)}
    assert starts(task, "heldout") == expected
    batch = task.heldout(50)
    assert torch.equal(batch.next_tokens, batch.tokens + 1), "its successors"
    assert batch.outputs.all()


def test_a_text_no_longer_than_a_window_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = corpus(tmp_path, "abcdefghij" * 10)  # 90 for training, 10 held out
    for length, part, size in ((90, "train", 90), (10, "heldout", 10)):
        with pytest.raises(LengthError, match=f"{part} .* of {length} characters.* has {size}:"):
            Text(path=path, length=length)
    assert Text(path=path, length=9).splits["heldout"].numel() == 10


def test_a_minimal_text_trains_every_position(tmp_path: Path) -> None:
    task = create("text", path=corpus(tmp_path, "abcdefghijk" * 10), length=10)
    shape = model_config(task, n_layers=1, n_heads=2, d_model=14)
    run = train(task, shape, TrainingConfig(steps=1, batch_size=3), device="cpu")
    before = GPT(shape, seed=run.config.seed, init_std=run.config.init_std)
    change = (run.model.W_pos - before.W_pos).detach().abs().amax(1)
    assert (change > 0).all(), "the last position too"


def test_a_tenth_is_held_out(tmp_path: Path) -> None:
    task = Text(path=corpus(tmp_path, "".join(chr(ord("a") + i % 26) for i in range(1_000))))
    assert [len(task.splits[name]) for name in ("train", "heldout")] == [900, 100]
    joined = torch.cat([task.splits["train"], task.splits["heldout"]])
    assert task.vocabulary.decode(joined.tolist()) == task.text


def test_a_character_that_the_text_does_not_have_is_named(tmp_path: Path) -> None:
    task = create("text", path=corpus(tmp_path, "abc " * 100), length=9)
    with pytest.raises(VocabularyError, match="but got 'Z'"):
        task.prompt("abZ")
    with pytest.raises(LengthError, match="1 to 9 characters, but got 0"):
        task.prompt("")
    with pytest.raises(LengthError, match="1 to 9 characters, but got 12"):
        task.prompt("abc abc abc ")
    assert task.prompt("abc") == ([1, 2, 3], 7)
    assert task.prompt("abc abc a")[1] == 1


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the text '.*nothing\.txt': No such file"):
        create("text", path=str(tmp_path / "nothing.txt"))
    with pytest.raises(InputError, match="cannot read the text"):
        create("text", path=str(tmp_path))
    with pytest.raises(InputError, match=r"must be UTF-8, but .* is not at byte 3"):
        create("text", path=corpus(tmp_path, b"abc\xff\xfe"))
    with pytest.raises(LengthError, match="has 0"):
        create("text", path=corpus(tmp_path, ""))


def test_the_file_may_be_away_until_a_batch_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(corpus(tmp_path, "abc " * 100))
    task = create("text", path="corpus.txt", length=9)
    monkeypatch.chdir(tmp_path.parent)
    again = create("text", **task.parameters())
    assert again.heldout(3).tokens.shape == (3, 9), "found from another folder"
    path.unlink()
    away = create("text", **task.parameters())
    assert away.prompt("abc")[0] == [1, 2, 3]
    with pytest.raises(InputError, match="cannot read the text"):
        away.heldout(3)
    path.write_text("abc" * 100, encoding="utf-8")
    changed = create("text", **task.parameters())
    with pytest.raises(InputError, match="no longer the text this model was trained on"):
        changed.heldout(3)
