"""``load(x)``: the hooked model that ``x`` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.checkpoints import load_model
from models.errors import InputError


def load(model: object, *, device: str = "cpu") -> Any:
    """A model ready to be measured.

    Args:
        model: the folder of a trained model, or a hooked model, which is returned as it is.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``, for a model that is read from disk.

    Raises:
        CheckpointError: the folder is not there, incomplete or damaged.
        InputError: ``model`` is neither.
    """
    if isinstance(model, str | Path):
        return load_model(model, device=device)
    if not (hasattr(model, "cfg") and hasattr(model, "hook_dict")):
        raise InputError(
            "give the folder of a trained model, or a hooked model (a GPT of this toolkit or a "
            f"TransformerBridge), but got {type(model).__name__}"
        )
    return model
