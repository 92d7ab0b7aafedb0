"""Repeated random tokens and their contrast."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from analyses.random_tokens import batch_for, fresh_tokens, repeated_tokens, usable_ids
from models.errors import InputError
from models.gpt import GPT


def test_a_block_without_replacement_is_repeated_once(model: GPT) -> None:
    batch = repeated_tokens(model, n=7, block=5, seed=1)
    assert batch.tokens.shape == (7, 10)
    assert torch.equal(batch.tokens[:, :5], batch.tokens[:, 5:])
    assert all(len(set(row)) == 5 for row in batch.tokens.tolist())
    assert len({tuple(row) for row in batch.tokens.tolist()}) == 7
    assert batch.groups["first_block"][0].tolist() == [True] * 5 + [False] * 5
    assert batch.groups["second_block"][0].tolist() == [False] * 5 + [True] * 5
    assert batch.outputs[0].nonzero().flatten().tolist() == [5, 6, 7, 8]


def test_the_contrast_differs_in_the_first_block_only_and_shares_no_token(model: GPT) -> None:
    repeated, fresh = (f(model, n=7, block=5, seed=1) for f in (repeated_tokens, fresh_tokens))
    assert torch.equal(repeated.tokens[:, 5:], fresh.tokens[:, 5:])
    for row in fresh.tokens.tolist():
        assert len(set(row)) == 10


def test_blocks_follow_from_the_seed_and_leave_global_random_numbers_alone(model: GPT) -> None:
    state = torch.get_rng_state()
    first, again, other = (repeated_tokens(model, n=3, seed=s).tokens for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_blocks_fit_the_context_and_the_vocabulary(
    model: GPT, make_model: Callable[..., GPT]
) -> None:
    assert repeated_tokens(model).tokens.shape == (64, 12)  # a context of 13
    assert repeated_tokens(make_model(n_ctx=99)).tokens.shape == (64, 26)  # 27 ids
    with pytest.raises(InputError, match=r"2\.\.6 tokens.*context of 13.*but got 7"):
        repeated_tokens(model, block=7)
    with pytest.raises(InputError, match="n must be at least 1"):
        repeated_tokens(model, n=0)


def test_special_tokens_are_left_out_and_bos_comes_first_when_asked(gpt2_bridge: Any) -> None:
    """Its tokenizer has one special token, 22, and adds it by itself."""
    assert 22 not in usable_ids(gpt2_bridge)
    assert len(usable_ids(gpt2_bridge)) == 22
    plain = repeated_tokens(gpt2_bridge, block=4, bos=False)
    assert plain.tokens.shape[1] == 8
    batch = repeated_tokens(gpt2_bridge, block=4, bos=True)
    assert torch.equal(batch.tokens, repeated_tokens(gpt2_bridge, block=4).tokens)
    assert (batch.tokens[:, 0] == 22).all()
    assert torch.equal(batch.tokens[:, 1:], plain.tokens)
    assert batch.groups["second_block"][0].tolist() == [False] * 5 + [True] * 4
    assert not batch.groups["first_block"][0, 0]


def test_bos_asked_of_a_model_without_one_is_refused(model: GPT) -> None:
    with pytest.raises(InputError, match="no BOS token"):
        repeated_tokens(model, bos=True)


def test_a_model_with_a_task_is_measured_on_its_task(model: GPT, gpt2_twin: GPT) -> None:
    assert batch_for(model, None).groups.keys() >= {"separator"}
    assert "second_block" in batch_for(gpt2_twin, None).groups
