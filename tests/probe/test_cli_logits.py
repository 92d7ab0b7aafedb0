"""`probe logits`: the table of one position, what it says of the rest, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analyses.logit_view import logit_view
from models.gpt import GPT
from probe.cli import execute

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `probe logits` in this process: status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = execute(["logits", *(str(a) for a in arguments)])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_the_table_is_that_of_logit_view(run: Run, trained_folder: Path, trained: GPT) -> None:
    flags = ["--temperature", 2, "--top-k", 9, "--top-p", 0.8, "--top", 12]
    status, out, err = run(trained_folder, "--prompt", "probe|", *flags)
    assert (status, err) == (0, "")
    where, heading, *lines = out.splitlines()
    assert where == "after position 5 of 6 tokens: probe|"
    assert heading.split()[:4] == ["rank", "id", "token", "logit"]
    table = logit_view(trained, "probe|", temperature=2.0, top_k=9, top_p=0.8, top=12)
    assert len(lines) == 13
    for line, row in zip(lines, table.to_dict("records"), strict=False):
        cells = line.split()
        assert cells[:3] == [str(row["rank"]), str(row["id"]), row["token"]]
        assert float(cells[4]) == pytest.approx(row["scaled"], abs=1e-3)
        numbers = [row["before"], row["after_top_k"], row["after_top_p"]]
        assert [float(cell) for cell in cells[5:8]] == pytest.approx(numbers, abs=1e-6)
        assert cells[8:] == ([row["cut_by"].replace("_", "-")] if row["cut_by"] else [])
    rest = lines[-1].split()
    assert rest[:2] == ["15", "more"]
    assert float(rest[2]) == pytest.approx(table.attrs["rest"]["before"], abs=1e-6)
    assert rest[-2:] == ["0", "kept"]
    total = sum(float(line.split()[5]) for line in lines[:-1]) + float(rest[2])
    assert total == pytest.approx(1, abs=2e-5)


def test_an_earlier_position_is_named_with_what_stands_before_it(
    run: Run, trained_folder: Path
) -> None:
    out = run(trained_folder, "--prompt", "probe|eb", "--position", -2, "--top", 1)[1]
    where, _, first, rest = out.splitlines()
    assert where == "after position 6 of 8 tokens: probe|e"
    assert first.split()[2] == "b"
    assert rest.split()[:2] == ["26", "more"]


def test_temperature_zero_is_greedy_and_its_quotient_undefined(
    run: Run, trained_folder: Path
) -> None:
    """AH-09: said, not divided by."""
    out = run(trained_folder, "--prompt", "probe|", "--temperature", 0, "--top", 2)[1]
    first, second = (line.split() for line in out.splitlines()[2:4])
    assert first[2:] == ["e", first[3], "n/a", "1.000000", "1.000000", "1.000000"]
    assert second[4:] == ["n/a", "0.000000", "0.000000", "0.000000", "temperature"]


def test_the_whole_table_goes_into_files(run: Run, trained_folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.csv", tmp_path / "a.json"]
    status, _, err = run(
        trained_folder, "--prompt", "pr", "--top", 27, "--csv", files[0], "--json", files[1]
    )
    assert status == 0
    assert err.split() == [str(path) for path in files]
    table, rows = pd.read_csv(files[0]), json.loads(files[1].read_text())
    assert table.columns.tolist() == list(rows[0])
    assert len(table) == len(rows) == 27
    assert table["before"].sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", "pr", "--position", 2], "a position must be 0..1 here"),
        (["--prompt", "pr", "--top-p", 1.5], "top_p must be above 0 and at most 1"),
        (["--prompt", "pr", "--top-k", 0], "top_k must be at least 1"),
        (["--prompt", "pr", "--temperature", -1], "temperature must be"),
        (["--prompt", "pr", "--temperature", "nan"], "temperature must be"),
        (["--prompt", "pr", "--top", 0], "top"),
        (["--prompt", ""], "empty"),
        (["--prompt", "x" * 14], "context is"),
        ([], "--prompt"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    run: Run, trained_folder: Path, flags: list[object], message: str
) -> None:
    status, out, err = run(trained_folder, *flags)
    assert status in (1, 2)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_language_model_shows_its_tokens(run: Run, smollm2_path: Path) -> None:
    prompt = "The capital of France is"
    status, out, _ = run(
        smollm2_path, "--engine", "gpt", "--prompt", prompt, "--top-p", 0.9, "--top", 3
    )
    where, _, first, *_ = out.splitlines()
    assert (status, where) == (0, f"after position 4 of 5 tokens: {prompt}")
    assert first.split()[2] == "␣Paris"
    assert float(first.split()[5]) == pytest.approx(0.77, abs=0.01)
