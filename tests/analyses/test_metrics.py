"""Metrics of a sequence, against numpy loops in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor

from analyses import metrics
from analyses.inputs import as_batch
from analyses.metrics import (
    DEFAULT,
    KL,
    NAMES,
    UNITS,
    Custom,
    LogitDifference,
    LogProbability,
    Metric,
    Probability,
    Rank,
    Rows,
    as_metrics,
    metric_named,
)
from analyses.readout import Readout
from models.errors import InputError, ProbeError, UnknownNameError
from models.gpt import GPT
from models.tasks import Batch, create


def score(metric: Metric, logits: Tensor, batch: Batch, *, runs: int = 1) -> Tensor:
    """``[sequence]``, from whole logits ``[run * sequence, pos, d_vocab]``."""
    read = metric.positions(batch)
    sequence, position = (part.repeat(runs) for part in read.nonzero(as_tuple=True))
    rows = Rows(sequence, position, batch, runs)
    readout = Readout(logits[read.repeat(runs, 1)])
    return metric.combine(metric.values(readout, rows), rows)


def scores(logits: Tensor, batch: Batch) -> Tensor:
    """The default metrics, ``[sequence, metric]``."""
    named = [metric_named(name) for name in DEFAULT]
    return torch.stack([score(metric, logits, batch)[0] for metric in named], dim=1)


def logits_for(batch: Batch, *, seed: int = 0) -> Tensor:
    """Random, with the right token made likely in some places."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*batch.tokens.shape, 27, generator=generator, dtype=torch.float64)
    right = torch.rand(batch.tokens.shape, generator=generator) < 0.8
    bonus = torch.nn.functional.one_hot(batch.next_tokens.clamp(min=0), 27) * right[..., None]
    return logits + 7 * bonus


def by_loops(logits: Tensor, batch: Batch) -> list[list[float]]:
    rows = []
    for i in range(len(batch)):
        at = batch.outputs[i].nonzero().flatten().tolist()
        targets = [int(batch.next_tokens[i, j]) for j in at]
        log_p = log_softmax(logits[i].double().numpy(), axis=-1)
        right = [int(log_p[j].argmax()) == t for j, t in zip(at, targets, strict=True)]
        loss = -np.mean([log_p[j, t] for j, t in zip(at, targets, strict=True)])
        rows.append([loss, np.mean(right), float(all(right))])
    return rows


@pytest.mark.parametrize("name", ["batch", "ragged_batch"])
def test_every_metric_is_its_definition(request: pytest.FixtureRequest, name: str) -> None:
    batch = request.getfixturevalue(name)
    logits = logits_for(batch)
    # measured: 9e-16 in double precision, 3e-7 in single precision
    np.testing.assert_allclose(scores(logits, batch), by_loops(logits, batch), atol=1e-12)
    single = scores(logits.float(), batch)
    np.testing.assert_allclose(single, by_loops(logits.float(), batch), rtol=0, atol=1e-5)
    assert single.dtype == torch.float64
    exact = single[:, DEFAULT.index("exact_match")]
    assert 0 < exact.mean() < 1, "the case must tell right from wrong"


def test_half_precision_logits_are_scored_in_single_precision(batch: Batch) -> None:
    logits = logits_for(batch).bfloat16()
    # measured: 3e-7; a loss kept in bfloat16 would be off by 1e-2
    np.testing.assert_allclose(scores(logits, batch), by_loops(logits, batch), rtol=0, atol=1e-5)


def test_a_sequence_without_outputs_is_undefined_and_not_right(batch: Batch) -> None:
    outputs = batch.outputs.clone()
    outputs[3] = False
    holed = Batch(batch.tokens, batch.lengths, batch.next_tokens, outputs, batch.target_keys)
    found = scores(logits_for(batch), holed)
    assert found[3].isnan().all()
    assert found.isnan().sum() == len(DEFAULT)


def test_logits_that_are_nan_make_every_metric_undefined() -> None:
    batch = create("reversal", length=5).heldout(3)
    logits = logits_for(batch)
    logits[1] = torch.nan
    values = scores(logits, batch)
    assert values[1].isnan().all()
    assert not values[[0, 2]].isnan().any()


# --- what comes after a prompt


def test_answers_are_read_at_the_last_real_token(model: GPT, ragged_batch: Batch) -> None:
    logits = logits_for(ragged_batch, seed=3)
    answer = [int(i) for i in torch.arange(len(ragged_batch)) % 7]
    last = ragged_batch.lengths - 1
    at_last = logits[torch.arange(len(logits)), last].numpy()
    log_p = log_softmax(at_last, axis=-1)
    row = np.arange(len(at_last))
    expected = {
        "logit_difference": at_last[row, answer] - at_last[:, 11],
        "logit": at_last[row, answer],
        "probability": np.exp(log_p[row, answer]),
        "log_probability": log_p[row, answer],
        "rank": 1.0 + (at_last > at_last[row, answer][:, None]).sum(1),
    }
    for name, value in expected.items():
        distractor = 11 if name == "logit_difference" else None
        metric = metric_named(name, answer=answer, distractor=distractor)
        (bound,) = as_metrics(model, ragged_batch, metric)
        found = score(bound, logits, ragged_batch)[0]
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)
    assert set(expected) | {*DEFAULT, "kl"} == set(NAMES)


