"""``probe ablate`` and ``probe sweep``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    Reference,
    Seed,
)

if TYPE_CHECKING:
    import pandas as pd


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(ablate)
    app.command()(sweep)


def ablate(
    model: Model,
    head: Annotated[
        list[str],
        typer.Option(help="layer.head, a layer's heads 4.*, or attn.4, mlp.4; may be repeated."),
    ],
    ablation: Ablation = None,
    prompt: Prompts = None,
    position: Annotated[
        list[int] | None,
        typer.Option(help="Only at this position; negative counts from the end; may be repeated."),
    ] = None,
    metric: MetricOption = None,
    answer: Answer = None,
    distractor: Distractor = None,
    reference: Reference = None,
    top: Annotated[int, typer.Option(help="Likeliest tokens to show after a prompt.", min=1)] = 5,
    engine: EngineOption = "lens",
    bos: BosOption = None,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
) -> None:
    """Remove heads or layers together and compare the model with and without them.

    With prompts, the likeliest next tokens before and after stand side by side.

    Example: probe ablate gpt2 --head 4.11 --head 5.1 --ablation zero --prompt "The capital of"
    """
    import probe
    from probe.cli.inputs import measured
    from probe.cli.show import print_table, showing_progress

    check_files(csv, json)
    loaded = probe.load(model, engine=engine, device=device)
    from analyses.next_tokens import next_tokens

    ids = measured(loaded, prompt, bos)
    how: Any = {"heads": head, "ablation": ablation, "positions": position, "seed": seed}
    how["reference"] = measured(loaded, reference, bos) if reference else None
    chosen = chosen_metric(loaded, metric, answer, distractor)
    with showing_progress():
        table = probe.ablate(loaded, ids, metric=chosen, **how)
    if prompt:
        before_and_after(loaded, ids, next_tokens(loaded, ids, top=top, **how))
    print_table(table)
    write(table, csv, json)


def sweep(
    model: Model,
    ablation: Ablation = None,
    prompt: Prompts = None,
    metric: MetricOption = None,
    answer: Answer = None,
    distractor: Distractor = None,
    reference: Reference = None,
    estimate: Annotated[
        str | None,
        typer.Option(help="integrated-gradients or gradient: screen instead of measuring."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Heads to print; of an estimate also how many to measure.", min=1),
    ] = None,
    engine: EngineOption = "lens",
    bos: BosOption = None,
    seed: Seed = 0,
    device: DeviceOption = "cpu",
    csv: Csv = None,
    json: Json = None,
    figure: Figure = None,
) -> None:
    """Remove each head alone: one row per head and metric, by the first metric.

    Example: probe sweep gpt2 --engine gpt --ablation zero --metric logit_difference
    --prompt "The capital of France is" --answer " Paris" --distractor " Rome"
    """
    import probe
    from probe.cli.inputs import measured
    from probe.cli.show import print_table, showing_progress

    check_files(csv, json, figure=figure)
    loaded = probe.load(model, engine=engine, device=device)
    ids = measured(loaded, prompt, bos)
    how: Any = {"ablation": ablation or default_kind(loaded, ids, reference), "seed": seed}
    how["metric"] = chosen_metric(loaded, metric, answer, distractor)
    how["reference"] = measured(loaded, reference, bos) if reference else None
    remarks: list[str] = []
    with showing_progress():
        if estimate is None:
            table = probe.ablate_every_head(loaded, ids, **how)
        else:
            how["metric"] = how["metric"] or "loss"
            table, remarks = estimated(loaded, ids, estimate=estimate, top=top, **how)
    sys.stderr.writelines(f"{remark}\n" for remark in remarks)
    print_table(largest(table, top))
    write(table, csv, json)
    if figure is not None:
        from probe.studies.single import effect_maps
        from reports.figures import save_one

        save_one(effect_maps(table), figure)
        sys.stderr.write(f"{figure}\n")


def estimated(model: Any, ids: Any, **how: Any) -> tuple[pd.DataFrame, list[str]]:
    """Estimates, and what is to be said of them, a line each."""
    import warnings

    import probe
    from analyses.estimates import SaturationWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = probe.estimate_every_head(model, ids, **how)
    own = [w for w in caught if issubclass(w.category, SaturationWarning)]
    for other in (w for w in caught if w not in own):
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    remarks = [str(w.message) for w in own] + [table.attrs["note"]]
    return table, [f"probe: {remark}" for remark in remarks if remark]


def chosen_metric(
    model: Any, metric: str | None, answer: list[str] | None, distractor: list[str] | None
) -> Any:
    """The metric that was asked for; by default what the answer asks for, or the loss."""
    from analyses.inputs import has_task
    from analyses.metrics import metric_named

    if metric is None and answer is None and distractor is None:
        return None if has_task(model) else "loss"
    name = metric or ("logit_difference" if distractor else "log_probability")
    return metric_named(name, answer=_one(answer), distractor=_one(distractor))


def default_kind(model: Any, ids: Any, reference: list[str] | None) -> str:
    """One kind for a sweep, so that a row is a head."""
    from analyses.inputs import as_batch, has_task
    from analyses.substitutes import default_ablation

    if ids is None:
        return "mean" if has_task(model) else "resample"
    return default_ablation(as_batch(model, ids), reference)


def before_and_after(model: Any, ids: Any, table: pd.DataFrame) -> None:
    """The likeliest next tokens of each prompt, side by side."""
    from models.text_codec import codec_of
    from reports.text import visible

    codec = codec_of(model)
    for prompt, rows in table.groupby("prompt"):
        text = visible(codec.decode(ids[int(str(prompt))]), spaces=False)
        sys.stdout.write(f"{text}\n")
        lines = [
            (
                visible(row["clean_token"]),
                f"{row['clean_probability']:.3f}",
                f"{row['clean_token_ablated']:.3f}",
                visible(row["ablated_token"]),
                f"{row['ablated_probability']:.3f}",
            )
            for _, row in rows.iterrows()
        ]
        lines.insert(0, ("before", "p", "p after", "after", "p"))
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            sys.stdout.write(f"  {'  '.join(cells).rstrip()}\n")


def largest(table: pd.DataFrame, top: int | None) -> pd.DataFrame:
    """All rows of the heads that change the first metric most, by falling absolute change."""
    import pandas as pd

    by = "change" if "estimate" not in table else "estimate"
    names = [f"{layer}.{head}" for layer, head in zip(table["layer"], table["head"], strict=True)]
    table = table.drop(columns=["layer", "head"])
    table.insert(0, "head", names)
    first = table[table["metric"] == table["metric"].iloc[0]]
    sizes = first[by].abs().groupby(first["head"], sort=False).max()
    ranked = sizes.sort_values(ascending=False, kind="stable", na_position="last").index
    rows: list[pd.DataFrame] = [table[table["head"] == head] for head in ranked[:top]]
    return pd.concat(rows)


def _one(tokens: list[str] | None) -> Any:
    return tokens[0] if tokens is not None and len(tokens) == 1 else tokens
