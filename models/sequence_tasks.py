"""Tasks on random letters: reversal, and induction (a block repeated)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from models.errors import InputError, LengthError
from models.names import SPLITS, Split, choose
from models.tasks import Batch, Task, register
from models.vocabulary import Vocabulary

HELD_OUT_SHARE = 10  # one sequence in ten is held out
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SEPARATOR = "|"


@dataclass(frozen=True)
class SequenceTask(Task):
    """``x1 .. xn SEP y1 .. yn`` over the letters a-z, with ``y`` a function of ``x``.

    Args:
        length: letters in a sequence.
        min_length: when given, lengths are drawn uniformly from ``min_length..length``.
    """

    length: int = 16
    min_length: int | None = None

    def __post_init__(self) -> None:
        low = self.shortest
        if self.length < 1 or not 1 <= low <= self.length:
            raise InputError(
                f"lengths must satisfy 1 <= min_length <= length, "
                f"but got min_length {low} and length {self.length}"
            )

    @abstractmethod
    def answer(self, given: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
        """The right output for each input."""

    @property
    def shortest(self) -> int:
        """The shortest input."""
        return self.length if self.min_length is None else self.min_length

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """a-z and the separator."""
        return Vocabulary((*LETTERS, SEPARATOR))

    @property
    def fixed_layout(self) -> bool:
        """Whether all sequences are of one length."""
        return self.shortest == self.length

    @property
    def n_ctx(self) -> int:
        """Input, separator and output."""
        return 2 * self.length + 1

    def draw(self, n: int, *, generator: torch.Generator, split: Split = "train") -> Batch:
        """Random letters of random length; which split a sequence is in depends on it alone."""
        choose("split", split, SPLITS)
        device = generator.device
        given, lengths = _draw_split(
            n, self.shortest, self.length, len(LETTERS), generator=generator, split=split
        )
        if self.fixed_layout:
            separator = torch.full((n, 1), len(LETTERS), device=device)
            tokens = torch.cat([given, separator, self.answer(given)], dim=1)
        else:
            tokens = torch.zeros(n, self.n_ctx, dtype=torch.long, device=device)
            for k in range(self.shortest, self.length + 1):
                rows = lengths == k
                part = given[rows, :k]
                tokens[rows, :k], tokens[rows, k] = part, len(LETTERS)
                tokens[rows, k + 1 : 2 * k + 1] = self.answer(part)
        return self._batch(tokens, lengths)

    def target_key(self, query: Tensor, n: Tensor) -> Tensor:
        """The key that the query predicting an output should look at; -1: none is meant."""
        return torch.full_like(query.expand(len(n), -1), -1)

    def prompt(self, text: str) -> tuple[list[int], int]:
        """The word and the separator; as many letters are to be generated."""
        word = text.lower()
        ids = self.vocabulary.encode(word)
        if len(LETTERS) in ids:
            raise InputError(f"the word is typed without the separator {SEPARATOR!r}")
        if not self.shortest <= len(ids) <= self.length:
            wants = (
                f"{self.length}"
                if self.shortest == self.length
                else f"{self.shortest} to {self.length}"
            )
            raise LengthError(
                f"this model takes words of {wants} letters, but {text!r} has {len(ids)}"
                " (train other lengths with --length or a range with --min-length)"
            )
        return [*ids, len(LETTERS)], len(ids)

    def layout(self) -> list[str]:
        """x1 .. xn | y1 .. yn."""
        n = range(1, self.length + 1)
        return [*(f"x{i}" for i in n), SEPARATOR, *(f"y{i}" for i in n)]

    def _batch(self, tokens: Tensor, lengths: Tensor) -> Batch:
        query = torch.arange(tokens.shape[1], device=tokens.device)[None, :]
        n = lengths[:, None]
        predicting = (query >= n) & (query < 2 * n)
        targets = torch.where(predicting, self.target_key(query, n), -1)
        following = torch.where(query < 2 * n, F.pad(tokens[:, 1:], (0, 1)), -1)
        groups = {"inputs": query < n, "predicting": predicting, "separator": query == n}
        return Batch(tokens, 2 * lengths + 1, following, predicting, targets, groups)


@register
@dataclass(frozen=True)
class Reversal(SequenceTask):
    """The output is the input reversed: query ``n + j - 1`` should look at key ``n - j``."""

    name: ClassVar[str] = "reversal"

    def answer(self, given: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
        """The input, back to front."""
        return given.flip(1)

    def target_key(self, query: Tensor, n: Tensor) -> Tensor:
        """The anti-diagonal: query + key = 2n - 1."""
        return 2 * n - 1 - query


@register
@dataclass(frozen=True)
class Induction(Task):
    """A random block of letters, then the same block again; the second is the output.

    The first letter of the second block cannot be known; from then on, query ``i`` should look
    at key ``i - length + 1``, the letter after the earlier copy.
    """

    name: ClassVar[str] = "induction"
    length: int = 16

    def __post_init__(self) -> None:
        if not 2 <= self.length <= len(LETTERS):
            raise InputError(
                f"an induction block has 2 to {len(LETTERS)} distinct letters, "
                f"but length is {self.length}"
            )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """a-z."""
        return Vocabulary(tuple(LETTERS))

    @property
    def n_ctx(self) -> int:
        """Two blocks."""
        return 2 * self.length

    @property
    def fixed_layout(self) -> bool:
        """All sequences are two blocks of one length."""
        return True

    def draw(self, n: int, *, generator: torch.Generator, split: Split = "train") -> Batch:
        """Blocks of distinct letters, repeated once."""
        choose("split", split, SPLITS)
        block, lengths = _draw_split(
            n,
            self.length,
            self.length,
            len(LETTERS),
            generator=generator,
            split=split,
            distinct=True,
        )
        tokens = torch.cat([block, block], dim=1)
        query = torch.arange(2 * self.length, device=tokens.device).expand(n, -1)
        second = query >= self.length
        outputs = second & (query < 2 * self.length - 1)
        targets = torch.where(outputs, query - self.length + 1, -1)
        groups = {"first_block": ~second, "second_block": second}
        following = torch.where(query < 2 * self.length - 1, F.pad(tokens[:, 1:], (0, 1)), -1)
        return Batch(tokens, 2 * lengths, following, outputs, targets, groups)

    def prompt(self, text: str) -> tuple[list[int], int]:
        """A block and its first letter again; the rest is to be generated."""
        ids = self.vocabulary.encode(text.lower())
        if len(ids) != self.length:
            raise LengthError(
                f"this model takes blocks of {self.length} letters, but {text!r} has {len(ids)}"
            )
        return [*ids, ids[0]], self.length - 1


def _draw_split(
    n: int,
    shortest: int,
    longest: int,
    n_letters: int,
    *,
    generator: torch.Generator,
    split: Split,
    distinct: bool = False,
) -> tuple[Int[Tensor, "n longest"], Int[Tensor, " n"]]:
    """Draw sequences until ``n`` of them belong to ``split``; zeros past a length."""
    device, kept, lengths, found = generator.device, [], [], 0
    for _ in range(1000):
        k = 2 * n if split == "train" else HELD_OUT_SHARE * 2 * n
        if distinct:
            order = torch.rand(k, n_letters, generator=generator, device=device).argsort(1)
            given = order[:, :longest]
        else:
            given = torch.randint(n_letters, (k, longest), generator=generator, device=device)
        length = torch.full((k,), longest, device=device)
        if shortest < longest:
            length = torch.randint(shortest, longest + 1, (k,), generator=generator, device=device)
            given = given * (torch.arange(longest, device=device) < length[:, None])
        wanted = (is_heldout(given, length) == (split == "heldout")).nonzero()[:, 0]
        kept.append(given[wanted])
        lengths.append(length[wanted])
        found += len(kept[-1])
        if found >= n:
            return torch.cat(kept)[:n], torch.cat(lengths)[:n]
    raise InputError(
        f"no {split} sequence of length {shortest}..{longest} was found: use longer ones"
    )


def is_heldout(
    given: Int[Tensor, "batch n"], lengths: Int[Tensor, " batch"]
) -> Bool[Tensor, " batch"]:
    """Whether sequences belong to the held-out share, by a hash of letters and length."""
    place = torch.arange(1, given.shape[1] + 1, device=given.device)
    factor = (place * 0x9E3779B1 ^ place << 17) % 0x7FFFFFFF | 1
    letters = torch.where(place <= lengths[:, None], given + 1, 0)
    value = (letters * factor).sum(1) + lengths * 0x85EBCA6B & 0x7FFFFFFF
    for shift, multiplier in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):  # a 31-bit finaliser
        value = (value ^ value >> shift) * multiplier & 0x7FFFFFFF
    return (value ^ value >> 15) % HELD_OUT_SHARE == 0
