"""Models and training runs on disk: safetensors and JSON, never a pickle.

A checkpoint is a folder. ``checkpoint.json`` names the files that belong to it, with their
SHA-256; new files are written under new names first and ``checkpoint.json`` is replaced last,
in one atomic step, so that at every moment the folder holds one whole checkpoint.

It holds all that resuming needs: weights, optimiser, step, random states, task, configuration
and history. ``load_model`` needs the weights only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from models import tasks
from models.config import GPTConfig
from models.errors import (
    CheckpointError,
    InputError,
    OutputExistsError,
    ProbeError,
    TrainingError,
    UnknownNameError,
)
from models.gpt import GPT
from models.tasks import Task
from models.training import Run, TrainingConfig, make_run, pick_device

MANIFEST = "checkpoint.json"
FORMAT = "transformer-probe checkpoint"
VERSION = 1
_COMPILED = "_orig_mod."  # torch.compile puts it into names
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
_OWN_FILE = re.compile(
    r"(weights|training)-\d+-[0-9a-f]{12}\.safetensors|\.(weights-|training-|checkpoint\.json).*\.tmp"
)
_ENTRIES = {
    "step": int,
    "model": dict,
    "task": dict,
    "training": dict,
    "device": str,
    "history": list,
    "files": dict,
}


def save_run(folder: str | Path, run: Run, *, force: bool = True) -> Path:
    """Write a run; an earlier checkpoint in the folder is replaced when the new one is whole.

    Raises:
        OutputExistsError: ``force=False`` and the folder holds a checkpoint, or the folder
            holds other files.
        TrainingError: a weight is not finite; what is in the folder stays.
    """
    folder = Path(folder)
    if not all(bool(weight.isfinite().all()) for weight in run.model.parameters()):
        raise TrainingError(
            f"the weights are not finite at step {run.step}, so they are not kept: "
            f"use a smaller learning rate than {run.config.learning_rate}"
        )
    prepare_folder(folder, force=force)
    training = {
        "batches": run.batches.get_state(),
        "dropout": run.dropout_state,
        **_optimizer_tensors(run),
    }
    files = {
        "weights": _write(folder, "weights", run.step, run.model.state_dict()),
        "training": _write(folder, "training", run.step, training),
    }
    names = {entry["name"] for entry in files.values()}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "step": run.step,
        "model": asdict(run.model.config),
        "task": {"name": run.task.name, "parameters": run.task.parameters()},
        "training": asdict(run.config),
        "device": run.batches.device.type,
        "history": run.history,
        "files": files,
    }
    _replace(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    for path in folder.iterdir():
        if _OWN_FILE.fullmatch(path.name) and path.name not in names:
            path.unlink()
    return folder


def prepare_folder(folder: Path, *, force: bool) -> None:
    """Make sure that a checkpoint may be written to ``folder``; creates it."""
    if folder.exists() and not folder.is_dir():
        raise OutputExistsError(f"{folder} is a file: choose another folder")
    if (folder / MANIFEST).is_file():
        if not force:
            raise OutputExistsError(
                f"{folder} holds a checkpoint: choose another folder, resume it, or use --force"
            )
    elif folder.is_dir() and any(not _OWN_FILE.fullmatch(p.name) for p in folder.iterdir()):
        raise OutputExistsError(
            f"{folder} holds files but no checkpoint: choose an empty or new folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExistsError(f"cannot make the folder {folder}: {error.strerror}") from None


def load_model(folder: str | Path, *, device: str = "cpu") -> GPT:
    """The model of a checkpoint, in evaluation mode, with its task.

    Raises:
        CheckpointError: not there, incomplete, damaged, of another shape, or a pickle.
    """
    folder, manifest = read_manifest(folder)
    return _build(folder, manifest, device)[0]


def load_run(folder: str | Path, *, device: str | None = None) -> Run:
    """A run, ready to be advanced; on a CPU it goes on bit for bit.

    Args:
        folder: of the checkpoint.
        device: to go on with; default the kind it was trained on. Random states are of one kind
            of device: on another one, batches and dropout come from new streams.

    Raises:
        CheckpointError: as `load_model`, or the optimiser's state is missing.
    """
    folder, manifest = read_manifest(folder)
    model, task = _build(folder, manifest, device or manifest["device"])
    if "training" not in manifest["files"]:
        raise CheckpointError(f"{folder} holds no optimiser state: it can be used, not resumed")
    state = _read(folder, manifest, "training")
    config = _dataclass(TrainingConfig, manifest["training"], folder)
    run = make_run(model, task, config, step=manifest["step"], history=manifest["history"])
    _fill_optimizer(run, state, folder)
    if run.batches.device.type == manifest["device"]:
        try:
            run.batches.set_state(state["batches"])
            run.dropout_state = state["dropout"]
        except (KeyError, RuntimeError):
            raise CheckpointError(f"the random states in {folder} are missing or damaged") from None
    return run


def read_manifest(folder: str | Path) -> tuple[Path, dict[str, Any]]:
    """The folder and its ``checkpoint.json``, checked."""
    folder = Path(folder)
    if folder.name == MANIFEST:
        folder = folder.parent
    if folder.is_file():
        refuse_pickle(folder)
        raise CheckpointError(f"a checkpoint is a folder, but {folder} is a file")
    if not folder.is_dir():
        raise CheckpointError(f"no such folder: {folder}")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        for path in sorted(folder.iterdir()):
            refuse_pickle(path)
        found = [*folder.glob(f"*/{MANIFEST}"), *folder.glob(f"models/*/{MANIFEST}")]
        inside = sorted(str(path.parent) for path in found)
        hint = f"; there are models in {', '.join(inside[:3])}" if inside else ""
        message = (
            f"{folder} holds no {MANIFEST}: it is not a trained model{hint}; a published one "
            "has config.json and model.safetensors"
        )
        raise CheckpointError(message) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CheckpointError(f"{folder / MANIFEST} is damaged: it is not JSON") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {folder / MANIFEST}: {error.strerror}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{folder / MANIFEST} is not a {FORMAT}")
    if manifest.get("version") != VERSION:
        raise CheckpointError(
            f"{folder} is a checkpoint of version {manifest.get('version')}; this is {VERSION}"
        )
    wrong = [key for key, kind in _ENTRIES.items() if not isinstance(manifest.get(key), kind)]
    if wrong:
        raise CheckpointError(
            f"{folder / MANIFEST} is damaged: {', '.join(wrong)} missing or of the wrong kind"
        )
    return folder, manifest


def refuse_pickle(path: Path) -> None:
    """Raise for a file that would have to be unpickled: that can run any code, so it never is."""
    if path.suffix.lower() in _PICKLES:
        raise CheckpointError(
            f"{path} is a pickle, which can run code when opened, so it is never opened: "
            "give a folder written by probe train"
        )


def _build(folder: Path, manifest: Mapping[str, Any], device: str) -> tuple[GPT, Task]:
    config = _dataclass(GPTConfig, manifest["model"], folder / MANIFEST)
    try:
        task = tasks.create(manifest["task"]["name"], **manifest["task"]["parameters"])
    except UnknownNameError:  # a task of the user's own, whose module is not imported
        raise
    except (KeyError, TypeError, InputError) as error:
        raise CheckpointError(f"the task in {folder / MANIFEST} is damaged: {error}") from None
    model = GPT(config, seed=None, vocabulary=task.vocabulary).to(pick_device(device))
    model.task = task
    _fill(model, _read(folder, manifest, "weights"), folder)
    return model.eval(), task


def _dataclass(kind: Any, values: Mapping[str, Any], where: object) -> Any:
    try:
        return kind(**values)
    except (TypeError, ProbeError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from None


def _fill(model: GPT, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Copy weights in place, so that tied ones stay tied; every key must fit."""
    tensors = {key.replace(_COMPILED, ""): value for key, value in tensors.items()}
    own = dict(model.named_parameters())
    if missing := sorted(own.keys() - tensors.keys()):
        raise CheckpointError(f"the weights in {folder} lack {', '.join(missing)}")
    if extra := sorted(tensors.keys() - own.keys()):
        raise CheckpointError(f"the weights in {folder} have more than the model: {extra}")
    for key, value in own.items():
        if value.shape != tensors[key].shape:
            raise CheckpointError(
                f"{key} in {folder} has shape {tuple(tensors[key].shape)}, "
                f"but the configuration says {tuple(value.shape)}"
            )
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(tensors[key])


