"""Hookable models, the tasks they learn, how they are trained, stored and sampled.

Names are imported when they are first used, so that ``import models`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.config import GPTConfig as GPTConfig
    from models.errors import ProbeError as ProbeError
    from models.gpt import GPT as GPT
    from models.interface import HookedModel as HookedModel
    from models.interface import capture as capture
    from models.interface import hooked as hooked
    from models.interface import weights as weights
    from models.tasks import Batch as Batch
    from models.tasks import Task as Task
    from models.training import TrainingConfig as TrainingConfig
    from models.training import train as train

_HOMES = {
    "GPT": "gpt",
    "Batch": "tasks",
    "GPTConfig": "config",
    "HookedModel": "interface",
    "ProbeError": "errors",
    "Task": "tasks",
    "TrainingConfig": "training",
    "capture": "interface",
    "hooked": "interface",
    "train": "training",
    "weights": "interface",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    return getattr(import_module(f"models.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
