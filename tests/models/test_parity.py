"""Our GPT against transformers: the same weights give the same numbers at every point."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.gpt import GPT
from models.interface import capture

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 22, 3, 5], [2, 7, 1, 8, 2, 8, 1, 22, 22, 4, 5]])
LENGTH = TOKENS.shape[1]
Make = Callable[..., Any]
ToOurs = Callable[..., GPT]


def reference_activations(model: nn.Module, modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """What passes the modules: their input for names ending in "<", otherwise their output."""
    found: dict[str, Tensor] = {}
    handles = []
    for name, module in modules.items():
        if name.endswith("<"):

            def before(_: nn.Module, args: Any, name: str = name) -> None:
                found[name.removesuffix("<")] = args[0]

            handles.append(module.register_forward_pre_hook(before))
        else:

            def after(_: nn.Module, args: Any, out: Any, name: str = name) -> None:
                found[name] = out[0] if isinstance(out, tuple) else out

            handles.append(module.register_forward_hook(after))
    try:
        with torch.no_grad():
            out = model(TOKENS, output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    for layer, pattern in enumerate(out.attentions):
        found[f"blocks.{layer}.attn.hook_pattern"] = pattern
    return {**found, "logits": out.logits}


def assert_equal_everywhere(ours: GPT, reference: dict[str, Tensor]) -> None:
    """Within 1e-5 of the size of the values (up to 20); measured: 2.4e-6, log-probs 4.3e-6."""
    names = [name for name in reference if name != "logits"]
    captured = capture(ours, TOKENS, names, logits=True)
    for name in names:
        torch.testing.assert_close(
            captured.activations[name],
            reference[name],
            atol=1e-5,
            rtol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    assert captured.logits is not None
    log_probs = reference["logits"].log_softmax(-1)
    torch.testing.assert_close(captured.logits.log_softmax(-1), log_probs, atol=1e-4, rtol=0)


def gpt2_modules(model: Any) -> dict[str, nn.Module]:
    modules = {}
    for layer, block in enumerate(model.transformer.h):
        prefix = f"blocks.{layer}."
        modules |= {
            prefix + "hook_resid_pre<": block.ln_1,
            prefix + "hook_attn_out": block.attn,
            prefix + "hook_resid_mid<": block.ln_2,
            prefix + "mlp.hook_pre": block.mlp.c_fc,
            prefix + "mlp.hook_post": block.mlp.act,
            prefix + "hook_mlp_out": block.mlp,
            prefix + "hook_resid_post": block,
        }
    return modules


def test_gpt2_is_reproduced_at_every_residual_point(gpt2: Any, gpt2_twin: GPT) -> None:
    reference = reference_activations(gpt2, gpt2_modules(gpt2))
    assert len(reference) == 2 * 8 + 1
    assert_equal_everywhere(gpt2_twin, reference)


def test_the_comparison_with_gpt2_notices_one_changed_weight(
    gpt2: Any, gpt2_to_ours: Callable[[Any], GPT]
) -> None:
    changed = gpt2_to_ours(gpt2)
    with torch.no_grad():
        changed.blocks[1].attn.qkv.weight[0, 0] += 0.1
    reference = reference_activations(gpt2, gpt2_modules(gpt2))
    with pytest.raises(AssertionError, match=r"blocks\.1\."):
        assert_equal_everywhere(changed, reference)


def llama_modules(model: Any) -> dict[str, nn.Module]:
    modules = {}
    for layer, block in enumerate(model.model.layers):
        prefix = f"blocks.{layer}."
        modules |= {
            prefix + "hook_resid_pre<": block.input_layernorm,
            prefix + "hook_attn_out": block.self_attn,
            prefix + "hook_resid_mid<": block.post_attention_layernorm,
            prefix + "mlp.hook_pre": block.mlp.gate_proj,
            prefix + "mlp.hook_pre_linear": block.mlp.up_proj,
            prefix + "mlp.hook_post<": block.mlp.down_proj,
            prefix + "hook_mlp_out": block.mlp,
            prefix + "hook_resid_post": block,
        }
    return modules


def test_llama_is_reproduced_at_every_residual_point(llama: Make, llama_to_ours: ToOurs) -> None:
    """Rotary positions, RMS norms, a gated MLP, grouped heads."""
    model = llama("Llama")
    reference = reference_activations(model, llama_modules(model))
    assert_equal_everywhere(llama_to_ours(model), reference)


def test_the_window_counts_keys_as_mistral_does(llama: Make, llama_to_ours: ToOurs) -> None:
    model = llama("Mistral", sliding_window=5)
    reference = reference_activations(model, llama_modules(model))
    ours = llama_to_ours(model, window=5)
    assert_equal_everywhere(ours, reference)
    pattern = reference["blocks.0.attn.hook_pattern"]
    assert ((pattern > 0).sum(-1) == torch.arange(1, LENGTH + 1).clamp(max=5)).all()


def test_unwatched_attention_gives_the_same_logits_as_transformers(
    llama: Make, llama_to_ours: ToOurs
) -> None:
    """The fused kernels, with grouped heads and with a window, against eager attention."""
    for kind, window in (("Llama", None), ("Mistral", 5)):
        model = llama(kind) if window is None else llama(kind, sliding_window=window)
        with torch.no_grad():
            ours = llama_to_ours(model, window)(TOKENS).log_softmax(-1)
            theirs = model(TOKENS).logits.log_softmax(-1)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)  # measured: 8.2e-6
