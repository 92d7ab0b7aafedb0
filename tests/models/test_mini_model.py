"""A GPT-2 whose weights follow from a formula: known numbers, in both engines.

The numbers were computed with another implementation in float32; see `filled_gpt2`.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from models.config import GPTConfig
from models.errors import LengthError
from models.gpt import GPT
from models.interface import capture, hooked
from models.load import load
from models.sampling import ContextNotice, generate, probabilities

A = [3, 1, 4, 1, 5, 9, 2, 6]
B = [3, 7, 4, 9, 3, 7, 4, 9]
HEADS = [(0, 0), (0, 1), (1, 0), (1, 1)]
LAST_LOG_PROBS = [
    *(-0.429102, -4.432888, -4.805723, -3.085256, -2.601369, -4.733830),
    *(-3.464003, -2.191885, -5.848102, -4.938279, -3.055518),
]
LAST_PATTERN_ROWS = {
    (0, 0): [0.002544, 0.114545, 0.465579, 0.319746, 0.076573, 0.013937, 0.000649, 0.006427],
    (0, 1): [0.087900, 0.026298, 0.207428, 0.005379, 0.492380, 0.009773, 0.168893, 0.001949],
    (1, 0): [0.121180, 0.213139, 0.194319, 0.149670, 0.082494, 0.041092, 0.141049, 0.057057],
    (1, 1): [0.016809, 0.079250, 0.078933, 0.162103, 0.155154, 0.222069, 0.146961, 0.138723],
}
ZERO_ABLATION = {(0, 0): -0.158370, (0, 1): 0.451316, (1, 0): -0.307105, (1, 1): 0.193738}
GREEDY = {
    (3, 1, 4): [7] * 8,
    (4, 1, 5, 9, 2): [0, 0, 0, 0, 1, 0, 0, 0],
    (0, 8, 10, 2): [0, 0, 0, 0, 0, 4, 0, 0],
}
CLOSE = 1e-4  # the numbers have six digits; measured: under 1e-6 on either engine


@pytest.fixture(scope="module", params=["copied", "bridged", "gpt", "lens"])
def model(
    request: pytest.FixtureRequest,
    filled_gpt2: Any,
    gpt2_to_ours: Callable[[Any], GPT],
    to_bridge: Callable[[Any], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Copied by hand and bridged, and read from a folder by either engine."""
    if request.param == "copied":
        return gpt2_to_ours(filled_gpt2)
    if request.param == "bridged":
        return to_bridge(filled_gpt2)
    folder = tmp_path_factory.mktemp("mini")
    filled_gpt2.save_pretrained(folder)
    return load(folder, engine=request.param)


@pytest.fixture(scope="module")
def gpt(filled_gpt2: Any, gpt2_to_ours: Callable[[Any], GPT]) -> GPT:
    return gpt2_to_ours(filled_gpt2)


def log_probs(model: Any, tokens: list[int]) -> Tensor:
    logits = capture(model, [tokens], logits=True).logits
    assert logits is not None
    return logits[0].log_softmax(-1)


def loss(model: Any, tokens: list[int]) -> float:
    following = torch.tensor(tokens[1:])[:, None]
    return -float(log_probs(model, tokens)[:-1].gather(1, following).mean())


def pattern(model: Any, tokens: list[int], layer: int, head: int) -> Tensor:
    name = f"blocks.{layer}.attn.hook_pattern"
    return capture(model, [tokens], [name]).activations[name][0, head]


def zeroed(head: int) -> Callable[..., Tensor]:
    def hook_function(z: Tensor, *, hook: Any) -> Tensor:
        z = z.clone()
        z[:, :, head] = 0
        return z

    return hook_function


def test_the_weights_are_the_intended_ones(filled_gpt2: Any) -> None:
    first = [0.530253, -0.406396, 0.173601, 0.541259, -0.650703, -0.675351, -0.759301, 0.323085]
    last = [-0.019918, -0.083340, -0.169303, 0.195588, 0.013215, 0.059915, -0.177077, -0.056990]
    assert filled_gpt2.transformer.wte.weight[0].tolist() == pytest.approx(first, abs=1e-6)
    assert filled_gpt2.transformer.ln_f.bias.tolist() == pytest.approx(last, abs=1e-6)


def test_loss_and_log_probabilities(model: Any) -> None:
    assert loss(model, A) == pytest.approx(3.572329, abs=CLOSE)
    assert loss(model, B) == pytest.approx(3.732304, abs=CLOSE)
    assert log_probs(model, A)[-1].tolist() == pytest.approx(LAST_LOG_PROBS, abs=CLOSE)


def test_our_own_loss_is_the_mean_over_next_tokens(gpt: GPT) -> None:
    logits, mean = gpt(torch.tensor([A]), return_type="both")
    assert float(mean.detach()) == pytest.approx(3.572329, abs=CLOSE)
    assert torch.equal(logits, gpt(torch.tensor([A])))


def test_patterns(model: Any) -> None:
    for (layer, head), row in LAST_PATTERN_ROWS.items():
        assert pattern(model, A, layer, head)[-1].tolist() == pytest.approx(row, abs=CLOSE)
    previous = [pattern(model, A, *head).diagonal(-1).mean().item() for head in HEADS]
    assert previous == pytest.approx([0.061845, 0.249462, 0.215449, 0.273708], abs=CLOSE)
    induction = [pattern(model, B, *head).diagonal(-3)[1:].mean().item() for head in HEADS]
    assert induction == pytest.approx([0.186795, 0.013574, 0.156878, 0.236271], abs=CLOSE)
    duplicate = [pattern(model, B, *head).diagonal(-4).mean().item() for head in HEADS]
    assert duplicate == pytest.approx([0.284910, 0.099955, 0.159091, 0.081023], abs=CLOSE)


