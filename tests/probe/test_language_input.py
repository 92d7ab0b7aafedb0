"""Bad input to the study of a language model is refused before a model runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from analyses.prediction import next_token_probabilities
from analyses.prompts import Prompt
from models.errors import InputError, LengthError
from models.load import load
from probe.cli import execute
from probe.studies.language_model import report

ENGINES = ["gpt", "lens"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prompt_longer_than_the_context_was_found_after_minutes_of_work(
    engine: str, language_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "mine.txt"
    prompts.write_text(f"The sun\n\n{' the' * 70}\n", encoding="utf-8")
    out = tmp_path / "out"
    command = ["report", str(language_folder), "--engine", engine, "--out", str(out)]
    assert execute([*command, "--prompts", str(prompts)]) == 2
    told = capsys.readouterr().err
    last = told.splitlines()[-1]
    assert f"line 3 of {prompts} has 70 tokens, but the model's context is 64" in last
    assert "scoring" not in told
    assert not out.exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_without_a_tokenizer_is_refused_before_it_runs(
    engine: str, language_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(language_folder, bare, ignore=shutil.ignore_patterns("*token*"))
    out = tmp_path / "out"
    assert execute(["report", str(bare), "--engine", engine, "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "tokenizer" in told.splitlines()[-1]
    assert "scoring" not in told
    assert not out.exists()


def test_a_context_too_short_for_the_studys_own_prompts_is_refused_before_it_runs(
    language_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(language_folder, engine="gpt")
    long = (Prompt(" the" * 65, "factual"),)
    monkeypatch.setattr("probe.studies.language_model.PROMPTS", long)
    with pytest.raises(LengthError, match=r"study's prompt .* has 65 tokens.* context is 64"):
        report(model, tmp_path / "out", stage=refuse_to_score)


@pytest.mark.parametrize("engine", ENGINES)
def test_next_token_probabilities_of_a_prompt_longer_than_the_context_are_refused(
    engine: str, language_folder: Path
) -> None:
    model: Any = load(language_folder, engine=engine)
    with pytest.raises(LengthError, match="context is 64 tokens, but got 65"):
        next_token_probabilities(model, [[5] * 65])


def test_a_prompt_that_gives_no_token_is_named_by_its_line(
    language_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.text_codec import TextCodec

    encode = TextCodec._ids
    monkeypatch.setattr(
        TextCodec,
        "_ids",
        lambda self, text, special: [] if text == "void" else encode(self, text, special=special),
    )
    prompts = tmp_path / "mine.txt"
    prompts.write_text("The sun\nvoid\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2 of .*mine.txt cannot be fed: the prompt is empt"):
        report(
            load(language_folder, engine="gpt"),
            tmp_path / "out",
            prompts=prompts,
            stage=refuse_to_score,
        )


def refuse_to_score(text: str) -> None:
    assert "scoring" not in text
