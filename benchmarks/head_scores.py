"""All head scores of a GPT-2-small-shaped model, beside what they could cost.

Eight sequences of 256 tokens, random weights, one thread, taken in turn, medians of five: our GPT
with all pattern scores and entropies of all 144 heads; the same scores of the same shape through
TransformerLens, patterns kept by ``run_with_cache``; one bare forward pass of transformers'
``GPT2Model`` without logits; and the floor, ``torch.mm`` of the shapes that must be multiplied.
Then the memory that each takes beyond what it started with, and how ours grows with the length.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _common import (
    at_most,
    interleaved,
    one_thread,
    peak_memory,
    print_table,
    processor_seconds,
    target,
)

from analyses.attention_patterns import pattern_reducers
from analyses.entropy import entropy_reducers
from analyses.inputs import as_batch
from analyses.streaming import reduce_pattern
from analyses.tables import score_heads, score_table
from models.config import GPTConfig
from models.gpt import GPT
from models.tasks import Batch

LAYERS, HEADS, WIDTH, VOCABULARY = 12, 12, 768, 50257
SEQUENCES, LENGTH = 8, 256
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    one_thread()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    theirs = transformers_model()
    ours, bridge = our_model(1024), bridge_of(theirs)
    batch = as_batch(ours, tokens)
    contenders: dict[str, Callable[[], object]] = {
        "our GPT, all head scores": lambda: scores(ours, batch),
        "TransformerLens run_with_cache, the same scores": lambda: cached_scores(bridge, batch),
        "transformers forward pass, no logits, no scores": lambda: bare(theirs, tokens),
        "the floor: torch.mm of the same shapes": floor(SEQUENCES, LENGTH),
    }
    times = interleaved(contenders, rounds=rounds, warmup=1)
    pattern = SEQUENCES * HEADS * LENGTH**2 * 4 / 2**20
    own, *rest = times
    memory = {name: peak_memory(function) / pattern for name, function in contenders.items()}
    rows = [(name, 1e3 * t, times[own] / t, memory[name]) for name, t in times.items()]
    columns = ("way", "ms", "ours / this", "peak memory, in patterns of a layer")
    print_table(f"{SEQUENCES} x {LENGTH} tokens, processor time, 1 thread", columns, rows)
    lens, forward, least = (times[name] / times[own] for name in rest)
    print(f"\n  times as fast as through TransformerLens: {lens:.2f} ({target(lens, 1.8)})")
    at_most("times as long as a bare forward", 1 / forward, 1.0)
    at_most("times as long as the floor", 1 / least, 1.35)
    at_most("peak memory in patterns of a layer", memory[own], 2.0)
    growth(our_model(max(LENGTHS)))


def growth(model: GPT) -> None:
    """One sequence, longer and longer."""
    rows = []
    for length in LENGTHS:
        tokens = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
        run = partial(scores, model, as_batch(model, tokens))
        memory = peak_memory(run)
        taken = processor_seconds(run)
        whole = HEADS * length**2 * 4 / 2**20
        rows.append((str(length), taken, 1e3 * taken / length, memory, whole))
    columns = ("tokens", "seconds", "ms per token", "peak MiB", "a layer's pattern, MiB")
    print_table("One sequence on our GPT", columns, rows)


def our_model(n_ctx: int) -> GPT:
    """GPT-2 small's shape, random weights."""
    config = GPTConfig(
        VOCABULARY, n_ctx, n_layers=LAYERS, n_heads=HEADS, d_model=WIDTH, mlp="gelu_new", tied=True
    )
    return GPT(config).eval()


def transformers_model() -> Any:
    """The same shape in transformers, with its fused attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).eval()


def bridge_of(model: Any) -> Any:
    """The same weights behind a TransformerBridge."""
    from models.pretrained import load_pretrained

    return load_pretrained(model, engine="lens", device="cpu", dtype=torch.float32)


def reducers(batch: Batch) -> dict[str, Any]:
    """All scores that plain ids define."""
    return {**pattern_reducers(batch), **entropy_reducers(batch)}


def scores(model: GPT, batch: Batch) -> object:
    """All scores as a table."""
    return score_heads(model, batch, reducers(batch), unit="")


@torch.no_grad()
def cached_scores(bridge: Any, batch: Batch) -> object:
    """The same table from the patterns that ``run_with_cache`` keeps."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(LAYERS)]
    _, cache = bridge.run_with_cache(
        batch.tokens, names_filter=names, return_type=None, stop_at_layer=LAYERS
    )
    values: dict[str, Any] = {}
    for name, prepare in reducers(batch).items():
        found = [reduce_pattern(prepare, batch, cache[layer]) for layer in names]
        values[name] = torch.stack(found, dim=1)
    return score_table(values, dict.fromkeys(values, 0.0), unit="")


@torch.no_grad()
def bare(model: Any, tokens: torch.Tensor) -> None:
    model.transformer(tokens, use_cache=False)


def floor(sequences: int, length: int) -> Callable[[], None]:
    """The products of a forward pass to its last layer, and nothing else."""
    n, d_head = sequences * length, WIDTH // HEADS
    x, wide = torch.randn(n, WIDTH), torch.randn(n, 4 * WIDTH)
    qkv, out = torch.randn(WIDTH, 3 * WIDTH), torch.randn(WIDTH, WIDTH)
    inner, outer = torch.randn(WIDTH, 4 * WIDTH), torch.randn(4 * WIDTH, WIDTH)
    q, kt = torch.randn(length, d_head), torch.randn(d_head, length)

    def run() -> None:
        for _ in range(LAYERS):
            torch.mm(x, qkv)
            for _ in range(sequences * HEADS):
                torch.mm(q, kt)
            torch.mm(x, out)
            torch.mm(x, inner)
            torch.mm(wide, outer)

    return run


if __name__ == "__main__":
    main()
