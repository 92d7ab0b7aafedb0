"""Pattern scores against loops over queries, and against the exact numbers of known patterns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from analyses.attention_patterns import (
    PATTERNS,
    Targets,
    attention_patterns,
    available,
    is_anti_diagonal,
    match_pattern,
    pattern_reducers,
    target_mass,
)
from analyses.inputs import as_batch, select
from analyses.streaming import reduce_pattern, uniform_scores
from models.errors import InputError, UnknownNameError
from models.gpt import GPT
from models.tasks import Batch, create

BLOCK = [2, 0, 3, 1]
BOS = 4
TARGET: dict[str, Callable[[list[int], int], set[int] | None]] = {
    "previous_token": lambda row, i: {i - 1} if i else None,
    "current_token": lambda row, i: {i} if i else None,
    "first_token": lambda row, i: {0} if i else None,
    "duplicate_token": lambda row, i: {j for j in range(i) if row[j] == row[i]} or None,
    "induction": lambda row, i: {j + 1 for j in range(i) if row[j] == row[i]} or None,
}
"""What each score means, one query at a time; None where it is not defined."""


def plain(rows: list[list[int]]) -> Batch:
    """Ids without a task, padded with 0."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    nowhere = torch.full_like(ids, -1)
    return Batch(ids, lengths, nowhere, nowhere >= 0, nowhere)


def score(name: str, batch: Batch, pattern: Tensor) -> Tensor:
    """What a reducer makes of a pattern ``[query, key]`` for the first sequence."""
    return mass(name, batch, pattern.expand(len(batch), 1, -1, -1))[0, 0]


def mass(name: str, batch: Batch, pattern: Tensor) -> Tensor:
    """The same for every sequence and head."""
    return reduce_pattern(target_mass(PATTERNS[name][0]), batch, pattern)


def looking(offset: int, n: int, queries: range) -> Tensor:
    """All weight ``offset`` keys back from some queries; on key 0 from the others."""
    pattern = torch.zeros(n, n)
    pattern[:, 0] = 1
    for i in queries:
        pattern[i] = 0
        pattern[i, i - offset] = 1
    return pattern


def uniform(n: int) -> Tensor:
    return torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]


def random_pattern(n: int, *, heads: int = 3, batch: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, heads, n, n, generator=generator, dtype=torch.float64)
    return scores.masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf).softmax(-1)


def by_loops(row: list[int], pattern: np.ndarray[Any, Any], name: str) -> float:
    """The score of one head on one sequence, by its definition."""
    masses = [
        sum(pattern[i, j] for j in targets)
        for i in range(len(row))
        if (targets := TARGET[name](row, i)) is not None
    ]
    return float(np.mean(masses)) if masses else float("nan")


# --- known patterns


@pytest.mark.parametrize(("row", "start"), [(BLOCK * 2, 4), ([BOS, *BLOCK, *BLOCK], 5)])
def test_an_induction_head_scores_one_with_and_without_bos(row: list[int], start: int) -> None:
    """Averaging the whole diagonal would give 0.8333 with a first token, which is wrong."""
    pattern = looking(len(BLOCK) - 1, len(row), range(start, len(row)))
    assert score("induction", plain([row]), pattern) == 1.0
    assert score("duplicate_token", plain([row]), pattern) == 0.0


def test_a_duplicate_token_head_is_no_induction_head() -> None:
    pattern = looking(len(BLOCK), 8, range(4, 8))
    assert score("induction", plain([BLOCK * 2]), pattern) == 0.0
    assert score("duplicate_token", plain([BLOCK * 2]), pattern) == 1.0


@pytest.mark.parametrize(("row", "value"), [(BLOCK * 2, 0.158631), ([BOS, *BLOCK * 2], 0.136409)])
def test_the_induction_score_of_uniform_attention(row: list[int], value: float) -> None:
    found = float(score("induction", plain([row]), uniform(len(row))))
    assert found == pytest.approx(value, abs=1e-6)


