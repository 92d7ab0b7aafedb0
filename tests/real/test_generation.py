"""Generation on a real language model, beside transformers' own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models.gpt import GPT
from models.interface import hooked
from models.sampling import generate, stream
from models.text_codec import codec_of

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def theirs(smollm2_path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent,
        gguf_file=smollm2_path.name,
        dtype=torch.float32,
        attn_implementation="sdpa",
    ).eval()


def test_greedy_tokens_are_those_of_transformers(smollm2_gpt: GPT, theirs: Any) -> None:
    ids = torch.tensor([codec_of(smollm2_gpt).encode(PROMPT)])
    reference = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[:, ids.shape[1] :]
    assert torch.equal(generate(smollm2_gpt, ids, 24), reference)


def test_an_ablated_head_stays_ablated_with_and_without_cache(smollm2_gpt: GPT) -> None:
    def ablate(z: Any, *, hook: Any) -> None:
        z[:, :, 2:5] = 0

    codec = codec_of(smollm2_gpt)
    prompts = [codec.encode(PROMPT), codec.encode("One, two, three, four")]
    with hooked(smollm2_gpt, [("blocks.1.attn.hook_z", ablate)]):
        found = generate(smollm2_gpt, prompts, 6)
        assert torch.equal(found, generate(smollm2_gpt, prompts, 6, cached=False))


def test_a_step_knows_how_sure_the_model_is(smollm2_gpt: GPT) -> None:
    codec = codec_of(smollm2_gpt)
    ids = codec.encode(PROMPT)
    step = next(stream(smollm2_gpt, [ids], 1, temperature=0.7, top_p=0.5))
    assert codec.decode([int(step.tokens)]) == " Paris"
    assert float(step.model_probability) == pytest.approx(0.7725, abs=1e-3)  # measured: 0.7725
    assert (float(step.probability), int(step.rank)) == (1, 1)
    assert int(step.n_removed) == smollm2_gpt.cfg.d_vocab - 1
