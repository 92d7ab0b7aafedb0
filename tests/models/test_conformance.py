"""The guarantees of the hook interface, on our GPT and on bridges holding the same weights.

Three shapes (GPT-2; Llama with fourteen query heads on two key-value heads; the model of known
numbers), each copied into our GPT by hand, read from a folder by ``engine="gpt"``, and bridged.
One suite for all: what holds here holds in every analysis.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.errors import InputError, LengthError, UnknownNameError, VocabularyError
from models.gpt import GPT
from models.interface import capture, evaluating, hooked, pad, shape, weights

# a bridge says that it computes an edited norm in another way; the numbers are compared here
pytestmark = pytest.mark.filterwarnings("ignore:A forward hook edited hook_scale")

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 22, 3, 5], [2, 7, 1, 8, 2, 8, 1, 22, 22, 4, 5]])


@pytest.fixture(params=["copied", "read"])
def gpt(request: pytest.FixtureRequest, family: Any) -> GPT:
    found: GPT = getattr(family, request.param)
    return found


@pytest.fixture
def bridge(family: Any) -> Any:
    return family.bridged


@pytest.fixture(params=["copied", "read", "bridged"])
def model(request: pytest.FixtureRequest, family: Any) -> Any:
    found = getattr(family, request.param)
    before = attached(found)
    yield found
    assert attached(found) == before, "a test left hooks attached"


def attached(model: Any) -> int:
    """Functions attached to a model, torch's own hooks on all of its modules included."""
    if isinstance(model, GPT):
        return sum(len(point._attached) for point in model.hook_dict.values())
    points = set(model.hook_dict.values())
    modules = [*model.modules(), *model.original_model.modules()]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)
    return hooks + sum(len(point.fwd_hooks) for point in points)


def tokens_of(model: Any) -> Tensor:
    return TOKENS % model.cfg.d_vocab


def log_probs(model: Any, tokens: Tensor | None = None) -> Tensor:
    tokens = tokens_of(model) if tokens is None else tokens
    logits = capture(model, tokens, logits=True).logits
    assert logits is not None
    return logits.log_softmax(-1)


def gap(left: Tensor, right: Tensor) -> float:
    """Largest difference where both are finite; masked scores may be -inf or a large number."""
    assert left.shape == right.shape
    left, right = left.detach(), right.detach()
    seen = (left > -1e4) & (right > -1e4)
    return float((left - right)[seen].abs().max())


def bend(activation: Tensor, *, hook: Any) -> Tensor:
    return activation * torch.linspace(0.5, 1.5, activation.shape[-1])


def zero_first(activation: Tensor, *, hook: Any) -> None:
    activation[..., 0] = 0


# --- both engines against each other


def test_the_comparer_notices_a_perturbed_input(gpt: GPT, bridge: Any) -> None:
    other = tokens_of(gpt).clone()
    other[0, 2] += 1
    assert gap(log_probs(gpt), log_probs(bridge)) < 1e-4
    assert gap(log_probs(gpt, other), log_probs(bridge)) > 0.1
    name = "blocks.1.attn.hook_pattern"
    ours = capture(gpt, other, [name]).activations[name]
    theirs = capture(bridge, tokens_of(bridge), [name]).activations[name]
    assert gap(ours, theirs) > 0.01


def test_all_our_names_resolve_with_the_same_shapes_and_values(gpt: GPT, bridge: Any) -> None:
    names = list(gpt.hook_dict)
    ours = capture(gpt, tokens_of(gpt), names, logits=True)
    theirs = capture(bridge, tokens_of(bridge), names, logits=True)
    assert list(ours.activations) == list(theirs.activations)
    for name in names:  # measured: 1.2e-6 at most
        tolerance = 1e-5 if name.endswith("hook_pattern") else 1e-4
        assert gap(ours.activations[name], theirs.activations[name]) < tolerance, name
    assert ours.logits is not None
    assert theirs.logits is not None
    # measured: 9.6e-7
    assert gap(ours.logits.log_softmax(-1), theirs.logits.log_softmax(-1)) < 1e-4


def test_a_hook_function_has_the_same_effect_at_every_point(gpt: GPT, bridge: Any) -> None:
    clean = log_probs(gpt)
    for name in gpt.hook_dict:
        ours, theirs = (_edited(model, name, bend) for model in (gpt, bridge))
        assert gap(ours, theirs) < 1e-4, name  # measured: 6.2e-6
        assert gap(ours, clean) > 0.01, name


