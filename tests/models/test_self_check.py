"""A bridge that computes something else than its model is refused when it is made."""

import copy
from typing import Any

import pytest
import torch

from models import self_check
from models.errors import InputError
from models.interface import capture
from models.load import load
from models.self_check import fixed_ids, log_probabilities, refuse_difference

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def tiny(kind: str, **changes: Any) -> Any:
    """A transformers model of a type, with random weights that make everything matter."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 42, "num_hidden_layers": 2, "num_attention_heads": 3}
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    more = {"vocab_size": 23, "intermediate_size": 29, "initializer_range": 0.3}
    config = AutoConfig.for_model(
        kind, **{**sizes, **more, **ids, "max_position_embeddings": 17, **changes}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("inverse", [False, True])
def test_attention_scores_that_a_bridge_scales_though_the_model_does_not_are_refused(
    inverse: bool, gpt2: Any
) -> None:
    model = copy.deepcopy(gpt2)
    fields = {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": inverse}
    model = type(model)(type(model.config)(**{**model.config.to_dict(), **fields}))
    model.load_state_dict(gpt2.state_dict())
    with pytest.raises(InputError, match=r"cannot measure this GPT2LMHeadModel") as caught:
        load(model)
    text = str(caught.value)
    assert "log-probabilities differ by up to" in text
    told = ", scale_attn_by_inverse_layer_idx = True" if inverse else ""
    assert text.endswith(f"(its configuration has scale_attn_weights = False{told})")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt2", {"n_embd": 42, "n_layer": 2, "n_head": 3}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "n_layer": 2, "n_head": 3}),
        ("granite", {"attention_multiplier": 0.5, "logits_scaling": 3.0, "residual_multiplier": 2}),
        ("cohere", {"num_key_value_heads": 3, "logit_scale": 0.3}),
        ("gemma2", {"query_pre_attn_scalar": 5, "head_dim": 10, "num_key_value_heads": 3}),
    ],
)
def test_fields_that_a_bridge_honours_are_measured(kind: str, changes: dict[str, Any]) -> None:
    model = tiny(kind, **changes)
    with torch.no_grad():
        expected = model(TOKENS).logits.log_softmax(-1)
    found = load(model).forward(TOKENS, return_type="logits").log_softmax(-1)
    torch.testing.assert_close(found.detach(), expected, atol=1e-4, rtol=0)  # measured: 4e-6


def test_the_comparison_sees_a_difference(gpt2: Any, gpt2_bridge: Any) -> None:
    published = log_probabilities(gpt2)
    refuse_difference(published, gpt2_bridge, gpt2)
    published[1, 2, 3] += 2e-3
    with pytest.raises(InputError, match=r"differ by up to 0\.002"):
        refuse_difference(published, gpt2_bridge, gpt2)


def test_a_model_is_run_as_it_is_measured_and_left_without_dropout(gpt2: Any) -> None:
    model = copy.deepcopy(gpt2).train()
    bridge = load(model)
    assert model.training, "a copy was bridged"
    logits = capture(bridge, TOKENS, logits=True).logits
    assert torch.allclose(logits, gpt2(TOKENS).logits, atol=1e-4)


def test_a_bridge_that_cannot_run_is_refused_in_one_line() -> None:
    # a field of another family, which TransformerLens takes for this model's
    model = tiny("gpt_neox", num_key_value_heads=1)
    with pytest.raises(InputError, match="TransformerLens cannot run it: ") as caught:
        load(model)
    assert "\n" not in str(caught.value)
    load(tiny("gpt_neox"))


def test_a_model_without_a_head_is_refused() -> None:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=23, n_embd=15, n_layer=1, n_head=3, n_positions=17)
    with torch.random.fork_rng(devices=[]):
        model = GPT2Model(config)
    with pytest.raises(InputError, match="GPT2Model gives no logits"):
        load(model)


def test_a_bridge_of_the_user_is_not_run(gpt2_bridge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(self_check, "refuse_difference", refuse)
    monkeypatch.setattr(self_check, "log_probabilities", refuse)
    assert load(gpt2_bridge) is gpt2_bridge


@pytest.mark.parametrize(("d_vocab", "n_ctx", "n_pos"), [(11, 3, 3), (50257, 1024, 8)])
def test_the_ids_fit_the_model(d_vocab: int, n_ctx: int, n_pos: int) -> None:
    ids = fixed_ids(d_vocab, n_ctx)
    assert ids.shape == (2, n_pos)
    assert 0 <= int(ids.min()) <= int(ids.max()) < d_vocab
    assert not torch.equal(ids[0], ids[1])
