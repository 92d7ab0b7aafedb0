"""The page of the study of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analyses.criteria import CRITERIA
from analyses.prompts import CAPITALS
from models.names import head_name
from probe.studies.sentences import Finding
from reports.figures import save_figure
from reports.grid import map_grid_size
from reports.heads import head_map
from reports.maps import attention_maps
from reports.page import Criterion, Figure, Page, Section, Sentence, Table
from reports.prompts import by_layer, prompt_dots, token_shares
from reports.style import new_figure

SCORES = ("previous_token", "duplicate_token", "induction", "first_token")
SHOWN_MAPS = 8
ANNOTATED = 64  # heads whose numbers fit into a map


@dataclass(frozen=True)
class Shown:
    """Everything the page shows."""

    name: str
    engine: str
    quantization: str | None
    tables: Mapping[str, pd.DataFrame]
    labels: Sequence[str | bytes]
    patterns: Any
    findings: Sequence[Finding]
    n_sequences: int
    block: int

    @property
    def short(self) -> str:
        """The last part of the model's name, for titles."""
        return self.name.rstrip("/").split("/")[-1] or self.name

    @property
    def model(self) -> str:
        """How captions name the model, with any quantisation."""
        weights = f" (weights quantised as {self.quantization})" if self.quantization else ""
        return f"{self.short}{weights}"

    @property
    def random(self) -> str:
        """How captions name the random input."""
        return (
            f"{self.n_sequences} sequences of {self.block} random tokens drawn without "
            "replacement from the model's vocabulary, repeated once"
        )


def build_page(shown: Shown, folder: Path) -> Page:
    """Draw the figures into ``folder/figures`` and put the page together."""
    used = {finding.criterion for finding in shown.findings}
    used |= {"label_floor", "label_ratio", "content_margin", "family_p"}
    figures = folder / "figures"
    return Page(
        title=f"What the heads of {shown.short} do",
        lead=(
            f"{shown.name}, run through engine {shown.engine}: every head scored on random "
            "tokens, and the next-token predictions and last-token attention on prompts."
        ),
        summary=[Sentence(f.text, f.criterion, f.holds) for f in shown.findings],
        sections=[
            _detection(shown, figures),
            _last_token(shown, figures),
            *([_causal(shown, figures)] if "cut" in shown.tables else []),
            _predictions(shown, figures),
        ],
        criteria=[
            Criterion(c.name, str(c), c.threshold, c.why)
            for c in CRITERIA.values()
            if c.name in used
        ],
        footer="All numbers are in tables/*.csv and report.json.",
    )


def _detection(shown: Shown, folder: Path) -> Section:
    detection, entropy = shown.tables["detection"], shown.tables["entropy"]
    n_layers = int(detection["layer"].max()) + 1
    small = len(detection.drop_duplicates(["layer", "head"])) <= ANNOTATED
    maps = new_figure(height=2.2 + 0.24 * n_layers * 2)
    for axes, score in zip(maps.subplots(2, 2).ravel(), SCORES, strict=True):
        rows = detection[detection["score"] == score]
        head_map(
            axes, rows, value="value", unit="share of attention", limits=(0, 1), annotate=small
        )
        axes.set_title(score.replace("_", " "))
    layers = new_figure(height=3.2)
    by_layer(
        layers.subplots(),
        entropy[entropy["score"] == "entropy"],
        value="value",
        unit="entropy (nats)",
    )
    items: list[Any] = [
        Figure(
            save_figure(maps, folder, "scores", alt="pattern scores of every head"),
            f"{shown.model}: pattern scores on {shown.random}.",
        ),
        Figure(
            save_figure(layers, folder, "entropy", alt="entropy of every head by layer"),
            f"{shown.model}: entropy of every head, mean over queries, on 16 sequences of "
            f"{shown.block} random tokens, repeated once.",
        ),
        Table(
            "labelled",
            _labelled(detection),
            "The labelled heads, and the five highest of each pattern, with chance, 95% interval "
            f"over {shown.n_sequences} sequences, and the best rival. For content patterns: how "
            "much attention falls when the copy is taken away, with the family-wise p over all "
            "heads; for induction, the direct effect on the logit of the token that followed the "
            "copy. Intervals speak of this model on this kind of input.",
        ),
    ]
    if "literature" in shown.tables:
        items.append(
            Table(
                "literature",
                shown.tables["literature"],
                "Heads that the literature names, measured here; “agrees” means labelled on these "
                "inputs.",
            )
        )
    return Section(
        "What do the heads look like?",
        "A score is the attention that goes where the pattern says, averaged over the queries "
        "where it is defined; chance is the score of uniform attention.",
        items,
    )


def _labelled(detection: pd.DataFrame) -> pd.DataFrame:
    ranked = detection.sort_values("value", ascending=False, kind="stable")
    high = ranked.groupby("score").head(5).index
    rows = ranked[ranked["labelled"].astype(bool) | ranked.index.isin(high)]
    rows = rows.sort_values(["score", "value"], ascending=[True, False], kind="stable")
    names = [head_name(*key) for key in zip(rows["layer"], rows["head"], strict=True)]
    rows = rows.drop(columns=["layer", "head", "smallest", "largest", "skipped"])
    rows.insert(0, "head", names)
    return rows.reset_index(drop=True)


