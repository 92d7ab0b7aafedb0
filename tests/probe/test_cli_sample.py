"""`probe sample`: what it writes, live and in a pipe, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.gpt import GPT
from models.sampling import generate
from models.text_codec import TextCodec
from probe.cli import execute
from probe.cli.sample import _Line

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `probe sample` in this process: status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = execute(["sample", *(str(a) for a in arguments)])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="module")
def published(gpt2: Any, gpt2_bridge: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published language model: no task, one letter per token, `<end>` the last id."""
    folder = tmp_path_factory.mktemp("published")
    gpt2.save_pretrained(folder)
    gpt2_bridge.tokenizer.save_pretrained(folder)
    return folder


def test_one_line_for_each_sample(run: Run, trained_folder: Path) -> None:
    status, out, err = run(trained_folder, "--prompt", "probe", "--samples", 3)
    assert (status, out, err) == (0, "eborp\n" * 3, "")


def test_the_samples_are_those_of_generate(run: Run, trained_folder: Path, trained: GPT) -> None:
    options = {"temperature": 4.0, "top_k": 9, "top_p": 0.95}
    flags = ["--temperature", 4, "--top-k", 9, "--top-p", 0.95, "--seed", 3, "--samples", 4]
    assert trained.task is not None
    ids, n = trained.task.prompt("probe")
    written = generate(trained, [ids] * 4, n, seed=3, **options)  # type: ignore[arg-type]
    lines = [trained.to_string(row) for row in written]
    assert run(trained_folder, "--prompt", "probe", *flags)[1].splitlines() == lines
    assert len(set(lines)) > 1


def test_a_stop_token_ends_the_line(run: Run, trained_folder: Path) -> None:
    assert run(trained_folder, "--prompt", "probe", "--stop", "o")[:2] == (0, "ebo\n")
    stops = ("--stop", "o", "--stop", "b")
    assert run(trained_folder, "--prompt", "probe", *stops)[1] == "eb\n"


def test_details_are_one_line_for_each_token(run: Run, trained_folder: Path) -> None:
    flags = ("--temperature", 1, "--top-k", 3, "--samples", 2, "--details")
    status, out, _ = run(trained_folder, "--prompt", "probe", *flags)
    heading, *rows, first, second = out.splitlines()
    assert (status, first, second) == (0, "eborp", "eborp")
    assert heading.split()[:3] == ["sample", "token", "probability"]
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["1", "2"] * 5
    assert "".join(row[-1] for row in cells[::2]) == "eborp"
    for row in cells:
        assert float(row[2]) > 0.9
        assert (row[4], row[5]) == ("1", "24"), "rank 1; 24 of 27 tokens removed"


@pytest.mark.parametrize("engine", ["gpt", "lens"])
def test_a_language_model_continues_a_text(run: Run, published: Path, engine: str) -> None:
    base = (published, "--engine", engine, "--prompt", "c", "--n", 3)
    status, out, err = run(*base)
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    assert out == run(*base, "--bos")[1], "this tokenizer adds BOS by itself"
    assert out != run(*base, "--no-bos")[1]


def test_a_full_context_ends_the_line_with_a_notice(run: Run, published: Path) -> None:
    status, out, err = run(published, "--engine", "gpt", "--prompt", "c", "--no-bos")
    assert status == 0
    assert len(out.split()) == 17
    assert err.splitlines()[-1] == (
        "probe: the model's context of 17 tokens is full: a sequence ended early"
    )


def test_tokens_appear_as_they_are_written(
    trained_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[str] = []
    monkeypatch.setattr(sys.stdout, "write", pieces.append)
    execute(["sample", str(trained_folder), "--prompt", "probe"])
    assert pieces == [*"eborp", "", "\n"]


def test_a_character_of_several_tokens_is_written_when_it_is_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(BPE({"ð": 0, "Ł": 1, "¤": 2, "ĸ": 3, "a": 4}, []))
    tokenizer.decoder = decoders.ByteLevel()
    line, shown = _Line(TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer))), []
    for token in [4, 0, 1, 2, 3, 4, 0]:
        line.ids.append(token)
        line.write()
        shown.append(capsys.readouterr().out)
    line.end()
    assert shown == ["a", "", "", "", "\U0001f916", "a", ""]
    assert capsys.readouterr().out == "\ufffd\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--temperature", "-1"), ("temperature must be", "-1")),
        (("--temperature", "inf"), ("temperature must be", "inf")),
        (("--top-k", "5"), ("temperature 0 is greedy",)),
        (("--temperature", "1", "--top-k", "0"), ("top_k must be at least 1", "0")),
        (("--temperature", "1", "--top-p", "1.5"), ("top_p must be", "1.5")),
        (("--temperature", "1", "--top-p", "0"), ("top_p must be", "0")),
        (("--stop", "ab"), ("text of one token", "'ab' gives 2")),
        (("--stop", ""), ("text of one token", "'' gives 0")),
        (("--samples", "0"), ("samples must be at least 1",)),
        (("--n", "0"), ("n must be at least 1",)),
        (("--bos",), ("no BOS token",)),
    ],
)
def test_bad_input_gets_one_line(
    run: Run, trained_folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    status, out, err = run(trained_folder, "--prompt", "probe", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("probe: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_an_empty_prompt_is_refused_and_bos_makes_it_one(run: Run, published: Path) -> None:
    base = (published, "--engine", "gpt", "--prompt", "", "--n", 2)
    status, out, err = run(*base, "--no-bos")
    assert (status, out) == (2, "")
    assert "the prompt is empty" in err
    assert run(*base, "--bos")[0] == 0
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("details", [(), ("--details",)])
def test_ctrl_c_ends_the_line_that_was_begun(
    run: Run, trained_folder: Path, monkeypatch: pytest.MonkeyPatch, details: tuple[str, ...]
) -> None:
    from models import sampling

    def interrupted(*arguments: Any, **options: Any) -> Any:
        steps = sampling_stream(*arguments, **options)
        yield next(steps)
        raise KeyboardInterrupt

    sampling_stream = sampling.stream
    monkeypatch.setattr(sampling, "stream", interrupted)
    status, out, err = run(trained_folder, "--prompt", "probe", "--samples", 2, *details)
    assert (status, err.strip()) == (130, "probe: interrupted")
    assert out.endswith("\n")
    if not details:
        assert out == "e\n"