def _optimizer_tensors(run: Run) -> dict[str, Tensor]:
    state = run.optimizer.state
    return {
        f"optimizer.{name}.{moment}": state[parameter][moment]
        for name, parameter in run.model.named_parameters()
        for moment in _MOMENTS
        if parameter in state
    }


def _fill_optimizer(run: Run, tensors: Mapping[str, Tensor], folder: Path) -> None:
    if run.step == 0:
        return  # the optimiser has no state yet
    for name, parameter in run.model.named_parameters():
        keys = [f"optimizer.{name}.{moment}" for moment in _MOMENTS]
        if missing := [key for key in keys if key not in tensors]:
            raise CheckpointError(f"the optimiser state in {folder} lacks {', '.join(missing)}")
        run.optimizer.state[parameter] = {
            moment: tensors[key].to(parameter.device)
            for moment, key in zip(_MOMENTS, keys, strict=True)
        }


def _write(folder: Path, kind: str, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    plain = {
        key.replace(_COMPILED, ""): value.detach().cpu().contiguous()
        for key, value in tensors.items()
    }
    data = save(plain)
    digest = hashlib.sha256(data).hexdigest()
    name = f"{kind}-{step}-{digest[:12]}.safetensors"
    _replace(folder / name, data)
    return {"name": name, "sha256": digest}


def _read(folder: Path, manifest: Mapping[str, Any], kind: str) -> dict[str, Tensor]:
    try:
        entry = manifest["files"][kind]
        name, digest = Path(entry["name"]).name, entry["sha256"]
    except (KeyError, TypeError):
        raise CheckpointError(f"{folder / MANIFEST} is damaged: it names no {kind}") from None
    refuse_pickle(folder / name)
    try:
        data = (folder / name).read_bytes()
    except OSError:
        raise CheckpointError(f"{folder} is incomplete: {name} is missing") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise CheckpointError(f"{folder / name} is truncated or damaged: its SHA-256 differs")
    try:
        return load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{folder / name} is no safetensors file: {error}") from None


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
