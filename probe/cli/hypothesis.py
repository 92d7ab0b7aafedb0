"""``probe hypothesis``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from probe.cli.ablate import chosen_metric
from probe.cli.heads import check_files, write
from probe.cli.options import (
    Ablation,
    Answer,
    BosOption,
    Csv,
    DeviceOption,
    Distractor,
    EngineOption,
    Figure,
    Json,
    MetricOption,
    Model,
    Prompts,
    Seed,
)

COLUMNS = {
    "claim": "claim",
    "ablation": "ablation",
    "clean": "clean",
    "none": "without all",
    "value": "value",
    "ci_low": "ci_low",
    "ci_high": "ci_high",
    "rank": "rank",
    "n_sets": "sets",
    "p": "p",
    "verdict": "verdict",
}


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(hypothesis)


def hypothesis(
    model: Model,
    heads: Annotated[str, typer.Option(help="The set, as in 5.1,5.5,6.9.")],
    prompt: Prompts = None,
    selected_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Texts (or @FILE) that the heads were chosen on; none of them may be tested on. "
            "Without a task they also give the mean."
        ),
    ] = None,
    metric: MetricOption = None,
    answer: Answer = None,
    distractor: Distractor = None,
    ablation: Ablation = None,
    controls: Annotated[int, typer.Option(help="Matched sets to compare with.", min=1)] = 200,
    engine: EngineOption = "lens",
    bos: BosOption = None,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
    figure: Figure = None,
) -> None:
    """Test whether heads are necessary and sufficient, against sets with as many in every layer.

    Example: probe hypothesis out/reversal/models/next-token-0 --heads 0.1,0.2
    """
    import probe
    from probe.cli.inputs import measured
    from probe.cli.show import print_table, showing_progress

    check_files(csv, json, figure=figure)
    loaded = probe.load(model, engine=engine, device=device)
    from analyses.hypothesis import hypothesis_sentence, hypothesis_table, prompts_to_test
    from analyses.inputs import has_task
    from analyses.matched_sets import measure_sets, set_table

    chosen = chosen_metric(loaded, metric, answer, distractor) or "loss"
    known = measured(loaded, selected_on, bos) if selected_on else None
    batch, n_known = prompts_to_test(
        loaded, measured(loaded, prompt, bos), selected_on=known, seed=seed
    )
    with showing_progress():
        scores = measure_sets(
            loaded,
            batch,
            heads=[head.strip() for head in heads.split(",")],
            metric=chosen,
            ablation=ablation,
            n_controls=controls,
            reference=None if has_task(loaded) else known,
            seed=seed,
        )
    table = hypothesis_table(scores, selected=n_known)
    print_table(table.assign(rank=table["rank"].astype("Int64")), COLUMNS)
    sys.stdout.write(f"{hypothesis_sentence(table)}\n")
    write(table, csv, json)
    if figure is not None:
        from probe.studies.single import control_sets
        from reports.figures import save_one

        save_one(control_sets(set_table(scores).assign(model=model, seed=seed)), figure)
        sys.stderr.write(f"{figure}\n")
