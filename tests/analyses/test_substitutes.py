"""What stands in for a removed head: the mean against numpy, partners by their rules."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analyses import reruns
from analyses.inputs import as_batch
from analyses.reruns import Where
from analyses.substitutes import (
    ABLATIONS,
    DRAWS,
    default_ablation,
    mean_activations,
    partners,
    possible_ablations,
    substitutes,
)
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture
from models.tasks import Batch, Task, create

Z = ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]
POINTS = [*Z, "blocks.0.hook_attn_out", "blocks.1.hook_mlp_out"]


def everything(batch: Batch) -> Where:
    return Where(slice(0, len(batch)), slice(0, batch.tokens.shape[1]))


def value_of(model: Any, batch: Batch, name: str) -> torch.Tensor:
    return capture(model, batch.tokens, [name]).activations[name]


def of_lengths(lengths: list[int]) -> Batch:
    ids = torch.arange(len(lengths))[:, None].repeat(1, max(lengths))
    return Batch(ids, torch.tensor(lengths), ids - 1, ids > 0, ids - 1)


# --- mean


def test_the_mean_is_per_position(model: GPT, batch: Batch) -> None:
    found = mean_activations(model, batch, POINTS)
    for name in POINTS:
        expected = value_of(model, batch, name).double().numpy().mean(0, keepdims=True)
        # measured: 4e-16
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", POINTS)
def test_unequal_lengths_are_pooled_over_real_tokens(
    model: GPT, ragged_batch: Batch, name: str
) -> None:
    found = mean_activations(model, ragged_batch, [name], pooled=True)[name]
    value = value_of(model, ragged_batch, name).double().numpy()
    rows = [value[i, :length] for i, length in enumerate(ragged_batch.lengths.tolist())]
    expected = np.concatenate(rows).mean(0)
    np.testing.assert_allclose(found[0, 0], expected, rtol=0, atol=1e-12)


def test_a_first_token_that_all_share_is_not_pooled(model: GPT) -> None:
    batch = as_batch(model, [[26, 1, 4], [26, 5, 9, 2]])
    found = mean_activations(model, batch, Z[:1], pooled=True)[Z[0]]
    z = value_of(model, batch, Z[0]).double().numpy()
    expected = np.concatenate([z[0, 1:3], z[1, 1:4]]).mean(0)
    np.testing.assert_allclose(found[0, 0], expected, rtol=0, atol=1e-12)


def test_chunks_do_not_change_the_mean(
    model: GPT, ragged_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = mean_activations(model, ragged_batch, Z[1:], pooled=True)[Z[1]]
    monkeypatch.setattr(reruns, "CHUNK", 3)
    apart = mean_activations(model, ragged_batch, Z[1:], pooled=True)[Z[1]]
    assert float((whole - apart).abs().max()) < 1e-5  # measured: 2e-7


def test_the_mean_names_what_it_is_of(
    model: GPT, task: Task, batch: Batch, ragged_task: Task, ragged_batch: Batch
) -> None:
    fixed, ragged = task.heldout(7, seed=9), ragged_task.heldout(7, seed=9)

    def words(batch: Batch, reference: Any) -> str:
        return substitutes(model, batch, ["mean"], Z[:1], reference=reference)["mean"].baseline

    assert words(batch, fixed) == "position mean of 7"
    assert words(batch, None) == "position mean of 256"
    assert words(batch, ragged) == "token mean of 7"
    assert words(ragged_batch, fixed) == "token mean of 7"
    other_length = create("reversal", length=3).heldout(7)
    assert words(batch, other_length) == "token mean of 7"


def test_a_reference_may_have_more_or_less_padding(
    model: GPT, task: Task, batch: Batch, widen: Callable[[Batch, int], Batch]
) -> None:
    reference = task.heldout(7, seed=9)

    def mean(batch: Batch, reference: Batch) -> torch.Tensor:
        given = substitutes(model, batch, ["mean"], Z[1:], reference=reference)["mean"]
        return given.draws[0](Z[1], everything(batch))

    plain = mean(batch, reference)
    wide = mean(widen(batch, 2), reference)
    assert wide.shape[1] == 13
    assert torch.equal(wide[:, :11], plain)
    assert float((mean(batch, widen(reference, 2)) - plain).abs().max()) < 1e-5  # measured: 2e-7


# --- resample


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=19), st.integers(0, 9), st.integers(0, 9))
def test_a_partner_is_another_sequence_that_covers_every_position(
    lengths: list[int], seed: int, draw: int
) -> None:
    batch = of_lengths(lengths)
    found = partners(batch, seed=seed, draw=draw).tolist()
    assert found == partners(batch, seed=seed, draw=draw).tolist()
    for i, j in enumerate(found):
        others = [k for k in range(len(lengths)) if k != i and lengths[k] >= lengths[i]]
        if j == -1:
            assert not others
        else:
            assert j in others
            alone = lengths.count(lengths[i]) == 1
            assert alone or lengths[j] == lengths[i], "the same layout where there is one"
    for length in set(lengths):
        same = [found[i] for i in range(len(lengths)) if lengths[i] == length]
        assert len(same) == 1 or len(set(same)) == len(same), "every one is used once"


def test_draws_and_seeds_differ(batch: Batch) -> None:
    drawn = {tuple(partners(batch, seed=s, draw=d).tolist()) for s in (0, 1) for d in range(DRAWS)}
    assert len(drawn) == 2 * DRAWS


def test_resampling_takes_the_partner_s_output_at_the_same_position(
    model: GPT, ragged_batch: Batch
) -> None:
    given = substitutes(model, ragged_batch, ["resample"], POINTS, seed=4)["resample"]
    assert len(given.draws) == DRAWS
    for name in POINTS:
        value = value_of(model, ragged_batch, name)
        for draw in (0, 7):
            partner = partners(ragged_batch, seed=4, draw=draw)
            found = given.draws[draw](name, Where(slice(3, 8), slice(2, 7)))
            for row, i in enumerate(range(3, 8)):
                assert torch.equal(found[row], value[partner[i]][2:7])


def test_a_sequence_longer_than_all_others_has_no_partner(model: GPT) -> None:
    batch = as_batch(model, [[3, 1, 4], [1, 5, 9, 2], [6, 5]])
    assert partners(batch).tolist()[1] == -1
    assert substitutes(model, batch, ["resample"], Z[:1])["resample"].alone == [1]


def test_one_sequence_cannot_be_resampled(model: GPT, batch: Batch) -> None:
    with pytest.raises(InputError, match="needs a second sequence"):
        substitutes(model, batch[:1], ["resample"], Z[:1])


# --- which kinds there are


def test_the_default_is_the_mean_for_tasks_and_resampling_for_text(
    model: GPT, batch: Batch, ragged_batch: Batch, tmp_path: Any
) -> None:
    assert default_ablation(batch) == default_ablation(ragged_batch) == "mean"
    assert default_ablation(create("induction", length=5).heldout(3)) == "mean"
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog " * 9)
    text = create("text", path=str(tmp_path / "text"), length=7)
    assert default_ablation(text.heldout(3)) == "resample"
    assert default_ablation(as_batch(model, [[3, 1, 4], [1, 5]])) == "resample"


def test_the_kinds_that_an_input_allows(model: GPT, gpt2_twin: GPT, batch: Batch) -> None:
    ids = as_batch(gpt2_twin, [[3, 1, 4], [1, 5]])
    assert possible_ablations(model, batch, None) == list(ABLATIONS)
    assert possible_ablations(gpt2_twin, ids, None) == ["zero", "resample"]
    assert possible_ablations(gpt2_twin, ids, [[2, 7]]) == list(ABLATIONS)
    assert possible_ablations(gpt2_twin, ids[:1], None) == ["zero"]


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_the_mean_without_a_task_asks_for_a_reference_in_one_line(
    request: pytest.FixtureRequest, engine: str
) -> None:
    model = request.getfixturevalue(engine)
    with pytest.raises(InputError, match=r"needs reference sequences.*: give reference=") as error:
        substitutes(model, as_batch(model, [[3, 1], [4, 1]]), ["mean"], Z[:1])
    assert "\n" not in str(error.value)
