"""Checkpoints hold everything and are whole at every moment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoints import MANIFEST, load_model, load_run, prepare_folder, save_run
from models.errors import CheckpointError, OutputExistsError, TrainingError
from models.gpt import GPT
from models.tasks import Task, create
from models.training import Run, TrainingConfig, advance, model_config, start

TASK = create("reversal", length=5)


def small(task: Task = TASK, *, steps: int = 12, dropout: float = 0.0, **shape: Any) -> Run:
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 14, "dropout": dropout, **shape}
    config = TrainingConfig(
        steps=steps, batch_size=7, evaluate_every=3, evaluation_size=11, warmup=2, accumulation=2
    )
    return start(task, model_config(task, **sizes), config, device="cpu")


def weights(run: Run) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_run(tmp_path / "run", advance(small(), until=5))


# --- writing and reading


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_a_model_comes_back_bit_for_bit_in_a_new_process(
    tmp_path: Path, tied: bool, positions: str
) -> None:
    shape = {"tied": tied, "positions": positions, "d_head": 6, "d_model": 15}
    run = advance(small(**shape), until=3)
    save_run(tmp_path / "run", run)
    tokens = TASK.heldout(3).tokens
    again = load_model(tmp_path / "run")
    assert torch.equal(again(tokens), run.model(tokens))
    assert again.config == run.model.config
    assert again.task == TASK
    assert not again.training
    count = sum(p.numel() for p in run.model.parameters())
    assert sum(p.numel() for p in again.parameters()) == count
    if positions == "learned" and tied:
        code = (
            "import sys, torch; from models.checkpoints import load_model; "
            "torch.set_num_threads(1); model = load_model(sys.argv[1]); "
            "out = model(model.task.heldout(3).tokens); "
            "tied = model.W_U.data_ptr() == model.W_E.data_ptr(); "
            "print(out.detach().numpy().tobytes().hex(), tied)"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        expected = run.model(tokens).detach().numpy().tobytes().hex()
        assert printed.split() == [expected, "True"]


def test_tied_weights_stay_tied_through_loading_and_another_step(tmp_path: Path) -> None:
    save_run(tmp_path / "run", advance(small(tied=True), until=3))
    run = load_run(tmp_path / "run")
    for _ in range(2):
        assert run.model.W_U.data_ptr() == run.model.W_E.data_ptr()
        assert torch.equal(run.model.W_U, run.model.W_E.T)
        advance(run, until=run.step + 1)


def test_a_compiled_model_is_saved_under_its_own_names(tmp_path: Path) -> None:
    run = advance(small(), until=3)
    save_run(tmp_path / "plain", run)
    run.model = torch.compile(run.model, backend="eager")  # type: ignore[assignment]
    save_run(tmp_path / "compiled", run)
    for name in ("plain", "compiled"):
        again = load_run(tmp_path / name)
        assert torch.equal(weights(advance(again)), weights(advance(small())))


# --- resuming


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("least", [5, 2])
def test_a_run_goes_on_bit_for_bit(tmp_path: Path, dropout: float, least: int) -> None:
    task = create("reversal", length=5, min_length=least)
    straight = advance(small(task, dropout=dropout))
    save_run(tmp_path / "run", advance(small(task, dropout=dropout), until=5))
    torch.manual_seed(99)
    resumed = load_run(tmp_path / "run")
    assert resumed.step == 5
    rates = []
    advance(resumed, report=lambda run: rates.append(run.optimizer.param_groups[0]["lr"]))
    assert rates == [straight.config.rate(step) for step in range(5, 12)]
    assert torch.equal(weights(resumed), weights(straight))
    assert resumed.history == straight.history


def test_a_run_resumed_again_and_again_goes_on_bit_for_bit(tmp_path: Path) -> None:
    run = small(dropout=0.1)
    for step in (0, 1, 4, 11):
        save_run(tmp_path / "run", advance(run, until=step))
        run = load_run(tmp_path / "run")
    assert torch.equal(weights(advance(run)), weights(advance(small(dropout=0.1))))


def test_a_run_of_another_kind_of_device_goes_on_with_new_streams(folder: Path) -> None:
    content = json.dumps({**manifest(folder), "device": "cuda"})
    (folder / MANIFEST).write_text(content, encoding="utf-8")
    first, second = (load_run(folder, device="cpu") for _ in range(2))
    assert torch.equal(weights(advance(first)), weights(advance(second)))
    assert not torch.equal(weights(first), weights(advance(small())))


# --- the folder


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupted_write_leaves_the_old_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], at: int
) -> None:
    """Whichever of the three files was being put in place."""
    old = load_run(folder)
    later = advance(load_run(folder), until=9)
    calls = []
    replace = os.replace

    def fail(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == at:
            raise error
        replace(source, target)

    monkeypatch.setattr("models.checkpoints.os.replace", fail)
    with pytest.raises(error):
        save_run(folder, later)
    monkeypatch.undo()
    again = load_run(folder)
    assert again.step == 5
    assert torch.equal(weights(again), weights(old))
    assert not [path for path in folder.iterdir() if path.suffix == ".tmp"]
    save_run(folder, later)
    assert load_run(folder).step == 9
    assert len(files(folder)) == 3, "what the interrupted write left is gone"


def test_a_first_write_that_was_interrupted_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = tmp_path / "run", small()
    monkeypatch.setattr("models.checkpoints.json.dumps", _fail)
    with pytest.raises(KeyboardInterrupt):
        save_run(folder, run)
    monkeypatch.undo()
    assert len(files(folder)) == 2
    (folder / ".checkpoint.json.123.tmp").write_text("{")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_run(folder)
    save_run(folder, run, force=False)
    assert load_run(folder).step == 0


def _fail(*_: Any, **__: Any) -> str:
    raise KeyboardInterrupt


def test_a_new_checkpoint_takes_the_place_of_the_old_one_and_of_nothing_else(folder: Path) -> None:
    others = ["training-log.txt", "weights-mine.safetensors", "notes.md"]
    for name in others:
        (folder / name).write_text("mine")
    save_run(folder, advance(load_run(folder), until=8))
    left = files(folder)
    assert all(left[name] == b"mine" for name in others)
    assert len(left) == len(others) + 3
    assert load_run(folder).step == 8


def test_equal_runs_are_written_as_equal_bytes(tmp_path: Path) -> None:
    first, second = (
        files(save_run(tmp_path / name, advance(small(), until=3))) for name in ("a", "b")
    )
    assert first == second


def test_a_checkpoint_is_replaced_on_request_only(folder: Path) -> None:
    before = files(folder)
    with pytest.raises(OutputExistsError, match=r"holds a checkpoint: .* or use --force"):
        prepare_folder(folder, force=False)
    with pytest.raises(OutputExistsError, match="holds a checkpoint"):
        save_run(folder, small(), force=False)
    assert files(folder) == before


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_other_files_and_a_file_are_never_used(tmp_path: Path, force: bool) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match="holds files but no checkpoint"):
        save_run(tmp_path, small(), force=force)
    with pytest.raises(OutputExistsError, match="is a file: choose another folder"):
        save_run(tmp_path / "notes.txt", small(), force=force)
    with pytest.raises(OutputExistsError, match="cannot make the folder"):
        save_run(tmp_path / "notes.txt" / "run", small(), force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_checkpoint_names_its_task_and_recipe(folder: Path) -> None:
    content = manifest(folder)
    assert content["task"] == {"name": "reversal", "parameters": {"length": 5, "min_length": None}}
    assert content["step"] == 5
    assert content["training"]["batch_size"] == 7
    assert isinstance(load_model(folder), GPT)


def test_weights_that_are_not_finite_never_replace_good_ones(folder: Path) -> None:
    before, run = files(folder), small()
    with torch.no_grad():
        run.model.W_E[0, 0] = torch.nan
    with pytest.raises(TrainingError, match="not finite"):
        save_run(folder, run)
    assert files(folder) == before
