"""The page of the reversal study: figures, tables and text from the collected tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analyses.criteria import CRITERIA
from probe.studies.circuit_section import circuit, graded
from probe.studies.drawer import Drawer, Study
from probe.studies.kinds import LOCAL, NEXT_TOKEN, OUTPUTS_ONLY, UNTRAINED
from probe.studies.temperature_sections import task_items
from reports.curves import (
    confidence_by_training,
    cumulative_curves,
    temperature_curves,
    training_curves,
)
from reports.heads import ablation_dots, offset_profile, score_against_entropy
from reports.page import Criterion, Figure, Page, Section, Sentence, Table
from reports.style import new_figure

HEAD_COLUMNS = {
    "model": "model",
    "seed": "seed",
    "name": "head",
    "anti_diagonal": "anti-diagonal",
    "anti_diagonal_ci_low": "95% low",
    "anti_diagonal_ci_high": "95% high",
    "anti_diagonal_chance": "chance",
    "rival": "best rival",
    "rival_offset": "at offset",
    "labelled": "labelled",
    "anti_diagonal_holding": "holding",
    "right_token": "right letter",
    "previous_token": "previous token",
    "previous_token_chance": "chance (previous)",
    "current_token": "current token",
    "first_token": "first token",
    "separator": "separator",
    "entropy_inputs": "entropy, inputs (nats)",
    "entropy_predicting": "entropy, predicting (nats)",
    "entropy_separator": "entropy, at SEP (nats)",
    "loss_change_zero": "loss change, zero",
    "loss_change_mean": "loss change, mean",
    "loss_change_resample": "loss change, resample",
    "exact_match_change_zero": "exact match change, zero",
    "exact_match_change_mean": "exact match change, mean",
    "exact_match_change_resample": "exact match change, resample",
    "explained": "explained by the ideal pattern",
    "direct": "direct effect (logits)",
}


def build_page(study: Study, folder: Path) -> Page:
    """Draw the figures into ``folder/figures`` and put the page together."""
    draw = Drawer(study, folder / "figures")
    used = {finding.criterion for finding in study.findings} | {"label_floor", "label_ratio"}
    return Page(
        title="A small GPT learns to reverse: what its heads do",
        lead=(
            f"Models with the same shape were trained to write {study.length} letters back to "
            f"front, with {study.seeds} seed{'s' if study.seeds > 1 else ''} each. "
            f"“{NEXT_TOKEN}” is trained on next-token prediction at every position, "
            f"“{OUTPUTS_ONLY}” at the positions that predict an output. Controls: "
            f"“{UNTRAINED}”, and “{LOCAL}”, the next-token recipe in which each layer's attention "
            f"reaches back over {study.length // 2} keys only."
        ),
        summary=[Sentence(f.text, f.criterion, f.holds) for f in study.findings],
        sections=[
            _learning(draw),
            _looks(draw),
            _does(draw),
            circuit(draw),
            _temperature(draw),
            graded(draw),
        ],
        criteria=[
            Criterion(c.name, str(c), c.threshold, c.why)
            for c in CRITERIA.values()
            if c.name in used
        ],
        footer="All numbers are in tables/*.csv and report.json; trained models are in models/.",
    )


def _learning(draw: Drawer) -> Section:
    figure = new_figure(height=3.2)
    training_curves(figure, draw.tables["history"])
    models = draw.tables["models"]
    return Section(
        "Do they learn it?",
        "Exact match is the share of held-out sequences that greedy generation writes without "
        "any error. Held-out sequences are never drawn in training.",
        [
            draw.figure(
                figure,
                "training",
                "Left: loss of the training batch, in nats per predicted token; with next-token "
                "prediction at every position it cannot fall to 0, because the input letters are "
                "random. Right: exact match on 256 held-out sequences. One line per seed.",
                "training loss and exact match against the training step for every model and seed",
            ),
            Table(
                "models",
                models,
                f"Every model on {int(models['n'].iloc[0]):,} held-out sequences, teacher forced.",
                labels={
                    "half_point": "half point (temperature)",
                    "heldout_loss": "loss (nats per output)",
                    "token_accuracy": "token accuracy",
                    "exact_match": "exact match",
                    "n": "sequences",
                },
            ),
        ],
    )


def _looks(draw: Drawer) -> Section:
    heads, seeds = draw.tables["heads"], range(draw.study.seeds)
    average = (
        "Mean over 64 held-out sequences; cells outlined in white are the anti-diagonal, the "
        "letter that a query predicting y must copy."
    )
    maps = [
        draw.maps(kind, [0], f"maps-{kind.replace(' ', '-')}", f"“{kind}”, seed 0. {average}")
        for kind in (NEXT_TOKEN, OUTPUTS_ONLY, LOCAL, UNTRAINED)
    ]
    if len(seeds) > 1:
        caption = f"“{NEXT_TOKEN}”, every seed: the same maps, one row per seed."
        maps.insert(1, draw.maps(NEXT_TOKEN, seeds, "maps-all-seeds", caption))
    return Section(
        "What do the heads look like?",
        "A score is the attention that goes where the pattern says, averaged over the queries "
        "where it is defined; chance is the score of uniform attention. Low entropy alone is no "
        "sign of reversal: a head that stares at one fixed key has entropy 0.",
        [
            *maps,
            *_look_figures(draw),
            Table(
                "heads",
                heads[[c for c in HEAD_COLUMNS if c in heads]],
                "One row per head: scores (shares of attention) with chance and 95% interval over "
                "64 held-out sequences, entropies, and the change of loss (nats per output) and "
                "exact match (share) when the head alone is removed, over 256 held-out sequences. "
                "Intervals speak of this model on this kind of input; “n/a” is undefined, or not "
                "measured for a control.",
                labels=HEAD_COLUMNS,
            ),
        ],
    )


def _look_figures(draw: Drawer) -> list[Figure]:
    """Score against entropy, and attention by offset, over all seeds."""
    heads = draw.tables["heads"]
    scatter = new_figure(height=4.2)
    score_against_entropy(
        scatter.subplots(),
        heads,
        score="anti_diagonal",
        entropy="entropy_predicting",
        chance=float(heads.loc[heads["model"] == NEXT_TOKEN, "anti_diagonal_chance"].iloc[0]),
    )
    profile = new_figure(height=3.2)
    own = draw.tables["profile"]
    offset_profile(
        profile.subplots(),
        own[own["model"] == NEXT_TOKEN],
        expected=0,
        axis="query + key − (2n − 1)",
    )
    return [
        draw.figure(
            scatter,
            "score-against-entropy",
            "Every head of every model and seed: anti-diagonal score against entropy, both on "
            "the predicting queries of 64 held-out sequences. Chance is that of unlimited "
            "attention.",
            "anti-diagonal score of every head against its entropy",
        ),
        draw.figure(
            profile,
            "offsets",
            f"“{NEXT_TOKEN}”, every seed and head, mean over 64 held-out sequences: attention of "
            "the predicting queries by the offset query + key − (2n − 1), n letters; 0 is the "
            "anti-diagonal. The highest other offset is a head's best rival.",
            "attention by offset from the anti-diagonal",
        ),
    ]


def _does(draw: Drawer) -> Section:
    ablation, cumulative = draw.tables["ablation"], draw.tables["cumulative"]
    items: list[Any] = []
    for kind in (NEXT_TOKEN, OUTPUTS_ONLY):
        slug = kind.replace(" ", "-")
        dots = new_figure(height=3.4)
        rows = ablation[(ablation["model"] == kind) & (ablation["metric"] == "exact_match")]
        marks = rows[["layer", "head", "ablation", "change"]]
        ablation_dots(dots.subplots(), marks, effect="exact match (share)")
        curves = new_figure(height=3.4)
        cumulative_curves(curves, cumulative[cumulative["model"] == kind])
        items += [
            draw.figure(
                dots,
                f"ablation-{slug}",
                f"“{kind}”: change of the exact match when one head is removed, one mark per seed, "
                "by kind of ablation, over 256 held-out sequences.",
                f"ablation effect of every head, {kind}",
            ),
            draw.figure(
                curves,
                f"cumulative-{slug}",
                f"“{kind}”: exact match over 256 held-out sequences as heads are removed (left) or "
                "kept (right) in falling order of the anti-diagonal score. One line per seed and "
                "ablation; lines that would cover each other are set slightly apart.",
                f"exact match against the number of heads removed or kept, {kind}",
            ),
        ]
    return Section(
        "What do the heads do?",
        "Removing a head sets its output z to zero, to its mean per position over 256 training "
        "sequences, or to that of another sequence (ten draws). The kind of ablation can decide "
        "the verdict, so a head is called needed only where mean and resample agree.",
        [
            *items,
            Table(
                "ranks",
                draw.tables["ranks"],
                "The head with the highest anti-diagonal score: where it ranks among all heads by "
                "the rise of the loss when it alone is removed, and the verdict on exact match.",
                labels={
                    "anti_diagonal": "anti-diagonal",
                    "entropy_predicting": "entropy (nats)",
                    "n_heads": "of heads",
                },
            ),
            Table(
                "joint",
                draw.tables["joint"],
                "All labelled anti-diagonal heads of a model at once: removed together, and kept "
                "alone (every other head removed); and no head kept. The change has a 95% "
                "interval over sequences.",
                labels={"mode": "labelled heads", "monte_carlo_error": "Monte-Carlo error"},
            ),
        ],
    )


def _temperature(draw: Drawer) -> Section:
    curves = new_figure(height=3.8)
    temperature_curves(curves.subplots(), draw.tables["temperature"])
    confidence = new_figure(height=3.4)
    table = draw.tables["confidence"]
    confidence_by_training(confidence.subplots(), table[["steps", "temperature", "exact_match"]])
    return Section(
        "What does temperature do?",
        "The exact probability of writing the whole answer at temperature t is the product of "
        "softmax(logits / t) at the right tokens, so the curve needs no sampling; samples from the "
        "generator confirm it.",
        [
            draw.figure(
                curves,
                "temperature",
                "Exact match against the sampling temperature: lines are exact over 2,000 held-out "
                "sequences, points are 256 samples each with their Wilson 95% interval.",
                "exact match against sampling temperature",
            ),
            draw.figure(
                confidence,
                "confidence",
                f"“{NEXT_TOKEN}”, seed 0, trained for different numbers of steps: exact "
                "probability of the whole answer, over 2,000 held-out sequences.",
                "exact match against temperature after short and long training",
            ),
            Table(
                "temperature",
                draw.tables["temperature"],
                "Exact match at each temperature, exact and sampled; “tail” is the two-sided "
                "Poisson-binomial tail of the number of samples that came out right.",
                labels={"exact_match": "exact match", "token_probability": "per token"},
            ),
            Table(
                "confidence",
                table[["steps", "temperature", "exact_match", "token_probability", "half_point"]],
                f"“{NEXT_TOKEN}”, seed 0, after different numbers of training steps; “half point” "
                "is the temperature at which exact match is 50%.",
                labels={"exact_match": "exact match", "half_point": "half point"},
            ),
            *task_items(draw, (NEXT_TOKEN, OUTPUTS_ONLY)),
        ],
    )
