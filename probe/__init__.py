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
    from analyses.ablation import ablate, ablate_every_head
    from analyses.anti_diagonal import anti_diagonal
    from analyses.attention_patterns import attention_patterns, match_pattern
    from analyses.attention_temperature import attention_temperature
    from analyses.attribution import direct_effects
    from analyses.calibration import calibrate
    from analyses.content_dependence import content_dependence
    from analyses.detection import detect_heads
    from analyses.edges import cut_edges
    from analyses.entropy import entropy
    from analyses.estimates import estimate_every_head
    from analyses.head_sets import cumulative_ablation, greedy_ablation, interactions, keep_only
    from analyses.head_table import head_table
    from analyses.hypothesis import combine_seeds, hypothesis_sentence, test_hypothesis
    from analyses.ioi import ioi
    from analyses.language_temperature import by_kind, temperature_sweep
    from analyses.lens import logit_lens
    from analyses.logit_view import logit_view
    from analyses.metrics import (
        KL,
        Logit,
        LogitDifference,
        LogProbability,
        Metric,
        Probability,
        Rank,
    )
    from analyses.next_tokens import next_tokens
    from analyses.patching import activation_patching
    from analyses.path_patching import path_patching
    from analyses.prediction import prediction
    from analyses.substitution import explained_by_pattern, substitute_pattern
    from analyses.temperature import half_point, temperature, temperature_by_position
    from analyses.temperature_heads import fragility
    from analyses.value_weighted import value_weighted
    from analyses.verify import verify
    from models.checkpoints import load_run, save_run
    from models.config import GPTConfig
    from models.errors import ProbeError
    from models.gpt import GPT
    from models.interface import HookedModel, capture, hooked, weights
    from models.load import load
    from models.sampling import filter_distribution, generate, stream
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
    "KL": "analyses.metrics",
    "LogProbability": "analyses.metrics",
    "Logit": "analyses.metrics",
    "LogitDifference": "analyses.metrics",
    "Metric": "analyses.metrics",
    "Probability": "analyses.metrics",
    "ProbeError": "models.errors",
    "Rank": "analyses.metrics",
    "ReversalStudy": "probe.studies.reversal",
    "Task": "models.tasks",
    "TrainingConfig": "models.training",
    "ablate": "analyses.ablation",
    "ablate_every_head": "analyses.ablation",
    "activation_patching": "analyses.patching",
    "anti_diagonal": "analyses.anti_diagonal",
    "attention_patterns": "analyses.attention_patterns",
    "attention_temperature": "analyses.attention_temperature",
    "by_kind": "analyses.language_temperature",
    "calibrate": "analyses.calibration",
    "capture": "models.interface",
    "combine_seeds": "analyses.hypothesis",
    "content_dependence": "analyses.content_dependence",
    "cumulative_ablation": "analyses.head_sets",
    "cut_edges": "analyses.edges",
    "detect_heads": "analyses.detection",
    "direct_effects": "analyses.attribution",
    "entropy": "analyses.entropy",
    "estimate_every_head": "analyses.estimates",
    "evaluate": "models.training",
    "explained_by_pattern": "analyses.substitution",
    "filter_distribution": "models.sampling",
    "fragility": "analyses.temperature_heads",
    "generate": "models.sampling",
    "greedy_ablation": "analyses.head_sets",
    "half_point": "analyses.temperature",
    "head_table": "analyses.head_table",
    "hooked": "models.interface",
    "hypothesis_sentence": "analyses.hypothesis",
    "interactions": "analyses.head_sets",
    "ioi": "analyses.ioi",
    "keep_only": "analyses.head_sets",
    "load": "models.load",
    "load_run": "models.checkpoints",
    "logit_lens": "analyses.lens",
    "logit_view": "analyses.logit_view",
    "match_pattern": "analyses.attention_patterns",
    "model_config": "models.training",
    "next_tokens": "analyses.next_tokens",
    "path_patching": "analyses.path_patching",
    "prediction": "analyses.prediction",
    "register_task": ("models.tasks", "register"),
    "report": "probe.studies.language_model",
    "reversal": "probe.studies.reversal",
    "save_run": "models.checkpoints",
    "stream": "models.sampling",
    "substitute_pattern": "analyses.substitution",
    "task": ("models.tasks", "create"),
    "temperature": "analyses.temperature",
    "temperature_by_position": "analyses.temperature",
    "temperature_sweep": "analyses.language_temperature",
    "test_hypothesis": "analyses.hypothesis",
    "train": "models.training",
    "value_weighted": "analyses.value_weighted",
    "verify": "analyses.verify",
    "weights": "models.interface",
}
__all__ = [
    "GPT",
    "KL",
    "Batch",
    "GPTConfig",
    "HookedModel",
    "LogProbability",
    "Logit",
    "LogitDifference",
    "Metric",
    "Probability",
    "ProbeError",
    "Rank",
    "ReversalStudy",
    "Task",
    "TrainingConfig",
    "ablate",
    "ablate_every_head",
    "activation_patching",
    "anti_diagonal",
    "attention_patterns",
    "attention_temperature",
    "by_kind",
    "calibrate",
    "capture",
    "combine_seeds",
    "content_dependence",
    "cumulative_ablation",
    "cut_edges",
    "detect_heads",
    "direct_effects",
    "entropy",
    "estimate_every_head",
    "evaluate",
    "explained_by_pattern",
    "filter_distribution",
    "fragility",
    "generate",
    "greedy_ablation",
    "half_point",
    "head_table",
    "hooked",
    "hypothesis_sentence",
    "interactions",
    "ioi",
    "keep_only",
    "load",
    "load_run",
    "logit_lens",
    "logit_view",
    "match_pattern",
    "model_config",
    "next_tokens",
    "path_patching",
    "prediction",
    "register_task",
    "report",
    "reversal",
    "save_run",
    "stream",
    "substitute_pattern",
    "task",
    "temperature",
    "temperature_by_position",
    "temperature_sweep",
    "test_hypothesis",
    "train",
    "value_weighted",
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
