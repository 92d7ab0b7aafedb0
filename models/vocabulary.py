"""A vocabulary of single characters: text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from models.errors import InputError, VocabularyError


@dataclass(frozen=True)
class Vocabulary:
    """An ordered set of characters; a character's place is its id.

    >>> vocabulary = Vocabulary(("a", "b", "|"))
    >>> vocabulary.encode("ab|"), vocabulary.decode([1, 0])
    ([0, 1, 2], 'ba')
    """

    tokens: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {token: i for i, token in enumerate(self.tokens)})

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bos(self) -> None:
        """No character stands for the beginning of a text."""
        return None

    def encode(self, text: str, *, bos: bool | None = None) -> list[int]:
        """Ids of the characters of ``text``.

        Raises:
            VocabularyError: characters that are not in the vocabulary; it names them.
            InputError: ``bos=True``.
        """
        if bos:
            raise InputError("this model has no beginning-of-sequence token: leave out bos")
        unknown = sorted(set(text) - self._ids.keys())
        if unknown:
            raise VocabularyError(
                f"every character must be one of {self.describe()!r}, "
                f"but got {', '.join(map(repr, unknown))}"
            )
        return [self._ids[character] for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``.

        Raises:
            VocabularyError: ids that are not in the vocabulary.
        """
        if unknown := sorted(i for i in set(ids) if not 0 <= i < len(self)):
            raise VocabularyError(f"ids must be 0..{len(self) - 1}, but got {unknown}")
        return "".join(self.tokens[i] for i in ids)

    def labels(self, ids: Sequence[int]) -> list[str | bytes]:
        """The character of each id.

        Identity: joined, they are the text.
        """
        return [*self.decode(ids)]

    def describe(self) -> str:
        """The vocabulary in one short string; runs of three or more as ``a-z``.

        >>> Vocabulary(tuple("abcdx")).describe()
        'a-dx'
        """
        return "".join(_runs(self.tokens))


def _runs(tokens: Iterable[str]) -> list[str]:
    runs: list[list[str]] = []
    for token in sorted(tokens):
        if runs and ord(token) == ord(runs[-1][-1]) + 1:
            runs[-1].append(token)
        else:
            runs.append([token])
    return [f"{run[0]}-{run[-1]}" if len(run) > 2 else "".join(run) for run in runs]
