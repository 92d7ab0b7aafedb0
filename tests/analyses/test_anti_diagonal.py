"""The profile over offsets against loops, and the rule by which a head is labelled."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.anti_diagonal import anti_diagonal, label_anti_diagonal, profile_offsets
from analyses.attention_patterns import attention_patterns
from analyses.criteria import CRITERIA
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture
from models.tasks import Batch, Task, create


def by_loops(pattern: np.ndarray[Any, Any], length: int, offset: int) -> float:
    """Attention of the queries that predict an output where query + key = 2n - 1 + offset."""
    n = length // 2
    masses = [
        pattern[query, 2 * n - 1 + offset - query]
        for query in range(n, 2 * n)
        if 0 <= 2 * n - 1 + offset - query <= query
    ]
    return float(np.mean(masses)) if masses else float("nan")


def test_the_profile_is_its_definition_for_unequal_lengths(model: GPT, ragged_batch: Batch) -> None:
    table = anti_diagonal(model, ragged_batch)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)]
    patterns = capture(model, ragged_batch.tokens, names).activations
    for row in table.itertuples():
        heads = patterns[names[row.layer]][:, row.head].numpy()
        each = [
            by_loops(pattern, int(length), row.offset)
            for pattern, length in zip(heads, ragged_batch.lengths, strict=True)
        ]
        assert row.mass == pytest.approx(np.nanmean(each), abs=1e-6)  # measured: 6e-8
        assert row.n == np.isfinite(each).sum()
        assert row.skipped == np.isnan(each).sum()
        assert row.smallest == pytest.approx(np.nanmin(each), abs=1e-6)
        assert row.largest == pytest.approx(np.nanmax(each), abs=1e-6)


def test_offset_zero_is_the_anti_diagonal_score(model: GPT, ragged_batch: Batch) -> None:
    profile = anti_diagonal(model, ragged_batch, seed=4)
    own = profile[profile["offset"] == 0].reset_index(drop=True)
    score = attention_patterns(model, ragged_batch, scores=["anti_diagonal"], seed=4)
    np.testing.assert_allclose(own["mass"], score["value"], rtol=0, atol=1e-7)
    # the bootstrap draws the same sequences; measured: 1e-8
    np.testing.assert_allclose(own["ci_low"], score["ci_low"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(own["chance"], score["chance"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 3])
def test_on_uniform_attention_the_profile_equals_its_chance(
    make_model: Callable[..., GPT], batch: Batch, window: int | None
) -> None:
    """Chance counts the keys that the mask leaves: with a window, most offsets have none."""
    model = make_model(window=window)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:21] = 0
            block.attn.qkv.bias.zero_()
    table = anti_diagonal(model, batch)
    np.testing.assert_allclose(table["mass"], table["chance"], rtol=0, atol=1e-6)  # measured: 2e-8
    if window:  # query 4 + j and key 3 - j are 3 or more apart for every j
        assert (table.loc[table["offset"] == -2, "chance"] == 0).all()


def test_offsets_that_few_queries_have_are_left_out(batch: Batch) -> None:
    """For five letters: key 9 + offset - query is in 0..query for three of queries 5..9."""
    shares = {
        offset: np.mean([0 <= 9 + offset - query <= query for query in range(5, 10)])
        for offset in range(-11, 12)
    }
    assert profile_offsets(batch).tolist() == [o for o, share in shares.items() if share >= 0.5]


def test_an_input_without_an_anti_diagonal_is_refused(model: GPT, batch: Batch) -> None:
    with pytest.raises(InputError, match="anti-diagonal needs a batch whose target keys"):
        anti_diagonal(model, batch.tokens)


def profile(**changes: Any) -> pd.DataFrame:
    """Two heads; the first is clean unless changed, the second has a strong rival."""
    own = {"mass": 0.9, "ci_low": 0.85, "smallest": 0.8, "largest": 0.95, "n": 32, **changes}
    rows = [
        {"layer": 0, "head": 0, "offset": -1, **own, "mass": 0.1},
        {"layer": 0, "head": 0, "offset": 0, **own},
        {"layer": 0, "head": 0, "offset": 1, **own, "mass": 0.3},
        {"layer": 0, "head": 1, "offset": 0, **own, "mass": 0.6},
        {"layer": 0, "head": 1, "offset": -2, **own, "mass": 0.31},
        {"layer": 0, "head": 1, "offset": 2, **own, "mass": np.nan},
    ]
    return pd.DataFrame(rows)


def test_a_label_needs_the_floor_and_twice_the_best_rival() -> None:
    labels = label_anti_diagonal(profile())
    assert labels["labelled"].tolist() == [True, False]
    assert labels["rival_offset"].tolist() == [1, -2]
    assert labels["rival"].tolist() == [0.3, 0.31]
    assert label_anti_diagonal(profile(ci_low=0.4))["labelled"][0]
    assert not label_anti_diagonal(profile(ci_low=0.39))["labelled"][0]


def test_thresholds_can_be_changed_and_stand_beside_the_labels() -> None:
    labels = label_anti_diagonal(profile())
    assert labels.attrs["criteria"] == {
        name: CRITERIA[name].threshold for name in ("label_floor", "label_ratio")
    }
    assert label_anti_diagonal(profile(), ratio=1.9)["labelled"].all()
    assert not label_anti_diagonal(profile(), floor=0.86)["labelled"].any()
    assert label_anti_diagonal(profile(), floor=0.86).attrs["criteria"]["label_floor"] == 0.86


def test_without_an_interval_the_smallest_of_ten_or_more_stands_in() -> None:
    degenerate = profile(ci_low=np.nan, smallest=0.9, largest=0.9)
    assert label_anti_diagonal(degenerate)["labelled"][0]
    assert not label_anti_diagonal(profile(ci_low=np.nan, smallest=0.3))["labelled"][0]


def test_under_ten_sequences_give_no_label() -> None:
    assert not label_anti_diagonal(profile(ci_low=np.nan, n=9))["labelled"].any()


def test_an_undefined_head_is_not_labelled_and_has_no_rival() -> None:
    table = profile()
    table.loc[table["head"] == 0, "mass"] = np.nan
    labels = label_anti_diagonal(table)
    assert not labels["labelled"][0]
    assert np.isnan(labels["rival"][0])
    assert np.isnan(labels["rival_offset"][0])
    assert labels["rival_offset"][1] == -2


def test_the_trained_model_has_heads_on_the_anti_diagonal_and_an_untrained_one_has_none(
    trained: GPT, make_model: Callable[..., GPT]
) -> None:
    assert label_anti_diagonal(anti_diagonal(trained))["labelled"].any()
    assert not label_anti_diagonal(anti_diagonal(make_model(std=0.02)))["labelled"].any()


def test_the_shortest_task_with_an_anti_diagonal(make_model: Callable[..., GPT]) -> None:
    task: Task = create("reversal", length=2)
    table = anti_diagonal(make_model(task), task.heldout(11))
    labels = label_anti_diagonal(table)
    assert labels["rival"].notna().all()
    assert (table["mass"] >= 0).all()
