from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analyses import verify as analysis
from probe.cli import execute


def test_the_largest_differences_are_printed(
    gpt2: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gpt2.save_pretrained(tmp_path / "my model")
    capfd.readouterr()
    assert execute(["verify", str(tmp_path / "my model"), "--csv", str(tmp_path / "v.csv")]) == 0
    out, _ = capfd.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["point", "difference", "largest"]
    assert lines[-1][0] == "log_probs"
    assert 0 < float(lines[-1][1]) < 1e-4
    table = pd.read_csv(tmp_path / "v.csv")
    assert table["point"].tolist() == [line[0] for line in lines[1:]]


def test_engines_that_disagree_exit_with_one(
    gpt2: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    gpt2.save_pretrained(tmp_path)
    capfd.readouterr()
    monkeypatch.setattr(analysis, "TOLERANCE", 0.0)
    assert execute(["verify", str(tmp_path)]) == 1
    out, err = capfd.readouterr()
    assert "log_probs" in out
    assert err.startswith("probe: the engines disagree: log-probabilities differ by")
    assert err.count("\n") == 1


def test_a_model_trained_here_has_one_engine(
    trained_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute(["verify", str(trained_folder)]) == 0
    out, err = capfd.readouterr()
    assert "there is one engine for it" in out
    assert out.count("\n") == 1
    assert err == ""


def test_bad_input_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["verify", str(tmp_path / "nothing")]) == 1
    _, err = capfd.readouterr()
    assert err == f"probe: no such folder: {tmp_path / 'nothing'}\n"
