import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analyses import verify as analysis
from probe.cli import execute


def test_one_row_per_kind_of_point_is_printed_and_files_hold_all(
    gpt2: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gpt2.save_pretrained(tmp_path / "my model")
    capfd.readouterr()
    command = ["verify", str(tmp_path / "my model")]
    files = ["--csv", str(tmp_path / "v.csv"), "--json", str(tmp_path / "v.json")]
    assert execute([*command, *files]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines[0] == ["point", "difference", "layer", "largest", "points"]
    short = {line[0]: line[1:] for line in lines[1:]}
    assert len(short) == len(lines) - 1
    assert lines[-1][0] == "log_probs"
    assert 0 < float(lines[-1][1]) < 1e-4
    assert short["blocks.*.attn.hook_pattern"][1] in ("0", "1")
    assert short["blocks.*.attn.hook_pattern"][-1] == "2"
    assert len(short["hook_embed"]) == 3, "no layer"
    table = pd.read_csv(tmp_path / "v.csv")
    assert len(table) == sum(int(row[-1]) for row in short.values())
    records = json.loads((tmp_path / "v.json").read_text(encoding="utf-8"))
    assert [record["point"] for record in records] == table["point"].tolist()
    assert execute([*command, "--all"]) == 0
    whole = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert whole[0] == ["point", "difference", "largest"]
    assert [row[0] for row in whole[1:]] == table["point"].tolist()


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
