"""The small prompt set that ships with the toolkit, and prompts from a user's file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from models.errors import InputError

Kind = Literal["factual", "open", "given"]


@dataclass(frozen=True)
class Prompt:
    """One prompt and what it is for.

    Args:
        text: as it is fed.
        kind: ``factual`` has one right continuation, ``open`` has many, ``given`` is a user's.
        line: where it stands in the user's file, from 1.
    """

    text: str
    kind: Kind
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Capital:
    """A country and its capital, for the causal check."""

    country: str
    capital: str

    @property
    def text(self) -> str:
        """The prompt that asks for the capital."""
        return f"The capital of {self.country} is"


CAPITALS = tuple(
    Capital(*pair)
    for pair in (
        ("France", " Paris"),
        ("Italy", " Rome"),
        ("Spain", " Madrid"),
        ("Germany", " Berlin"),
        ("Japan", " Tokyo"),
        ("China", " Beijing"),
        ("Russia", " Moscow"),
        ("England", " London"),
    )
)

_FACTUAL = (
    "The capital of France is",
    "The capital of Italy is",
    "The Eiffel Tower is in the city of",
    "The opposite of hot is",
    "Two plus two equals",
    "The first president of the United States was George",
    "Water freezes at zero degrees",
    "The sun rises in the",
    "Monday, Tuesday, Wednesday,",
    "A, B, C, D,",
)
_OPEN = (
    "Once upon a time there was a",
    "I think that we should",
    "My favourite thing about this is",
    "Yesterday I went to",
    "The best way to spend an evening is",
    "She looked at him and said",
    "In the middle of the room stood a",
    "What I like most is",
    "The story begins with",
    "He opened the door and saw",
)
PROMPTS = (
    *(Prompt(text, "factual") for text in _FACTUAL),
    *(Prompt(text, "open") for text in _OPEN),
)


def read_prompts(path: str | Path) -> list[Prompt]:
    """One prompt a line from a UTF-8 file, with or without BOM, of any line ending.

    Blank lines are left out.

    Raises:
        InputError: no such file, not UTF-8, or no prompt in it.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read the prompts {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"the prompts must be UTF-8, but {path} is not at byte {error.start}"
        ) from None
    lines = [
        line.rstrip("\r") for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ]
    prompts = [Prompt(line, "given", n) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{path} holds no prompt: write one a line")
    return prompts
