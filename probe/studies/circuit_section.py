"""Sections of the reversal page: hypotheses about the labelled heads, and graded ablation."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analyses.inputs import SEQUENCES
from probe.studies.drawer import Drawer
from probe.studies.kinds import NEXT_TOKEN, OUTPUTS_ONLY
from reports.attention_temperature import attention_temperature_curves
from reports.heads import head_map
from reports.hypotheses import null_distribution
from reports.page import Figure, Section, Table
from reports.style import new_figure

SMALL = 0.01
"""A head whose removal changes the loss by fewer nats does too little to be explained."""


def circuit(draw: Drawer) -> Section:
    """What the labelled heads are to the model, and what each head writes."""
    items: list[Any] = [_roles(draw)]
    sets = draw.tables.get("hypothesis_sets")
    for kind in (NEXT_TOKEN, OUTPUTS_ONLY):
        own = None if sets is None else sets[sets["model"] == kind]
        if own is not None and not own["tested"].all():
            items.append(_control_sets(draw, kind, own))
    if "hypotheses" in draw.tables:
        items += _hypothesis_tables(draw)
    return Section(
        "Are these heads necessary and sufficient?",
        "The labelled anti-diagonal heads are compared with every set that has as many heads in "
        "each layer, the set itself included: p is the share of these sets that are at least as "
        "extreme. It says “exceptional among such sets” and nothing more causal. Heads are "
        "labelled on 64 held-out sequences and tested on 64 others. Where only one such set "
        "exists, there is nothing to compare it with.",
        items,
    )


def graded(draw: Drawer) -> Section:
    """Attention temperature of the labelled heads: an ablation by degrees."""
    table = draw.tables.get("attention_temperature")
    items: list[Any] = []
    for kind in (NEXT_TOKEN, OUTPUTS_ONLY):
        rows = None if table is None else table[(table["model"] == kind)]
        if rows is None or rows.empty:
            continue
        seed = int(rows["seed"].iloc[0])
        figure = new_figure(height=3.4)
        attention_temperature_curves(figure, rows[rows["seed"] == seed], metric="exact_match")
        heads = draw.tables["heads"]
        own = heads[(heads["model"] == kind) & (heads["seed"] == seed)]
        names = ", ".join(own.loc[own["labelled"].astype(bool), "name"])
        slug = f"attention-temperature-{kind.replace(' ', '-')}"
        items.append(
            draw.figure(
                figure,
                slug,
                f"“{kind}”, seed {seed}: exact match (left) and the mean entropy of the attention "
                f"of the labelled heads ({names}) over all queries (right), as their scores are "
                "divided by a temperature before the softmax, over 256 held-out sequences. 1 is "
                "the model as it was trained; above it attention blurs, below it sharpens.",
                f"exact match against attention temperature, {kind}",
            )
        )
    return Section(
        "What if a head's attention is blurred or sharpened?",
        "This temperature acts inside chosen heads, on their attention scores; the temperature "
        "above acts on the output distribution. Its sweep is an ablation by degrees: a head "
        "loses its aim before it loses its voice."
        if items
        else "No head was labelled, so there is none whose attention to change.",
        items,
    )


def _roles(draw: Drawer) -> Figure:
    """Exact effect, direct effect and what the ideal pattern explains, seed 0."""
    heads = draw.tables["heads"]
    own = heads[(heads["model"] == NEXT_TOKEN) & (heads["seed"] == 0)]
    figure = new_figure(height=2.0)
    left, middle, right = figure.subplots(1, 3)
    head_map(left, own, value="loss_change_mean", unit="nats per output", centre=0.0)
    left.set_title("without the head: loss")
    head_map(middle, own, value="direct", unit="logits", centre=0.0)
    middle.set_title("direct effect")
    does = own["loss_change_mean"].abs() >= SMALL
    shown = own.assign(explained=own["explained"].where(does))
    head_map(right, shown, value="explained", unit="share", limits=(0, 1))
    right.set_title("explained by its pattern")
    return draw.figure(
        figure,
        "roles",
        f"“{NEXT_TOKEN}”, seed 0, 256 held-out sequences. Left: rise of the loss when the head "
        "alone is set to its mean. Middle: what it writes straight to the logit of the right "
        "letter, above the mean over the vocabulary. Right: the share of the damage done by "
        "uniform attention that the ideal anti-diagonal pattern undoes; n/a where uniform "
        f"attention does none, and where the loss on the left changes by less than {SMALL:g} nats: "
        "there the share can have any value.",
        "exact effect, direct effect and explained share of every head",
    )


def _control_sets(draw: Drawer, kind: str, sets: pd.DataFrame) -> Figure:
    compared = ~sets["tested"].groupby(sets["seed"]).transform("all")
    alone = sorted(sets.loc[~compared, "seed"].unique())
    sets = sets[compared]
    rows = len(sets.groupby(["seed", "ablation"]))
    figure = new_figure(height=1.4 + 0.26 * rows)
    left, right = figure.subplots(1, 2)
    null_distribution(left, sets, claim="necessary", effect="loss (nats per output)")
    null_distribution(right, sets, claim="sufficient")
    note = f" Only one such set exists in seed {', '.join(map(str, alone))}." if alone else ""
    return draw.figure(
        figure,
        f"hypothesis-{kind.replace(' ', '-')}",
        f"“{kind}”: what the labelled heads and every matched set do, by seed and ablation, over "
        f"{SEQUENCES} held-out sequences, none of them among those that the heads were labelled "
        "on. "
        "Left: rise of the loss when the set is removed. Right: share of the loss saved that is "
        f"kept when only the set is kept, 0 without any head and 1 for the whole model.{note}",
        f"matched head sets and the labelled one, {kind}",
    )


def _hypothesis_tables(draw: Drawer) -> list[Table]:
    shown = {
        "model": "model",
        "seed": "seed",
        "heads": "heads",
        "claim": "claim",
        "ablation": "ablation",
        "value": "value",
        "ci_low": "95% low",
        "ci_high": "95% high",
        "rank": "rank",
        "n_sets": "of sets",
        "p": "p",
        "verdict": "verdict",
    }
    tables = [
        Table(
            "hypotheses",
            draw.tables["hypotheses"][list(shown)],
            "One row per model, claim and ablation. The value is the rise of the loss (nats per "
            "output) on removal, or the share retained when kept alone.",
            labels=shown,
        ),
    ]
    if "hypotheses_combined" in draw.tables:
        combined = Table(
            "hypotheses_combined",
            draw.tables["hypotheses_combined"],
            "All seeds of a model together: an exact rank sum over seeds, each with its own "
            "matched sets; seeds with only one such set are left out.",
            labels={"n_seeds": "seeds", "n_first": "alone in front", "rank_sum": "rank sum"},
        )
        tables.append(combined)
    return tables
