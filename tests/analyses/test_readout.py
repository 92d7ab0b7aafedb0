"""Streamed logits against whole ones: torch's own reductions in float64."""

import pytest
import torch
from torch import Tensor

from analyses import readout
from analyses.readout import Readout, Unembedding

ROWS, WIDTH, VOCABULARY = 13, 7, 31


@pytest.fixture(params=["one block", "blocks", "whole logits", "bias"])
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Readout, Tensor]:
    """A readout and the logits it stands for, float64."""
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(ROWS, WIDTH, generator=generator)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator)
    bias = torch.randn(VOCABULARY, generator=generator) if request.param == "bias" else None
    logits = states.double() @ weight.double().T + (0 if bias is None else bias.double())
    if request.param == "whole logits":
        return Readout(logits.float()), logits
    if request.param != "one block":
        monkeypatch.setattr(readout, "BLOCK", 5)
        monkeypatch.setattr(readout, "ROWS", 3)
    return Readout(states, Unembedding(weight, bias)), logits


def test_what_is_streamed_is_what_whole_logits_give(case: tuple[Readout, Tensor]) -> None:
    read, logits = case
    ids = torch.arange(ROWS) % VOCABULARY
    # measured: 2e-6 at most
    tolerance = {"rtol": 0.0, "atol": 1e-5}
    torch.testing.assert_close(read.logits().double(), logits, **tolerance)
    torch.testing.assert_close(read.normalizer().double(), logits.logsumexp(1), **tolerance)
    expected = logits.log_softmax(1)[torch.arange(ROWS), ids]
    torch.testing.assert_close(read.log_probabilities(ids).double(), expected, **tolerance)
    some = torch.stack([ids, (ids + 3) % VOCABULARY], dim=1)
    torch.testing.assert_close(read.at(some).double(), logits.gather(1, some), **tolerance)
    assert torch.equal(read.argmax(), logits.argmax(1))
    above = (logits > logits.gather(1, ids[:, None])).sum(1)
    assert read.n_above(ids).tolist() == above.tolist()


@pytest.mark.parametrize("first", ["argmax", "normalizer"])
def test_one_pass_or_two_give_the_same(case: tuple[Readout, Tensor], first: str) -> None:
    read, logits = case
    getattr(read, first)()
    assert torch.equal(read.argmax(), logits.argmax(1))
    assert float((read.normalizer() - logits.logsumexp(1)).abs().max()) < 1e-5


def test_some_rows_keep_what_is_known(case: tuple[Readout, Tensor]) -> None:
    read, logits = case
    rows = torch.tensor([11, 2, 5])
    before = read[rows].normalizer()
    read.argmax()
    part = read[rows]
    assert part._normalizer is not None
    assert part._argmax is not None
    assert torch.equal(part.argmax(), logits[rows].argmax(1))
    assert torch.allclose(part.normalizer(), before)


def test_whole_logits_stay_as_they_were() -> None:
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0))
    kept = logits.clone()
    read = Readout(logits, best=True)
    read.normalizer(), read.n_above(torch.zeros(ROWS, dtype=torch.long))
    assert torch.equal(logits, kept)


def test_large_logits_neither_overflow_nor_vanish() -> None:
    logits = torch.tensor([[3e4, 2.0, -3e4], [-1e30, -1e30, -1e30], [0.0, -torch.inf, 0.0]])
    found = Readout(logits).normalizer()
    expected = logits.double().logsumexp(1)
    torch.testing.assert_close(found, expected)


def test_logits_that_are_nan_have_no_normalizer() -> None:
    found = Readout(torch.tensor([[torch.nan, 1.0], [0.0, 1.0]])).normalizer()
    assert found.isnan().tolist() == [True, False]


def test_half_precision_is_summed_in_single_precision() -> None:
    logits = torch.zeros(2, 4099, dtype=torch.bfloat16)
    # a sum kept in bfloat16 stalls at 256
    assert float((Readout(logits).normalizer() - torch.tensor(4099.0).log()).abs().max()) < 1e-5
