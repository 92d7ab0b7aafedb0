"""A training step of ours beside the same model in nanoGPT's loop and in transformers.

Default model and recipe of the reversal task (2 layers, 4 heads, width 64, 16 letters, batch
64), all with fused AdamW, on one thread and from the same weights. A step is all of it: drawing
the batch (ours leaves held-out sequences out), learning rate, loss, gradient, clipping, update.
Contenders take their steps in turn; medians of processor time are compared.

``GPT2LMHeadModel`` comes with the tanh form of GELU and a key-value cache, which cost it time:
its last rows have the exact GELU of the other models and no cache.

The second table is the time to learn: steps (evaluations apart) until no answer is wrong in
2,000 held-out sequences, contenders taking turns again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from _common import interleaved, one_thread, print_table, processor_seconds, target
from _rivals import Loop, logits_of, nano_loop, transformers_loop

from models import tasks
from models.gpt import GPT
from models.names import MLP, OBJECTIVES, Objective
from models.tasks import Batch, exact_match
from models.training import Run, TrainingConfig, _rows, _take_step, model_config, start

OURS = "ours"
EVALUATE_EVERY = 20


class Rival(NamedTuple):
    """Another way to train the model: how it is made, its GELU, the targets by objective."""

    make: Callable[[GPT, TrainingConfig], Loop]
    mlp: MLP
    targets: dict[Objective, float]


exact = partial(transformers_loop, activation_function="gelu", use_cache=False)
RIVALS = {
    "nanoGPT": Rival(nano_loop, "gelu", {"all": 0.97, "outputs": 1.15}),
    "GPT2LMHeadModel": Rival(transformers_loop, "gelu_new", {"all": 1.3, "outputs": 1.5}),
    "GPT2LMHeadModel, exact GELU": Rival(exact, "gelu", {}),
}


@dataclass
class Contender:
    """A model, and what takes its next training step."""

    model: torch.nn.Module
    step: Callable[[], object]
    steps: int = 0
    seconds: float = 0.0
    learned: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="interleaved steps of each")
    parser.add_argument("--quick", action="store_true", help="10 rounds, and no time to learn")
    options = parser.parse_args()
    one_thread()
    compare_steps(10 if options.quick else options.rounds)
    if not options.quick:
        compare_learning()


def compare_steps(rounds: int) -> None:
    steps: dict[tuple[str, Objective], Callable[[], object]] = {}
    for objective in OBJECTIVES:
        config = TrainingConfig(steps=10_000, objective=objective)
        for name, contender in contenders(config).items():
            steps[name, objective] = contender.step
    medians = interleaved(steps, rounds=rounds)
    rows = []
    for name, rival in RIVALS.items():
        for objective in OBJECTIVES:
            theirs, ours = medians[name, objective], medians[OURS, objective]
            least = rival.targets.get(objective)
            goal = None if least is None else target(theirs / ours, least)
            rows.append((name, objective, 1e3 * theirs, 1e3 * ours, theirs / ours, goal))
    columns = ("against", "loss on", "its ms", "our ms", "its / ours", "target")
    print_table(f"A training step (median of {rounds})", columns, rows)


def compare_learning() -> None:
    rows = []
    for objective in OBJECTIVES:
        config = TrainingConfig(objective=objective)
        learners = contenders(config)
        learn(learners.values(), tasks.create("reversal").heldout(2000), most=config.steps)
        for name, c in learners.items():
            ratio = c.seconds / learners[OURS].seconds
            rows.append((name, objective, str(c.steps) if c.learned else "-", c.seconds, ratio))
    columns = ("model and loop", "loss on", "steps", "seconds", "its / ours")
    print_table("Training to no error in 2,000 held-out sequences (one run)", columns, rows)


def contenders(config: TrainingConfig) -> dict[str, Contender]:
    """Ours and the others, from the same weights; ours takes the step that training takes."""
    run = our_run(config, "gelu")
    rows = _rows(run)
    found = {OURS: Contender(run.model.train(), lambda: _take_step(run, rows))}
    for name, rival in RIVALS.items():
        twin = our_run(config, rival.mlp)
        loop = rival.make(twin.model, config)
        check_same(twin, loop)
        found[name] = Contender(loop.model, loop.step)
    return found


def our_run(config: TrainingConfig, mlp: MLP) -> Run:
    task = tasks.create("reversal")
    return start(task, model_config(task, mlp=mlp), config, device="cpu")


def check_same(run: Run, loop: Loop) -> None:
    """Both models compute the same function."""
    tokens = run.task.heldout(8).tokens[:, :-1]
    with torch.no_grad():
        difference = (logits_of(run.model, tokens) - logits_of(loop.model, tokens)).abs().max()
    assert difference < 1e-5, f"the models differ by {difference:.2g}"


def learn(learners: Iterable[Contender], heldout: Batch, *, most: int) -> None:
    """Train in turn, each until nothing is wrong, at most ``most`` steps."""
    for i in range(1, most + 1):
        for learner in (c for c in learners if not c.learned):
            learner.seconds += processor_seconds(learner.step)
            learner.steps = i
            if i % EVALUATE_EVERY == 0:
                learner.learned = all_right(learner.model, heldout)


@torch.no_grad()
def all_right(model: torch.nn.Module, heldout: Batch) -> bool:
    """Whether every answer is right; most models are found out by the first few."""
    for part in (heldout[:100], heldout[100:1000], heldout[1000:]):
        if not exact_match(logits_of(model, part.tokens), part).all():
            return False
    return True


if __name__ == "__main__":
    main()
