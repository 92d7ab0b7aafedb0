"""The hook mechanism of our own models; what both engines guarantee is in test_conformance."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.config import GPTConfig
from models.errors import InputError, UnknownNameError
from models.gpt import GPT
from models.hooks import ActivationCache, HookPoint, attached

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]])


@pytest.fixture
def model() -> GPT:
    config = GPTConfig(d_vocab=11, n_ctx=13, n_layers=2, n_heads=3, d_model=15, d_mlp=19)
    return GPT(config, seed=1, init_std=0.3).eval()


def functions(model: GPT) -> int:
    return sum(len(point._attached) for point in model.hook_dict.values())


def test_points_are_named_by_their_place(model: GPT) -> None:
    assert all(point.name == name for name, point in model.hook_dict.items())
    assert model.hook_dict["blocks.1.attn.hook_z"] is model.blocks[1].attn.hook_z
    assert model.blocks[1].attn.hook_z.layer() == 1


def test_every_listed_point_fires_once(model: GPT) -> None:
    fired: list[str] = []
    hooks = [(lambda name: True, lambda activation, hook: fired.append(hook.name))]
    model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    assert sorted(fired) == sorted(model.hook_dict)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_nothing_stays_attached_after_an_exception(model: GPT, error: type[BaseException]) -> None:
    clean = model(TOKENS)

    def fail(activation: Tensor, *, hook: Any) -> None:
        raise error("from the hook")

    hooks = [("blocks.0.attn.hook_z", fail), ("hook_embed", lambda x, hook: None)]
    with pytest.raises(error, match="from the hook"):
        model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    assert functions(model) == 0
    with pytest.raises(error, match="from the hook"), model.hooks(hooks):
        model.run_with_cache(TOKENS)
    assert functions(model) == 0
    assert torch.equal(model(TOKENS), clean)


def test_names_are_resolved_before_anything_is_attached(model: GPT) -> None:
    fine = ("blocks.0.attn.hook_z", lambda z, hook: None)
    for wrong in ("blocks.2.attn.hook_z", "blocks.0.attn.hook_zz", "hook_embd"):
        with pytest.raises(UnknownNameError, match=f"no hook point named '{wrong}'"):
            model.run_with_hooks(TOKENS, fwd_hooks=[fine, (wrong, fine[1])])
        with pytest.raises(UnknownNameError, match="did you mean"):
            model.run_with_cache(TOKENS, names_filter=["hook_embed", wrong])
        assert functions(model) == 0


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_called_is_refused_before_anything_is_attached(model: GPT) -> None:
    hooks = [("hook_embed", lambda x, hook: None), ("hook_embed", torch.zeros(1))]
    with pytest.raises(InputError, match="a hook is a function"):
        model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    assert functions(model) == 0


def test_scopes_nest_and_each_removes_its_own(model: GPT) -> None:
    def same(activation: Tensor, *, hook: Any) -> None:
        calls.append(hook.name)

    calls: list[str] = []
    with model.hooks([("hook_embed", same)]):
        with model.hooks([("hook_embed", same), ("hook_embed", same)]):
            model(TOKENS)
            assert len(calls) == 3, "one function may be attached more than once"
        model(TOKENS)
        assert len(calls) == 4
    model(TOKENS)
    assert len(calls) == 4


def test_hooks_run_in_the_order_of_attaching_and_see_what_earlier_ones_left() -> None:
    point, seen = HookPoint(), []
    add_one = (point, lambda x, hook: x + 1)
    look = (point, lambda x, hook: seen.append(float(x)))
    with attached([look, add_one, look, add_one, look]):
        assert float(point(torch.tensor(5.0))) == 7
    assert seen == [5, 6, 7]


def test_a_hook_that_detaches_or_attaches_while_running_is_safe() -> None:
    point = HookPoint()
    scopes = []

    def nested(x: Tensor, *, hook: HookPoint) -> Tensor:
        scope = attached([(hook, lambda x, hook: x * 100)])
        scopes.append(scope)
        scope.__enter__()
        return x + 1

    with attached([(point, nested)]):
        assert float(point(torch.tensor(1.0))) == 2, "attached from the next pass on"
        scopes[0].__exit__(None, None, None)
    assert not point.watched


def test_backward_hooks_are_refused_with_the_way_to_gradients(model: GPT) -> None:
    with pytest.raises(InputError, match=r"capture activations with grad=True"):
        model.run_with_hooks(TOKENS, bwd_hooks=[("hook_embed", lambda g, hook: None)])


@pytest.mark.parametrize("replacement", [torch.zeros(1, 1, 1), 3.0, torch.zeros(2, 7, 3)])
@pytest.mark.usefixtures("unchecked")
def test_a_replacement_of_another_shape_is_refused(model: GPT, replacement: Any) -> None:
    with pytest.raises(InputError, match=r"a hook at hook_embed must return None or .*\(2, 7, 15"):
        model.run_with_hooks(TOKENS, fwd_hooks=[("hook_embed", lambda x, hook: replacement)])


def test_a_cache_holds_copies_without_a_graph(model: GPT) -> None:
    def wipe(activation: Tensor, *, hook: Any) -> None:
        activation.zero_()

    logits, clean = model.run_with_cache(TOKENS)
    with model.hooks([("blocks.1.hook_resid_pre", wipe)]):
        _, cache = model.run_with_cache(TOKENS)
    # resid_post of layer 0 and resid_pre of layer 1 are one tensor in the model
    assert torch.equal(cache["resid_post", 0], clean["resid_post", 0])
    assert not cache["resid_pre", 1].any()
    assert all(value.grad_fn is None for value in cache.values())
    for value in clean.values():
        value.zero_()
    assert torch.equal(model(TOKENS, return_type="logits"), model(TOKENS))
    assert logits.grad_fn is not None


def test_a_cache_can_be_filtered(model: GPT) -> None:
    _, by_function = model.run_with_cache(TOKENS, names_filter=lambda name: "pattern" in name)
    _, by_list = model.run_with_cache(
        TOKENS, names_filter=["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]
    )
    assert list(by_function) == list(by_list)
    _, single = model.run_with_cache(TOKENS[:1], names_filter="hook_embed", remove_batch_dim=True)
    assert torch.equal(single["embed"], model.W_E[TOKENS[0]])
    with pytest.raises(InputError, match="needs a batch of 1, but got 2"):
        model.run_with_cache(TOKENS, remove_batch_dim=True)
    assert functions(model) == 0


def test_a_missing_activation_is_named() -> None:
    cache = ActivationCache({"hook_embed": torch.zeros(1)})
    with pytest.raises(
        KeyError, match=r"\('pattern', 0\) is not in the cache; it holds hook_embed"
    ):
        cache["pattern", 0]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("grad", [False, True])
def test_editing_in_place_never_changes_the_weights(positions: Any, grad: bool) -> None:
    config = GPTConfig(d_vocab=11, n_ctx=13, n_heads=3, d_model=15, positions=positions, tied=True)
    model = GPT(config, seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    table = model.W_pos.clone()

    def wipe(activation: Tensor, *, hook: Any) -> None:
        activation.zero_()

    with torch.set_grad_enabled(grad):
        for name in model.hook_dict:
            if not name.endswith("hook_scale"):
                model.run_with_hooks(TOKENS, fwd_hooks=[(name, wipe)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.W_pos, table)


def test_editing_in_place_works_under_training(model: GPT) -> None:
    """Split views and what autograd has saved may not be edited in place: hooks get copies."""

    def halve(activation: Tensor, *, hook: Any) -> None:
        activation *= 0.5

    def halved(activation: Tensor, *, hook: Any) -> Tensor:
        return activation * 0.5

    for name in model.hook_dict:
        gradients = []
        for function in (halve, halved):
            loss = model.run_with_hooks(TOKENS, return_type="loss", fwd_hooks=[(name, function)])
            gradients.append(torch.autograd.grad(loss, model.W_E)[0])
        assert torch.equal(*gradients), name
