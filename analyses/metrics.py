"""How a model is judged on each sequence.

A metric knows the positions it reads and their targets, and asks of the logits only what it
needs (`analyses.readout.Readout`): the loss never forms all logits, a logit difference forms two
numbers per position. A plain function of logits works too, and gets all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analyses.answers import single_token as single_token
from analyses.answers import token_ids as token_ids
from analyses.inputs import real_positions
from analyses.readout import Readout
from models.errors import InputError
from models.interface import HookedModel
from models.names import choose, unknown
from models.tasks import Batch

Token = str | int
Tokens = Token | Sequence[Token]
"""One token for all sequences, or one for each."""


class Rows(NamedTuple):
    """Which positions the rows of a readout are.

    Args:
        sequence, position: where each row is read; the same for every run, one run after another.
        batch: the sequences.
        runs: how many runs of all these sequences there are.
        clean: the rows of the clean run, for metrics that compare with it.
    """

    sequence: Int[Tensor, " row"]
    position: Int[Tensor, " row"]
    batch: Batch
    runs: int = 1
    clean: Readout | None = None

    @property
    def targets(self) -> Int[Tensor, " row"]:
        """The right next token."""
        return self.batch.next_tokens[self.sequence, self.position]

    @property
    def owner(self) -> Int[Tensor, " row"]:
        """Which sequence of which run a row is of: ``run * n_sequences + sequence``."""
        run = torch.arange(self.runs, device=self.sequence.device)
        return self.sequence + len(self.batch) * run.repeat_interleave(
            len(self.sequence) // self.runs
        )


@dataclass(frozen=True)
class Metric(ABC):
    """One number per sequence: a mean over the positions it reads, unless it says otherwise."""

    name: ClassVar[str]
    unit: ClassVar[str]
    better: ClassVar[int] = 1
    """1 where larger is better, -1 where smaller is, 0 where neither."""
    best: ClassVar[bool] = False
    """Reads the likeliest token."""
    whole: ClassVar[bool] = False
    """Reads whole logits."""

    def bind(self, model: HookedModel, batch: Batch) -> Metric:
        """The metric for these sequences: texts become ids."""
        return self

    def positions(self, batch: Batch) -> Bool[Tensor, "sequence pos"]:
        """What it reads; by default the outputs."""
        return batch.outputs

    @abstractmethod
    def values(self, read: Readout, rows: Rows) -> Float[Tensor, " row"]:
        """The quantity at each row."""

    def combine(self, values: Float[Tensor, " row"], rows: Rows) -> Float[Tensor, "run sequence"]:
        """One number for each sequence of each run; NaN where nothing is read. Float64."""
        n = rows.runs * len(rows.batch)
        total = torch.zeros(n, dtype=torch.float64, device=values.device)
        total = total.index_add(0, rows.owner, values.double())
        mean = total / rows.owner.bincount(minlength=n).double()
        return mean.view(rows.runs, len(rows.batch))


@dataclass(frozen=True)
class Loss(Metric):
    """Mean cross-entropy over the outputs."""

    name = "loss"
    unit = "nats per output"
    better = -1

    def values(self, read: Readout, rows: Rows) -> Tensor:
        return -read.log_probabilities(rows.targets)


@dataclass(frozen=True)
class TokenAccuracy(Metric):
    """Share of the outputs whose likeliest token is the right one."""

    name = "token_accuracy"
    unit = "share"
    best = True

    def values(self, read: Readout, rows: Rows) -> Tensor:
        right = (read.argmax() == rows.targets).double()
        return right.masked_fill(read.normalizer().isnan(), torch.nan)


@dataclass(frozen=True)
class ExactMatch(TokenAccuracy):
    """1 where every output is right, else 0."""

    name = "exact_match"

    def combine(self, values: Tensor, rows: Rows) -> Tensor:
        share = super().combine(values, rows)
        return torch.where(share.isnan(), torch.nan, (share == 1).double())


@dataclass(frozen=True)
class _Last(Metric):
    """Reads the last real position of each sequence: what comes after a prompt."""

    def positions(self, batch: Batch) -> Tensor:
        return last_positions(batch)


@dataclass(frozen=True)
class _Answer(_Last):
    answer: Any = None  # Tokens; ids [sequence] once bound

    def bind(self, model: HookedModel, batch: Batch) -> Metric:
        return replace(self, answer=token_ids(model, self.answer, len(batch), what="answer"))

    def _answers(self, rows: Rows) -> Tensor:
        return self.answer[rows.sequence]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class LogitDifference(_Answer):
    """Logit of the answer above that of the distractor, after the prompt.

    Args:
        answer, distractor: one token each (text or id), or one for every prompt.
    """

    distractor: Any = None
    name = "logit_difference"
    unit = "logits"

    def bind(self, model: HookedModel, batch: Batch) -> Metric:
        other = token_ids(model, self.distractor, len(batch), what="distractor")
        bound = replace(super().bind(model, batch), distractor=other)  # type: ignore[call-arg]
        if bool((bound.answer == other).any()):  # type: ignore[attr-defined]
            raise InputError("answer and distractor must differ, but are one token")
        return bound

    def values(self, read: Readout, rows: Rows) -> Tensor:
        ids = torch.stack([self._answers(rows), self.distractor[rows.sequence]], dim=1)
        answer, distractor = read.at(ids).unbind(1)
        return answer - distractor


@dataclass(frozen=True)
class Logit(_Answer):
    """Logit of the answer after the prompt; only differences of it mean something."""

    name = "logit"
    unit = "logits"

    def values(self, read: Readout, rows: Rows) -> Tensor:
        return read.at(self._answers(rows)[:, None])[:, 0]


@dataclass(frozen=True)
class Probability(_Answer):
    """Probability of the answer after the prompt."""

    name = "probability"
    unit = "probability"

    def values(self, read: Readout, rows: Rows) -> Tensor:
        return read.log_probabilities(self._answers(rows)).exp()


@dataclass(frozen=True)
class LogProbability(_Answer):
    """Logarithm of the probability of the answer after the prompt."""

    name = "log_probability"
    unit = "nats"

    def values(self, read: Readout, rows: Rows) -> Tensor:
        return read.log_probabilities(self._answers(rows))


@dataclass(frozen=True)
class Rank(_Answer):
    """Rank of the answer after the prompt: 1 plus the number of likelier tokens."""

    name = "rank"
    unit = "rank"
    better = -1

    def values(self, read: Readout, rows: Rows) -> Tensor:
        return 1 + read.n_above(self._answers(rows))


@dataclass(frozen=True)
class KL(Metric):
    """How far the prediction is from the clean run's: KL(clean || run).

    Args:
        at: ``last`` for what comes after the prompt, ``outputs`` for a mean over the outputs.
    """

    at: str = "last"
    name = "kl"
    unit = "nats"
    better = -1
    whole = True

    def __post_init__(self) -> None:
        choose("at", self.at, ("last", "outputs"))

    def positions(self, batch: Batch) -> Tensor:
        return batch.outputs if self.at == "outputs" else last_positions(batch)

    def values(self, read: Readout, rows: Rows) -> Tensor:
        if rows.clean is None:
            return torch.zeros(len(read), dtype=torch.float64, device=read.states.device)
        clean = rows.clean.logits().log_softmax(-1)
        clean = clean.repeat(len(read) // len(clean), 1)
        found = read.logits().log_softmax(-1)
        return (clean.exp() * (clean - found)).nan_to_num(nan=torch.nan, posinf=torch.inf).sum(-1)


@dataclass(frozen=True)
class Custom(Metric):
    """A function of the logits ``[1, pos, d_vocab]`` of one sequence, its real positions only."""

    function: Callable[[Tensor], Any]
    unit = "as given"
    better = 0
    whole = True

    @property
    def name(self) -> str:  # type: ignore[override]
        """The function's own name; ``custom`` where it has none."""
        name = getattr(self.function, "__name__", "custom")
        return "custom" if name == "<lambda>" else name

    def positions(self, batch: Batch) -> Tensor:
        return real_positions(batch)

    def values(self, read: Readout, rows: Rows) -> Tensor:
        """The same number at each row of a sequence, so that their mean is that number."""
        lengths = torch.unique_consecutive(rows.owner, return_counts=True)[1].tolist()
        found = []
        for logits in torch.split(read.logits(), lengths):
            found.append(_one_number(self.function(logits[None])).expand(len(logits)))
        return torch.cat(found).to(read.states.device)


