"""The direct effect of a head on the copied token against the definition."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from analyses.copying import copying, final_norm
from analyses.detection import detect_heads, labels
from analyses.inputs import as_batch
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture, hooked
from models.load import load

ROWS = [[3, 1, 4, 3, 1, 4], [2, 7, 1, 8, 2, 8]]


def slowly(model: Any, row: list[int], layer: int, head: int) -> float:
    """Logits of the head's output alone under the frozen scale, one query at a time."""
    names = [f"blocks.{layer}.attn.hook_z", "ln_final.hook_scale"]
    kept = capture(model, [row], names).activations
    weight, centred = final_norm(model)
    effects = []
    for query, token in enumerate(row):
        earlier = [key for key in range(query) if row[key] == token]
        if earlier:
            written = kept[names[0]][0, query, head] @ model.W_O[layer, head].detach()
            written = written - written.mean() if centred else written
            logits = written / kept[names[1]][0, query] * weight @ model.W_U.detach()
            effects.append(float(logits[row[earlier[-1] + 1]] - logits.mean()))
    return float(np.mean(effects))


@pytest.mark.parametrize("normalization", ["layer", "rms"])
def test_copying_is_its_definition(make_model: Callable[..., GPT], normalization: str) -> None:
    model = make_model(normalization=normalization, n_heads=7)
    with torch.no_grad():
        model.ln_final.weight += 0.3 * torch.randn(21, generator=torch.Generator().manual_seed(0))
    found = copying(model, as_batch(model, ROWS))
    for layer, head in ((0, 3), (1, 6)):
        expected = [slowly(model, row, layer, head) for row in ROWS]
        # measured: 2e-7
        np.testing.assert_allclose(found[:, layer, head], expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def gemma() -> Callable[..., Any]:
    """A function that makes a transformers Gemma, whose norms multiply by 1 + weight."""

    def make(kind: str = "Gemma", **changes: Any) -> Any:
        import transformers

        config = getattr(transformers, f"{kind}Config")(
            vocab_size=23,
            hidden_size=42,
            intermediate_size=29,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=10,
            max_position_embeddings=17,
            initializer_range=0.3,
            attn_implementation="eager",
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            **changes,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    torch.nn.init.normal_(parameter, std=0.3)
        return model

    return make


def in_float64(model: Any, row: list[int], layer: int, head: int) -> float:
    """The definition on a transformers model, from its own modules and weights, in float64."""
    model = copy.deepcopy(model).double()
    gpt2 = hasattr(model, "transformer")
    body = model.transformer if gpt2 else model.model
    norm = body.ln_f if gpt2 else body.norm
    out = body.h[layer].attn.c_proj if gpt2 else body.layers[layer].self_attn.o_proj
    seen: dict[str, torch.Tensor] = {}
    out.register_forward_pre_hook(lambda _, inputs: seen.update(z=inputs[0][0]))
    norm.register_forward_pre_hook(lambda _, inputs: seen.update(residual=inputs[0][0]))
    with torch.no_grad():
        model(torch.tensor([row]))
    residual, z = seen["residual"], seen["z"]
    matrix = out.weight if gpt2 else out.weight.T  # a Conv1D keeps (in, out)
    width = len(matrix) // model.config.num_attention_heads
    part = slice(head * width, (head + 1) * width)
    written = z[:, part] @ matrix[part].detach()
    if gpt2:
        residual = residual - residual.mean(-1, keepdim=True)
        written = written - written.mean(-1, keepdim=True)
    eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    scale = (residual.square().mean(-1, keepdim=True) + eps).sqrt()
    weight = norm.weight.detach() + ("Gemma" in type(norm).__name__)
    logits = written / scale * weight @ model.lm_head.weight.detach().T
    effects = []
    for query, token in enumerate(row):
        if token in row[:query]:
            latest = query - 1 - row[:query][::-1].index(token)
            effects.append(float(logits[query, row[latest + 1]] - logits[query].mean()))
    return float(np.mean(effects))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma"])
def test_the_effect_is_that_of_a_float64_formula_in_every_family(
    kind: str, gpt2: Any, llama: Callable[..., Any], gemma: Callable[..., Any]
) -> None:
    theirs = {"gpt2": lambda: gpt2, "llama": lambda: llama("Llama"), "gemma": gemma}[kind]()
    bridge = load(theirs)
    found = copying(bridge, as_batch(bridge, ROWS))
    for layer, head in ((0, 2), (1, 1)):
        expected = [in_float64(theirs, row, layer, head) for row in ROWS]
        # measured: 3e-7
        np.testing.assert_allclose(found[:, layer, head], expected, rtol=1e-5, atol=1e-5)


def test_the_final_norm_is_what_its_module_does(
    gpt2: Any, gpt2_bridge: Any, gpt2_twin: GPT, gemma: Callable[..., Any]
) -> None:
    expected = gpt2.transformer.ln_f.weight
    for model in (gpt2_bridge, gpt2_twin):
        weight, centred = final_norm(model)
        assert centred
        assert torch.allclose(weight, expected, rtol=0, atol=1e-6)  # measured: 1e-7
    model = gemma()
    weight, centred = final_norm(load(model))
    assert not centred
    assert torch.allclose(weight, 1 + model.model.norm.weight, rtol=0, atol=1e-6)


def test_asking_the_norm_fires_no_hook(gpt2_bridge: Any) -> None:
    def refuse(activation: Any, *, hook: Any) -> None:
        raise AssertionError("a hook fired")

    with hooked(gpt2_bridge, [("ln_final.hook_scale", refuse), ("ln_final.hook_in", refuse)]):
        final_norm(gpt2_bridge)


def test_a_norm_that_does_something_else_is_refused_by_name(
    to_bridge: Callable[[Any], Any], gpt2: Any
) -> None:
    class Tanh(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.layer_norm(x, x.shape[-1:]).tanh()

    bridge = to_bridge(gpt2)
    bridge.ln_final.set_original_component(Tanh())
    with pytest.raises(InputError, match=r"its final norm \(Tanh\) is neither"):
        copying(bridge, as_batch(bridge, ROWS))


def test_heads_whose_writes_are_normalised_have_no_direct_effect(
    gemma: Callable[..., Any],
) -> None:
    bridge = load(gemma("Gemma2", sliding_window=32))
    with pytest.raises(InputError, match="not defined for Gemma2ForCausalLM: what its heads write"):
        copying(bridge, as_batch(bridge, ROWS))
    table = detect_heads(bridge, n=64)
    assert table["copying"].isna().all()
    assert "Gemma2ForCausalLM" in table.attrs["undefined"]["copying"]
    assert table["value"].notna().all()
    assert not labels(table)["label"].str.fullmatch("induction").any()


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("Cohere", {"logit_scale": 0.3}, "its logits are scaled or capped after the unembedding"),
        ("Granite", {"logits_scaling": 3.0}, "its logits are scaled or capped"),
        ("Granite", {"residual_multiplier": 0.5}, "what its heads write"),
        ("Olmo2", {}, "what its heads write"),
    ],
)
def test_a_scale_after_the_head_or_the_unembedding_is_not_passed_over(
    kind: str, changes: dict[str, Any], reason: str, gemma: Callable[..., Any]
) -> None:
    bridge = load(gemma(kind, **changes))
    with pytest.raises(InputError, match=f"not defined for {kind}ForCausalLM: {reason}"):
        copying(bridge, as_batch(bridge, ROWS))


def test_a_model_whose_steps_are_as_defined_passes_the_check(gemma: Callable[..., Any]) -> None:
    for bridge in (load(gemma("Granite")), load(gemma("Cohere", logit_scale=1.0))):
        assert copying(bridge, as_batch(bridge, ROWS)).isfinite().all()


def test_both_engines_agree(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    ours, theirs = (copying(m, as_batch(m, ROWS)) for m in (gpt2_twin, gpt2_bridge))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)  # measured: 3e-6


def test_a_sequence_without_a_copy_is_undefined_and_padding_is_none(model: GPT) -> None:
    found = copying(model, as_batch(model, [[0, 1, 2, 3], [5, 0, 5]]))
    assert found[0].isnan().all()
    assert torch.allclose(found[1], copying(model, as_batch(model, [[5, 0, 5]]))[0], atol=1e-5)


def test_no_logits_are_computed(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: GPT, x: Any) -> None:
        self.ln_final(x)
        raise AssertionError("logits were computed")

    monkeypatch.setattr(GPT, "logits", refuse)
    copying(model, as_batch(model, ROWS))