def _last_token(shown: Shown, folder: Path) -> Section:
    table, text = shown.tables["last_token"], CAPITALS[0].text
    usual = table[table["input"] == table["input"].iloc[0]]
    series = ["attention", "without_first", "value_weighted"]
    means = table.groupby(["input", "key", "token"], sort=False)[[*series, "chance"]].mean()
    mean = usual.groupby("key")[[*series, "chance"]].mean().reset_index()
    bars = new_figure(height=3.4)
    token_shares(bars.subplots(), mean, series=series, tokens=shown.labels)
    return Section(
        f"Where does the last token of “{text}” look?",
        "Much attention goes to the first key in trained models and often carries nothing: "
        "“without first” leaves it out and renormalises, “value weighted” weighs each key by what "
        "its value writes to the residual stream.",
        [
            Figure(
                save_figure(bars, folder, "last-token", alt="attention of the last token by key"),
                f"{shown.model}, prompt “{text}”: attention of the last token, mean over heads.",
            ),
            _maps(shown, usual, folder),
            Table(
                "last_token_mean",
                means.reset_index(),
                f"{shown.model}: attention of the last token of “{text}”, mean over all heads, by "
                "how the prompt is fed.",
            ),
        ],
    )


def _maps(shown: Shown, usual: pd.DataFrame, folder: Path) -> Figure:
    """The heads whose last token looks most at the country."""
    country = usual[usual["token"].str.strip() == CAPITALS[0].country]
    best = country.sort_values("attention", ascending=False).head(SHOWN_MAPS)
    heads = [(int(a), int(b)) for a, b in zip(best["layer"], best["head"], strict=True)]
    if not heads:
        heads = [(0, i) for i in range(min(SHOWN_MAPS, shown.patterns.shape[1]))]
    patterns = np.stack([shown.patterns[layer, head] for layer, head in heads])
    names = [str(label) for label in shown.labels]
    figure = new_figure(*map_grid_size(len(heads), labels=names))
    attention_maps(
        figure,
        patterns,
        titles=[f"head {head_name(*head)}" for head in heads],
        query_labels=names,
        key_labels=names,
    )
    alt = "attention maps of the heads that look most at the country"
    return Figure(
        save_figure(figure, folder, "maps", alt=alt),
        f"{shown.model}, prompt “{CAPITALS[0].text}”: the {len(heads)} heads whose last token "
        "looks most at the country.",
    )


def _causal(shown: Shown, folder: Path) -> Section:
    cut, capitals = shown.tables["cut"], shown.tables["capitals"]
    n_layers = int(cut["layer"].max()) + 1
    figure = new_figure(height=1.6 + 0.24 * n_layers)
    small = len(cut) <= ANNOTATED
    axes = figure.subplots()
    head_map(axes, cut, value="change", unit="change (logits)", centre=0.0, annotate=small)
    top = cut.reindex(cut["change"].abs().sort_values(ascending=False).index).head(12)
    return Section(
        "Does the answer follow the country, and through which heads?",
        "Looking is not doing. The country is swapped and the answer watched; then each head "
        "alone loses the attention of the last token on the country, and the logit of the right "
        "capital above the mean of the others is measured again.",
        [
            Table("capitals", capitals, f"{shown.model}: the answer to each country's prompt."),
            Figure(
                save_figure(figure, folder, "cut", alt="effect of cutting each head's attention"),
                f"{shown.model}: change of the logit difference when a head's attention on the "
                f"country is cut, mean over {len(capitals)} countries (clean "
                f"{cut['clean'].iloc[0]:.2f}).",
            ),
            Table(
                "cut_top",
                top.reset_index(drop=True),
                "The largest changes, with their range over the countries (too few for an "
                "interval).",
            ),
        ],
    )


def _predictions(shown: Shown, folder: Path) -> Section:
    prompts = shown.tables["prompts"]
    drawn = prompts.head(30)
    figure = new_figure(height=1.2 + 0.24 * len(drawn))
    prompt_dots(figure.subplots(), drawn)
    capped = "" if len(drawn) == len(prompts) else f" The first {len(drawn)} of {len(prompts)}."
    return Section(
        "How peaked are its predictions?",
        "The chapter says that a factual prompt gives a peaked next-token distribution, with a "
        "probability above 90%, and an open one spreads.",
        [
            Figure(
                save_figure(figure, folder, "peaked", alt="probability of the likeliest token"),
                f"{shown.model}: probability of the likeliest next token after each prompt, and "
                f"that token; the dotted line is 90%.{capped}",
            ),
            Table(
                "kinds",
                shown.tables["kinds"],
                "Factual against open prompts: means, and the two-sided p of an exact permutation "
                "test over prompts.",
            ),
            Table(
                "prompts",
                prompts,
                f"{shown.model}: every prompt, with the ids that were fed. “tokens_90” is the "
                "fewest tokens that cover 90% of the probability.",
            ),
        ],
    )
