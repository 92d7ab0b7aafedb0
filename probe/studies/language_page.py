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
from probe.studies.language_effects import effects_section
from probe.studies.language_findings import first_input
from probe.studies.sentences import Finding
from probe.studies.temperature_sections import language_section
from reports.figures import save_figure
from reports.grid import HeadGrid, head_grid, map_grid_size
from reports.heads import head_map
from reports.maps import attention_maps
from reports.page import Criterion, Figure, Page, Section, Sentence, Table
from reports.prompts import by_layer, prompt_dots, token_shares
from reports.style import new_figure

SCORES = ("previous_token", "duplicate_token", "induction", "first_token")
SHOWN_MAPS = 8


@dataclass(frozen=True)
class Shown:
    """Everything the page shows.

    Args:
        ids: of the first capital's prompt, as they were fed.
        bos: the id of the BOS that every input began with; ``None`` where none did.
        bos_asked: whether that was asked for, and not left to the tokenizer.
        labels, patterns: the text and the attention of ``ids``.
    """

    name: str
    engine: str
    quantization: str | None
    tables: Mapping[str, pd.DataFrame]
    ids: Sequence[int]
    bos: int | None
    bos_asked: bool
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
            f"replacement from the model's vocabulary, repeated once, {self.start}"
        )

    @property
    def start(self) -> str:
        """How captions say what inputs began with."""
        return "without BOS" if self.bos is None else f"after BOS (id {self.bos})"

    @property
    def prompt(self) -> str:
        """How captions name the first capital's prompt, with what was fed."""
        ids = " ".join(map(str, self.ids))
        return f"prompt “{CAPITALS[0].text}” (ids {ids}, {self.start})"

    @property
    def fed(self) -> str:
        """Whether inputs began with BOS, and who decided."""
        who = "as was asked for" if self.bos_asked else "as the tokenizer does by itself"
        return f"Prompts and random tokens are fed {self.start}, {who}."


def build_page(shown: Shown, folder: Path) -> Page:
    """Draw the figures into ``folder/figures`` and put the page together."""
    used = {finding.criterion for finding in shown.findings}
    used |= {"label_floor", "label_ratio", "content_margin", "family_p"}
    used |= {"follows_enough"} if "cut" in shown.tables else set()
    figures = folder / "figures"
    return Page(
        title=f"What the heads of {shown.short} do",
        lead=(
            f"{shown.name}, run through engine {shown.engine}: every head scored on random "
            "tokens, and the next-token predictions and last-token attention on prompts. "
            f"{shown.fed}"
        ),
        summary=[Sentence(f.text, f.criterion, f.holds) for f in shown.findings],
        sections=[
            _detection(shown, figures),
            _last_token(shown, figures),
            *([_causal(shown, figures)] if "capitals" in shown.tables else []),
            *_effects(shown, figures),
            _predictions(shown, figures),
            language_section(shown.tables, figures, model=shown.model, start=shown.start),
        ],
        criteria=[
            Criterion(c.name, str(c), c.threshold, c.why)
            for c in CRITERIA.values()
            if c.name in used
        ],
        footer="All numbers are in tables/*.csv and report.json.",
    )