def test_the_previous_token_score_of_uniform_attention_leaves_the_first_query_out() -> None:
    found = float(score("previous_token", plain([[0, 1, 2, 3, 4]]), uniform(5)))
    assert found == pytest.approx(0.320833, abs=1e-6)


def test_chance_of_the_anti_diagonal_is_the_mean_of_one_over_visible_keys() -> None:
    task = create("reversal", length=16)
    batch = task.heldout(3)
    expected = np.mean([1 / (16 + j) for j in range(1, 17)])
    assert expected == pytest.approx(0.0424, abs=5e-5)
    assert float(score("anti_diagonal", batch, uniform(33))) == pytest.approx(expected, abs=1e-7)
    holding = np.mean([1 / (17 + j) for j in range(1, 17)])
    assert float(score("anti_diagonal_holding", batch, uniform(33))) == pytest.approx(
        holding, abs=1e-7
    )


def test_the_two_alignments_of_the_anti_diagonal_are_one_query_apart(batch: Batch) -> None:
    """With five letters query 4 + j predicts y_j, query 5 + j holds it, its copy is key 5 - j."""
    predicting, holding = torch.zeros(11, 11), torch.zeros(11, 11)
    for j in range(1, 6):
        predicting[5 + j - 1, 5 - j] = 1
        holding[5 + j, 5 - j] = 1
    for pattern, name, other in (
        (predicting, "anti_diagonal", "anti_diagonal_holding"),
        (holding, "anti_diagonal_holding", "anti_diagonal"),
    ):
        assert score(name, batch, pattern) == 1.0
        assert score(other, batch, pattern) == 0.0


def test_the_separator_is_scored_from_the_queries_after_it(batch: Batch) -> None:
    pattern = torch.zeros(11, 11)
    pattern[:6, 0] = 1
    pattern[6:, 5] = torch.tensor([1.0, 1, 1, 1, 0.5])
    assert float(score("separator", batch, pattern)) == pytest.approx(0.9)


def test_any_key_with_the_right_letter_counts_as_the_right_token() -> None:
    task = create("reversal", length=3)
    letters = torch.tensor([[7, 7, 1]])  # 7 7 1 | 1 7 7
    tokens = torch.cat([letters, torch.tensor([[26]]), letters.flip(1)], dim=1)
    batch = task._batch(tokens, torch.tensor([3]))  # type: ignore[attr-defined]
    pattern = torch.full((7, 7), 1 / 7)
    # query 3 predicts 1: key 2 only; 4 predicts 7: keys 0, 1; 5 predicts 7: keys 0, 1, 5
    assert float(score("right_token", batch, pattern)) == pytest.approx((1 + 2 + 3) / 7 / 3)


# --- the definitions, one query at a time


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=11), st.integers(0, 99))
def test_every_score_is_its_definition(row: list[int], seed: int) -> None:
    batch = plain([row])
    pattern = random_pattern(len(row), seed=seed)
    for name in TARGET:
        found = mass(name, batch, pattern)[0]
        expected = [by_loops(row, head.numpy(), name) for head in pattern[0]]
        # measured: 3e-16
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_sequences_are_averaged_after_their_queries() -> None:
    """Three induction queries in one sequence weigh as much as one in the other."""
    rows = [[0, 1, 0, 1, 0, 2], [0, 1, 2, 3, 0, 4], [0, 1, 2, 3, 4, 5]]
    pattern = random_pattern(6, batch=3)
    values = mass("induction", plain(rows), pattern)
    expected = [by_loops(r, p[1].numpy(), "induction") for r, p in zip(rows, pattern, strict=True)]
    np.testing.assert_allclose(values[:, 1].numpy(), expected, rtol=0, atol=1e-12)
    assert np.isnan(expected).tolist() == [False, False, True]


