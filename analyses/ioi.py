"""Indirect object identification: a task in ready-made prompts.

"When Mary and John went to the store, John gave a drink to" goes on with " Mary": the indirect
object (IO), the name that is not said again, and not with " John", the subject (S). The order of
the two names is ABBA (IO first) or BABA (S first), in equal shares. Names are one token each in the
model's own tokenizer, which is checked, so that a clean prompt and its corrupted counterparts are
equally long.

Source: Wang et al. 2022, "Interpretability in the wild" (arXiv 2211.00593).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analyses.metrics import LogitDifference, single_token
from analyses.pairs import Prompts
from models.errors import InputError, ProbeError
from models.interface import HookedModel
from models.text_codec import codec_of

# fmt: off
NAMES = (
    "Mary", "John", "Tom", "James", "Dan", "Martin", "Amy", "Laura", "Anna", "Emma", "David",
    "Paul", "Peter", "Mark", "Sarah", "Alice", "Robert", "Michael", "Jack", "Kate", "Jane",
    "Lisa", "George", "Kevin", "Scott", "Steve", "Jason", "Adam", "Andrew", "Simon", "Matt",
    "Alex",
)
# fmt: on

TEMPLATES = (
    "When {A} and {B} went to the store, {S} gave a drink to",
    "Then, {A} and {B} had a long argument, and afterwards {S} said sorry to",
    "After {A} and {B} met at the station, {S} handed a ticket to",
    "While {A} and {B} were working at the office, {S} gave a book to",
    "Yesterday {A} and {B} had lunch in the garden, and {S} passed the bread to",
    "Once {A} and {B} got to the house, {S} decided to give the keys to",
    "Friends since school, {A} and {B} found a dog at the park, and {S} gave it to",
    "The day {A} and {B} were at the hospital, {S} brought flowers to",
    "Because {A} and {B} had a lot of fun at the school, {S} wrote a letter to",
    "As soon as {A} and {B} arrived at the restaurant, {S} offered a seat to",
    "Last week {A} and {B} played a game, and {S} lent a ball to",
    "In the evening {A} and {B} sat by the fire, and {S} told a story to",
    "Before {A} and {B} left the museum, {S} showed a painting to",
    "At noon {A} and {B} started a meeting, and {S} sent the report to",
    "Although {A} and {B} were late for the train, {S} still bought a coffee for",
)
ORDERS = ("ABBA", "BABA")
PLACES = ("IO", "S1", "S2", "END")
FEWEST_NAMES = 3


@dataclass(frozen=True)
class IOI:
    """Prompts of indirect object identification; entry i of every tuple is of prompt i.

    Args:
        texts: the clean prompts.
        clean: their ids, and which template each is of.
        abc: the same with S2 replaced by a third name, so that no name is said twice.
        swapped: the same with S2 replaced by the IO, so that the right answer is the other name.
        answers: the IO, with its space, as in ``" Mary"``.
        distractors: the subject.
        third: the name that stands at S2 in ``abc``.
        orders: ``ABBA`` or ``BABA``.
        positions: by place (``IO``, ``S1``, ``S2``, ``END``), from 0.
        left_out: names of `NAMES` that are not one token of this model.
    """

    texts: tuple[str, ...]
    clean: Prompts
    abc: Prompts
    swapped: Prompts
    answers: tuple[str, ...]
    distractors: tuple[str, ...]
    third: tuple[str, ...]
    orders: tuple[str, ...]
    positions: Mapping[str, tuple[int, ...]]
    left_out: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def templates(self) -> tuple[int, ...]:
        """The number of each prompt's template in `TEMPLATES`: the unit of intervals."""
        return self.clean.units

    @property
    def metric(self) -> LogitDifference:
        """Logit of the indirect object above that of the subject, in logits."""
        return LogitDifference(list(self.answers), list(self.distractors))

    def table(self) -> pd.DataFrame:
        """One row per prompt.

        Returns:
            ``prompt`` (number), ``text``, ``template``, ``order``, ``answer``, ``distractor``,
            ``third``, ``IO``, ``S1``, ``S2``, ``END`` (positions, tokens from 0), ``ids``.
        """
        table = pd.DataFrame(
            {
                "prompt": range(len(self)),
                "text": self.texts,
                "template": self.templates,
                "order": self.orders,
                "answer": self.answers,
                "distractor": self.distractors,
                "third": self.third,
                **self.positions,
                "ids": [" ".join(map(str, row)) for row in self.clean.ids],
            }
        )
        table.attrs["units"] = dict.fromkeys(PLACES, "position, tokens from 0")
        return table


