"""The text task: a character-level language model of a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from models.errors import InputError, LengthError
from models.names import SPLITS, Split, choose
from models.tasks import Batch, Task, register
from models.vocabulary import Vocabulary


@register
@dataclass(frozen=True)
class Text(Task):
    """Next-character prediction on windows of a UTF-8 file; its last tenth is held out.

    Byte-order marks and carriage returns are dropped. The vocabulary and a hash of the text
    travel with a checkpoint, so that the file may be away when no batch of it is wanted.

    Args:
        path: the file.
        length: characters in a window; a window predicts ``length`` characters.
    """

    name: ClassVar[str] = "text"
    path: str = ""
    length: int = 64
    characters: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"length must be at least 1 character, but got {self.length}")
        if self.characters is None:
            object.__setattr__(self, "path", str(Path(self.path).absolute()))
            object.__setattr__(self, "characters", "".join(sorted(set(self.text))))
            object.__setattr__(self, "sha256", _digest(self.text))
            self._check_size()

    @cached_property
    def text(self) -> str:
        """The file's text.

        Raises:
            InputError: no such file, not UTF-8, or not the file the model was trained on.
        """
        try:
            text = Path(self.path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(f"cannot read the text {self.path!r}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise InputError(
                f"the text must be UTF-8, but {self.path!r} is not at byte {error.start}"
            ) from None
        text = text.replace("\r", "").replace("\ufeff", "")
        if self.sha256 is not None and _digest(text) != self.sha256:
            raise InputError(f"{self.path!r} is no longer the text this model was trained on")
        return text

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The distinct characters of the text, sorted."""
        return Vocabulary(tuple(self.characters or ""))

    @property
    def n_ctx(self) -> int:
        """A window."""
        return self.length

    @property
    def fixed_layout(self) -> bool:
        """Every window is of one length."""
        return True

    @cached_property
    def splits(self) -> dict[str, Tensor]:
        """The ids of both parts: the first nine tenths, and the rest."""
        ids = torch.tensor(self.vocabulary.encode(self.text), dtype=torch.long)
        cut = int(0.9 * len(ids))
        return {"train": ids[:cut], "heldout": ids[cut:]}

    @cached_property
    def _moved(self) -> dict[tuple[Split, torch.device], Tensor]:
        return {}

    def parameters(self) -> dict[str, Any]:
        """What rebuilds the task without the file."""
        names = ("path", "length", "characters", "sha256")
        return {name: getattr(self, name) for name in names}

    def draw(self, n: int, *, generator: torch.Generator, split: Split = "train") -> Batch:
        """``n`` windows of ``length + 1`` characters, every start equally likely."""
        choose("split", split, SPLITS)
        ids = self._ids(split, generator.device)
        starts = torch.randint(
            len(ids) - self.length, (n, 1), generator=generator, device=generator.device
        )
        window = ids[starts + torch.arange(self.length + 1, device=generator.device)]
        tokens, following = window[:, :-1], window[:, 1:]
        lengths = torch.full((n,), self.length, device=tokens.device)
        outputs = torch.ones_like(tokens, dtype=torch.bool)
        return Batch(tokens, lengths, following, outputs, torch.full_like(tokens, -1))

    def prompt(self, text: str) -> tuple[list[int], int]:
        """The text as it is; as much is to be generated as the context can predict."""
        ids = self.vocabulary.encode(text.replace("\r", ""))
        if not 1 <= len(ids) <= self.length:
            raise LengthError(f"a prompt has 1 to {self.length} characters, but got {len(ids)}")
        return ids, self.length - len(ids) + 1

    def _ids(self, split: Split, device: torch.device) -> Tensor:
        """The ids of one part, moved to a device once."""
        if (split, device) not in self._moved:
            self._check_size()
            self._moved[split, device] = self.splits[split].to(device)
        return self._moved[split, device]

    def _check_size(self) -> None:
        for split, ids in self.splits.items():
            if len(ids) <= self.length:
                raise LengthError(
                    f"the {split} part of the text must be longer than a window of {self.length} "
                    f"characters, but it has {len(ids)}: use a longer text or a smaller --length"
                )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
