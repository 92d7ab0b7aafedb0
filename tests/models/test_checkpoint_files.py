"""Checkpoint files that were damaged, changed, or written by others; nothing is unpickled."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from models.checkpoints import MANIFEST, load_model, load_run
from models.errors import CheckpointError
from models.tasks import create

TOKENS = create("reversal", length=5).heldout(3).tokens


@pytest.fixture
def folder(trained_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_folder, tmp_path / "run"))


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = manifest(folder)
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def rewrite_file(folder: Path, kind: str, content: bytes) -> None:
    """Change a file, and the digest that the manifest has of it."""
    (folder / manifest(folder)["files"][kind]["name"]).write_bytes(content)
    rewrite(folder, lambda c: c["files"][kind].update(sha256=sha256(content).hexdigest()))


def rewrite_tensors(folder: Path, kind: str, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / manifest(folder)["files"][kind]["name"])
    change(tensors)
    rewrite_file(folder, kind, save(tensors))


@pytest.mark.parametrize("prefix", ["_orig_mod.", "blocks.0._orig_mod."])
def test_a_checkpoint_with_the_prefix_of_a_compiled_model_loads(folder: Path, prefix: str) -> None:
    """As other training loops write it: a wrapper's name in every key."""
    expected = load_model(folder)
    tensors = load_file(folder / manifest(folder)["files"]["weights"]["name"])
    place = prefix.removesuffix("_orig_mod.")
    renamed = {
        prefix + key.removeprefix(place) if key.startswith(place) else key: value
        for key, value in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    rewrite_file(folder, "weights", save(renamed))
    assert torch.equal(load_model(folder)(TOKENS), expected(TOKENS))


def test_missing_optimiser_state_is_said_clearly(folder: Path) -> None:
    def drop(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if key.startswith("optimizer.")]:
            del tensors[key]

    rewrite_tensors(folder, "training", drop)
    assert load_model(folder)(TOKENS).isfinite().all()
    with pytest.raises(CheckpointError, match=r"optimiser state in .* lacks optimizer.W_E.exp_avg"):
        load_run(folder)
    rewrite(folder, lambda content: content["files"].pop("training"))
    with pytest.raises(CheckpointError, match="holds no optimiser state: it can be used, not res"):
        load_run(folder)


def test_damaged_random_states_are_said_clearly(folder: Path) -> None:
    rewrite_tensors(folder, "training", lambda tensors: tensors.pop("batches"))
    with pytest.raises(CheckpointError, match=r"random states in .* are missing or damaged"):
        load_run(folder)


def test_every_truncation_is_noticed(folder: Path) -> None:
    for name in sorted(os.listdir(folder)):
        content = (folder / name).read_bytes()
        for size in (0, len(content) // 2, len(content) - 1):
            (folder / name).write_bytes(content[:size])
            with pytest.raises(CheckpointError, match=r"damaged|truncated|not a transformer-probe"):
                load_run(folder)
        (folder / name).unlink()
        with pytest.raises(CheckpointError, match=r"incomplete|holds no checkpoint"):
            load_run(folder)
        (folder / name).write_bytes(content)
    assert load_run(folder).step == 200


def test_one_changed_bit_is_noticed(folder: Path) -> None:
    path = folder / manifest(folder)["files"]["weights"]["name"]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        load_model(folder)


def test_a_missing_layer_is_named(folder: Path) -> None:
    name = "blocks.1.attn.qkv.weight"
    rewrite_tensors(folder, "weights", lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=r"lack blocks\.1\.attn\.qkv\.weight"):
        load_model(folder)


def test_only_an_embedding_is_no_model(folder: Path) -> None:
    def keep_embedding(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if key != "W_E"]:
            del tensors[key]

    rewrite_tensors(folder, "weights", keep_embedding)
    with pytest.raises(CheckpointError, match=r"lack .*unembed"):
        load_model(folder)


def test_more_weights_than_the_model_has_are_refused(folder: Path) -> None:
    rewrite_tensors(folder, "weights", lambda tensors: tensors.update(extra=torch.zeros(2)))
    with pytest.raises(CheckpointError, match=r"more than the model: \['extra'\]"):
        load_model(folder)


def test_weights_of_another_shape_are_refused_with_both_shapes(folder: Path) -> None:
    rewrite(folder, lambda content: content["model"].update(d_mlp=17))
    with pytest.raises(CheckpointError, match=r"has shape \(256, 64\), but the .* says \(17, 64\)"):
        load_model(folder)


def test_a_file_that_is_no_safetensors_file_is_refused(folder: Path) -> None:
    rewrite_file(folder, "weights", b"not tensors")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        load_model(folder)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format="other"), "is not a transformer-probe checkpoint"),
        (lambda c: c.update(version=99), "version 99; this is 1"),
        (lambda c: c.pop("step"), "damaged: step missing or of the wrong kind"),
        (lambda c: c.update(history=None, files=3), "damaged: history, files missing or"),
        (lambda c: c.update(model={}), "is damaged: .*d_vocab"),
        (lambda c: c["model"].update(mlp="relu"), "is damaged: mlp must be one of"),
        (lambda c: c["model"].update(colour=3), "is damaged: .*colour"),
        (lambda c: c["model"].update(d_model="64"), "is damaged"),
        (lambda c: c["task"].pop("parameters"), "the task in .* is damaged: 'parameters'"),
        (lambda c: c["task"].update(parameters={"size": 3}), "the task in .* is damaged: .*size"),
        (lambda c: c["training"].update(steps=0), "is damaged: steps must be at least 1"),
        (lambda c: c["files"].pop("weights"), "damaged: it names no weights"),
        (lambda c: c["files"].update(weights=["x"]), "damaged: it names no weights"),
    ],
)
def test_a_damaged_manifest_says_what_is_wrong(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_run(folder)


def test_a_manifest_never_leads_out_of_its_folder(folder: Path) -> None:
    entry = manifest(folder)["files"]["weights"]
    (folder / entry["name"]).rename(folder.parent / entry["name"])
    rewrite(folder, lambda c: c["files"]["weights"].update(name=f"../{entry['name']}"))
    with pytest.raises(CheckpointError, match="is missing"):
        load_model(folder)


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["model.pt", "model.PTH", "weights.bin", "model.pkl", "x.ckpt"])
def test_a_pickle_is_refused_and_never_opened(folder: Path, tmp_path: Path, name: str) -> None:
    bait = tmp_path / "bait"
    content = pickle.dumps(Hostile(str(bait)))
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is a pickle, .* so it is never opened"):
        load_model(path)
    alone = tmp_path / "folder"
    alone.mkdir()
    path.rename(alone / name)
    with pytest.raises(CheckpointError, match="is a pickle"):
        load_model(alone)

    weights_name = manifest(folder)["files"]["weights"]["name"]
    (folder / weights_name).write_bytes(content)  # under the name of the weights
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        load_model(folder)
    rewrite_file(folder, "weights", content)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        load_model(folder)
    rewrite(folder, lambda c: c["files"]["weights"].update(name=name))
    with pytest.raises(CheckpointError, match="is a pickle"):
        load_model(folder)
    assert not bait.exists()
    pickle.loads(content)
    assert bait.exists(), "the bait works"
