"""The from-scratch model: shapes of every kind, partial runs, work that is not done."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.config import GPTConfig
from models.errors import InputError, LengthError, VocabularyError
from models.gpt import GPT
from models.interface import capture, hooked
from models.vocabulary import Vocabulary

Build = Callable[..., GPT]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])
N = TOKENS.shape[1]
# --- what it computes


def test_no_row_depends_on_later_tokens(model: GPT) -> None:
    other = TOKENS.clone()
    other[:, 5] = (other[:, 5] + 1) % 11
    with torch.no_grad():
        change = (model(TOKENS) - model(other)).abs().amax((0, 2))
    assert float(change[:5].max()) == 0
    assert float(change[5]) > 1e-3


def test_fused_and_explicit_attention_agree(model: GPT) -> None:
    names = [name for name in model.hook_dict if name.endswith(("attn_scores", "pattern"))]
    with torch.no_grad():
        fused = model(TOKENS)
    explicit = capture(model, TOKENS, names, logits=True).logits
    assert explicit is not None
    # measured: 4.8e-6
    assert float((fused.log_softmax(-1) - explicit.log_softmax(-1)).abs().max()) < 1e-4


def test_watching_anything_else_changes_nothing(model: GPT) -> None:
    with torch.no_grad():
        clean = model(TOKENS)
    kernels = ("attn_scores", "pattern", "hook_scale", "hook_normalized")
    names = [name for name in model.hook_dict if not name.endswith(kernels)]
    watched = capture(model, TOKENS, names, logits=True).logits
    assert torch.equal(watched, clean)


def test_unwatched_patterns_are_never_formed(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    formed: list[int] = []
    explicit = vars(__import__("models.blocks", fromlist=["attention"]))["attention"]

    def counted(*args: Any, **keywords: Any) -> Tensor:
        formed.append(1)
        return explicit(*args, **keywords)

    monkeypatch.setattr("models.blocks.attention", counted)
    capture(model, TOKENS, ["blocks.2.attn.hook_z"], logits=True)
    assert not formed
    capture(model, TOKENS, ["blocks.1.attn.hook_pattern"], logits=True)
    assert len(formed) == 1, "in the watched layer only"


def test_the_scores_that_are_watched_give_the_pattern(model: GPT) -> None:
    names = ["blocks.1.attn.hook_attn_scores", "blocks.1.attn.hook_pattern"]
    kept = capture(model, TOKENS, names).activations
    scores, pattern = (kept[name] for name in names)
    torch.testing.assert_close(scores.softmax(-1), pattern)
    window = model.config.window or N
    visible = torch.ones(N, N, dtype=torch.bool).tril().triu(1 - window)
    assert torch.equal(scores == -torch.inf, ~visible.expand_as(scores))
    assert torch.equal(pattern == 0, ~visible.expand_as(pattern))


def test_the_residual_stream_adds_up(model: GPT) -> None:
    names = [name for name in model.hook_dict if "resid" in name or name.endswith("_out")]
    kept = capture(model, TOKENS, [*names, "hook_embed"], logits=True).activations
    for layer in range(3):
        at = {name.removeprefix(f"blocks.{layer}.hook_"): v for name, v in kept.items()}
        middle = at.get("resid_mid", at["resid_post"])
        assert torch.equal(at["resid_pre"] + at["attn_out"], middle)
        if "mlp_out" in at:
            assert torch.equal(middle + at["mlp_out"], at["resid_post"])
    if model.config.positions in ("none", "rotary"):
        assert "hook_pos_embed" not in model.hook_dict
        assert torch.equal(kept["blocks.0.hook_resid_pre"], kept["hook_embed"])


def test_query_head_h_reads_key_value_head_h_over_the_group(build: Build) -> None:
    """Fourteen query heads on two key-value heads: 6 reads 0, and 7 reads 1."""
    model = build(n_heads=14, n_key_value_heads=2, n_layers=1)
    name = "blocks.0.attn.hook_z"
    clean = capture(model, TOKENS, [name]).activations[name]
    for kv_head, readers in ((0, range(7)), (1, range(7, 14))):
        for watched in (False, True):  # fused, and explicit

            def wipe(value: Tensor, *, hook: Any, kv_head: int = kv_head) -> None:
                value[:, :, kv_head] = 0

            watching = [("blocks.0.attn.hook_pattern", lambda p, hook: None)] * watched
            hooks = [("blocks.0.attn.hook_v", wipe), *watching]
            z = capture(model, TOKENS, [name], hooks=hooks).activations[name]
            changed = ((z - clean).abs().amax((0, 1, 3)) > 1e-3).nonzero().flatten()
            assert changed.tolist() == list(readers)


def test_loss_is_the_mean_cross_entropy_of_next_tokens(model: GPT) -> None:
    logits, loss = model(TOKENS, return_type="both")
    by_hand = -logits.log_softmax(-1)[:, :-1].gather(-1, TOKENS[:, 1:, None]).mean()
    torch.testing.assert_close(loss, by_hand)
    assert torch.equal(model(TOKENS, return_type="loss"), loss)
    assert model(TOKENS, return_type=None) is None
    with pytest.raises(InputError, match="must be logits, loss, both or None, but got 'logit'"):
        model(TOKENS, return_type="logit")


def test_a_hook_on_the_final_norm_fires_without_logits(model: GPT) -> None:
    fired: list[str] = []
    with hooked(model, [("ln_final.hook_normalized", lambda x, hook: fired.append(hook.name))]):
        model(TOKENS, return_type=None)
    assert fired == ["ln_final.hook_normalized"]


def test_positions_make_order_matter_unless_there_are_none(build: Build) -> None:
    swapped = TOKENS[:, [1, 0, *range(2, N)]]

    def change(kind: str) -> float:
        model = build(kind, n_layers=1)
        with torch.no_grad():
            return float((model(TOKENS) - model(swapped))[:, -1].abs().max())

    assert min(change("plain"), change("sinusoidal"), change("llama")) > 1e-3
    assert change("no_positions") < 1e-5  # the same sum in another order; measured: 7.2e-7


def test_dropout_acts_in_training_only(build: Build) -> None:
    model = build(dropout=0.3)
    with torch.no_grad():
        assert torch.equal(model(TOKENS), model(TOKENS))
        model.train()
        assert not torch.equal(model(TOKENS), model(TOKENS))


# --- building one


@pytest.mark.usefixtures("unchecked")  # the type checker draws from `random`
def test_a_seed_gives_the_same_weights_and_touches_no_global_state() -> None:
    torch.manual_seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first, same, other = (GPT(GPTConfig(d_vocab=11, n_ctx=7), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    for (name, left), right in zip(first.named_parameters(), same.parameters(), strict=True):
        assert torch.equal(left, right), name
    assert not torch.equal(first.W_E, other.W_E)


def test_weights_start_as_in_gpt2() -> None:
    model = GPT(GPTConfig(d_vocab=101, n_ctx=53, n_layers=2, d_model=64), init_std=0.02)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif ".ln" in f".{name}":
            assert (weight == 1).all(), name
        else:
            writes = name.endswith(("attn.out.weight", "mlp.outer.weight"))
            expected = 0.02 / 2 if writes else 0.02  # sqrt(2 * 2 layers)
            assert float(weight.detach().std()) == pytest.approx(expected, rel=0.1), name


def test_a_tied_head_is_the_embedding_itself(build: Build) -> None:
    tied, untied = build(tied=True), build(tied=False)
    assert tied.W_U.data_ptr() == tied.W_E.data_ptr()
    assert untied.W_U.data_ptr() != untied.W_E.data_ptr()
    sizes = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert sizes[1] - sizes[0] == 11 * 42


def test_the_configuration_that_is_shown_is_live_and_read_only(build: Build) -> None:
    model = build("llama")
    assert (model.cfg.n_ctx, model.cfg.d_head, model.cfg.n_key_value_heads) == (13, 10, 3)
    assert model.cfg.device == torch.device("cpu")
    assert model.cfg.dtype == torch.float32
    assert model.double().cfg.dtype == torch.float64
    with pytest.raises(AttributeError, match="read-only: n_ctx was fixed"):
        model.cfg.n_ctx = 99
    with pytest.raises(AttributeError, match="n_contexts"):
        model.cfg.n_contexts  # noqa: B018
    fields = {field.name for field in dataclasses.fields(GPTConfig)}
    assert all(hasattr(model.cfg, name) for name in fields)


@pytest.mark.parametrize("kind", ["plain", "llama", "grouped_window"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_it_runs_in_another_precision(build: Build, kind: str, dtype: torch.dtype) -> None:
    model = build(kind)
    with torch.no_grad():
        single = model(TOKENS).log_softmax(-1)
        other = model.to(dtype)(TOKENS)
    assert other.dtype == dtype
    # measured: 5.8e-6, 0.13, 0.022
    tolerance = {torch.float64: 1e-4, torch.bfloat16: 0.5, torch.float16: 0.1}[dtype]
    torch.testing.assert_close(other.log_softmax(-1).float(), single, atol=tolerance, rtol=0)
    pattern = capture(model, TOKENS, ["blocks.0.attn.hook_pattern"]).activations
    assert pattern["blocks.0.attn.hook_pattern"].dtype == dtype


@pytest.mark.parametrize("n", [13, 14])
def test_the_context_is_a_limit_for_every_kind_of_position(model: GPT, n: int) -> None:
    tokens = torch.ones(1, n, dtype=torch.long)
    if n == 13:
        assert model(tokens).isfinite().all()
        return
    with pytest.raises(LengthError, match="the model's context is 13 tokens, but got 14"):
        model(tokens)
    with pytest.raises(LengthError, match="13 tokens, but got 14"):
        model(torch.zeros(1, 14, 42), start_at_layer=1)


def test_input_of_the_wrong_rank_is_refused(build: Build) -> None:
    model = build()
    for tokens, options in ((TOKENS, {"start_at_layer": 1}), (torch.zeros(2, 5, 42), {})):
        with pytest.raises(InputError, match=r"with start_at_layer, but got shape \(2, "):
            model(tokens, **options)


@pytest.mark.usefixtures("unchecked")  # the type checker cannot be compiled
def test_hooks_attached_after_compiling_still_run(build: Build) -> None:
    """A compiled graph must not be fixed before the hook: ablation may never have no effect."""
    model = build(n_layers=1)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        clean = model(TOKENS)
        torch.testing.assert_close(compiled(TOKENS), clean, atol=1e-5, rtol=0)
        with hooked(model, [("blocks.0.attn.hook_z", lambda z, hook: z * 0)]):
            ablated = model(TOKENS)
            torch.testing.assert_close(compiled(TOKENS), ablated, atol=1e-4, rtol=0)
        assert float((ablated - clean).abs().max()) > 0.1
        torch.testing.assert_close(compiled(TOKENS), clean, atol=1e-5, rtol=0)


# --- text


@pytest.fixture
def speaking() -> GPT:
    return GPT(GPTConfig(d_vocab=3, n_ctx=7), vocabulary=Vocabulary(("a", "b", "|")))


def test_text_becomes_ids_and_back(speaking: GPT) -> None:
    assert speaking.to_tokens("ab|").tolist() == [[0, 1, 2]]
    assert speaking.to_tokens(["ab", "ba"]).tolist() == [[0, 1], [1, 0]]
    assert speaking.to_tokens([[0, 1], [1, 2]]).tolist() == [[0, 1], [1, 2]]
    assert torch.equal(speaking.to_tokens(TOKENS), TOKENS)
    assert speaking.to_string([1, 0, 2]) == "ba|"
    assert speaking.to_string(torch.tensor([[1, 0], [0, 1]])) == ["ba", "ab"]
    assert speaking.to_str_tokens("ab|") == ["a", "b", "|"]
    assert speaking.to_str_tokens(torch.tensor([[2, 1]])) == ["|", "b"]


def test_text_that_has_no_ids_is_refused(build: Build, speaking: GPT) -> None:
    with pytest.raises(VocabularyError, match="'c'"):
        speaking.to_tokens("abc")
    for texts in ("", [], ["ab", "a"], [""]):
        with pytest.raises(InputError, match="one length of at least 1"):
            speaking.to_tokens(texts)
    with pytest.raises(InputError, match="no beginning-of-sequence token"):
        speaking.to_tokens("ab", prepend_bos=True)
    with pytest.raises(VocabularyError, match=r"ids must be 0\.\.2, but got \[-1, 3\]"):
        speaking.to_string([0, -1, 3])
    with pytest.raises(InputError, match="one sequence are wanted, but got 2"):
        speaking.to_str_tokens(torch.tensor([[0], [1]]))
    with pytest.raises(InputError, match="no vocabulary: give token ids"):
        build().to_tokens("ab")


def test_cross_entropy_agrees_with_torch(model: GPT) -> None:
    logits = model(TOKENS)
    expected = F.cross_entropy(logits[:, :-1].reshape(-1, 11), TOKENS[:, 1:].reshape(-1))
    torch.testing.assert_close(model(TOKENS, return_type="loss"), expected)