@pytest.mark.parametrize("grad", [False, True])
def test_editing_in_place_and_returning_a_copy_do_the_same(model: Any, grad: bool) -> None:
    def copied(activation: Tensor, *, hook: Any) -> Tensor:
        activation = activation.clone()
        zero_first(activation, hook=hook)
        return activation

    for name in capture_names(model):
        if name.endswith("hook_scale"):
            continue  # a zero there is divided by
        with torch.set_grad_enabled(grad):
            in_place, returned = (_edited(model, name, f) for f in (zero_first, copied))
            if grad:
                first = next(iter(model.parameters()))
                (gradient,) = torch.autograd.grad(in_place[..., 5].sum(), first)
                assert gradient.isfinite().all(), name
        assert gap(in_place, returned) < 1e-4, name  # measured: 0


def test_weights_are_the_same(gpt: GPT, bridge: Any) -> None:
    ours, theirs = weights(gpt), weights(bridge)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        other = theirs[name]
        assert (value is None) == (other is None), name
        if value is not None and other is not None:
            assert torch.equal(value, other), name
            assert not value.requires_grad
    none = {"W_pos"} if gpt.cfg.positions == "rotary" else {"W_gate"}
    assert {name for name, value in ours.items() if value is None} == none


def test_shapes_are_the_same(gpt: GPT, bridge: Any) -> None:
    assert shape(gpt) == shape(bridge)
    assert shape(gpt).n_key_value_heads == (2 if shape(gpt).n_heads == 14 else shape(gpt).n_heads)


# --- each engine


def test_the_hook_object_carries_the_canonical_name_and_layer(model: Any) -> None:
    seen = []

    def read(activation: Tensor, *, hook: Any) -> None:
        seen.append(hook.name)
        assert not hook.name.startswith("blocks.1") or hook.layer() == 1

    names = capture_names(model)
    with hooked(model, [(name, read) for name in names]), torch.no_grad():
        model(tokens_of(model), return_type="logits")
    assert sorted(seen) == sorted(names), "every listed point fires, and fires once"


def test_scopes_nest(model: Any) -> None:
    calls: list[str] = []

    def note(text: str) -> Any:
        return lambda activation, hook: calls.append(text)

    name = "blocks.0.attn.hook_z"
    with torch.no_grad(), hooked(model, [(name, note("outer"))]):
        with hooked(model, [(name, note("inner")), (name, note("inner"))]):
            model(tokens_of(model), return_type="logits")
        assert calls == ["outer", "inner", "inner"], "in the order of attaching"
        capture(model, tokens_of(model), [name])
        assert calls == ["outer", "inner", "inner", "outer"]
    log_probs(model)
    assert len(calls) == 4


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_hooks_stay_after_an_exception_no_more(model: Any, error: type[BaseException]) -> None:
    before, clean = attached(model), log_probs(model)
    fired = []

    def fire(activation: Tensor, *, hook: Any) -> None:
        fired.append(hook.name)

    def fail(activation: Tensor, *, hook: Any) -> None:
        raise error("from the hook")

    with (
        pytest.raises(error, match="from the hook"),
        hooked(model, [("blocks.0.attn.hook_z", fire), ("blocks.1.attn.hook_z", fail)]),
    ):
        model(tokens_of(model), return_type="logits")
    assert fired == ["blocks.0.attn.hook_z"]
    assert attached(model) == before
    assert torch.equal(log_probs(model), clean)


def test_a_misspelt_name_is_refused_before_anything_is_attached(model: Any) -> None:
    before, clean = attached(model), log_probs(model)
    hooks = [("blocks.0.attn.hook_z", bend), ("blocks.1.attn.hook_zz", bend)]
    with (
        pytest.raises(UnknownNameError, match=r"did you mean .*blocks\.1\.attn\.hook_z"),
        hooked(model, hooks),
    ):
        pytest.fail("the block must not run")
    with pytest.raises(UnknownNameError, match=r"'blocks\.x\.attn\.hook_z'"):
        capture(model, tokens_of(model), ["blocks.0.attn.hook_z", "blocks.x.attn.hook_z"])
    assert attached(model) == before
    assert torch.equal(log_probs(model), clean)


