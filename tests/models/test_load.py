import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.errors import CheckpointError, InputError
from models.gpt import GPT
from models.load import load


def test_a_folder_is_loaded_and_a_model_returned_as_it_is(trained_folder: Path) -> None:
    model = load(trained_folder)
    assert not model.training
    assert model.task.length == 5
    assert load(model) is model
    tokens = model.task.heldout(7).tokens
    for name in (str(trained_folder), f"{trained_folder}/", trained_folder / "checkpoint.json"):
        assert torch.equal(load(name)(tokens), model(tokens))


def test_a_relative_path_with_spaces_and_dots_is_loaded(
    trained_folder: Path, trained: GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my models").mkdir()
    (tmp_path / "my models" / "v1.5 a:b").symlink_to(trained_folder, target_is_directory=True)
    monkeypatch.chdir(tmp_path / "my models")
    tokens = torch.tensor([[0, 1, 2]])
    for name in ("v1.5 a:b", "./v1.5 a:b/", "../my models/v1.5 a:b"):
        assert torch.equal(load(name)(tokens), trained(tokens))


def test_a_model_of_our_own_is_loaded_without_transformers(trained_folder: Path) -> None:
    code = f"from models.load import load; load({str(trained_folder)!r}); import sys"
    command = [sys.executable, "-c", f"{code}; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"transformers", "transformer_lens", "gguf"} & set(done.stdout.split())


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no such folder: .*nothing"):
        load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint\.json"):
        load(tmp_path)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="but got int"):
        load(3)


def test_an_unknown_device_is_refused(trained_folder: Path) -> None:
    with pytest.raises(InputError, match="device must be one of auto, cpu, cuda, mps"):
        load(trained_folder, device="tpu")
