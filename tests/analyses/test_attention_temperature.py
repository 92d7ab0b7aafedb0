"""Attention temperature against hooks on whole runs, its two limits, and the other engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from analyses.attention_temperature import (
    TEMPERATURES,
    attention_temperature,
    attention_temperature_every_head,
)
from analyses.entropy import entropy
from analyses.inputs import as_batch
from analyses.progress import listening
from analyses.substitution import substitute_pattern
from models.attention import visible_keys
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture, hooked, shape
from models.load import load
from models.tasks import Batch, sequence_loss

SHAPES: dict[str, dict[str, Any]] = {
    "learned": {},
    "window": {"window": 3},
    "grouped": {"n_heads": 4, "n_key_value_heads": 2, "d_head": 5},
    "llama": {"positions": "rotary", "normalization": "rms", "mlp": "swiglu", "d_head": 6},
}
NUMBERS = ["clean", "value", "change", "ci_low", "ci_high", "entropy"]
HEADS = [(0, 1), (1, 2), (1, 0)]


def plainly(
    model: Any, batch: Batch, heads: list[tuple[int, int]], t: float
) -> tuple[Tensor, float]:
    """Loss of each sequence, and mean entropy of the heads' rows, by hooks on a whole run."""
    patterns: dict[tuple[int, int], Tensor] = {}

    def dividing(head: int) -> Callable[..., Tensor]:
        def hook(scores: Tensor, *, hook: Any) -> Tensor:
            scores = scores.clone()
            scores[:, head] = scores[:, head] / t
            return scores

        return hook

    def keeping(layer: int, head: int) -> Callable[..., None]:
        def hook(pattern: Tensor, *, hook: Any) -> None:
            patterns[layer, head] = pattern[:, head].detach().clone()

        return hook

    hooks: list[Any] = [(f"blocks.{i}.attn.hook_attn_scores", dividing(h)) for i, h in heads]
    hooks += [(f"blocks.{i}.attn.hook_pattern", keeping(i, h)) for i, h in heads]
    with hooked(model, hooks):
        logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    means = [
        np.mean([scipy_entropy(pattern[s, i, : i + 1].numpy()) for i in range(length)])
        for pattern in patterns.values()
        for s, length in enumerate(batch.lengths.tolist())
    ]
    return sequence_loss(logits, batch).double(), float(np.mean(means or [np.nan]))


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("name", ["batch", "ragged_batch"])
def test_temperatures_equal_hooks_on_a_whole_run(
    request: pytest.FixtureRequest,
    make_model: Callable[..., GPT],
    changes: dict[str, Any],
    name: str,
) -> None:
    model, batch = make_model(std=0.3, **changes), request.getfixturevalue(name)
    temperatures = [0.3, 1.0, 2.5]
    for heads in (HEADS, HEADS[1:]):  # two layers, and one
        table = attention_temperature(
            model, batch, heads=heads, temperatures=temperatures, metric="loss"
        )
        assert table["temperature"].tolist() == temperatures
        clean, _ = plainly(model, batch, [], 1)
        for row, t in zip(table.itertuples(), temperatures, strict=True):
            loss, spread = plainly(model, batch, heads, t)
            # measured: 1e-6
            assert row.value == pytest.approx(float(loss.mean()), abs=1e-5)
            assert row.change == pytest.approx(float((loss - clean).mean()), abs=1e-5)
            assert row.entropy == pytest.approx(spread, abs=1e-5)
            assert row.n == len(batch)
            assert t == 1 or (loss - clean).abs().max() > 0.01, "the case must show an effect"


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_temperature_1_changes_nothing(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    ids = [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1], [1, 6, 1, 8, 0]]
    table = attention_temperature(model, ids, heads=["0.1", "1.2"], temperatures=[1.0])
    assert table["change"].abs().max() == pytest.approx(0, abs=1e-5)  # measured: 3e-8
    every = attention_temperature_every_head(model, ids, temperatures=[1.0], metric="loss")
    assert every["change"].abs().max() < 1e-5
    usual = entropy(model, ids)
    usual = usual[usual["score"] == "entropy"]
    assert every["entropy"].tolist() == pytest.approx(usual["value"].tolist(), abs=1e-5)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_hot_heads_are_uniform(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    ids = [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1], [1, 6, 1, 8, 0]]
    for heads in (["0.1"], ["0.1", "1.2", "1.0"]):
        hot = attention_temperature(model, ids, heads=heads, temperatures=[1e9])
        even = substitute_pattern(model, ids, heads=heads, pattern="uniform")
        assert hot["value"].tolist() == pytest.approx(even["substituted"].tolist(), abs=1e-5)
        most = np.mean([np.log(np.arange(1, len(row) + 1)).mean() for row in ids])
        assert hot["entropy"].tolist() == pytest.approx([most] * 3, abs=1e-6)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_cold_heads_look_at_their_best_key_alone(
    request: pytest.FixtureRequest, engine: str
) -> None:
    model = request.getfixturevalue(engine)
    batch = as_batch(model, [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1], [1, 6, 1, 8, 0]])
    for layer, head in shape(model).heads:
        name = f"blocks.{layer}.attn.hook_attn_scores"
        scores = capture(model, batch.tokens, [name]).activations[name][:, head]
        best = scores.masked_fill(~visible_keys(7, 7), -torch.inf).argmax(-1)
        hard = torch.nn.functional.one_hot(best, 7).float()

        def look(batch: Batch, hard: Tensor = hard) -> Tensor:
            return hard

        cold = attention_temperature(
            model, batch, heads=[(layer, head)], temperatures=[1e-9], metric="loss"
        )
        put_in = substitute_pattern(
            model, batch, heads=[(layer, head)], pattern=look, metric="loss"
        )
        assert cold["value"].item() == pytest.approx(put_in["substituted"].item(), abs=1e-5)
        assert cold["entropy"].item() == pytest.approx(0, abs=1e-9)


