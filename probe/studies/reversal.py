"""The reversal study: train over several seeds, measure, ablate, sample, report.

For every seed: the model trained on next-token prediction at every position, its companion
trained on output positions only, and two controls, an untrained model of the same shape and the
same recipe with attention that reaches back over half the input only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from models import tasks
from models.errors import InputError
from models.names import Objective
from models.training import TrainingConfig, model_config, pick_device
from models.workers import run_jobs
from probe.studies.drawer import Study
from probe.studies.effect_findings import ranks
from probe.studies.findings import findings
from probe.studies.hypotheses import combined_hypotheses, hypothesis_findings
from probe.studies.jobs import HELD_OUT, Job, Measured, measure
from probe.studies.kinds import KINDS, NEXT_TOKEN, OUTPUTS_ONLY
from probe.studies.reversal_page import build_page
from probe.studies.sentences import Finding, Found
from probe.studies.temperature_sections import task_findings
from reports.assembly import write_report
from reports.folder import report_folder
from reports.provenance import provenance

Progress = Callable[[Job, dict[str, Any]], None]


@dataclass(frozen=True)
class ReversalStudy:
    """What to run.

    Args:
        length: letters per sequence.
        layers, heads, width: of every model.
        seeds: how many seeds, from 0.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        workers: processes at once; ``None`` is one per core on a CPU, one on a GPU.
        other_steps: further lengths of training, whose temperature curves are compared.
        training: the recipe.
    """

    length: int = 16
    layers: int = 2
    heads: int = 4
    width: int = 64
    seeds: int = 5
    device: str = "auto"
    workers: int | None = None
    other_steps: tuple[int, ...] = (100, 1_000)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, but got {self.seeds}")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, but got {self.workers}")
        pick_device(self.device)
        if self.length < 4:
            raise InputError(
                f"the study needs a length of at least 4 letters, but got {self.length}"
            )

        model_config(  # refuses what makes no model before anything runs
            tasks.create("reversal", length=self.length),
            n_layers=self.layers,
            n_heads=self.heads,
            d_model=self.width,
        )

    def jobs(self, models: Path | None = None) -> list[Job]:
        """Every model of the study, the longest training first.

        Args:
            models: where the trained models are kept, if anywhere.
        """
        common = Job(
            kind=NEXT_TOKEN,
            task=tasks.create("reversal", length=self.length),
            config=self.training,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            device=pick_device(self.device).type,
        )
        jobs = []
        for seed in range(self.seeds):
            for kind in KINDS:
                objective: Objective = "outputs" if kind == OUTPUTS_ONLY else "all"
                recipe = replace(self.training, seed=seed, objective=objective)
                kept = models is not None and kind in (NEXT_TOKEN, OUTPUTS_ONLY)
                folder = models / f"{kind.replace(' ', '-')}-{seed}" if models and kept else None
                jobs.append(replace(common, kind=kind, config=recipe, folder=folder))
        for steps in sorted(set(self.other_steps) - {self.training.steps}):
            recipe = replace(self.training, seed=0, steps=steps, objective="all")
            jobs.append(replace(common, config=recipe, curve_only=True))
        return sorted(jobs, key=lambda job: -job.work)


def reversal(
    out: str | Path,
    *,
    study: ReversalStudy | None = None,
    force: bool = False,
    progress: Progress = lambda job, message: None,
    started: Callable[[Sequence[Job]], None] = lambda jobs: None,
    stage: Callable[[str], None] = lambda text: None,
) -> tuple[Path, list[Finding]]:
    """Run the study and write its report.

    Args:
        out: the report's folder; trained models are kept in ``models/`` in it.
        study: what to run; default five seeds of the default model.
        force: replace a report of ours that is there.
        progress: called with a job and its message as the workers go.
        started: called once with all jobs.
        stage: called with what follows the models.

    Returns:
        The folder, and what the study found.

    Raises:
        OutputExistsError: the folder is there and may not be replaced; nothing was run.
    """
    study = study or ReversalStudy()
    with report_folder(out, force=force) as folder:
        begin = time.perf_counter()
        jobs = study.jobs(folder / "models")
        started(jobs)
        workers = 1 if study.workers is None and jobs[0].device != "cpu" else study.workers
        measured = run_jobs(measure, jobs, workers=workers, on_message=progress)
        trained = time.perf_counter()
        stage("drawing figures and writing the page")
        tables = collect(jobs, measured)
        found = Found(**{k: tables[k] for k in Found.__annotations__})
        tables["ranks"] = ranks(found)
        sentences = findings(found)
        sentences += hypothesis_findings(tables.get("hypotheses"), seeds=study.seeds)
        sentences += task_findings(tables, NEXT_TOKEN)
        if "hypotheses" in tables:
            combined = combined_hypotheses(tables["hypotheses"])
            if len(combined):
                tables["hypotheses_combined"] = combined
        patterns = {(m.kind, m.seed): m.pattern for m in measured if m.pattern is not None}
        page = build_page(Study(study.length, study.seeds, tables, patterns, sentences), folder)
        timings = {"models": trained - begin, "page": time.perf_counter() - trained}
        record = provenance(
            command=sys.argv,
            configuration=asdict(study),
            seeds=list(range(study.seeds)),
            timings=timings,
        )
        write_report(folder, page, tables=tables, provenance=record)
    return Path(out), sentences


def collect(jobs: Sequence[Job], measured: Sequence[Measured]) -> dict[str, pd.DataFrame]:
    """One table of each kind over all models, in the order of kinds and seeds."""
    pairs = sorted(
        zip(jobs, measured, strict=True),
        key=lambda pair: (KINDS.index(pair[0].kind), pair[1].seed, pair[0].config.steps),
    )
    whole = [found for job, found in pairs if not job.curve_only]
    names = (
        "history",
        "heads",
        "profile",
        "ablation",
        "cumulative",
        "joint",
        "temperature",
        "hypotheses",
        "hypothesis_sets",
        "attention_temperature",
        "temperature_by_position",
        "fragility",
    )
    tables = {
        name: pd.concat([m.tables[name] for m in whole if name in m.tables], ignore_index=True)
        for name in names
        if any(name in m.tables for m in whole)
    }
    tables["models"] = pd.DataFrame(
        [{"model": m.kind, "seed": m.seed, **m.numbers, "n": HELD_OUT} for m in whole]
    )
    steps = [
        found.tables["temperature"].assign(
            steps=job.config.steps, half_point=found.numbers["half_point"]
        )
        for job, found in pairs
        if job.kind == KINDS[0] and found.seed == 0
    ]
    tables["confidence"] = pd.concat(steps, ignore_index=True).sort_values(
        ["steps", "temperature"], ignore_index=True
    )
    return tables
