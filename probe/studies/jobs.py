"""What one worker of the reversal study does: train one model, measure it, return tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.ablation import (
    ABLATIONS,
    Variant,
    ablate_every_head,
    run_variants,
)
from analyses.attention_temperature import attention_temperature
from analyses.content_dependence import PatternSum
from analyses.cumulative import order_of_heads
from analyses.head_roles import head_roles
from analyses.head_sets import cumulative_ablation
from analyses.head_table import scores_and_profile, wide_effects, with_labels
from analyses.inputs import as_batch
from analyses.tables import KEYS
from analyses.temperature import half_point, temperature
from models.checkpoints import save_run
from models.gpt import GPT
from models.interface import shape
from models.names import Head, head_name
from models.tasks import Task
from models.training import Run, TrainingConfig, advance, evaluate, model_config, start
from probe.studies.hypotheses import labelled_hypothesis
from probe.studies.kinds import LOCAL, NEXT_TOKEN, OUTPUTS_ONLY, UNTRAINED
from probe.studies.temperature_sections import task_tables

HELD_OUT = 2_000

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """One model of the study.

    Args:
        kind: one of `probe.studies.kinds.KINDS`.
        config: of the training, with the seed.
        curve_only: measure the temperature curve only.
        folder: where its checkpoint goes, if anywhere.
    """

    kind: str
    task: Task
    config: TrainingConfig
    layers: int
    heads: int
    width: int
    device: str
    curve_only: bool = False
    folder: Path | None = None

    @property
    def name(self) -> str:
        """For progress lines."""
        steps = f", {self.config.steps} steps" if self.curve_only else ""
        return f"{self.kind}, seed {self.config.seed}{steps}"

    @property
    def work(self) -> int:
        """Training steps, for progress and for starting the longest first."""
        return 1 if self.kind == UNTRAINED else self.config.steps


@dataclass
class Measured:
    """What a job found: tables by name, and numbers."""

    kind: str
    seed: int
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    pattern: Any = None  # mean pattern, float32 array [layer, head, query, key]


def measure(job: Job, tell: Tell) -> Measured:
    """Train and measure one model. Runs in a worker process."""
    run = _train(job, tell)
    model, seed = run.model, job.config.seed
    found = Measured(job.kind, seed)
    if not job.curve_only:
        tell({"stage": "measuring"})
        heldout = job.task.heldout(HELD_OUT, seed=seed, device=run.batches.device)
        found.numbers = evaluate(model, heldout)
        found.tables["history"] = pd.DataFrame(run.history)
        _look(found, model)
        if job.kind in (NEXT_TOKEN, OUTPUTS_ONLY):
            tell({"stage": "ablating"})
            _ablate(found, model)
    if job.kind in (NEXT_TOKEN, OUTPUTS_ONLY):
        tell({"stage": "sampling"})
        samples = 0 if job.curve_only else 256
        found.tables["temperature"] = temperature(model, seed=seed, samples=samples)
        found.numbers["half_point"] = half_point(model, seed=seed)
        if not job.curve_only:
            found.tables |= task_tables(model, seed=seed)
    for table in found.tables.values():
        table.insert(0, "model", job.kind)
        table.insert(1, "seed", seed)
    tell({"done": True})
    return found


def _train(job: Job, tell: Tell) -> Run:
    n = job.task.n_ctx // 2
    window = max(1, n // 2) if job.kind == LOCAL else None
    sizes = model_config(
        job.task, n_layers=job.layers, n_heads=job.heads, d_model=job.width, window=window
    )
    run = start(job.task, sizes, job.config, device=job.device)
    if job.kind == UNTRAINED:
        run.model.eval()
        return run
    every = max(1, job.config.steps // 50)

    def report(run: Run) -> None:
        if run.step % every == 0 or run.step == job.config.steps:
            last = run.history[-1] if run.history else {}
            tell({"step": run.step, "loss": last.get("loss"), "exact": last.get("exact_match")})

    advance(run, report=report)
    if job.folder is not None:
        save_run(job.folder, run)
    return run


def _look(found: Measured, model: GPT) -> None:
    """What the heads look like, from one pass: scores, labels, offsets, mean patterns."""
    batch = as_batch(model, None, seed=found.seed)
    patterns = PatternSum(model, batch)
    scores, profile = scores_and_profile(model, batch, also=patterns, seed=found.seed)
    assert profile is not None  # reversal has an anti-diagonal
    heads = with_labels(scores, profile)
    names = [head_name(*key) for key in zip(heads["layer"], heads["head"], strict=True)]
    heads.insert(2, "name", names)
    found.tables |= {"heads": heads, "scores": scores, "profile": profile}
    found.pattern = patterns.mean()[0].numpy()


def _ablate(found: Measured, model: GPT) -> None:
    """What the heads do: each alone, one after the other, and the labelled ones together."""
    seed = found.seed
    single = ablate_every_head(model, seed=seed)
    found.tables["ablation"] = single
    heads = found.tables["heads"].merge(wide_effects(single), on=KEYS)
    found.tables["heads"] = heads = heads.merge(head_roles(model, seed=seed), on=KEYS)
    order = order_of_heads(found.tables["scores"], "anti_diagonal")
    found.tables["cumulative"] = cumulative_ablation(model, order=order, seed=seed)
    labelled = [h for h, yes in zip(_keys(heads), heads["labelled"], strict=True) if yes]
    found.tables["joint"] = _joint(model, labelled, seed)
    found.tables |= labelled_hypothesis(model, labelled, seed=seed)
    if labelled:
        found.tables["attention_temperature"] = attention_temperature(
            model, heads=labelled, metric=["exact_match", "loss"], seed=seed
        )


def _joint(model: GPT, labelled: list[Head], seed: int) -> pd.DataFrame:
    """The labelled heads removed together, all others removed ("keep"), and all ("none")."""
    others = [head for head in shape(model).heads if head not in labelled]
    sets = {"remove": labelled, "keep": others, "none": shape(model).heads}
    variants = [Variant(tuple(s), kind) for s in sets.values() for kind in ABLATIONS]
    batch = as_batch(model, None, n=256, seed=seed)
    table = run_variants(model, batch, variants, seed=seed)
    per_set = len(table) // len(sets)
    table.insert(0, "mode", [mode for mode in sets for _ in range(per_set)])
    table["heads"] = " ".join(head_name(*head) for head in labelled)
    return table


def _keys(table: pd.DataFrame) -> list[Head]:
    pairs = zip(table["layer"], table["head"], strict=True)
    return [(int(layer), int(head)) for layer, head in pairs]
