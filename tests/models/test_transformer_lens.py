"""TransformerLens's own tools accept our GPT, and find what a computation by hand finds."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import patching
from transformer_lens.head_detector import detect_head
from transformer_lens.model_protocol import TransformerLensModel
from transformer_lens.utilities import get_act_name

from models.config import GPTConfig
from models.gpt import GPT
from models.interface import capture, hooked
from models.names import act_name
from models.vocabulary import Vocabulary

TEXT = "abcdeabcde"


@pytest.fixture(scope="module")
def model() -> GPT:
    """Five heads in three layers, large enough weights for the heads to differ."""
    config = GPTConfig(d_vocab=7, n_ctx=13, n_layers=3, n_heads=5, d_model=55)
    return GPT(config, seed=3, init_std=0.3, vocabulary=Vocabulary(tuple("abcdefg"))).eval()


def test_our_model_is_a_transformer_lens_model(model: GPT) -> None:
    assert isinstance(model, TransformerLensModel)


@pytest.mark.parametrize("kind", ["previous_token_head", "duplicate_token_head", "induction_head"])
@pytest.mark.parametrize("exclude_bos", [False, True])
def test_detect_head_runs_and_agrees_with_a_hand_computation(
    model: GPT, kind: Any, exclude_bos: bool
) -> None:
    ids = model.to_tokens(TEXT)
    n, period = ids.shape[1], 5
    query, key = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    wanted = {
        "previous_token_head": key == query - 1,
        "duplicate_token_head": key == query - period,
        "induction_head": (key == query - period + 1) & (key > 0),
    }[kind]
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    patterns = torch.cat(list(capture(model, ids, names).activations.values()))
    if exclude_bos:
        patterns[..., 0] = 0
    by_hand = (patterns * wanted).sum((-1, -2)) / patterns.sum((-1, -2))
    found = detect_head(model, TEXT, kind, exclude_bos=exclude_bos)
    torch.testing.assert_close(found, by_hand, atol=1e-6, rtol=0)  # measured: 6e-8
    assert found.std() > 0.01, "the heads differ"


def test_patching_every_head_agrees_with_our_own_hooks(model: GPT) -> None:
    clean, corrupted = model.to_tokens("abcdefg"), model.to_tokens("abfdefg")
    _, cache = model.run_with_cache(clean)

    def metric(logits: Tensor) -> Tensor:
        return logits[0, -1].log_softmax(-1)[4]

    found = patching.get_act_patch_attn_head_all_pos_every(model, corrupted, cache, metric)
    points = ("z", "q", "k", "v", "pattern")
    assert found.shape == (len(points), 3, 5)
    for i, point in enumerate(points):
        for layer in range(3):
            name = f"blocks.{layer}.attn.hook_{point}"
            for head in range(5):

                def patch(activation: Tensor, *, hook: Any, head: int = head) -> None:
                    axis = 1 if hook.name.endswith("pattern") else 2
                    activation.select(axis, head).copy_(cache[hook.name].select(axis, head))

                with hooked(model, [(name, patch)]), torch.no_grad():
                    score = metric(model(corrupted))
                # measured: 2.4e-7
                assert float(found[i, layer, head]) == pytest.approx(float(score), abs=1e-5)
    assert found.std() > 0.01, "patching does something"
    assert not any(point.watched for point in model.hook_dict.values())


@pytest.mark.parametrize(
    "shorthand",
    [
        *[(part, 2) for part in ("q", "k", "v", "z", "rot_q", "rot_k", "pattern", "attn_scores")],
        *[(part, 1) for part in ("pre", "post", "pre_linear", "mlp_pre", "mlp_post", "attn")],
        *[(part, 0) for part in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")],
        *[(part, 3) for part in ("key", "query", "value", "attn_logits", "result")],
        *[("scale", 1, "ln1"), ("normalized", 27, "ln2"), ("scale",), ("normalized",)],
        *[("embed",), ("pos_embed",), ("k", 6, "a"), ("resid_pre", 2, "block"), ("pre", 2, "m")],
        *[("k6",), ("scale4ln1",), ("pre5",), ("z11",), ("normalized3ln2",), ("pattern0attn",)],
        *[("hook_embed",), ("blocks.1.attn.hook_z",), ("pattern", 0, "attn")],
    ],
)
def test_shorthands_mean_what_they_mean_in_transformer_lens(shorthand: tuple[Any, ...]) -> None:
    assert act_name(*shorthand) == get_act_name(*shorthand)


def test_the_cache_takes_the_shorthands_of_transformer_lens(model: GPT) -> None:
    ids = model.to_tokens(TEXT)
    logits, cache = model.run_with_cache(ids)
    assert torch.equal(cache["pattern", 1], cache["blocks.1.attn.hook_pattern"])
    assert torch.equal(cache["pattern", 1, "attn"], cache["blocks.1.attn.hook_pattern"])
    assert torch.equal(cache["scale"], cache["ln_final.hook_scale"])
    assert torch.equal(cache["q0"], cache["blocks.0.attn.hook_q"])
    assert set(cache) == set(model.hook_dict)
    again = model.run_with_hooks(ids, fwd_hooks=[("hook_embed", _read)])
    torch.testing.assert_close(logits, again, atol=1e-4, rtol=0)  # another kernel; measured: 5e-6
    with pytest.raises(KeyError, match="is not in the cache"):
        cache["pattern", 3]


def _read(activation: Tensor, *, hook: Any) -> None:
    assert hook.name == "hook_embed"
