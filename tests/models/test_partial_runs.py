"""Parts of a run: from a layer, up to a layer, some rows only, and patterns row by row."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from models.errors import InputError, LengthError, UnknownNameError
from models.gpt import GPT
from models.interface import capture, hooked

Build = Callable[..., GPT]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])
N = TOKENS.shape[1]


@pytest.mark.parametrize("layer", [0, 1, 2, 3, -1, -3])
def test_starting_and_stopping_at_a_layer_is_exact(model: GPT, layer: int) -> None:
    with torch.no_grad():
        residual = model(TOKENS, stop_at_layer=layer)
        assert torch.equal(model(residual, start_at_layer=layer), model(TOKENS))
    at = layer % 3 if layer != 3 else 3
    name = f"blocks.{at}.hook_resid_pre" if at < 3 else "blocks.2.hook_resid_post"
    assert torch.equal(residual, capture(model, TOKENS, [name]).activations[name])


def test_a_range_of_layers_can_be_run_with_hooks_watching_the_same(model: GPT) -> None:
    watch = [("blocks.1.attn.hook_pattern", lambda p, hook: None)]
    with torch.no_grad(), hooked(model, watch):
        middle = model(model(TOKENS, stop_at_layer=1), start_at_layer=1, stop_at_layer=2)
        assert torch.equal(middle, model(TOKENS, stop_at_layer=2))


def test_layers_that_are_left_out_do_not_run(model: GPT) -> None:
    fired: list[str] = []
    every = [(name, lambda x, hook: fired.append(hook.name)) for name in model.hook_dict]
    residual = model(TOKENS, stop_at_layer=1).detach()
    with hooked(model, every):
        model(residual, start_at_layer=1, stop_at_layer=2)
    assert {name.split(".")[1] for name in fired} == {"1"}


def test_a_hook_that_edits_in_place_never_reaches_the_residual_it_was_given(build: Build) -> None:
    model = build()
    residual = model(TOKENS, stop_at_layer=1).detach()
    before = residual.clone()
    with hooked(model, [("blocks.1.hook_resid_pre", lambda x, hook: x.zero_())]):
        model(residual, start_at_layer=1)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("layer", [4, -4, 99])
def test_a_layer_that_is_not_there_is_refused_with_the_range(build: Build, layer: int) -> None:
    for option in ("start_at_layer", "stop_at_layer"):
        with pytest.raises(UnknownNameError, match=rf"layers are 0\.\.2, but got {layer}"):
            build()(TOKENS, **{option: layer})


ROWS = [
    *[slice(4, 9), slice(0, 3), slice(N - 1, N), slice(0, N), slice(None)],
    *[slice(-3, None), slice(2, -2), slice(5, 99), slice(None, 7)],
]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_some_rows_equal_the_same_rows_of_a_full_run(model: GPT, rows: slice) -> None:
    with torch.no_grad():
        full, some = model(TOKENS)[:, rows], model(TOKENS, rows=rows)
    torch.testing.assert_close(some, full, atol=1e-4, rtol=0)  # measured: 1.5e-6
    residual = model(TOKENS, stop_at_layer=1).detach()
    late = model(residual, start_at_layer=1, rows=rows).detach()
    torch.testing.assert_close(late, full, atol=1e-4, rtol=0)


def test_some_rows_keep_their_gradients(model: GPT) -> None:
    rows = slice(4, 9)
    gradients = [
        torch.autograd.grad(out.square().sum(), list(model.parameters()))
        for out in (model(TOKENS)[:, rows], model(TOKENS, rows=rows))
    ]
    for full, some in zip(*gradients, strict=True):
        scale = float(full.abs().max())
        torch.testing.assert_close(some, full, atol=1e-5 * max(1, scale), rtol=1e-4)


def test_hooks_in_the_last_block_see_whole_sequences_when_rows_are_asked_for(model: GPT) -> None:
    shapes = []
    with hooked(model, [("blocks.2.attn.hook_z", lambda z, hook: shapes.append(z.shape[1]))]):
        some = model(TOKENS, rows=slice(4, 9))
        full = model(TOKENS)
    assert shapes == [N, N]
    torch.testing.assert_close(some, full[:, 4:9], atol=1e-5, rtol=0)  # measured: 9.5e-7


def test_rows_that_cannot_be_are_refused(build: Build) -> None:
    model = build()
    for rows in (slice(5, 5), slice(7, 3), slice(0, 9, 2), slice(40, 50)):
        with pytest.raises(InputError, match=r"rows must name positions of 0\.\.10"):
            model(TOKENS, rows=rows)
    with pytest.raises(InputError, match="leave out start_at_layer and rows"):
        model(TOKENS, rows=slice(0, 3), return_type="loss")
    with pytest.raises(InputError, match="leave out stop_at_layer"):
        model(TOKENS, rows=slice(0, 3), stop_at_layer=1)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("watched", [False, True])
def test_streamed_pattern_rows_equal_the_whole_pattern(
    model: GPT, chunk: int, watched: bool
) -> None:
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    whole = capture(model, TOKENS, names).activations
    watch = [(names[1], lambda p, hook: None)] if watched else []
    seen = torch.zeros(3, N, dtype=torch.long)
    with hooked(model, watch):
        for layer, first, rows in model.stream_patterns(TOKENS, chunk):
            n = rows.shape[2]
            assert rows.shape[3] == first + n
            expected = whole[names[layer]][:, :, first : first + n, : first + n]
            torch.testing.assert_close(rows, expected, atol=1e-5, rtol=0)  # measured: 6e-7
            seen[layer, first : first + n] += 1
    assert (seen == 1).all(), "every query of every layer once"


def test_streamed_patterns_are_those_the_hooks_left(build: Build) -> None:
    model = build()

    def uniform(pattern: Tensor, *, hook: Any) -> Tensor:
        ones = torch.ones_like(pattern).tril()
        return ones / ones.sum(-1, keepdim=True)

    names = ["blocks.0.attn.hook_pattern", "blocks.2.attn.hook_pattern"]
    with hooked(model, [(names[0], uniform)]):
        rows = {layer: p for layer, _, p in model.stream_patterns(TOKENS)}
        expected = capture(model, TOKENS, names).activations
    torch.testing.assert_close(rows[0], expected[names[0]])
    assert float(rows[0][0, 0, 3, 0]) == 0.25
    torch.testing.assert_close(rows[2], expected[names[1]], atol=1e-5, rtol=0)  # measured: 6e-7


def test_a_stream_that_cannot_be_is_refused(model: GPT) -> None:
    with pytest.raises(LengthError, match="13 tokens, but got 14"):
        next(model.stream_patterns(torch.ones(1, 14, dtype=torch.long)))
    for chunk in (0, -1):
        with pytest.raises(InputError, match="query_chunk must be at least 1"):
            next(model.stream_patterns(TOKENS, chunk))
