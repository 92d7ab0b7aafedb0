"""What a command measures on: prompts that were typed, or what the analysis takes by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def measured(model: Any, prompts: list[str] | None, bos: bool | None) -> Any:
    """The ids of prompts; without any, repeated random tokens of a model without a task.

    Args:
        model: a hooked model.
        prompts: texts; one that begins with ``@`` names a file of prompts, one a line.
        bos: see `models.text_codec.TextCodec.encode`.
    """
    from analyses.inputs import typed

    return typed(model, texts_of(prompts), bos)


def texts_of(prompts: list[str] | None) -> list[str] | None:
    """The texts, those in files read."""
    from analyses.prompts import read_prompts

    if not prompts:
        return None
    texts: list[str] = []
    for prompt in prompts:
        is_file = prompt.startswith("@")
        texts += [p.text for p in read_prompts(Path(prompt[1:]))] if is_file else [prompt]
    return texts
