"""Hookable models, the tasks they learn, how they are trained, stored and sampled.

Names are imported when they are first used, so that ``import models`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.config import GPTConfig
    from models.errors import ProbeError
    from models.gpt import GPT
    from models.interface import HookedModel, capture, hooked, weights
    from models.tasks import Batch, Task
    from models.training import TrainingConfig, train

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
__all__ = [
    "GPT",
    "Batch",
    "GPTConfig",
    "HookedModel",
    "ProbeError",
    "Task",
    "TrainingConfig",
    "capture",
    "hooked",
    "train",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    return getattr(import_module(f"models.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
