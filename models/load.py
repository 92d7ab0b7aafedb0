"""``load(x)``: the hooked model that ``x`` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.checkpoints import load_model
from models.interface import HookedModel, shape


def load(model: str | Path | HookedModel, *, device: str = "cpu") -> Any:
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
    shape(model)
    return model