def test_a_replacement_of_another_shape_is_refused(model: Any) -> None:
    with (
        pytest.raises(
            InputError, match=r"blocks\.0\.attn\.hook_z must return .*shape \(2, 11, \d+,"
        ),
        hooked(model, [("blocks.0.attn.hook_z", lambda z, hook: z[:, :1])]),
    ):
        model(tokens_of(model), return_type="logits")


@pytest.mark.parametrize("grad", [False, True])
def test_captured_values_are_copies(model: Any, grad: bool) -> None:
    names, clean = capture_names(model), log_probs(model)
    kept = capture(model, tokens_of(model), names, grad=grad).activations
    for value in kept.values():
        value.detach().mul_(3)
    assert torch.equal(log_probs(model), clean), "the caller's edits do not reach the model"

    post, following = "blocks.0.hook_resid_post", "blocks.1.hook_resid_pre"
    before = capture(model, tokens_of(model), [post]).activations[post]
    edit = [(following, zero_first)]  # edits in place what is one tensor in both engines
    edited = capture(model, tokens_of(model), [post, following], hooks=edit, grad=grad).activations
    assert torch.equal(edited[post], before), "later edits do not reach what was captured"
    assert (edited[following][..., 0] == 0).all()


def test_cached_tensors_hold_no_graph_unless_asked(model: Any) -> None:
    name = "blocks.0.attn.hook_z"
    captured = capture(model, tokens_of(model), [name], logits=True)
    assert captured.activations[name].grad_fn is None
    assert captured.logits is not None
    assert captured.logits.grad_fn is None
    with_graph = capture(model, tokens_of(model), [name], logits=True, grad=True)
    assert with_graph.logits is not None
    (gradient,) = torch.autograd.grad(with_graph.logits.sum(), with_graph.activations[name])
    assert float(gradient.abs().max()) > 1e-3


def test_gradients_of_captured_activations_agree(gpt: GPT, bridge: Any) -> None:
    names = [name for name in gpt.hook_dict if "ln_final" not in name]
    found = []
    for model in (gpt, bridge):
        captured = capture(model, tokens_of(model), names, logits=True, grad=True)
        assert captured.logits is not None
        score = captured.logits.log_softmax(-1)[:, -1, 5].sum()
        values = [captured.activations[name] for name in names]
        found.append(dict(zip(names, torch.autograd.grad(score, values), strict=True)))
    for name in names:  # measured: 3.6e-6
        assert gap(found[0][name], found[1][name]) < 1e-4, name
        assert float(found[0][name].abs().max()) > 1e-4, name


def test_the_mode_of_every_module_comes_back(model: Any) -> None:
    modules = list(model.modules())
    before = [module.training for module in modules]
    mixed = [i % 3 == 0 for i in range(len(modules))]
    try:
        for module, mode in zip(modules, mixed, strict=True):
            module.training = mode
        with pytest.raises(KeyboardInterrupt), evaluating(model):
            _interrupt_when(not any(module.training for module in modules))
        assert [module.training for module in modules] == mixed
        capture(model, tokens_of(model), ["blocks.0.attn.hook_z"])
        assert [module.training for module in modules] == mixed
    finally:
        for module, mode in zip(modules, before, strict=True):
            module.training = mode


def test_capturing_leaves_gradients_grad_mode_and_random_state(model: Any) -> None:
    for parameter in model.parameters():
        assert parameter.grad is None
    state = torch.get_rng_state()
    with torch.no_grad():
        capture(model, tokens_of(model), ["blocks.1.hook_resid_post"], grad=True)
        assert not torch.is_grad_enabled()
    capture(model, tokens_of(model), ["blocks.1.hook_resid_post"])
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_capture_that_stops_early_keeps_the_same_values(model: Any) -> None:
    for names in (["hook_embed"], ["blocks.0.hook_resid_post"], ["blocks.1.attn.hook_pattern"]):
        early = capture(model, tokens_of(model), names)
        full = capture(model, tokens_of(model), names, logits=True)
        assert early.logits is None
        for name in names:
            assert torch.equal(early.activations[name], full.activations[name])


