"""Take small transformers apart: load, look at heads, ablate them, report.

    import probe
    model = probe.load("out/reversal/models/next-token-0")
    probe.head_table(model)
    probe.ablate(model, heads=["0.1"])

Names are imported when they are first used, so ``import probe`` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from probe._shadowing import refuse_shadowing

refuse_shadowing()

if TYPE_CHECKING:
    from analyses.ablation import ablate, ablate_every_head, cumulative_ablation
    from analyses.anti_diagonal import anti_diagonal
    from analyses.attention_patterns import attention_patterns, match_pattern
    from analyses.detection import detect_heads
    from analyses.entropy import entropy
    from analyses.head_table import head_table
    from analyses.temperature import half_point, temperature
    from analyses.verify import verify
    from models.checkpoints import load_run, save_run
    from models.config import GPTConfig
    from models.errors import ProbeError
    from models.gpt import GPT
    from models.interface import HookedModel, capture, hooked, weights
    from models.load import load
    from models.sampling import generate
    from models.tasks import Batch, Task
    from models.tasks import create as task
    from models.tasks import register as register_task
    from models.training import TrainingConfig, evaluate, model_config, train
    from probe.studies.language_model import report
    from probe.studies.reversal import ReversalStudy, reversal

_HOMES = {
    "Batch": "models.tasks",
    "GPT": "models.gpt",
    "GPTConfig": "models.config",
    "HookedModel": "models.interface",
    "ProbeError": "models.errors",
    "ReversalStudy": "probe.studies.reversal",
    "Task": "models.tasks",
    "TrainingConfig": "models.training",
    "ablate": "analyses.ablation",
    "ablate_every_head": "analyses.ablation",
    "anti_diagonal": "analyses.anti_diagonal",
    "attention_patterns": "analyses.attention_patterns",
    "capture": "models.interface",
    "cumulative_ablation": "analyses.ablation",
    "detect_heads": "analyses.detection",
    "entropy": "analyses.entropy",
    "evaluate": "models.training",
    "generate": "models.sampling",
    "half_point": "analyses.temperature",
    "head_table": "analyses.head_table",
    "hooked": "models.interface",
    "load": "models.load",
    "load_run": "models.checkpoints",
    "match_pattern": "analyses.attention_patterns",
    "model_config": "models.training",
    "register_task": ("models.tasks", "register"),
    "report": "probe.studies.language_model",
    "reversal": "probe.studies.reversal",
    "save_run": "models.checkpoints",
    "task": ("models.tasks", "create"),
    "temperature": "analyses.temperature",
    "train": "models.training",
    "verify": "analyses.verify",
    "weights": "models.interface",
}
__all__ = [
    "GPT",
    "Batch",
    "GPTConfig",
    "HookedModel",
    "ProbeError",
    "ReversalStudy",
    "Task",
    "TrainingConfig",
    "ablate",
    "ablate_every_head",
    "anti_diagonal",
    "attention_patterns",
    "capture",
    "cumulative_ablation",
    "detect_heads",
    "entropy",
    "evaluate",
    "generate",
    "half_point",
    "head_table",
    "hooked",
    "load",
    "load_run",
    "match_pattern",
    "model_config",
    "register_task",
    "report",
    "reversal",
    "save_run",
    "task",
    "temperature",
    "train",
    "verify",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probe' has no attribute {name!r}")
    home = _HOMES[name]
    module, attribute = home if isinstance(home, tuple) else (home, name)
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