_NAMED: dict[str, type[Metric]] = {
    metric.name: metric
    for metric in (
        Loss,
        TokenAccuracy,
        ExactMatch,
        LogitDifference,
        Logit,
        Probability,
        LogProbability,
        Rank,
        KL,
    )
}
NAMES = tuple(_NAMED)
UNITS = {name: metric.unit for name, metric in _NAMED.items()}
DEFAULT = ("loss", "token_accuracy", "exact_match")

MetricLike = Metric | str | Callable[[Tensor], Any]


def metric_named(name: str, *, answer: Any = None, distractor: Any = None) -> Metric:
    """A metric by name, with the tokens that it needs.

    Raises:
        UnknownNameError: no such metric.
        InputError: a token that it needs is missing, or given and not read.
    """
    if name not in _NAMED:
        raise unknown("metric", name, NAMES)
    kind = _NAMED[name]
    given = {k: v for k, v in {"answer": answer, "distractor": distractor}.items() if v is not None}
    fields = [f for f in ("answer", "distractor") if f in kind.__dataclass_fields__]
    if list(given) != fields:
        needs = " and ".join(fields) or "no answer and no distractor"
        example = f": in Python {kind.__name__}({', '.join(fields)})" if fields else ""
        got = ", ".join(given) or "none"
        raise InputError(f"metric {name} takes {needs}, but got {got}{example}")
    return kind(**given)


