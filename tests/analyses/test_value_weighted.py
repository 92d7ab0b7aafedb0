"""Value-weighted attention against its definition."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from analyses.attention_patterns import PATTERNS, attention_patterns, target_mass
from analyses.inputs import as_batch
from analyses.streaming import reduce_pattern
from analyses.value_weighted import value_weighted, written_norm
from models.gpt import GPT
from models.interface import capture

ROWS = [[3, 1, 4, 1, 5, 3, 1], [2, 7, 1, 8, 2, 8, 1], [6, 6, 2, 0, 6, 6, 2]]


@pytest.mark.parametrize("kv_heads", [3, 1])
def test_weights_are_the_norms_of_what_each_key_writes(
    make_model: Callable[..., GPT], kv_heads: int
) -> None:
    model = make_model(n_key_value_heads=kv_heads)
    names = [f"blocks.1.attn.hook_{point}" for point in ("pattern", "v")]
    kept = capture(model, ROWS, names).activations
    pattern, v = kept[names[0]].double(), kept[names[1]].double()
    weighted = torch.zeros_like(pattern)
    for s in range(3):
        for head in range(3):
            for i in range(7):
                for j in range(i + 1):
                    value = v[s, j, head * kv_heads // 3]
                    written = pattern[s, head, i, j] * value @ model.W_O[1, head].detach().double()
                    weighted[s, head, i, j] = written.norm()
    weighted /= weighted.sum(-1, keepdim=True)
    table = value_weighted(model, ROWS).set_index(["layer", "score", "head"]).sort_index()
    for name in ("previous_token", "first_token", "induction"):
        batch = as_batch(model, ROWS)
        expected = reduce_pattern(target_mass(PATTERNS[name][0]), batch, weighted).nanmean(0)
        found = table.loc[(1, name), "value"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)  # measured: 1e-7


def test_values_of_one_norm_leave_the_scores_as_they_are(make_model: Callable[..., GPT]) -> None:
    model = make_model()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[42:] = 0  # all values are the bias
            block.attn.qkv.bias[42:] = torch.arange(1.0, 22)
    expected = attention_patterns(model, ROWS)["value"]
    # measured: 1e-7
    np.testing.assert_allclose(value_weighted(model, ROWS)["value"], expected, rtol=0, atol=1e-6)


def test_a_key_whose_value_is_nothing_counts_for_nothing(make_model: Callable[..., GPT]) -> None:
    from models.interface import hooked

    def silence(v: Any, *, hook: Any) -> None:
        v[:, 0] = 0

    model = make_model()
    names = [f"blocks.{layer}.attn.hook_v" for layer in (0, 1)]
    with hooked(model, [(name, silence) for name in names]):
        table = value_weighted(model, ROWS, scores=["first_token"])
    assert (table["value"].abs() < 1e-7).all()


def test_both_engines_agree(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    ours, theirs = (value_weighted(m, ROWS)["value"] for m in (gpt2_twin, gpt2_bridge))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)  # measured: 1e-6


def test_norms_are_computed_without_the_written_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, 5, 3, 7, generator=generator)
    W_O = torch.randn(3, 7, 11, generator=generator)
    expected = torch.einsum("bphd,hdm->bhpm", v, W_O).norm(dim=-1)
    torch.testing.assert_close(written_norm(v, W_O), expected)