def test_padding_is_no_query_and_no_copy() -> None:
    """The padding of a shorter row repeats a real id."""
    rows = [[1, 0, 2, 0, 0], [3, 0]]
    pattern = random_pattern(5, batch=2)
    for name in TARGET:
        found = mass(name, plain(rows), pattern)
        for row, values, heads in zip(rows, found, pattern, strict=True):
            n = len(row)
            expected = [by_loops(row, head[:n, :n].numpy(), name) for head in heads]
            np.testing.assert_allclose(values.numpy(), expected, rtol=0, atol=1e-12)


def test_a_row_that_attends_to_nothing_is_left_out() -> None:
    pattern = random_pattern(5, heads=2)
    holed = pattern.clone()
    holed[0, 0, 3], holed[0, 1, 3] = 0, torch.nan
    batch = plain([[0, 1, 2, 3, 4]])
    found = mass("previous_token", batch, holed)[0]
    kept = [float(pattern[0, head].diagonal(-1)[[0, 1, 3]].mean()) for head in (0, 1)]
    assert found.tolist() == pytest.approx(kept, abs=1e-12)


def test_half_precision_rows_of_a_thousand_keys_are_summed_in_single_precision() -> None:
    """4,096 equal weights summed in 16 bits stall; here 1,000 of 1/1000 rounded to bfloat16."""
    row = [0] * 999 + [1, 0]
    pattern = torch.full((1001, 1001), 1 / 1000, dtype=torch.bfloat16).float()
    found = score("duplicate_token", plain([row]), pattern)
    rounded = float(torch.tensor(1 / 1000, dtype=torch.bfloat16))
    expected = np.mean([rounded * i for i in [*range(1, 999), 999]])
    assert float(found) == pytest.approx(expected, abs=1e-5)  # measured: 1e-7


# --- chance


@pytest.mark.parametrize("window", [None, 3])
def test_on_uniform_attention_every_value_equals_its_chance(
    make_model: Callable[..., GPT], ragged_task: Any, ragged_batch: Batch, window: int | None
) -> None:
    """A model whose queries ask for nothing, ragged lengths, with and without a window."""
    model = make_model(ragged_task, window=window)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:21] = 0
            block.attn.qkv.bias.zero_()
    table = attention_patterns(model, ragged_batch)
    assert table["score"].nunique() == len(PATTERNS)
    # measured: 3e-8
    np.testing.assert_allclose(table["value"], table["chance"], rtol=0, atol=1e-6)
    assert table["chance"].between(0, 1, inclusive="right").all()


def test_a_window_that_hides_the_target_has_no_chance(make_model: Callable[..., GPT]) -> None:
    model = make_model(window=2)
    batch = as_batch(model, [[0, 1, 2, 3, 4]])
    assert uniform_scores(model, batch, pattern_reducers(batch))["first_token"] == pytest.approx(
        np.mean([1 / 2, 0, 0, 0])
    )


# --- the table


def test_the_table_joins_value_range_and_counts(model: GPT, ragged_batch: Batch) -> None:
    table = attention_patterns(model, ragged_batch).set_index(["layer", "head", "score"])
    row = table.loc[(1, 2, "induction")]
    repeats = [
        len(set(tokens[:length])) < length
        for tokens, length in zip(
            ragged_batch.tokens.tolist(), ragged_batch.lengths.tolist(), strict=True
        )
    ]
    assert row["n"] == sum(repeats)
    assert row["skipped"] == len(repeats) - sum(repeats)
    assert 0 <= row["smallest"] <= row["ci_low"] <= row["value"] <= row["ci_high"] <= row["largest"]
    assert table.attrs["units"] == {"value": "share of attention, 0..1"}
    assert "this model on this kind of input" in table.attrs["interval"]


def test_a_score_that_no_sequence_defines_is_undefined_and_not_zero(model: GPT) -> None:
    table = attention_patterns(model, [[0, 1, 2], [3, 4, 5]], scores=["induction"])
    assert table[["value", "chance", "ci_low", "smallest"]].isna().all(axis=None)
    assert (table["n"] == 0).all()
    assert (table["skipped"] == 2).all()


