"""The command line: what it prints, what it refuses, and with which status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from models.checkpoints import load_model, load_run
from probe.cli import app, execute

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process: status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = execute([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def refused(result: tuple[int, str, str], status: int, *words: str) -> None:
    """The command failed with one line that holds all the words, and printed nothing else."""
    got, out, err = result
    assert (got, out) == (status, "")
    assert err.startswith("probe: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_help_lists_every_command_and_each_has_an_example(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    names = [info.callback.__name__ for info in app.registered_commands if info.callback]
    assert len(names) == len(set(names)) >= 9
    for name in names:
        status, text, _ = run(name, "--help")
        assert (status, name in out, "Example: probe" in text) == (0, True, True)


def test_no_command_prints_the_help(run: Run) -> None:
    assert run() == run("--help")


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys; from probe.cli import execute; execute([]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_heads_prints_a_row_per_head_and_writes_all_columns(
    run: Run, trained_folder: Path, tmp_path: Path
) -> None:
    csv, js = tmp_path / "heads.csv", tmp_path / "heads.json"
    status, out, _ = run("heads", trained_folder, "--no-effects", "--csv", csv, "--json", js)
    assert status == 0
    assert len(out.splitlines()) == 1 + 8
    table = pd.read_csv(csv, dtype={"name": str})
    assert table["name"].tolist() == [f"{layer}.{head}" for layer in (0, 1) for head in range(4)]
    rows = json.loads(js.read_text())
    assert [row["anti_diagonal"] for row in rows] == pytest.approx(table["anti_diagonal"], abs=1e-5)


def test_ablate_prints_what_python_returns(run: Run, trained_folder: Path, tmp_path: Path) -> None:
    import probe

    csv = tmp_path / "out.csv"
    status, out, _ = run("ablate", trained_folder, "--head", "0.1", "--head", "1.0", "--csv", csv)
    assert status == 0
    assert "exact_match" in out
    table = probe.ablate(load_model(trained_folder), heads=["0.1", "1.0"])
    assert pd.read_csv(csv)["change"].to_numpy() == pytest.approx(table["change"], abs=1e-5)


def test_sample_reverses_a_word_and_repeats_for_a_seed(run: Run, trained_folder: Path) -> None:
    assert run("sample", trained_folder, "--prompt", "probe")[:2] == (0, "eborp\n")
    hot = ("sample", trained_folder, "--prompt", "probe", "--temperature", 3, "--samples", 5)
    first, second = run(*hot, "--seed", 1), run(*hot, "--seed", 1)
    assert first == second
    assert len(set(first[1].split())) > 1
    assert run(*hot, "--seed", 2)[1] != first[1]


def test_run_writes_table_and_figure_and_refuses_to_write_them_again(
    run: Run, trained_folder: Path, tmp_path: Path
) -> None:
    status, out, _ = run("run", "entropy", trained_folder, "--out", tmp_path / "o")
    assert status == 0
    files = [Path(line) for line in out.split()]
    assert [path.suffix for path in files] == [".csv", ".png", ".svg", ".json"]
    assert sorted(files) == sorted((tmp_path / "o").iterdir())
    before = [path.read_bytes() for path in files]
    again = run("run", "entropy", trained_folder, "--out", tmp_path / "o")
    refused(again, 1, "entropy.csv is there already", "--force")
    assert run("run", "entropy", trained_folder, "--out", tmp_path / "o", "--force")[0] == 0
    assert [p.read_bytes() for p in files[:3]] == before[:3]


def test_every_analysis_has_a_figure(run: Run) -> None:
    from analyses.registry import ANALYSES
    from probe.studies.single import FIGURES

    assert FIGURES.keys() == ANALYSES.keys()
    _, out, _ = run("run", "--list")
    assert [line.split()[0] for line in out.splitlines()] == list(ANALYSES)


def test_train_resumes_where_it_stopped(run: Run, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    common = ["train", "reversal", "--length", 4, "--heads", 2, "--width", 16, "--steps", 24]
    assert run(*common, "--dropout", 0.1, "--out", whole)[0] == 0
    half = load_run(whole)
    from models.checkpoints import save_run
    from models.training import advance, start

    run_ = advance(start(half.task, half.model.config, half.config, device="cpu"), until=10)
    save_run(parts, run_)
    assert run("train", "reversal", "--out", parts, "--resume")[0] == 0
    one, two = load_model(whole), load_model(parts)
    assert all(map(torch.equal, one.parameters(), two.parameters()))


def test_ctrl_c_keeps_the_step_it_stopped_at_and_resuming_gives_the_same_model(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models import training

    common = ["train", "reversal", "--length", 4, "--heads", 2, "--width", 16, "--steps", 12]
    assert run(*common, "--out", tmp_path / "whole")[0] == 0
    step = training._take_step

    def interrupted(training_run: training.Run, *rest: Any) -> Any:
        if training_run.step == 4:
            signal.raise_signal(signal.SIGINT)  # in the middle of a step
        return step(training_run, *rest)

    monkeypatch.setattr(training, "_take_step", interrupted)
    stopped = tmp_path / "stopped"
    status, out, err = run(*common, "--out", stopped)
    assert (status, out) == (1, "")
    assert "stopped at step 5" in err.splitlines()[-1]
    assert err.splitlines()[-1].endswith("--resume")
    monkeypatch.setattr(training, "_take_step", step)
    assert load_run(stopped).step == 5
    assert run("train", "reversal", "--out", stopped, "--resume")[0] == 0
    pairs = zip(
        load_model(tmp_path / "whole").parameters(), load_model(stopped).parameters(), strict=True
    )
    assert all(torch.equal(one, two) for one, two in pairs)
    status, _, err = run("train", "reversal", "--out", stopped, "--resume")
    assert (status, "trained already" in err) == (0, True)


def test_a_text_that_has_moved_is_found_again_if_it_is_the_same(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("to be or not to be, that is the question\n" * 9)
    common = ["--length", 8, "--heads", 2, "--width", 16, "--steps", 3]
    out = tmp_path / "m"
    assert run("train", "text", "--text", old, *common, "--out", out)[0] == 0
    old.rename(new)
    assert run("train", "text", "--text", new, "--out", out, "--resume")[0] == 0
    new.write_text("something else")
    status, _, err = run("train", "text", "--text", new, "--out", out, "--resume")
    assert (status, "no longer the text" in err) == (2, True)


def test_resuming_with_another_shape_or_task_is_refused(run: Run, tmp_path: Path) -> None:
    base = ["train", "reversal", "--length", 4, "--heads", 2, "--width", 16, "--steps", 5]
    assert run(*base, "--out", tmp_path / "m")[0] == 0
    again = ["--out", tmp_path / "m", "--resume"]
    refused(run("train", "reversal", "--layers", 3, *again), 2, "--layers 2, but 3")
    refused(run("train", "induction", *again), 2, "trained on reversal")
    refused(run(*base, "--out", tmp_path / "m"), 1, "holds a checkpoint", "--force")


def test_train_text_reports_a_file_that_is_too_short(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"\xef\xbb\xbfHello\r\nworld\r\n")
    out = tmp_path / "m"
    refused(run("train", "text", "--text", path, "--out", out), 2, "64", "--length")
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("ablate", "MODEL", "--head", "0.4"), 2, ("0.4", "layers are 0..1 and heads 0..3")),
        (("ablate", "MODEL", "--head", "2.0"), 2, ("2.0", "layers are 0..1")),
        (("ablate", "MODEL", "--head=-1.0"), 2, ("-1.0", "layers are 0..1")),
        (("ablate", "MODEL", "--head", "abc"), 2, ("layer.head", "abc")),
        (("ablate", "MODEL", "--head", "0.1", "--ablation", "men"), 2, ("zero, mean", "men")),
        (("ablate", "MODEL"), 2, ("--head", "(see probe ablate --help)")),
        (("sample", "MODEL", "--prompt", "short!"), 2, ("a-z", "'!'")),
        (("sample", "MODEL", "--prompt", "four"), 2, ("5 letters", "4")),
        (("sample", "MODEL", "--prompt", ""), 2, ("5 letters", "0")),
        (("sample", "MODEL", "--prompt", "probe", "--temperature", "-1"), 2, ("temperature",)),
        (("sample", "MODEL", "--prompt", "probe", "--temperature", "nan"), 2, ("temperature",)),
        (("sample", "nowhere", "--prompt", "probe"), 1, ("no such folder", "nowhere")),
        (("heads", "MODEL/.."), 1, ("checkpoint.json", "there are models in")),
        (("heads", "MODEL", "--csv", "nowhere/x.csv"), 1, ("no folder", "nowhere")),
        (("run", "entropi", "MODEL", "--out", "o"), 2, ("did you mean entropy",)),
        (("run", "entropy", "MODEL"), 2, ("--out",)),
        (("train", "revrsal"), 2, ("did you mean reversal",)),
        (("train", "reversal", "--positions", "rotery"), 2, ("rotary",)),
        (("train", "reversal", "--heads", "3"), 2, ("multiple",)),
        (("train", "reversal", "--length", "0"), 2, ("length",)),
        (("train", "induction", "--min-length", "3"), 2, ("min_length",)),
        (("reversal", "--seeds", "0"), 2, ("seeds",)),
        (("reversal", "--device", "tpu"), 2, ("tpu",)),
        (("reversal", "--workers", "0"), 2, ("workers",)),
        (("train", "reversal", "--save-every", "0"), 2, ("--save-every",)),
        (("train", "text"), 2, ("--text",)),
        (("train", "reversal", "--text", "x"), 2, ("length, min_length", "path")),
        (("heads", "MODEL", "--seed", "99999999999999999999"), 2, ("--seed",)),
        (("frobnicate",), 2, ("frobnicate", "(see probe --help)")),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(
    arguments: tuple[str, ...],
    status: int,
    words: tuple[str, ...],
    run: Run,
    trained_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [a.replace("MODEL", str(trained_folder)) for a in arguments]
    refused(run(*given), status, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_is_refused_and_never_opened(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"model": 1}, path)
    refused(run("heads", path), 1, "pickle", "never opened")


def test_names_with_slashes_and_dots_write_only_under_out(
    run: Run, trained_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    model = tmp_path / "someorg" / "my.model-v1.5 a:b"
    shutil.copytree(trained_folder, model)
    before = sorted(model.rglob("*"))
    monkeypatch.chdir(tmp_path / "someorg")
    assert run("run", "entropy", "../someorg/my.model-v1.5 a:b", "--out", "reports")[0] == 0
    assert sorted(model.rglob("*")) == before
    assert {path.name for path in tmp_path.rglob("entropy*")} == {
        f"entropy.{kind}" for kind in ("csv", "png", "svg", "json")
    }
    record = json.loads((tmp_path / "someorg/reports/entropy.json").read_text())
    assert record["configuration"]["model"] == "../someorg/my.model-v1.5 a:b"


def test_heads_sorts_and_cuts_when_asked(run: Run, trained_folder: Path, tmp_path: Path) -> None:
    csv = tmp_path / "all.csv"
    status, out, _ = run(
        "heads", trained_folder, "--no-effects", "--top", 3, "--by", "previous_token", "--csv", csv
    )
    assert status == 0
    table = pd.read_csv(csv, dtype={"name": str})
    best = table.sort_values("previous_token", ascending=False)["name"].head(3).tolist()
    assert [line.split()[0] for line in out.splitlines()[1:4]] == best
    wrong = run("heads", trained_folder, "--no-effects", "--by", "previus_token")
    refused(wrong, 2, "previous_token")


def test_heads_scores_a_text_of_the_users(run: Run, trained_folder: Path) -> None:
    status, out, _ = run("heads", trained_folder, "--text", "probe|eborp", "--no-effects")
    assert status == 0
    assert len(out.splitlines()) == 1 + 8


def test_verify_says_that_a_model_trained_here_has_one_engine_only(
    run: Run, trained_folder: Path
) -> None:
    status, out, err = run("verify", trained_folder)
    assert status == 0
    assert "one engine" in out + err


def test_calibrate_finds_heads_planted_at_full_strength(run: Run, trained_folder: Path) -> None:
    status, out, _ = run("calibrate", "--untrained", 2)
    assert status == 0
    assert "1.00" in out
