"""Direct effects: they add up to the logits, and are what other implementations say."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from analyses import attribution
from analyses.attribution import direct_effects
from analyses.inputs import as_batch
from analyses.metrics import KL, Logit, LogitDifference, LogProbability, Loss, Metric, Rank
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture
from models.load import load
from models.tasks import Batch

ROWS = [[3, 1, 4, 3, 1], [2, 7, 1, 8, 2, 8, 5], [6]]
METRICS = [
    LogitDifference(answer=3, distractor=[1, 4, 6]),
    Logit(answer=[2, 0, 7]),
    Loss(),
]


def logits_of(model: Any, batch: Batch) -> Tensor:
    logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    return logits.detach().double()


def sums(model: Any, batch: Batch, metric: Metric) -> list[float]:
    """The sum of logits that stands for a metric, from the model's own logits, by loops."""
    logits, found = logits_of(model, batch), []
    for i, length in enumerate(batch.lengths.tolist()):
        if isinstance(metric, Loss):
            at = batch.outputs[i].nonzero().flatten().tolist()
            each = [float(logits[i, j, batch.next_tokens[i, j]] - logits[i, j].mean()) for j in at]
            found.append(np.mean(each) if each else np.nan)
            continue
        answer, distractor = (
            each[i] if isinstance(each, list) else each
            for each in (metric.answer, getattr(metric, "distractor", None))  # type: ignore[attr-defined]
        )
        value = logits[i, length - 1, answer]
        found.append(
            float(value if distractor is None else value - logits[i, length - 1, distractor])
        )
    return found


def by_prompt(table: pd.DataFrame) -> list[float]:
    return list(table.groupby("prompt")["value"].agg(lambda x: x.sum(skipna=False)))