def test_a_prompt_in_a_batch_gives_what_it_gives_alone(model: Any) -> None:
    end = model.cfg.d_vocab - 1  # ends a text and pads
    prompts = [[3, 1, 4, 1, 5, end, 2], [end, 6], [5, end, end, 5]]
    padded = pad(model, prompts)
    assert padded.lengths.tolist() == [7, 2, 4]
    assert padded.real.sum(1).tolist() == [7, 2, 4]
    name = "blocks.1.attn.hook_pattern"
    batch = capture(model, prompts, [name], logits=True)
    assert batch.logits is not None
    for row, prompt in enumerate(prompts):
        n = len(prompt)
        alone = capture(model, [prompt], [name], logits=True)
        assert alone.logits is not None
        # measured: 9.5e-7 and 1.2e-7
        assert gap(batch.logits[row, :n].log_softmax(-1), alone.logits[0].log_softmax(-1)) < 1e-4
        assert gap(batch.activations[name][row, :, :n, :n], alone.activations[name][0]) < 1e-5


def test_longer_than_the_context_is_refused_with_both_numbers(model: Any) -> None:
    runs = []
    with hooked(model, [("hook_embed", lambda x, hook: runs.append(1))]):
        n = model.cfg.n_ctx
        with pytest.raises(LengthError, match=rf"{n} tokens, but got {n + 1}"):
            capture(model, torch.zeros(1, n + 1, dtype=torch.long), logits=True)
        assert not runs, "nothing ran"
        assert log_probs(model, torch.zeros(1, n, dtype=torch.long)).isfinite().all()


def test_ids_outside_the_vocabulary_are_refused(model: Any) -> None:
    n = model.cfg.d_vocab
    with pytest.raises(VocabularyError, match=rf"0\.\.{n - 1}, but got {n}"):
        capture(model, [[1, n]])
    with pytest.raises(VocabularyError, match=rf"0\.\.{n - 1}, but got -1"):
        capture(model, [[1, -1]])


def test_hooks_of_the_user_are_left_alone(model: Any) -> None:
    calls = []
    with hooked(model, [("blocks.0.attn.hook_z", lambda z, hook: calls.append(1))]):
        count = attached(model)
        capture(model, tokens_of(model), capture_names(model), logits=True)
        assert attached(model) == count
    assert calls == [1]


def test_the_rows_of_every_pattern_sum_to_one(model: Any) -> None:
    for layer in range(2):
        name = f"blocks.{layer}.attn.hook_pattern"
        pattern = capture(model, tokens_of(model), [name]).activations[name]
        # measured: 1.2e-7
        torch.testing.assert_close(
            pattern.sum(-1), torch.ones(2, model.cfg.n_heads, 11), atol=1e-6, rtol=0
        )
        assert (pattern.triu(1) == 0).all()


def _interrupt_when(condition: bool) -> None:
    if condition:
        raise KeyboardInterrupt


def _edited(model: Any, name: str, function: Any) -> Tensor:
    with hooked(model, [(name, function)]):
        logits: Tensor = model(tokens_of(model), return_type="logits")
    return logits.log_softmax(-1)


def capture_names(model: Any) -> list[str]:
    """The canonical names: those of our GPT, which a bridge has among others."""
    gated = "mlp.hook_pre_linear" in {name.split(".", 2)[-1] for name in model.hook_dict}
    rotary = "blocks.0.attn.hook_rot_q" in model.hook_dict
    blocks = [
        f"blocks.{layer}.{point}"
        for layer in range(model.cfg.n_layers)
        for point in (
            *("hook_resid_pre", "ln1.hook_scale", "ln1.hook_normalized"),
            *(f"attn.hook_{part}" for part in ("q", "k", "v", "attn_scores", "pattern", "z")),
            *(["attn.hook_rot_q", "attn.hook_rot_k"] if rotary else []),
            *("hook_attn_out", "hook_resid_mid", "ln2.hook_scale", "ln2.hook_normalized"),
            *(["mlp.hook_pre_linear"] if gated else []),
            *("mlp.hook_pre", "mlp.hook_post", "hook_mlp_out", "hook_resid_post"),
        )
    ]
    final = ["ln_final.hook_scale", "ln_final.hook_normalized"]
    return ["hook_embed", *([] if rotary else ["hook_pos_embed"]), *blocks, *final]


def test_the_names_are_all_that_our_model_has(gpt: GPT) -> None:
    assert sorted(capture_names(gpt)) == sorted(gpt.hook_dict)
