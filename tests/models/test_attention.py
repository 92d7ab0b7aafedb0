"""Scaled dot-product attention and the ways to mark positions."""

import math

import pytest
import torch
from torch.nn import functional as F

from models.attention import (
    attention,
    attention_scores,
    rotary_table,
    rotate,
    sinusoidal_positions,
    visible_keys,
)
from models.hooks import HookPoint, attached


def test_the_worked_example() -> None:
    """Three tokens with two-dimensional heads, without a causal mask; see Vaswani et al. 3.2.1."""
    q = torch.tensor([[1.0, 0], [0, 1], [1, 1]])[None, None]
    k = torch.tensor([[1.0, 0], [0, 1], [0.5, 0.5]])[None, None]
    v = torch.tensor([[1.0, 0], [0, 1], [0.5, 0.5]])[None, None]
    products = torch.tensor([[1, 0, 0.5], [0, 1, 0.5], [1, 1, 1]])
    torch.testing.assert_close(attention_scores(q, k)[0, 0], products / math.sqrt(2))
    patterns = []
    pattern = HookPoint()
    with attached([(pattern, lambda weights, hook: patterns.append(weights[0, 0]))]):
        out = attention(q, k, v, hook_pattern=pattern)[0, 0]
    assert patterns[0][0].tolist() == pytest.approx([0.46, 0.22, 0.32], abs=0.005)
    assert patterns[0][1].tolist() == pytest.approx([0.22, 0.46, 0.32], abs=0.005)
    assert patterns[0][2].tolist() == pytest.approx([1 / 3] * 3)
    assert out[0].tolist() == pytest.approx([0.62, 0.38], abs=0.005)
    assert out[2].tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("window", [None, 1, 2, 5, 100])
def test_explicit_attention_equals_the_fused_kernel(window: int | None) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 11, 7).unbind()
    visible = visible_keys(11, 11, window=window)
    fused = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    explicit = attention(q, k, v, visible=visible)
    torch.testing.assert_close(explicit, fused, atol=1e-6, rtol=0)  # measured: 3.6e-7


def test_visible_keys_are_the_last_of_the_queries() -> None:
    assert visible_keys(2, 5).tolist() == [[True] * 4 + [False], [True] * 5]
    assert torch.equal(visible_keys(2, 5, window=3), visible_keys(5, 5, window=3)[3:])
    assert visible_keys(5, 5, window=3).sum(1).tolist() == [1, 2, 3, 3, 3]


def test_a_window_of_two_with_equal_scores_is_half_and_half() -> None:
    scores = attention_scores(
        torch.zeros(1, 1, 4, 3), torch.ones(1, 1, 4, 3), visible=visible_keys(4, 4, window=2)
    )
    assert scores.softmax(-1)[0, 0, 3].tolist() == [0, 0, 0.5, 0.5]


def test_hooks_see_scores_then_pattern_and_their_edits_count() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 1, 2, 5, 3).unbind()
    scores, pattern, seen = HookPoint(), HookPoint(), []

    def only_first_key(activation, *, hook):
        seen.append(hook)
        activation[..., 1:] = -math.inf if hook is scores else 0

    with attached([(scores, only_first_key), (pattern, only_first_key)]):
        out = attention(q, k, v, hook_scores=scores, hook_pattern=pattern)
    assert seen == [scores, pattern]
    torch.testing.assert_close(out, v[:, :, :1].expand_as(out))


def test_dropout_keeps_the_mean_and_comes_after_the_hooks() -> None:
    torch.manual_seed(2)
    q, k = torch.randn(2, 1, 1, 3, 5).unbind()
    v, point, seen = torch.eye(3, 5)[None, None], HookPoint(), []
    with attached([(point, lambda p, hook: seen.append(p.clone()))]):
        outs = [attention(q, k, v, dropout=0.5, hook_pattern=point) for _ in range(4_000)]
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(1, 1, 3))
    mean = torch.stack(outs).mean(0)[..., :3]
    torch.testing.assert_close(mean, seen[0], atol=0.05, rtol=0)  # measured: 0.01


@pytest.mark.parametrize("shift", [1, 5, 30])
def test_rotary_scores_depend_on_the_distance_only(shift: int) -> None:
    torch.manual_seed(3)
    cos, sin = rotary_table(61, 10)
    q, k = torch.randn(2, 1, 1, 1, 10).unbind()

    def score(query_at: int, key_at: int) -> float:
        turned_q = rotate(q, cos[[query_at]], sin[[query_at]])
        turned_k = rotate(k, cos[[key_at]], sin[[key_at]])
        return float((turned_q * turned_k).sum())

    for query_at, key_at in ((0, 0), (7, 2), (20, 0), (29, 28)):
        # measured: 7.2e-7
        assert score(query_at, key_at) == pytest.approx(
            score(query_at + shift, key_at + shift), abs=1e-5
        )
    assert abs(score(7, 2) - score(7, 3)) > 0.01


def test_rotation_keeps_lengths() -> None:
    torch.manual_seed(4)
    x = torch.randn(2, 13, 3, 10)
    cos, sin = rotary_table(13, 10)
    turned = rotate(x, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, 0], x[:, 0]), "position 0 is not turned"
    assert (turned[:, 1:] - x[:, 1:]).abs().amax((0, 2, 3)).min() > 0.1


@pytest.mark.parametrize("k", [1, 7, 40])
def test_sinusoidal_positions_move_by_a_fixed_linear_map(k: int) -> None:
    """PE(p + k) = M(k) PE(p), with M(k) the same rotation of each pair for every p."""
    d_model = 22
    table = sinusoidal_positions(101, d_model).double()
    base, moved = table[:-k], table[k:]
    frequency = 10_000.0 ** (-torch.arange(0, d_model, 2).double() / d_model)
    blocks = [
        torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])
        for a in (k * frequency).tolist()
    ]
    rotation = torch.block_diag(*blocks).double()
    torch.testing.assert_close(base @ rotation, moved, atol=1e-5, rtol=0)  # measured: 9e-8


def test_sinusoidal_positions_of_an_odd_width_end_in_a_sine() -> None:
    assert torch.equal(sinusoidal_positions(7, 5), sinusoidal_positions(7, 5))
    table = sinusoidal_positions(7, 5)
    assert table[3, 0] == pytest.approx(math.sin(3))
    assert table[3, 1] == pytest.approx(math.cos(3))
    assert table[3, 4] == pytest.approx(math.sin(3 * 10_000 ** (-4 / 5)))