def test_entropies_are_those_of_tempered_scores(gpt2_twin: GPT) -> None:
    """Of single heads: from the clean scores, by scipy in float64."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]])
    table = attention_temperature_every_head(gpt2_twin, ids, metric="loss")
    for (layer, head), rows in table.groupby(["layer", "head"]):
        name = f"blocks.{layer}.attn.hook_attn_scores"
        scores = capture(gpt2_twin, ids, [name]).activations[name][:, head].double().numpy()
        expected = [
            np.mean([scipy_entropy(softmax(s[i, : i + 1] / t)) for s in scores for i in range(7)])
            for t in TEMPERATURES
        ]
        assert rows["entropy"].tolist() == pytest.approx(expected, abs=1e-5)  # measured: 2e-7
        assert rows["entropy"].is_monotonic_increasing


def test_every_head_alone_is_its_sweep(model: GPT, ragged_batch: Batch) -> None:
    every = attention_temperature_every_head(model, ragged_batch, temperatures=[0.5, 3.0])
    keys = every[["layer", "head", "temperature", "metric"]]
    assert not keys.duplicated().any()
    for (layer, head), rows in every.groupby(["layer", "head"]):
        one = attention_temperature(
            model, ragged_batch, heads=[(layer, head)], temperatures=[0.5, 3.0]
        )
        assert rows["temperature"].tolist() == one["temperature"].tolist()
        # intervals rest on ranks of nearly equal means
        np.testing.assert_allclose(rows[NUMBERS], one[NUMBERS], rtol=0, atol=1e-4)


def test_a_bridge_gives_the_numbers_of_our_own_model(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    ids = [torch.randint(22, (n,), generator=generator).tolist() for n in (5, 7, 7, 3, 11) * 3]
    for heads in (["0.1", "1.2"], ["1.*"]):
        ours, theirs = (
            attention_temperature(m, ids, heads=heads, temperatures=[0.2, 1.0, 5.0, 1e6])
            for m in (gpt2_twin, gpt2_bridge)
        )
        # measured: 7e-7
        np.testing.assert_allclose(ours[NUMBERS], theirs[NUMBERS], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("kind", "window"), [("Llama", None), ("Mistral", 5)])
def test_rotary_grouped_and_windowed_heads_on_a_bridge(
    llama: Callable[..., Any], llama_to_ours: Callable[..., GPT], kind: str, window: int | None
) -> None:
    theirs = llama(kind) if window is None else llama(kind, sliding_window=window)
    ids = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7, 1, 8], [1, 6, 1, 8, 0, 3, 3]]
    ours, lens = (
        attention_temperature_every_head(model, ids, temperatures=[0.01, 0.5, 1e9], metric="loss")
        for model in (llama_to_ours(theirs, window), load(theirs))
    )
    for column in ("value", "entropy"):
        # measured: 7e-7
        np.testing.assert_allclose(ours[column], lens[column], rtol=0, atol=1e-4)
    assert ours["change"].abs().max() > 1e-3


def test_a_batch_is_its_sequences_one_by_one_whatever_the_padding(
    model: GPT, ragged_batch: Batch, widen: Callable[[Batch, int], Batch]
) -> None:
    columns = ["clean", "value", "change", "entropy"]

    def swept(batch: Batch) -> Any:
        return attention_temperature(
            model, batch, heads=HEADS, temperatures=[0.5, 3.0], metric="loss"
        )[columns]

    together = swept(ragged_batch)
    alone = [swept(ragged_batch[i : i + 1]) for i in range(len(ragged_batch))]
    # measured: 5e-6
    np.testing.assert_allclose(together, swept(widen(ragged_batch, 2)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(together, np.mean(alone, axis=0), rtol=0, atol=1e-5)


def test_blurring_grades_the_damage_of_a_trained_head(trained: GPT) -> None:
    """From nothing at temperature 1 to all of it where attention is uniform."""
    even = {
        head: substitute_pattern(trained, heads=[head], pattern="uniform", metric="loss")
        for head in shape(trained).heads
    }
    worst = max(even, key=lambda head: even[head]["change"].item())
    table = attention_temperature(
        trained, heads=[worst], temperatures=[1.0, 2.0, 4.0, 8.0, 1e6], metric="loss"
    )
    assert table["change"].is_monotonic_increasing
    assert table["entropy"].is_monotonic_increasing
    assert table["change"].iloc[-1] == pytest.approx(even[worst]["change"].item(), rel=1e-3)
    assert table["change"].iloc[-1] > 0.5


def test_progress_and_units_are_told(model: GPT, batch: Batch) -> None:
    told: list[tuple[str, int, int]] = []
    with listening(lambda *one: told.append(one)):
        table = attention_temperature(model, batch, heads=HEADS, temperatures=[0.5, 2.0])
    assert {what for what, _, _ in told} == {"attention temperature", "entropies"}
    assert all(done <= total for _, done, total in told)
    assert table.attrs["units"]["entropy"] == "nats"


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_the_model_is_left_as_it_was(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    ids = [[3, 1, 4, 1, 5]]
    before = capture(model, ids, logits=True).logits
    attention_temperature(model, ids, heads=["0.1", "1.1"])
    after = capture(model, ids, logits=True).logits
    assert before is not None
    assert torch.equal(before, after)


def test_temperatures_that_cannot_be_are_refused(model: GPT, batch: Batch) -> None:
    for bad in (0.0, -1.0, float("inf"), float("nan"), 1e10):
        with pytest.raises(InputError, match=r"must be 1e-09\.\.1e\+09, but got"):
            attention_temperature(model, batch, heads=["0.1"], temperatures=[1.0, bad])
    for few in ([], [1.0, 1.0]):
        with pytest.raises(InputError, match="at least one temperature, and each once"):
            attention_temperature_every_head(model, batch, temperatures=few)
    with pytest.raises(InputError, match="at least one head"):
        attention_temperature(model, batch, heads=[])