def _detection(shown: Shown, folder: Path) -> Section:
    everything, entropy = shown.tables["detection"], shown.tables["entropy"]
    detection = first_input(everything)
    grid = _grid(detection, len(SCORES))
    maps = new_figure(*grid.size)
    for axes, score in zip(maps.subplots(*grid.shape).ravel(), SCORES, strict=True):
        rows = detection[detection["score"] == score]
        head_map(axes, rows, value="value", unit="share of attention", limits=(0, 1), grid=grid)
        axes.set_title(score.replace("_", " "), fontsize=9)
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
            f"{shown.model}: entropy of every head, mean over queries, on {shown.random}.",
        ),
        Table(
            "labelled",
            _labelled(detection),
            "The labelled heads, and the five highest of each pattern, with chance, 95% interval "
            f"over {shown.n_sequences} sequences, and the best rival. For content patterns: how "
            "much attention falls when the copy is taken away, with the family-wise p over all "
            "heads; for induction, the direct effect on the logit of the token that followed the "
            f"copy. Intervals speak of this model on this kind of input.{_elsewhere(everything)}",
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


def _grid(table: pd.DataFrame, n_maps: int) -> HeadGrid:
    """How maps of a table's heads are laid out."""
    n_layers, n_heads = (int(table[side].max()) + 1 for side in ("layer", "head"))
    return head_grid(n_maps, n_layers=n_layers, n_heads=n_heads)


def _elsewhere(detection: pd.DataFrame) -> str:
    """Where the other ways of feeding the same random tokens are shown."""
    others = list(detection["input"].unique()[1:])
    if not others:
        return ""
    return (
        f" The same blocks fed {' or '.join(others)} are in tables/detection.csv; labels on this "
        "page are not taken from them, and the summary says whether they differ."
    )


def _labelled(detection: pd.DataFrame) -> pd.DataFrame:
    ranked = detection.sort_values("value", ascending=False, kind="stable")
    high = ranked.groupby("score").head(5).index
    rows = ranked[ranked["labelled"].astype(bool) | ranked.index.isin(high)]
    rows = rows.sort_values(["score", "value"], ascending=[True, False], kind="stable")
    names = [head_name(*key) for key in zip(rows["layer"], rows["head"], strict=True)]
    rows = rows.drop(columns=["layer", "head", "smallest", "largest", "skipped", "input"])
    rows.insert(0, "head", names)
    return rows.reset_index(drop=True)


def _last_token(shown: Shown, folder: Path) -> Section:
    table, text = shown.tables["last_token"], CAPITALS[0].text
    usual = first_input(table)
    series = ["attention", "without_first", "value_weighted"]
    columns = [*series, "chance", "chance_without_first"]
    means = table.groupby(["input", "key", "token"], sort=False)[columns].mean()
    mean = usual.groupby("key")[columns].mean().reset_index()
    bars = new_figure(height=3.4)
    token_shares(bars.subplots(), mean, series=series, tokens=shown.labels)
    return Section(
        f"Where does the last token of “{text}” look?",
        "Much attention goes to the first key in trained models and often carries nothing: "
        "“without first” leaves it out and renormalises, “value weighted” weighs each key by what "
        "its value writes to the residual stream. Chance is uniform attention: on all keys, or on "
        "all but the first.",
        [
            Figure(
                save_figure(bars, folder, "last-token", alt="attention of the last token by key"),
                f"{shown.model}, {shown.prompt}: attention of the last token, mean over heads. "
                "Dotted: chance, on all keys and without the first.",
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
        f"{shown.model}, {shown.prompt}: the {len(heads)} heads whose last token "
        "looks most at the country.",
    )


def _causal(shown: Shown, folder: Path) -> Section:
    capitals = shown.tables["capitals"]
    items: list[Any] = [
        Table(
            "capitals",
            capitals,
            f"{shown.model}: the answer to each country's prompt, with the ids that were fed. "
            "“ahead” is the logit of the country's own capital above the mean of the others.",
        )
    ]
    if "cut" in shown.tables:
        items += _cuts(shown, len(capitals), folder)
    return Section(
        "Does the answer follow the country, and through which heads?",
        "Looking is not doing. The country is swapped and the answer watched; then each head "
        "alone loses the attention of the last token on the country, and the logit of the right "
        "capital above the mean of the others is measured again.",
        items,
    )


def _effects(shown: Shown, folder: Path) -> list[Section]:
    if "effects" not in shown.tables:
        return []
    explained = shown.tables.get("explained")
    effects = shown.tables["effects"]
    return [
        effects_section(effects, explained, model=shown.model, start=shown.start, folder=folder)
    ]


def _cuts(shown: Shown, n: int, folder: Path) -> list[Any]:
    """Every head's look at the country beside what it carries, and the largest changes."""
    cut = shown.tables["cut"]
    grid = _grid(cut, 2)
    figure = new_figure(*grid.size)
    looks, does = figure.subplots(*grid.shape).ravel()
    head_map(looks, cut, value="attention", unit="share of attention", limits=(0, 1), grid=grid)
    looks.set_title("attention of the last token on the country", fontsize=9)
    head_map(does, cut, value="change", unit="change (logits)", centre=0.0, grid=grid)
    does.set_title("change when that attention is cut", fontsize=9)
    top = cut.reindex(cut["change"].abs().sort_values(ascending=False).index).head(12)
    alt = "attention on the country, and the effect of cutting it, by head"
    return [
        Figure(
            save_figure(figure, folder, "cut", alt=alt),
            f"{shown.model}: attention of the last token on the country by head, and change of "
            f"the logit difference when it is cut, mean over the prompts of {n} countries, fed "
            f"{shown.start} (clean {cut['clean'].iloc[0]:z.2f}).",
        ),
        Table(
            "cut_top",
            top.reset_index(drop=True),
            "The largest changes, with their range over the countries (too few for an interval).",
        ),
    ]


def _predictions(shown: Shown, folder: Path) -> Section:
    prompts = shown.tables["prompts"]
    drawn = prompts.head(30)
    figure = new_figure(height=1.2 + 0.24 * len(drawn), beside=0.15)
    prompt_dots(figure.subplots(), drawn)
    capped = "" if len(drawn) == len(prompts) else f" The first {len(drawn)} of {len(prompts)}."
    return Section(
        "How peaked are its predictions?",
        "The chapter says that a factual prompt gives a peaked next-token distribution, with a "
        "probability above 90%, and an open one spreads.",
        [
            Figure(
                save_figure(figure, folder, "peaked", alt="probability of the likeliest token"),
                f"{shown.model}: probability of the likeliest next token after each prompt, fed "
                f"{shown.start}, and that token after the arrow; the dotted line is 90%.{capped}",
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
