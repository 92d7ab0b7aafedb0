"""Every analysis by name: what runs, and what it answers.

A name is the name of its module, so that ``probe run NAME`` and ``python -m analyses.NAME``
are the same. An entry of your own makes an analysis available to both and to the tests that
check every analysis.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata

import pandas as pd

from models.names import unknown


@dataclass(frozen=True)
class Analysis:
    """One analysis.

    Args:
        name: of its module.
        function: in that module; takes a model and tokens, returns a table.
        answers: the question, in one line.
        keys: columns that tell the rows apart.
    """

    name: str
    function: str
    answers: str
    keys: tuple[str, ...]

    def load(self) -> Callable[..., pd.DataFrame]:
        """The function."""
        return getattr(import_module(f"analyses.{self.name}"), self.function)  # type: ignore[no-any-return]


_HEAD = ("layer", "head")
ANALYSES: dict[str, Analysis] = {
    analysis.name: analysis
    for analysis in (
        Analysis(
            "head_table",
            "head_table",
            "what does every head look like, and what does it do? (all scores and effects)",
            _HEAD,
        ),
        Analysis(
            "attention_patterns",
            "attention_patterns",
            "how much attention goes to the previous token, the separator, the letter to write?",
            (*_HEAD, "score"),
        ),
        Analysis(
            "anti_diagonal",
            "anti_diagonal",
            "how far from the anti-diagonal does every head look?",
            (*_HEAD, "offset"),
        ),
        Analysis(
            "detection",
            "detect_heads",
            "which heads are previous-token, first-token, duplicate-token and induction heads?",
            (*_HEAD, "score"),
        ),
        Analysis(
            "content_dependence",
            "content_dependence",
            "does every head route by position or by content?",
            _HEAD,
        ),
        Analysis(
            "value_weighted",
            "value_weighted",
            "how much of what every head writes comes from where it looks?",
            (*_HEAD, "score"),
        ),
        Analysis(
            "entropy", "entropy", "how spread out is every head's attention?", (*_HEAD, "score")
        ),
        Analysis(
            "ablation",
            "ablate_every_head",
            "what is lost when each head is removed alone?",
            (*_HEAD, "ablation", "metric"),
        ),
        Analysis(
            "attribution",
            "direct_effects",
            "what does every head, MLP and embedding write straight to the logits?",
            ("component",),
        ),
        Analysis(
            "substitution",
            "explained_by_pattern",
            "how much of what every head does is explained by the ideal pattern?",
            _HEAD,
        ),
        Analysis(
            "attention_temperature",
            "attention_temperature_every_head",
            "what is lost when every head's attention is blurred or sharpened?",
            (*_HEAD, "temperature", "metric"),
        ),
        Analysis(
            "lens",
            "logit_lens",
            "what would the model predict if its layers ended earlier?",
            ("n_layers", "metric"),
        ),
        Analysis(
            "cumulative",
            "cumulative",
            "what is left when heads are removed, or kept, in the order of their score?",
            ("mode", "ablation", "n_heads"),
        ),
        Analysis(
            "temperature",
            "temperature",
            "how likely is a right answer when it is sampled at a temperature?",
            ("temperature",),
        ),
        Analysis(
            "temperature_heads",
            "fragility",
            "which heads' absence makes the model more fragile to temperature?",
            ("heads", "ablation", "temperature"),
        ),
    )
}


def find(name: str) -> Analysis:
    """The analysis called ``name``; otherwise an error with the closest names."""
    if name not in ANALYSES:
        raise unknown("analysis", name, list(ANALYSES))
    return ANALYSES[name]


def run_module(name: str, arguments: Sequence[str] | None = None) -> None:
    """``python -m analyses.NAME ARGUMENTS``: the same as ``probe run NAME ARGUMENTS``.

    The command is found where the distribution declares it, since analyses import no front door.
    """
    entry = next(iter(metadata.entry_points(group="console_scripts", name="probe")), None)
    if entry is None:
        raise SystemExit("the command probe is not installed: pip install -e .")
    arguments = sys.argv[1:] if arguments is None else arguments
    entry.load()(["run", name, *arguments])
