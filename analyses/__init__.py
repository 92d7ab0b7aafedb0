"""Measurements: a hooked model and tokens in, a pandas table out.

Names are imported when they are first used, so that ``import analyses`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyses.ablation import ablate, ablate_every_head
    from analyses.anti_diagonal import label_anti_diagonal
    from analyses.attention_patterns import match_pattern
    from analyses.detection import detect_heads, labels
    from analyses.entropy import row_entropy
    from analyses.random_tokens import fresh_tokens, repeated_tokens
    from analyses.temperature import half_point

_HOMES = {
    "ablate": "ablation",
    "ablate_every_head": "ablation",
    "cumulative_ablation": "head_sets",
    "detect_heads": "detection",
    "fresh_tokens": "random_tokens",
    "label_anti_diagonal": "anti_diagonal",
    "labels": "detection",
    "match_pattern": "attention_patterns",
    "repeated_tokens": "random_tokens",
    "row_entropy": "entropy",
    "half_point": "temperature",
}
__all__ = [
    "ablate",
    "ablate_every_head",
    "cumulative_ablation",
    "detect_heads",
    "fresh_tokens",
    "half_point",
    "label_anti_diagonal",
    "labels",
    "match_pattern",
    "repeated_tokens",
    "row_entropy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'analyses' has no attribute {name!r}")
    return getattr(import_module(f"analyses.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