class _Prompt(NamedTuple):
    template: int
    order: str
    answer: str
    subject: str
    third: str

    def text(self, second: str) -> str:
        """The prompt with a name at S2."""
        pair = (self.answer, self.subject)
        first, other = pair if self.order == "ABBA" else pair[::-1]
        return TEMPLATES[self.template].format(A=first, B=other, S=second)


def ioi(model: HookedModel, *, n: int = 60, seed: int = 0, bos: bool | None = None) -> IOI:
    """Draw prompts of indirect object identification for a model.

    Args:
        model: a hooked model with a tokenizer.
        n: how many prompts; templates and orders take turns, so that multiples of 30 hold every
            template in both orders equally often.
        seed: of the names.
        bos: see `models.text_codec.TextCodec.encode`.

    Returns:
        The prompts, with both kinds of corrupted counterpart.

    Raises:
        InputError: ``n`` under 1, or fewer than 3 names that are one token of this model.

    Identity: a prompt and its counterparts differ in the token at S2 alone.
    """
    if n < 1 or seed < 0:
        raise InputError(f"n must be at least 1 and seed at least 0, but got {n} and {seed}")
    known, left_out = single_token_names(model)
    draw = np.random.default_rng(seed)
    prompts = []
    for i in range(n):
        chosen = draw.choice(len(known), FEWEST_NAMES, replace=False)
        names = (known[int(k)] for k in chosen)
        prompts.append(_Prompt(i % len(TEMPLATES), ORDERS[i % 2], *names))
    codec: Any = codec_of(model)
    units = tuple(prompt.template for prompt in prompts)
    clean, abc, swapped = (
        tuple(tuple(codec.encode(text, bos=bos)) for text in texts)
        for texts in (
            [prompt.text(prompt.subject) for prompt in prompts],
            [prompt.text(prompt.third) for prompt in prompts],
            [prompt.text(prompt.answer) for prompt in prompts],
        )
    )
    places = [
        _places(model, prompt, *rows)
        for prompt, *rows in zip(prompts, clean, abc, swapped, strict=True)
    ]
    return IOI(
        texts=tuple(prompt.text(prompt.subject) for prompt in prompts),
        clean=Prompts(clean, units),
        abc=Prompts(abc, units),
        swapped=Prompts(swapped, units),
        answers=tuple(f" {prompt.answer}" for prompt in prompts),
        distractors=tuple(f" {prompt.subject}" for prompt in prompts),
        third=tuple(f" {prompt.third}" for prompt in prompts),
        orders=tuple(prompt.order for prompt in prompts),
        positions={name: tuple(place[name] for place in places) for name in PLACES},
        left_out=left_out,
    )


def single_token_names(model: HookedModel) -> tuple[list[str], tuple[str, ...]]:
    """The names that are one token of the model, each its own, and those that are not.

    Raises:
        InputError: fewer than 3 are.
    """
    known: dict[int, str] = {}
    left_out = []
    for name in NAMES:
        try:
            token = single_token(model, f" {name}")
            whole = codec_of(model).decode([token]).strip() == name
        except ProbeError:
            whole = False
        if whole and token not in known:
            known[token] = name
        else:
            left_out.append(name)
    if len(known) < FEWEST_NAMES:
        raise InputError(
            f"indirect object identification needs {FEWEST_NAMES} names that are one token of the "
            f"model's tokenizer, but of {len(NAMES)} only {len(known)} are: "
            "use a model with a word or byte-pair tokenizer"
        )
    return list(known.values()), tuple(left_out)


def _places(
    model: HookedModel,
    prompt: _Prompt,
    clean: Sequence[int],
    abc: Sequence[int],
    swapped: Sequence[int],
) -> dict[str, int]:
    """Where the names stand, found by their ids and checked."""
    io, subject, third = (
        single_token(model, f" {name}") for name in (prompt.answer, prompt.subject, prompt.third)
    )
    at = [i for i, token in enumerate(clean) if token == subject]
    first = [i for i, token in enumerate(clean) if token == io]
    if len(at) == 2 and len(first) == 1:
        rest = (*clean[: at[1]], *clean[at[1] + 1 :])
        changed = [(abc, third), (swapped, io)]
        if all((*r[: at[1]], *r[at[1] + 1 :]) == rest and r[at[1]] == t for r, t in changed):
            return {"IO": first[0], "S1": at[0], "S2": at[1], "END": len(clean) - 1}
    raise InputError(
        f"the names {prompt.answer} and {prompt.subject} must stay one token inside a sentence, "
        f"but this tokenizer reads {prompt.text(prompt.subject)!r} otherwise"
    )
