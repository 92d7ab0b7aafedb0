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
    from analyses.inputs import encode_texts, has_task
    from analyses.prompts import read_prompts
    from analyses.random_tokens import batch_for

    if prompts:
        texts: list[str] = []
        for prompt in prompts:
            is_file = prompt.startswith("@")
            texts += [p.text for p in read_prompts(Path(prompt[1:]))] if is_file else [prompt]
        return encode_texts(model, texts, bos=bos)
    return None if has_task(model) or bos is None else batch_for(model, None, bos=bos)