def test_all_defined_scores_are_the_default(model: GPT, batch: Batch) -> None:
    assert list(attention_patterns(model, batch)["score"].unique()) == list(PATTERNS)
    without = ["previous_token", "current_token", "first_token", "duplicate_token", "induction"]
    assert list(attention_patterns(model, batch.tokens)["score"].unique()) == without
    assert list(attention_patterns(model, batch, scores="separator")["score"].unique()) == [
        "separator"
    ]


def test_the_induction_task_has_target_keys_but_no_anti_diagonal() -> None:
    batch = create("induction", length=5).heldout(3)
    assert not is_anti_diagonal(batch)
    assert "right_token" in available(batch)
    assert "separator" not in available(batch)


def test_lengths_of_one_letter_are_on_the_anti_diagonal_too(make_model: Callable[..., GPT]) -> None:
    """A single target lies on one by itself; whether a score is defined is the batch's matter."""
    task = create("reversal", length=2, min_length=1)
    batch = task.heldout(40)
    order = batch.lengths.argsort()  # those of one letter first
    batch = select(batch, order)
    assert set(batch.lengths.tolist()) == {3, 5}
    assert "anti_diagonal" in available(batch)
    table = attention_patterns(make_model(task), batch, scores=["anti_diagonal"])
    assert (table["n"] == 40).all()
    assert not is_anti_diagonal(batch[: int((batch.lengths == 3).sum())])


def test_unknown_and_undefined_scores_are_named(model: GPT, batch: Batch) -> None:
    with pytest.raises(UnknownNameError, match="did you mean anti_diagonal"):
        attention_patterns(model, batch, scores=["anti_diagnal"])
    with pytest.raises(InputError, match="separator is not defined on this input; these are:"):
        attention_patterns(model, batch.tokens, scores=["separator"])
    with pytest.raises(InputError, match="at least one score"):
        attention_patterns(model, batch, scores=[])


# --- a pattern of the user's own


def test_a_pattern_of_ones_own_is_scored_like_the_built_in_one(
    model: GPT, ragged_batch: Batch
) -> None:
    """Padding is left out although the function does not care."""

    def one_back(batch: Batch) -> Targets:
        size, n = batch.tokens.shape
        keys = torch.eye(n).roll(1, 0).bool().tril().expand(size, n, n)
        return Targets(keys, (torch.arange(n) >= 1).expand(size, n))

    found = match_pattern(model, ragged_batch, pattern=one_back)
    expected = attention_patterns(model, ragged_batch, scores=["previous_token"])
    assert set(found.pop("score")) == {"one_back"}
    assert found.equals(expected.drop(columns="score"))


def test_a_pattern_of_the_wrong_shape_is_refused(model: GPT, batch: Batch) -> None:
    def narrow(batch: Batch) -> Targets:
        return Targets(torch.ones(13, 11, 10).bool(), torch.ones(13, 11).bool())

    with pytest.raises(InputError, match=r"\(13, 11, 11\).* but returned \(13, 11, 10\)"):
        match_pattern(model, batch, pattern=narrow)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        (None, "must be a function of a batch that returns Targets, not None"),
        (torch.ones(1), "must be a function of a batch that returns Targets, not Tensor"),
        (lambda batch: None, "must return Targets.* but returned None"),
        (lambda batch: np.ones((13, 11, 11)), "must return Targets.* but returned ndarray"),
        (lambda batch: Targets(*[np.ones((13, 11, 11))] * 2), "must be tensors, but hold ndarray"),
        (lambda batch: Targets(torch.ones(13, 11, 11), torch.ones(13, 11)), "must be bool"),
    ],
)
def test_what_is_no_pattern_was_a_traceback(
    model: GPT, batch: Batch, unchecked: None, pattern: Any, match: str
) -> None:
    with pytest.raises(InputError, match=match) as error:
        match_pattern(model, batch, pattern=pattern)
    assert "\n" not in str(error.value)
