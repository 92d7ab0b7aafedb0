"""``load(x)``: the hooked model that ``x`` names.

Torch is imported when there is something to load: the hub is asked before that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.errors import CheckpointError, InputError
from models.names import DEVICES, DTYPES, ENGINES, choose
from models.sources import find_source


def load(
    model: Any,
    *,
    engine: str = "lens",
    device: str = "cpu",
    dtype: str = "float32",
    copy: bool = True,
) -> Any:
    """A model ready to be measured, in evaluation mode.

    Args:
        model: the folder of a model trained here; a published model as a Hugging Face folder, a
            GGUF file, or a hub name or alias (``gpt2``); a `transformers` model; or a hooked
            model (a GPT of this toolkit, a ``TransformerBridge``), which is returned as it is.
        engine: for published models: ``lens`` (TransformerLens's ``TransformerBridge``) or
            ``gpt`` (GPT-2 and Llama weights in our own GPT, which is faster). Weights are as
            published, nothing folded or centred.
        device: where to compute.
        dtype: of the weights; half precision is refused on a CPU.
        copy: whether a `transformers` model is copied first. TransformerLens rewrites it.

    Raises:
        CheckpointError: not there, incomplete or damaged; weights missing or left over.
        InputError: a model or option that is not read.
    """
    choose("engine", engine, ENGINES)
    if isinstance(model, str | Path):
        if trained_here(model):
            from models.checkpoints import load_model

            return load_model(model, device=device).to(dtype=_dtype(dtype, device))
        choose("device", device, DEVICES)
        if dtype != "float32":
            _dtype(dtype, device)
        model = find_source(str(model))
    elif hasattr(model, "cfg") and hasattr(model, "hook_dict"):
        if engine == "gpt" and not _ours(model):
            raise InputError(
                "engine gpt reads files or a transformers model: this is a hooked model already"
            )
        return model
    elif not hasattr(model, "config") or not hasattr(model, "state_dict"):
        raise InputError(
            "give the folder of a trained model, a published model (a folder, a GGUF file, a hub "
            "name, a transformers model), or a hooked model (a GPT of this toolkit or a "
            f"TransformerBridge), but got {type(model).__name__}"
        )
    kind = _dtype(dtype, device)
    from models.pretrained import load_pretrained

    return load_pretrained(model, engine=engine, device=device, dtype=kind, copy=copy)


def trained_here(name: str | Path) -> bool:
    """Whether a path is for `models.checkpoints`; otherwise it names a published model.

    Raises:
        CheckpointError: a path to nothing.
    """
    path = Path(name).expanduser()
    manifest = "checkpoint.json"  # see models.checkpoints, which imports torch
    if path.is_file():
        return path.suffix.lower() != ".gguf"
    if path.is_dir():
        published = [*path.glob("config.json"), *path.glob("*.safetensors*"), *path.glob("*.bin")]
        return (path / manifest).exists() or not published
    if isinstance(name, Path) or name[:1] in (".", "/", "~") or name.count("/") > 1:
        raise CheckpointError(f"no such folder: {name}")
    return False


def _ours(model: Any) -> bool:
    from models.gpt import GPT

    return isinstance(model, GPT)


def _dtype(name: str, device: str) -> Any:
    """The type of the weights.

    Raises:
        InputError: unknown, or half precision where a CPU computes.
    """
    import torch

    from models.training import pick_device

    choose("dtype", name, DTYPES)
    if name != "float32" and pick_device(device).type == "cpu":
        raise InputError(f"{name} is slow and inexact on a CPU: use float32, or another device")
    return getattr(torch, name)
