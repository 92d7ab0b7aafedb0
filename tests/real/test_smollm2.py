"""A real language model in both engines: SmolLM2-135M-Instruct, a Llama with grouped heads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from analyses.verify import LOG_PROBS, compare
from models.gpt import GPT
from models.interface import capture, shape
from models.text_codec import codec_of

PROMPT = "The capital of France is"


@pytest.fixture(params=["smollm2_gpt", "smollm2_lens"])
def model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def log_probs(model: Any, ids: Tensor) -> Tensor:
    logits = capture(model, ids, logits=True).logits
    assert logits is not None
    return logits.log_softmax(-1)


def test_paris_follows_the_capital_of_france_is(model: Any) -> None:
    codec = codec_of(model)
    ids = codec.encode(PROMPT)
    assert codec.labels(ids) == ["The", " capital", " of", " France", " is"]
    last = log_probs(model, torch.tensor([ids]))[0, -1]
    assert codec.decode([int(last.argmax())]) == " Paris"
    assert float(last.max().exp()) == pytest.approx(0.7725, abs=1e-3)  # measured: 0.7725


def test_a_repeated_sequence_is_predicted_by_induction(model: Any) -> None:
    """Random tokens cannot be predicted; their repetition can."""
    draw = torch.Generator().manual_seed(0)
    half = torch.randint(1000, shape(model).d_vocab, (4, 48), generator=draw)
    tokens = torch.cat([half, half], dim=1)
    found = log_probs(model, tokens)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    first, second = (-found[:, :47].mean(), -found[:, 48:].mean())
    assert float(first) > 10  # measured: 14.4
    assert float(second) < float(first) / 4  # measured: 2.8


def test_the_engines_agree_at_every_hook_point(smollm2_gpt: GPT, smollm2_lens: Any) -> None:
    assert shape(smollm2_gpt) == shape(smollm2_lens)
    ids = codec_of(smollm2_gpt).encode(PROMPT)
    assert ids == codec_of(smollm2_lens).encode(PROMPT)
    table = compare(smollm2_gpt, smollm2_lens, [ids]).set_index("point")
    assert float(table.loc[LOG_PROBS, "difference"]) < 1e-4  # measured: 3.1e-5
    patterns = table[table.index.str.endswith("hook_pattern")]
    assert len(patterns) == 30
    assert float(patterns["difference"].max()) < 1e-5  # measured: 2.0e-6
    # values reach 3e4 in this model: rounding is relative to them
    assert float((table["difference"] / table["largest"]).max()) < 1e-4  # measured: 3.5e-6


def test_both_name_the_quantisation(
    smollm2_gpt: GPT, smollm2_lens: Any, smollm2_path: Path
) -> None:
    assert smollm2_path.name.endswith("Q4_1.gguf")
    assert smollm2_gpt.quantization == smollm2_lens.quantization == "F32, Q4_1, Q8_0"