def randomized(model: GPT) -> GPT:
    """Biases and norms that matter."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(float("ln" in name and "weight" in name))
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mlp": "none"},
        {"bias": False, "tied": True},
        {"normalization": "rms", "mlp": "swiglu", "positions": "rotary", "d_head": 8},
        {"positions": "sinusoidal", "tied": True},
        {"n_heads": 6, "n_key_value_heads": 3, "d_head": 10, "positions": "none"},
    ],
    ids=str,
)
def test_contributions_and_biases_add_up_to_the_logits(
    make_model: Callable[..., GPT], changes: dict[str, Any], metric: Metric
) -> None:
    model = randomized(make_model(**changes))
    table = direct_effects(model, ROWS, metric=metric, per_prompt=True)
    expected = sums(model, as_batch(model, ROWS), metric)
    # measured: 2e-6 of logits up to 7
    np.testing.assert_allclose(by_prompt(table), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_contributions_and_biases_add_up_on_a_bridge(
    gpt2_bridge: Any, llama: Callable[..., Any], kind: str, metric: Metric
) -> None:
    model = gpt2_bridge if kind == "gpt2" else load(llama("Llama"))
    table = direct_effects(model, ROWS, metric=metric, per_prompt=True)
    assert ("pos_embed" in set(table["component"])) == (kind == "gpt2")
    expected = sums(model, as_batch(model, ROWS), metric)
    # measured: 5e-7
    np.testing.assert_allclose(by_prompt(table), expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def folded(gpt2: Any, to_bridge: Callable[[Any], Any]) -> Any:
    """A bridge whose norms are folded into its matrices, and so has a bias at the end."""
    bridge = to_bridge(gpt2)
    bridge.enable_compatibility_mode(disable_warnings=True)
    return bridge


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_bias_of_an_unembedding_is_counted(folded: Any, metric: Metric) -> None:
    assert folded.b_U.abs().max() > 0.1
    table = direct_effects(folded, ROWS, metric=metric, per_prompt=True)
    expected = sums(folded, as_batch(folded, ROWS), metric)
    np.testing.assert_allclose(by_prompt(table), expected, rtol=0, atol=1e-5)  # measured: 3e-7


def test_heads_and_mlps_are_those_of_transformer_lens(folded: Any) -> None:
    from transformer_lens.tools.analysis import direct_logit_attribution

    rows = torch.tensor([[3, 1, 4, 3, 1], [2, 7, 1, 8, 2]])
    answers, others = torch.tensor([4, 2]), torch.tensor([0, 5])
    metric = LogitDifference(answer=answers.tolist(), distractor=others.tolist())
    ours = direct_effects(folded, rows, metric=metric, per_prompt=True)
    values = ours.set_index(["component", "prompt"])["value"]
    for unit, n in (("head", 6), ("component", 4)):
        theirs = direct_logit_attribution(
            folded, rows, answer_tokens=answers, incorrect_tokens=others, unit=unit
        )
        compared = 0
        for label, value in zip(theirs.labels, theirs.attribution, strict=True):
            name = _ours(label)
            if name is not None:
                compared += 1
                # measured: 2e-7
                np.testing.assert_allclose(values[name], value.detach(), rtol=0, atol=1e-5)
        assert compared == n


def _ours(label: str) -> str | None:
    """Our name of what TransformerLens calls ``L0H1``, ``0_mlp_out``, ``embed``, ``pos_embed``."""
    if label.startswith("L"):
        layer, head = label[1:].split("H")
        return f"{layer}.{head}"
    if label.endswith("_mlp_out"):
        return f"mlp.{label.split('_')[0]}"
    return label if label in ("embed", "pos_embed") else None


def test_one_head_is_its_definition_in_float64(gpt2: Any, gpt2_twin: GPT) -> None:
    row, layer, head, answer = [2, 7, 1, 8, 2, 8], 1, 2, 7
    names = [f"blocks.{layer}.attn.hook_z", "blocks.1.hook_resid_post"]
    kept = capture(gpt2_twin, [row], names).activations
    z, stream = (kept[name][0, -1].double() for name in names)
    norm = gpt2.transformer.ln_f
    matrix = gpt2.transformer.h[layer].attn.c_proj.weight.detach().double()
    written = z[head] @ matrix[head * 5 : head * 5 + 5]
    scale = ((stream - stream.mean()).square().mean() + norm.eps).sqrt()
    normalized = (written - written.mean()) / scale * norm.weight.detach().double()
    expected = float(normalized @ gpt2.lm_head.weight[answer].detach().double())
    table = direct_effects(gpt2_twin, [row], metric=Logit(answer=answer))
    value = table.set_index("component")["value"][f"{layer}.{head}"]
    assert value == pytest.approx(expected, abs=1e-5)  # measured: 3e-7
    assert value != pytest.approx(expected * 1.01, abs=1e-5), "the comparer must tell"


def test_both_engines_agree(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    ours, theirs = (direct_effects(m, ROWS, metric=METRICS[0]) for m in (gpt2_twin, gpt2_bridge))
    columns = ["component", "layer", "head", "n"]
    pd.testing.assert_frame_equal(ours[columns], theirs[columns])
    # measured: 6e-7
    np.testing.assert_allclose(ours["value"], theirs["value"], rtol=0, atol=1e-5)


def test_a_row_is_a_part_of_the_model(model: GPT, batch: Batch) -> None:
    table = direct_effects(model, batch)
    heads = [f"{layer}.{head}" for layer in range(2) for head in range(3)]
    parts = ["embed", "pos_embed", *heads[:3], "mlp.0", *heads[3:], "mlp.1", "bias"]
    assert table["component"].tolist() == parts
    of_head = table[table["component"] == "1.2"].iloc[0]
    assert (of_head["layer"], of_head["head"]) == (1, 2)
    assert table.loc[table["component"] == "mlp.1", "layer"].tolist() == [1]
    assert table.loc[~table["component"].isin(heads), "head"].isna().all()
    assert (table["ci_low"] <= table["value"]).all()
    assert (table["value"] <= table["ci_high"]).all()
    assert set(table["n"]) == {13}
    assert table.attrs["units"] == {"value": "logits"}


@pytest.mark.parametrize("engine", ["model", "gpt2_bridge"])
def test_a_prompt_in_a_padded_batch_is_the_prompt_alone(
    request: pytest.FixtureRequest, engine: str
) -> None:
    model = request.getfixturevalue(engine)
    together = direct_effects(model, ROWS, metric=Logit(answer=3), per_prompt=True)
    for i, row in enumerate(ROWS):
        alone = direct_effects(model, [row], metric=Logit(answer=3))
        found = together.loc[together["prompt"] == i, "value"]
        # measured: 7e-7
        np.testing.assert_allclose(found, alone["value"], rtol=0, atol=1e-5)


def test_few_sequences_at_a_time_change_nothing(
    model: GPT, ragged_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = direct_effects(model, ragged_batch)
    monkeypatch.setattr(attribution, "chunk_size", lambda model, n_pos: 5)
    pd.testing.assert_frame_equal(direct_effects(model, ragged_batch), whole, rtol=1e-4, atol=1e-6)


def test_wider_padding_changes_nothing(
    model: GPT, ragged_batch: Batch, widen: Callable[[Batch, int], Batch]
) -> None:
    wide = direct_effects(model, widen(ragged_batch, 2))
    pd.testing.assert_frame_equal(wide, direct_effects(model, ragged_batch), rtol=1e-4, atol=1e-6)


def test_a_sequence_without_outputs_is_undefined(model: GPT, batch: Batch) -> None:
    outputs = batch.outputs.clone()
    outputs[4] = False
    table = direct_effects(model, replace(batch, outputs=outputs), per_prompt=True)
    undefined = table["value"].isna()
    assert undefined.equals(table["prompt"] == 4)


def test_rank_and_probability_take_the_direction_of_the_answer(model: GPT) -> None:
    expected = direct_effects(model, ROWS, metric=Logit(answer=3))
    for metric in (Rank(answer=3), LogProbability(answer=3)):
        found = direct_effects(model, ROWS, metric=metric)
        pd.testing.assert_frame_equal(found, expected)
        assert found.attrs["direction"] == "logit of the answer"


@pytest.mark.parametrize("metric", [KL(), "token_accuracy", lambda logits: logits.sum()])
def test_a_metric_that_is_no_sum_of_logits_is_refused(model: GPT, metric: Any) -> None:
    with pytest.raises(InputError, match="need a metric that is a sum of logits"):
        direct_effects(model, ROWS, metric=metric)


def test_several_metrics_are_refused(model: GPT, unchecked: None) -> None:
    with pytest.raises(InputError, match="of one metric, but got 2"):
        direct_effects(model, ROWS, metric=["loss", Logit(answer=1)])  # type: ignore[arg-type]


def test_the_model_is_left_as_it_was(make_model: Callable[..., GPT], batch: Batch) -> None:
    model = make_model().train()
    state = torch.get_rng_state()
    direct_effects(model, batch)
    assert model.training
    assert model.blocks[0].training
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(point.watched for point in model.hook_dict.values())


def test_a_model_whose_attention_is_normalised_on_its_way_out_is_refused(
    make_model: Callable[..., GPT], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    project = model.blocks[1].attn.project
    monkeypatch.setattr(
        model.blocks[1].attn, "project", lambda z: torch.nn.functional.normalize(project(z), dim=-1)
    )
    with pytest.raises(InputError, match="heads of layer 1 must add z W_O"):
        direct_effects(model, ROWS, metric=Logit(answer=3))
