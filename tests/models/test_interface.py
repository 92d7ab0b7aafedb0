"""What `pad`, `shape`, `capture` and `weights` do on our own models."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.config import GPTConfig
from models.errors import InputError, LengthError, UnknownNameError
from models.gpt import GPT
from models.interface import HookedModel, capture, evaluating, hooked, pad, shape, weights

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]])


@pytest.fixture
def model() -> GPT:
    return GPT(_config(), seed=1, init_std=0.3).eval()


def _config(**changes: Any) -> GPTConfig:
    sizes = {"d_vocab": 11, "n_ctx": 13, "n_layers": 3, "n_heads": 6, "d_model": 30, "d_mlp": 19}
    return GPTConfig(**{**sizes, **changes})


def test_a_gpt_is_a_hooked_model(model: GPT) -> None:
    assert isinstance(model, HookedModel)
    assert not isinstance(nn.Linear(2, 3), HookedModel)


@pytest.mark.usefixtures("unchecked")
def test_another_object_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"a hooked model .* is needed, but got Linear"):
        shape(nn.Linear(2, 3))


def test_shape_fills_what_was_left_out() -> None:
    sizes = shape(GPT(_config(n_key_value_heads=2, window=5)))
    assert (sizes.n_key_value_heads, sizes.d_head, sizes.window) == (2, 5, 5)
    assert sizes.heads[7] == (1, 1)
    assert len(sizes.heads) == 18
    assert shape(GPT(_config(mlp="none", d_mlp=None))).d_mlp == 0


def test_shorter_rows_are_padded_on_the_right(model: GPT) -> None:
    tokens, lengths = pad(model, [[1, 2, 3], [4], [5, 6]])
    assert tokens.tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert lengths.tolist() == [3, 1, 2]
    assert pad(model, [[1, 2, 3], [4]]).real.tolist() == [[True] * 3, [True, False, False]]


def test_a_padded_tensor_may_carry_lengths(model: GPT) -> None:
    tokens, lengths = pad(model, TOKENS, torch.tensor([7, 2]))
    assert torch.equal(tokens, TOKENS)
    assert lengths.tolist() == [7, 2]
    assert pad(model, TOKENS).lengths.tolist() == [7, 7]
    for wrong in ([7], [0, 7], [8, 7]):
        with pytest.raises(LengthError, match=r"lengths must be 1\.\.7 for each of 2 rows"):
            pad(model, TOKENS, torch.tensor(wrong))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "one or more non-empty lists"),
        ([[]], "one or more non-empty lists"),
        ([[1, 2], []], "one or more non-empty lists"),
        ([1, 2, 3], "one or more non-empty lists"),
        ("abc", "lists of ids, but got 'abc'"),
        ([["a"]], "lists of ids"),
        ([[1.5]], "integer ids"),
        ([[1, 2], [0.5]], "integer ids"),
        (torch.zeros(1, 3), "integer ids, but got torch.float32"),
        (torch.ones(1, 3, dtype=torch.bool), "integer ids, but got torch.bool"),
        (torch.zeros(3, dtype=torch.long), r"\[batch, pos\], but got shape \(3,\)"),
        (torch.zeros(1, 0, dtype=torch.long), r"\[batch, pos\], but got shape \(1, 0\)"),
    ],
)
def test_what_are_no_ids_is_refused(model: GPT, tokens: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pad(model, tokens)


@pytest.mark.parametrize("name", ["blocks.x.hook_z", "blocks.", "blocks.3.attn.hook_z", "", "ln"])
def test_names_are_resolved_before_the_model_runs(model: GPT, name: str) -> None:
    runs: list[int] = []
    with (
        pytest.raises(UnknownNameError, match="no hook point named"),
        hooked(model, [("hook_embed", lambda x, hook: runs.append(1))]),
    ):
        capture(model, TOKENS, ["hook_embed", name])
    assert not runs


def test_a_run_stops_after_the_last_layer_that_is_needed(model: GPT) -> None:
    fired: list[str] = []
    everywhere = [(name, lambda x, hook: fired.append(hook.name)) for name in model.hook_dict]
    capture(model, TOKENS, ["blocks.1.attn.hook_z", "hook_embed"], hooks=everywhere)
    assert max(name for name in fired if name.startswith("blocks")) < "blocks.2"
    assert "blocks.1.hook_resid_post" in fired
    fired.clear()
    capture(model, TOKENS, ["hook_pos_embed"], hooks=everywhere)
    assert fired == ["hook_embed", "hook_pos_embed"]
    fired.clear()
    capture(model, TOKENS, ["ln_final.hook_scale"], hooks=everywhere)
    assert "ln_final.hook_normalized" in fired


def test_further_hooks_run_before_the_capture_reads(model: GPT) -> None:
    name = "blocks.1.attn.hook_z"
    captured = capture(model, TOKENS, [name], hooks=[(name, lambda z, hook: z * 0)])
    assert not captured.activations[name].any()


def test_gradients_can_be_taken_of_a_model_with_frozen_weights(model: GPT) -> None:
    names = ["blocks.0.hook_resid_pre", "blocks.1.attn.hook_z"]

    def gradients() -> list[Tensor]:
        captured = capture(model, TOKENS, names, logits=True, grad=True)
        assert captured.logits is not None
        score = captured.logits[:, -1, 3].sum()
        return list(torch.autograd.grad(score, [captured.activations[name] for name in names]))

    expected = gradients()
    model.requires_grad_(False)
    for value, other in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(value, other, atol=1e-6, rtol=1e-5)  # measured: 0


def test_a_captured_gradient_is_the_slope(model: GPT) -> None:
    model = model.double()
    name, step = "blocks.1.attn.hook_z", 1e-4
    captured = capture(model, TOKENS, [name], logits=True, grad=True)
    assert captured.logits is not None
    (gradient,) = torch.autograd.grad(captured.logits[0, -1, 3], captured.activations[name])

    def score(change: float) -> float:
        def nudge(z: Tensor, *, hook: Any) -> None:
            z[0, 2, 4, 1] += change

        logits = capture(model, TOKENS, logits=True, hooks=[(name, nudge)]).logits
        assert logits is not None
        return float(logits[0, -1, 3])

    slope = (score(step) - score(-step)) / (2 * step)
    assert float(gradient[0, 2, 4, 1]) == pytest.approx(slope, rel=1e-5)  # measured: 2e-9


def test_repeated_captures_keep_nothing_alive(model: GPT) -> None:
    def tensors_after(runs: int) -> int:
        for _ in range(runs):
            capture(model, TOKENS, list(model.hook_dict), logits=True)
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    assert tensors_after(2) == tensors_after(20)


def test_evaluation_mode_ends_with_the_block(model: GPT) -> None:
    model.train()
    model.blocks[1].eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before


def test_dropout_is_off_while_capturing() -> None:
    model = GPT(_config(dropout=0.5), seed=1, init_std=0.3).train()
    state = torch.get_rng_state()
    once, twice = (capture(model, TOKENS, logits=True).logits for _ in range(2))
    assert torch.equal(once, twice)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("mlp", ["gelu", "swiglu", "none"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_compute_what_the_model_computes(mlp: Any, tied: bool) -> None:
    changes = {"n_key_value_heads": 2, "bias": False, "normalization": "rms", "tied": tied}
    model = GPT(_config(mlp=mlp, **changes), seed=2, init_std=0.3).eval()
    matrices = weights(model)
    assert {name for name, value in matrices.items() if value is None} == {
        "gelu": {"W_gate"},
        "swiglu": set(),
        "none": {"W_in", "W_gate", "W_out"},
    }[mlp]
    kept = capture(model, TOKENS, list(model.hook_dict), logits=True)
    at = {name.removeprefix("blocks.1."): value for name, value in kept.activations.items()}
    x = at["ln1.hook_normalized"]  # the norms' own weights are 1
    pairs = [
        (torch.einsum("bpm,hmd->bphd", x, matrices["W_Q"][1]), at["attn.hook_q"]),
        (torch.einsum("bpm,hmd->bphd", x, matrices["W_K"][1]), at["attn.hook_k"]),
        (torch.einsum("bpm,hmd->bphd", x, matrices["W_V"][1]), at["attn.hook_v"]),
        (
            torch.einsum("bphd,hdm->bpm", at["attn.hook_z"], matrices["W_O"][1]),
            at["hook_attn_out"],
        ),
        (matrices["W_E"][TOKENS] + matrices["W_pos"][:7], at["hook_embed"] + at["hook_pos_embed"]),
        (kept.activations["ln_final.hook_normalized"] @ matrices["W_U"], kept.logits),
    ]
    if mlp != "none":
        x = at["ln2.hook_normalized"]
        linear = at["mlp.hook_pre_linear"] if mlp == "swiglu" else at["mlp.hook_pre"]
        pairs.append((x @ matrices["W_in"][1], linear))
        pairs.append((at["mlp.hook_post"] @ matrices["W_out"][1], at["hook_mlp_out"]))
    if mlp == "swiglu":
        pairs.append((x @ matrices["W_gate"][1], at["mlp.hook_pre"]))
    for by_hand, value in pairs:
        torch.testing.assert_close(by_hand, value, atol=1e-5, rtol=1e-5)  # measured: 1.9e-6


def test_a_bridge_in_training_mode_is_measured_without_dropout(
    gpt2: Any, to_bridge: Callable[[Any], Any]
) -> None:
    """Parts of the original model run that are not among the bridge's own modules."""
    bridge = to_bridge(gpt2)
    bridge.train()
    own = set(bridge.modules())
    modules = [*own, *(m for m in bridge.original_model.modules() if m not in own)]
    assert len(modules) > len(own)
    modules[-1].training = False
    before = [module.training for module in modules]
    state = torch.get_rng_state()
    with evaluating(bridge):
        assert not any(module.training for module in modules)
    name = "blocks.1.attn.hook_pattern"
    runs = [capture(bridge, TOKENS, [name], logits=True) for _ in range(2)]
    assert torch.equal(runs[0].activations[name], runs[1].activations[name])
    assert torch.equal(runs[0].logits, runs[1].logits)
    assert torch.equal(state, torch.get_rng_state())
    assert [module.training for module in modules] == before


def test_a_bridge_keeps_the_hooks_of_transformer_lens_and_no_other(
    gpt2: Any, to_bridge: Callable[[Any], Any]
) -> None:
    """A bridge hooks its blocks' norms itself, once, the first time that it runs."""

    def hooks(bridge: Any) -> list[tuple[str, int]]:
        parts = bridge.named_modules()
        return [(n, len(m._forward_hooks) + len(m._forward_pre_hooks)) for n, m in parts]

    bare, measured = to_bridge(gpt2), to_bridge(gpt2)
    bare(TOKENS)
    names = ["blocks.0.hook_resid_mid", "blocks.1.attn.hook_z"]
    capture(measured, TOKENS, names, logits=True)
    assert hooks(measured) == hooks(bare)
    assert hooks(bare) != hooks(to_bridge(gpt2)), "TransformerLens's own, from a bare run"