@pytest.mark.parametrize("at", ["last", "outputs"])
def test_kl_is_from_the_clean_run_to_the_other(ragged_batch: Batch, at: str) -> None:
    clean, other = logits_for(ragged_batch), logits_for(ragged_batch, seed=1)
    metric = KL(at=at)
    read = metric.positions(ragged_batch)
    sequence, position = (part.repeat(2) for part in read.nonzero(as_tuple=True))
    rows = Rows(sequence, position, ragged_batch, 2, Readout(clean[read]))
    found = metric.values(Readout(torch.cat([clean[read], other[read]])), rows)
    p, q = clean[read].log_softmax(-1), other[read].log_softmax(-1)
    expected = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    values = metric.combine(found, rows)
    assert values.shape == (2, len(ragged_batch))
    assert float(values[0].abs().max()) == 0
    torch.testing.assert_close(found[len(p) :], expected, rtol=0, atol=1e-12)


def test_a_function_gets_the_logits_of_one_sequence_at_a_time(ragged_batch: Batch) -> None:
    logits = logits_for(ragged_batch)
    shapes = []

    def last_of_three(logits: Tensor) -> Tensor:
        shapes.append(tuple(logits.shape))
        return logits[0, -1, 3]

    twice = torch.cat([logits, 2 * logits])
    found = score(Custom(last_of_three), twice, ragged_batch, runs=2)
    last = logits[torch.arange(len(logits)), ragged_batch.lengths - 1, 3]
    torch.testing.assert_close(found, torch.stack([last, 2 * last]), rtol=0, atol=1e-12)
    assert shapes == [(1, n, 27) for n in ragged_batch.lengths.tolist()] * 2


def test_one_sequence_twice_is_two_calls_of_a_function(batch: Batch) -> None:
    logits = logits_for(batch[:1])
    calls = []
    score(
        Custom(lambda x: calls.append(0) or x[0, 0, 0]), torch.cat([logits] * 3), batch[:1], runs=3
    )
    assert len(calls) == 3


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("los", "did you mean loss"),
        ([], "at least one metric"),
        (["loss", "loss"], "each once"),
        (7, "a metric is a name"),
        ("logit_difference", "takes answer and distractor, but got none"),
        (LogitDifference(answer=1), "distractor must be one token"),
        (LogitDifference(answer=1.5, distractor=2), "must be one token"),
        (LogitDifference(answer=3, distractor=3), "must differ"),
        (KL, "a metric is a name"),
        (Probability(answer=99), "must be an id 0..26, but got 99"),
        (Probability(answer=[1, 2]), "one for each of 13, but got 2"),
        (Probability(answer="ab"), "must be one token of this model, but is 2"),
    ],
)
def test_what_is_no_metric_is_refused_in_one_line(
    model: GPT, batch: Batch, given: Any, message: str
) -> None:
    with pytest.raises(ProbeError, match=message) as error:
        as_metrics(model, batch, given)
    assert "\n" not in str(error.value)


def test_a_metric_is_told_which_tokens_it_does_not_take() -> None:
    with pytest.raises(InputError, match="loss takes no answer and no distractor, but got answer"):
        metric_named("loss", answer=3)
    with pytest.raises(UnknownNameError):
        metric_named("entropy")


def test_tokens_without_outputs_cannot_be_scored_by_loss(model: GPT) -> None:
    with pytest.raises(InputError, match="loss reads nothing here"):
        as_metrics(model, as_batch(model, [[3]]), "loss")
    assert as_metrics(model, as_batch(model, [[3]]), Rank(answer=2))


@pytest.mark.usefixtures("unchecked")
def test_answers_come_in_any_integer_form(model: GPT, batch: Batch) -> None:
    for answer in (3, np.int64(3), np.full(13, 3), torch.full((13,), 3), [3] * 13):
        metric: Any
        (metric,) = as_metrics(model, batch, Probability(answer=answer))
        assert metric.answer.tolist() == [3] * 13


@pytest.mark.parametrize("given", [None, "loss", torch.zeros(2)])
def test_a_function_must_give_one_number(batch: Batch, given: Any) -> None:
    with pytest.raises(InputError, match="must give one number"):
        score(Custom(lambda logits: given), logits_for(batch), batch)


def test_a_rank_among_nan_is_undefined() -> None:
    found = Readout(torch.tensor([[torch.nan] * 3, [0.0, 1.0, 2.0]])).n_above(torch.tensor([1, 1]))
    assert found.isnan().tolist() == [True, False]


def test_kl_is_read_at_the_last_token_or_at_outputs() -> None:
    with pytest.raises(InputError, match="at must be one of last, outputs, but got 'output'"):
        KL(at="output")


def test_a_function_is_named_after_itself(model: GPT, batch: Batch) -> None:
    def first(logits: Tensor) -> Tensor:
        return logits[0, 0, 0]

    assert [m.name for m in as_metrics(model, batch, [first, lambda x: x[0, 0, 1]])] == [
        "first",
        "custom",
    ]


def test_texts_become_ids_of_the_model(model: GPT, batch: Batch) -> None:
    metric: Any
    (metric,) = as_metrics(model, batch, LogProbability(answer="c"))
    assert set(metric.answer.tolist()) == {model.to_tokens("c").item()}


def test_every_metric_has_a_unit() -> None:
    assert set(UNITS) == set(NAMES)
    kinds: list[Callable[..., Any]] = [
        kind for kind in vars(metrics).values() if isinstance(kind, type)
    ]
    named = [k for k in kinds if issubclass(k, Metric) and "name" in vars(k)]
    assert {k.name for k in named if k is not Custom} == set(NAMES)
