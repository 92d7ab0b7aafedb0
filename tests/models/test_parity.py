"""Our GPT against transformers: the same weights give the same numbers at every point."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.config import GPTConfig
from models.gpt import GPT
from models.interface import capture

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 22, 3, 5], [2, 7, 1, 8, 2, 8, 1, 22, 22, 4, 5]])
LENGTH = TOKENS.shape[1]


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


def llama(kind: str, **changes: Any) -> Any:
    """A transformers Llama (or Mistral, which adds a window) with random weights."""
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
        rms_norm_eps=1e-5,
        initializer_range=0.3,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **changes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name:
                nn.init.normal_(parameter, mean=1.0, std=0.2)
    return model


def llama_as_gpt(model: Any, window: int | None = None) -> GPT:
    config = model.config
    ours = GPT(
        GPTConfig(
            d_vocab=config.vocab_size,
            n_ctx=config.max_position_embeddings,
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            n_key_value_heads=config.num_key_value_heads,
            d_model=config.hidden_size,
            d_head=config.head_dim,
            d_mlp=config.intermediate_size,
            positions="rotary",
            normalization="rms",
            mlp="swiglu",
            bias=False,
            window=window,
            norm_eps=config.rms_norm_eps,
            rotary_base=config.rope_parameters["rope_theta"],
        )
    )
    weights = {
        "W_E": model.model.embed_tokens.weight,
        "unembed": model.lm_head.weight,
        "ln_final.weight": model.model.norm.weight,
    }
    for layer, block in enumerate(model.model.layers):
        attention, mlp, prefix = block.self_attn, block.mlp, f"blocks.{layer}."
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        weights |= {
            prefix + "ln1.weight": block.input_layernorm.weight,
            prefix + "ln2.weight": block.post_attention_layernorm.weight,
            prefix + "attn.qkv.weight": torch.cat([p.weight for p in projections]),
            prefix + "attn.out.weight": attention.o_proj.weight,
            prefix + "mlp.inner.weight": mlp.gate_proj.weight,
            prefix + "mlp.linear.weight": mlp.up_proj.weight,
            prefix + "mlp.outer.weight": mlp.down_proj.weight,
        }
    ours.load_state_dict({name: weight.detach() for name, weight in weights.items()})
    return ours.eval()


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


def test_llama_is_reproduced_at_every_residual_point() -> None:
    """Rotary positions, RMS norms, a gated MLP, grouped heads."""
    model = llama("Llama")
    reference = reference_activations(model, llama_modules(model))
    assert_equal_everywhere(llama_as_gpt(model), reference)


def test_the_window_counts_keys_as_mistral_does() -> None:
    model = llama("Mistral", sliding_window=5)
    reference = reference_activations(model, llama_modules(model))
    ours = llama_as_gpt(model, window=5)
    assert_equal_everywhere(ours, reference)
    pattern = reference["blocks.0.attn.hook_pattern"]
    assert ((pattern > 0).sum(-1) == torch.arange(1, LENGTH + 1).clamp(max=5)).all()


def test_unwatched_attention_gives_the_same_logits_as_transformers(gpt2: Any) -> None:
    """The fused kernels, with grouped heads and with a window, against eager attention."""
    for kind, window in (("Llama", None), ("Mistral", 5)):
        model = llama(kind) if window is None else llama(kind, sliding_window=window)
        with torch.no_grad():
            ours = llama_as_gpt(model, window)(TOKENS).log_softmax(-1)
            theirs = model(TOKENS).logits.log_softmax(-1)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)  # measured: 8.2e-6