def test_zero_ablation_of_each_head(model: Any) -> None:
    clean = loss(model, A)
    for (layer, head), change in ZERO_ABLATION.items():
        with hooked(model, [(f"blocks.{layer}.attn.hook_z", zeroed(head))]):
            assert loss(model, A) - clean == pytest.approx(change, abs=CLOSE)


def test_ablating_after_the_output_projection_is_another_thing(model: Any) -> None:
    """The mistake of zeroing a block of the mixed output has the wrong sign on this head."""

    def mistaken(attn_out: Tensor, *, hook: Any) -> Tensor:
        attn_out = attn_out.clone()
        attn_out[..., 4:] = 0
        return attn_out

    clean = loss(model, A)
    with hooked(model, [("blocks.0.hook_attn_out", mistaken)]):
        assert loss(model, A) - clean == pytest.approx(-0.580861, abs=CLOSE)


def test_a_head_is_ablated_before_the_output_projection_by_hand() -> None:
    """Two heads of two with z = [1, 2, 3, 4]; every number can be checked on paper."""
    out = torch.nn.Linear(4, 4)
    with torch.no_grad():
        rows = [[1.0, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1]]  # W_O: in, out
        out.weight.copy_(torch.tensor(rows).T)
        out.bias.fill_(0.1)
    model = GPT(GPTConfig(d_vocab=5, n_ctx=3, n_heads=2, d_model=4, n_layers=1))
    model.blocks[0].attn.out = out
    z = torch.tensor([1.0, 2, 3, 4]).reshape(1, 1, 2, 2)

    def attn_out(head: int | None) -> list[float]:
        functions = [] if head is None else [("blocks.0.attn.hook_z", zeroed(head))]
        with hooked(model, functions), torch.no_grad():
            return model.blocks[0].attn.project(z).flatten().tolist()

    assert attn_out(None) == pytest.approx([5.1, 2.1, 3.1, 10.1])
    assert attn_out(0) == pytest.approx([4.1, 0.1, 3.1, 7.1])
    assert attn_out(1) == pytest.approx([1.1, 2.1, 0.1, 3.1])


def test_without_any_head_only_the_last_token_counts(model: Any) -> None:
    other = [0, 8, 8, 2, 7, 10, 3, 6]
    everything = [(f"blocks.{layer}.attn.hook_z", zeroed(head)) for layer, head in HEADS]
    with hooked(model, everything):
        last = log_probs(model, A)[-1]
        names = ["blocks.1.attn.hook_pattern", "blocks.0.attn.hook_z", "blocks.1.hook_resid_post"]
        forwards, backwards = (
            capture(model, [A], order, logits=True).logits for order in (names, names[::-1])
        )
        assert torch.equal(forwards, backwards), "the order of reading does not matter"
        # the same numbers in the same order: no difference at all
        assert float((log_probs(model, other)[-1] - last).abs().max()) <= 1e-6
    assert last[:4].tolist() == pytest.approx(
        [-0.406177, -5.321127, -5.148150, -3.099750], abs=CLOSE
    )


def test_log_probabilities_agree_with_transformers_where_logits_may_not(
    model: Any, filled_gpt2: Any
) -> None:
    with torch.no_grad():
        reference = filled_gpt2(torch.tensor([A])).logits[0]
    ours = capture(model, [A], logits=True).logits
    assert ours is not None
    # measured: 1.4e-6
    assert float((ours[0].log_softmax(-1) - reference.log_softmax(-1)).abs().max()) < CLOSE
    assert float((ours[0] - reference).var(-1).max()) < 1e-6, "logits may move by a constant only"


def test_temperature_divides_once(gpt: GPT) -> None:
    logits = gpt(torch.tensor([A]))[0, -1].detach()
    found = [float(probabilities(logits, t)[0]) for t in (2.0, 1.0, 0.5)]
    assert found == pytest.approx([0.328967, 0.651093, 0.947237], abs=CLOSE)


def test_greedy_continuation(model: Any) -> None:
    for prompt, continuation in GREEDY.items():
        assert generate(model, [list(prompt)], 8).tolist() == [continuation]
    prompts = [list(prompt) for prompt in GREEDY]
    assert generate(model, prompts, 8).tolist() == list(GREEDY.values()), "in one batch too"


def test_the_context_is_sixteen_tokens(model: Any) -> None:
    assert log_probs(model, [1] * 16).isfinite().all()
    with pytest.raises(LengthError, match="16 tokens, but got 17"):
        log_probs(model, [1] * 17)
    for cached in (True, False):
        with pytest.warns(ContextNotice, match="context of 16 tokens is full"):
            written = generate(model, [[1] * 14], 8, cached=cached)
        assert torch.equal(written, generate(model, [[1] * 14], 3)), "the third is not fed"


def test_changing_a_token_changes_no_earlier_row(model: Any) -> None:
    other = [*A[:5], 8, *A[6:]]
    change = (log_probs(model, A) - log_probs(model, other)).abs().amax(-1)
    assert float(change[:5].max()) == 0
    assert (change[5:] > 1e-3).all()
