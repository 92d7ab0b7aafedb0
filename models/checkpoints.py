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
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from models import tasks
from models.config import GPTConfig
from models.errors import CheckpointError, InputError, OutputExistsError, ProbeError
from models.gpt import GPT
from models.training import Run, TrainingConfig, make_optimizer, pick_device

MANIFEST = "checkpoint.json"
FORMAT = "transformer-probe checkpoint"
VERSION = 1
_COMPILED = "_orig_mod."
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


def save_run(folder: str | Path, run: Run, *, force: bool = True) -> Path:
    """Write a run; an earlier checkpoint in the folder is replaced when the new one is whole.

    Raises:
        OutputExistsError: ``force=False`` and the folder holds a checkpoint, or the folder
            holds other files.
    """
    folder = Path(folder)
    prepare_folder(folder, force=force)
    training = {
        "batches": run.batches.get_state(),
        "dropout": run.dropout_state,
        **_optimizer_tensors(run),
    }
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "step": run.step,
        "model": asdict(run.model.config),
        "task": {"name": run.task.name, "parameters": run.task.parameters()},
        "training": asdict(run.config),
        "device": run.batches.device.type,
        "history": run.history,
        "files": {
            "weights": _write(folder, "weights", run.step, run.model.state_dict()),
            "training": _write(folder, "training", run.step, training),
        },
    }
    _replace(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    keep = {MANIFEST, *(entry["name"] for entry in manifest["files"].values())}  # type: ignore[attr-defined]
    for path in folder.iterdir():
        if path.name not in keep and path.name.startswith(("weights-", "training-")):
            path.unlink()
    return folder


def prepare_folder(folder: Path, *, force: bool) -> None:
    """Make sure that a checkpoint may be written to ``folder``; creates it."""
    if folder.exists() and not folder.is_dir():
        raise OutputExistsError(f"{folder} is a file: choose another folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / MANIFEST).is_file():
            raise OutputExistsError(
                f"{folder} holds files but no checkpoint: choose an empty or new folder"
            )
        if not force:
            raise OutputExistsError(
                f"{folder} holds a checkpoint: choose another folder, resume it, or use --force"
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
    model = _build(manifest, device)
    _fill(model, _read(folder, manifest, "weights"), folder)
    return model.eval()


def load_run(
    folder: str | Path, *, device: str | None = None, expect: Mapping[str, Any] | None = None
) -> Run:
    """A run, ready to be advanced; on a CPU it goes on bit for bit.

    Args:
        folder: of the checkpoint.
        device: to go on with; default the kind it was trained on.
        expect: values of the model's shape that must agree with the checkpoint's.

    Raises:
        CheckpointError: as `load_model`, or the optimiser's state is missing.
        InputError: the checkpoint has another shape than ``expect`` says.
    """
    folder, manifest = read_manifest(folder)
    for name, value in (expect or {}).items():
        if value is not None and manifest["model"][name] != value:
            raise InputError(
                f"the checkpoint in {folder} has {name} = {manifest['model'][name]}, but {value} "
                "was asked for: leave the option out to resume, or train anew in another folder"
            )
    device = device or manifest["device"]
    model = _build(manifest, device)
    _fill(model, _read(folder, manifest, "weights"), folder)
    if "training" not in manifest["files"]:
        raise CheckpointError(f"{folder} holds no optimiser state: it can be used, not resumed")
    state = _read(folder, manifest, "training")
    config = _dataclass(TrainingConfig, manifest["training"], folder)
    optimizer = make_optimizer(model, config)
    _fill_optimizer(optimizer, model, state, folder)
    batches = torch.Generator(pick_device(device))
    batches.set_state(state["batches"])
    history = [dict(row) for row in manifest["history"]]
    step = manifest["step"]
    return Run(model, model.task, config, optimizer, batches, state["dropout"], step, history)


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
        raise CheckpointError(f"{folder} holds no {MANIFEST}: it is not a trained model") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CheckpointError(f"{folder / MANIFEST} is damaged: it is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{folder / MANIFEST} is not a {FORMAT}")
    if manifest.get("version") != VERSION:
        raise CheckpointError(
            f"{folder} is a checkpoint of version {manifest.get('version')}; this is {VERSION}"
        )
    wanted = {"step", "model", "task", "training", "device", "history", "files"}
    if missing := sorted(wanted - manifest.keys()):
        raise CheckpointError(f"{folder / MANIFEST} is damaged: it lacks {', '.join(missing)}")
    return folder, manifest


def refuse_pickle(path: Path) -> None:
    """Raise for a file that would have to be unpickled: that can run any code, so it never is."""
    if path.suffix.lower() in _PICKLES:
        raise CheckpointError(
            f"{path} is a pickle, which can run code when opened, so it is never opened: "
            "give a folder written by probe train"
        )


def _build(manifest: Mapping[str, Any], device: str) -> GPT:
    config = _dataclass(GPTConfig, manifest["model"], MANIFEST)
    task = tasks.create(manifest["task"]["name"], **manifest["task"]["parameters"])
    model = GPT(config, vocabulary=task.vocabulary)
    model.task = task
    return model.to(pick_device(device))


def _dataclass(kind: Any, values: Mapping[str, Any], where: object) -> Any:
    try:
        return kind(**values)
    except (TypeError, ProbeError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from None


def _fill(model: GPT, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Copy weights in place, so that tied ones stay tied; every key must fit."""
    tensors = {key.removeprefix(_COMPILED): value for key, value in tensors.items()}
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


def _fill_optimizer(
    optimizer: torch.optim.AdamW, model: GPT, tensors: Mapping[str, Tensor], folder: Path
) -> None:
    if not any(key.startswith("optimizer.") for key in tensors):
        return  # saved before the first step
    for name, parameter in model.named_parameters():
        keys = [f"optimizer.{name}.{moment}" for moment in _MOMENTS]
        if missing := [key for key in keys if key not in tensors]:
            raise CheckpointError(f"the optimiser state in {folder} lacks {', '.join(missing)}")
        optimizer.state[parameter] = {
            moment: tensors[key].to(parameter.device)
            for moment, key in zip(_MOMENTS, keys, strict=True)
        }


def _write(folder: Path, kind: str, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    plain = {
        key.removeprefix(_COMPILED): value.detach().cpu().contiguous()
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
    return load(data)


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