def as_metrics(
    model: HookedModel, batch: Batch, metric: MetricLike | Iterable[MetricLike] | None = None
) -> list[Metric]:
    """Metrics ready for a batch.

    Args:
        model: a hooked model.
        batch: the sequences.
        metric: a name of `NAMES`, a `Metric`, a function of the logits ``[1, pos, d_vocab]`` of
            one sequence that gives one number, or several of these; default loss, token accuracy
            and exact match.

    Raises:
        InputError: an answer that is not one token, or a metric that reads nothing here.
    """
    given: Any = DEFAULT if metric is None else metric
    several = isinstance(given, Iterable) and not isinstance(given, str)
    metrics = [_as_metric(one).bind(model, batch) for one in (given if several else [given])]
    names = [one.name for one in metrics]
    if not names or len(set(names)) < len(names):
        raise InputError(f"name at least one metric, and each once, but got {names}")
    for one in metrics:
        if not bool(one.positions(batch).any()):
            raise InputError(f"{one.name} reads nothing here: it needs tokens with outputs")
    return metrics


def last_positions(batch: Batch) -> Bool[Tensor, "sequence pos"]:
    """The last real position of each sequence."""
    last = torch.zeros_like(batch.outputs)
    last[torch.arange(len(batch), device=last.device), batch.lengths - 1] = True
    return last


def _one_number(value: Any) -> Float[Tensor, " one"]:
    """What a function of the user gave, as one number."""
    try:
        number = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        number = torch.empty(0)
    if number.numel() != 1:
        got = f"shape {tuple(number.shape)}" if isinstance(value, Tensor) else repr(value)
        raise InputError(
            f"a metric must give one number for logits [1, pos, d_vocab] of a sequence, not {got}"
        )
    return number.reshape(1)


def _as_metric(given: MetricLike) -> Metric:
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        return metric_named(given)
    kind: object = given
    if callable(kind) and not isinstance(kind, type):
        return Custom(given)
    raise InputError(f"a metric is a name, a Metric or a function, but got {given!r}")
