"""The logit lens against its definition, layer by layer, and against the model itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import lens
from analyses.inputs import as_batch
from analyses.lens import logit_lens
from analyses.metrics import KL, LogitDifference, LogProbability
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture
from models.tasks import Batch

ROWS = [[3, 1, 4, 3, 1], [2, 7, 1, 8, 2, 8, 5], [6]]


def by_hand(model: Any, row: list[int], depth: int) -> torch.Tensor:
    """Log-probabilities after the row from one layer's stream, in float64."""
    name = "blocks.0.hook_resid_pre" if depth == 0 else f"blocks.{depth - 1}.hook_resid_post"
    x = capture(model, [row], [name]).activations[name][0, -1].double()
    norm = model.ln_final
    centred = x - x.mean()
    scale = (centred.square().mean() + 1e-5).sqrt()  # of this stream, not of the last
    states = centred / scale * norm.weight.detach().double() + norm.bias.detach().double()
    return (states @ model.W_U.detach().double()).log_softmax(-1)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_every_layer_is_read_with_the_scale_of_its_own_stream(
    request: pytest.FixtureRequest, engine: str
) -> None:
    model = request.getfixturevalue(engine)
    answers = [5, 0, 9]
    table = logit_lens(model, ROWS, metric=LogProbability(answer=answers), per_prompt=True)
    assert len(table) == 3 * 3
    for row in table.itertuples():
        expected = by_hand(model, ROWS[row.prompt], row.n_layers)
        # measured: 6e-7
        assert row.value == pytest.approx(float(expected[answers[row.prompt]]), abs=2e-5)
        assert row.top_probability == pytest.approx(float(expected.max().exp()), abs=1e-5)
        own = by_hand(model, ROWS[row.prompt], 2).argmax()
        assert row.agreement == float(expected.argmax() == own)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_the_last_row_is_the_model(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    table = logit_lens(model, ROWS, per_prompt=True)
    batch = as_batch(model, ROWS)
    logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    last = logits.detach()[range(3), batch.lengths - 1].log_softmax(-1).amax(-1)
    found = table[table["n_layers"] == 2]
    np.testing.assert_allclose(found["value"], last, rtol=0, atol=1e-5)  # measured: 6e-7
    assert (found["agreement"] == 1).all()


def test_metrics_end_at_their_clean_value(model: GPT, ragged_batch: Batch) -> None:
    distance = logit_lens(model, ragged_batch, metric=KL())
    assert distance["n_layers"].tolist() == [0, 1, 2]
    assert distance["value"].iloc[0] > 0.1
    assert distance["value"].iloc[-1] == pytest.approx(0, abs=1e-6)
    loss = logit_lens(model, ragged_batch, metric="loss")
    assert (loss["ci_low"] < loss["value"]).all()
    assert (loss["value"] < loss["ci_high"]).all()
    assert set(loss["n"]) == {17}
    assert loss.attrs["units"] == {"value": "nats per output"}


def test_a_prompt_in_a_padded_batch_is_the_prompt_alone(model: GPT) -> None:
    metric = LogitDifference(answer=3, distractor=1)
    together = logit_lens(model, ROWS, metric=metric, per_prompt=True)
    for i, row in enumerate(ROWS):
        alone = logit_lens(model, [row], metric=metric)
        found = together[together["prompt"] == i]
        for column in ("value", "top_probability", "agreement"):
            # measured: 1e-6
            np.testing.assert_allclose(found[column], alone[column], rtol=0, atol=2e-5)


def test_few_sequences_at_a_time_change_nothing(
    model: GPT, ragged_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = logit_lens(model, ragged_batch)
    monkeypatch.setattr(lens, "chunk_size", lambda model, n_pos: 5)
    pd.testing.assert_frame_equal(logit_lens(model, ragged_batch), whole, rtol=1e-4, atol=1e-6)


def test_the_model_is_left_as_it_was(make_model: Callable[..., GPT]) -> None:
    model = make_model().train()
    logit_lens(model, ROWS)
    assert model.training
    assert not any(point.watched for point in model.hook_dict.values())


def test_several_metrics_are_refused(model: GPT, unchecked: None) -> None:
    with pytest.raises(InputError, match="needs one metric, but got 2"):
        logit_lens(model, ROWS, metric=["loss", KL()])  # type: ignore[arg-type]
