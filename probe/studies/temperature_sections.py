"""Temperature on the pages of both studies: tables, figures, and sentences about them.

For the reversal study the exact curves output by output and without each head; for a language
model what temperature makes of its distributions and samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from analyses.criteria import CRITERIA
from analyses.language_temperature import Prompts, by_kind, feed, temperature_sweep
from analyses.temperature import temperature_by_position
from analyses.temperature_heads import fragility
from models.gpt import GPT
from models.interface import HookedModel, shape
from probe.studies.drawer import Drawer
from probe.studies.sentences import Finding
from reports.figures import save_figure
from reports.page import Figure, Item, Section, Table
from reports.style import new_figure
from reports.temperature import costliest, fragility_curves, language_curves, position_curves

CURVE = (0.1, 0.3, 0.5, 0.7, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
AGREEING = ("mean", "resample")
SWEEP = (0.3, 0.7, 1.0, 1.5, 2.0)
SAMPLES, TOKENS, TOP_P = 1, 20, 0.9
UNCACHED = 6  # tokens where every one takes a whole pass
USUAL = 1.0  # the temperature at which kinds of prompts are compared


def task_tables(model: HookedModel, *, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Of a model of a task: ``temperature_by_position`` and ``fragility``, all of it exact."""
    return {
        "temperature_by_position": temperature_by_position(model, seed=seed),
        "fragility": fragility(model, temperatures=CURVE, ablation=AGREEING, seed=seed),
    }


def task_items(draw: Drawer, kinds: Sequence[str], *, seed: int = 0) -> list[Item]:
    """Figures and tables for the temperature section of the reversal page.

    Args:
        draw: with the tables of `task_tables`, each with ``model`` and ``seed``.
        kinds: the models to show.
        seed: the one that is drawn; the tables hold all.
    """
    items: list[Item] = []
    for kind in kinds:
        position, fragile = (_own(draw.tables[name], kind, seed) for name in _TASK)
        if position.empty or fragile.empty:
            continue
        slug = kind.replace(" ", "-")
        first, second = new_figure(height=3.2), new_figure(height=3.6)
        position_curves(first.subplots(), position)
        fragility_curves(second, fragile)
        items += [
            draw.figure(
                first,
                f"temperature-by-position-{slug}",
                f"“{kind}”, seed {seed}: exact probability of the right letter at each output, "
                "given that all before it are right; mean over "
                f"{int(position['n'].max()):,} held-out sequences, with its 95% interval where it "
                "can be seen. The product over a sequence's outputs is its exact match.",
                f"probability of the right letter by output and temperature, {kind}",
            ),
            draw.figure(
                second,
                f"fragility-{slug}",
                f"“{kind}”, seed {seed}: exact probability of the whole answer against the "
                f"sampling temperature, over {int(fragile['n'].max()):,} held-out sequences, with "
                f"all heads and without one{_coloured(fragile)}. A curve that "
                "starts at 1 and falls early belongs to a head that makes the model sure, not "
                "right.",
                f"exact match against temperature without each head, {kind}",
            ),
        ]
    rows = _half_points(draw.tables["fragility"])
    caption = (
        "The temperature at which exact match is 50%, with all heads and without one, and exact "
        "match at the lowest temperature of the sweep, where sampling is all but greedy. “n/a”: "
        "without the head it is below 50% at every temperature."
    )
    labels = {
        "clean_half_point": "half point",
        "ablated_half_point": "half point without",
        "fall": "falls by (share)",
        "clean": "exact match, cold",
        "ablated": "without, cold",
    }
    return [*items, Table("half_points", rows, caption, labels=labels)] if len(rows) else items


def _coloured(fragile: pd.DataFrame) -> str:
    """How many curves the figure colours, for its caption."""
    n = len(costliest(fragile))
    if n == 0:
        return "; none costs anything on average"
    return (
        "; coloured is the one that costs most"
        if n == 1
        else f"; coloured are the {n} that cost most"
    )


def task_findings(tables: Mapping[str, pd.DataFrame], kind: str) -> list[Finding]:
    """Which heads make a model more fragile to temperature, seed by seed."""
    points = _half_points(tables["fragility"])
    points = points[(points["model"] == kind) & points["ablation"].isin(AGREEING)]
    if points.empty:
        return []
    if points["clean_half_point"].isna().any():
        text = (
            f"Which heads make “{kind}” more fragile to temperature is not testable here: its "
            "exact match is not 50% at any temperature."
        )
        return [Finding(text, "fragile", None)]
    limit, floor = CRITERIA["fragile"].threshold, CRITERIA["can_go"].threshold
    # a curve that never reaches 50% has no half point, and its head is needed to be right
    points = points.assign(
        yes=(points["fall"] >= limit) & (points["clean"] - points["ablated"] <= floor)
    )
    both = points.groupby(["seed", "heads"], sort=False)["yes"].all()
    said = []
    for seed in points["seed"].unique():
        named = [str(heads) for heads, yes in both[seed].items() if yes]
        some = ", ".join(named[:5]) + (", ..." if len(named) > 5 else "")
        said.append(f"seed {seed}: {some or 'none'}")
    held = both.groupby("seed").any()
    k, n = int(held.sum()), len(held)
    text = (
        f"In {k} of {n} seed{'s' if n > 1 else ''} of “{kind}” there is a head that can go when "
        f"sampling is cold and without which the model errs sooner as it gets hotter "
        f"({'; '.join(said)})."
    )
    return [Finding(text, "fragile", k == n)]


def language_tables(
    model: HookedModel, prompts: Prompts = None, *, bos: bool | None = None, seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Of a language model: ``temperature`` by prompt, and ``temperature_kinds``.

    Args:
        model: a hooked model with a tokenizer.
        prompts: default the set that ships; see `analyses.language_temperature.feed`.
        bos: whether prompts begin with BOS; default as the tokenizer does.
        seed: of samples and intervals.

    Samples have 20 tokens, 6 on an engine without a cache, or what the longest prompt leaves.
    """
    fed = feed(model, prompts, bos=bos)
    room = shape(model).n_ctx - max(len(one.ids) for one in fed) + 1
    table = temperature_sweep(
        model,
        fed,
        temperatures=SWEEP,
        top_p=TOP_P,
        samples=SAMPLES,
        n=min(TOKENS if isinstance(model, GPT) else UNCACHED, room),
        seed=seed,
    )
    return {"temperature": table, "temperature_kinds": by_kind(table, seed=seed)}


def language_section(
    tables: Mapping[str, pd.DataFrame], folder: Path, *, model: str, start: str
) -> Section:
    """The section of the language model's page.

    Args:
        tables: of `language_tables`.
        folder: for the figure.
        model: how captions name the model.
        start: how captions say what inputs began with.
    """
    table, kinds = tables["temperature"], tables["temperature_kinds"]
    figure = new_figure(height=4.4)
    language_curves(figure, kinds)
    counts = table.groupby("kind", sort=False)["prompt"].nunique()
    prompts = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    samples = int(table["n_samples"].max())
    each = f"{samples} sample{'s' if samples > 1 else ''} of {table.attrs['n_tokens']} tokens"
    bands = "Bands are 95% intervals over prompts, where a kind has 10 or more."
    alt = "entropy, kept tokens, and what samples are like, against temperature"
    return Section(
        "What does temperature do?",
        "The temperature divides the logits before the softmax. What follows a prompt is exact, "
        "over the whole vocabulary; what continuations are like is sampled. Factual prompts have "
        "one right continuation, open ones have many.",
        [
            Figure(
                save_figure(figure, folder, "temperature", alt=alt),
                f"{model}, after {prompts} prompts fed {start}. Upper row, exact, of the next "
                "token: entropy, effective tokens (exp of it), probability of the likeliest "
                f"token, and tokens kept by top-p {TOP_P:g}. Others, of {each} per prompt and "
                f"temperature, drawn with top-p {TOP_P:g}: share of repeated 3-grams, "
                "log-likelihood under the model itself at temperature 1 without filters, and "
                f"share of places with the greedy continuation's token. {bands}",
                alt,
            ),
            Table(
                "temperature_kinds",
                kinds,
                f"{model}: means over the prompts of a kind, with 95% interval (“n/a” with fewer "
                "than 10 prompts, or where all are equal) and range. “agreed tokens” is how many "
                "come before the first that differs from the greedy continuation.",
                labels={"ci_low": "95% low", "ci_high": "95% high", "n": "prompts"},
            ),
        ],
    )


def language_findings(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    """Sentences about the sweep of a language model; none where it was not made."""
    if "temperature" not in tables:
        return []
    table = tables["temperature"]
    compared = table[table["kind"].isin(["factual", "open"])]
    cold, hot = float(table["temperature"].min()), float(table["temperature"].max())
    found = [_entropy_rises(compared, cold, hot)]
    found += _keeps_fewer(compared)
    if compared["log_likelihood"].notna().any():
        found += [_less_likely(compared, cold, hot), _follows_greedy(compared, cold)]
    if compared["repetition"].notna().any():  # samples of three tokens or more
        found.append(_repeats(compared, cold))
    return found


def _entropy_rises(table: pd.DataFrame, cold: float, hot: float) -> Finding:
    means = _means(table, "entropy", cold, hot)
    rises = means[hot] - means[cold]
    parts = [
        f"{means.loc[kind, cold]:.2f} to {means.loc[kind, hot]:.2f} nats after {kind} prompts"
        for kind in means.index
    ]
    limit = CRITERIA["entropy_rises"].threshold
    holds = bool((rises >= limit).all())
    verb = "rises" if holds else f"grows by under {limit:g} nat after prompts of some kind"
    text = f"From temperature {cold:g} to {hot:g} entropy {verb}: {', '.join(parts)}."
    return Finding(text, "entropy_rises", holds)


def _keeps_fewer(table: pd.DataFrame) -> list[Finding]:
    at = min(table["temperature"].unique(), key=lambda t: abs(t - USUAL))
    rows = table[table["temperature"] == at]
    values = [rows.loc[rows["kind"] == k, "nucleus"].to_numpy(float) for k in ("factual", "open")]
    if not all(map(len, values)):
        return []
    # the exact test over all ways to call as many prompts factual, as `compare_kinds` has it
    p = stats.permutation_test(
        values,
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        vectorized=True,
        n_resamples=np.inf,
        batch=20_000,
    ).pvalue
    factual, open_ = (float(v.mean()) for v in values)
    holds = bool(p < CRITERIA["keeps_fewer"].threshold and factual < open_)
    verb = "keep fewer" if holds else "are not shown to keep fewer"
    text = (
        f"At temperature {at:g} the filters of the sweep {verb} tokens after factual prompts than "
        f"after open ones: {factual:,.1f} against {open_:,.1f} on average (exact permutation test "
        f"over {sum(map(len, values))} prompts, p = {p:.4f})."
    )
    return [Finding(text, "keeps_fewer", holds)]


def _less_likely(table: pd.DataFrame, cold: float, hot: float) -> Finding:
    means = table.groupby("temperature")["log_likelihood"].mean()
    fall = float(means[cold] - means[hot])
    holds = fall >= CRITERIA["less_likely"].threshold
    verb = "is less likely than" if holds else "is not much less likely than"
    text = (
        f"What the model writes at temperature {hot:g} {verb} what it writes at {cold:g}, by its "
        f"own measure: {means[hot]:.2f} against {means[cold]:.2f} nats per token."
    )
    return Finding(text, "less_likely", holds)


def _follows_greedy(table: pd.DataFrame, cold: float) -> Finding:
    mean = _means(table, "agreement", cold)[cold]
    holds = bool((mean >= CRITERIA["follows_greedy"].threshold).all())
    parts = " and ".join(
        f"{mean[kind]:.0%} of the places after {kind} prompts" for kind in mean.index
    )
    verb = "follow" if holds else "often leave"
    text = (
        f"At temperature {cold:g} samples {verb} the greedy continuation: they have its token in "
        f"{parts}."
    )
    return Finding(text, "follows_greedy", holds)


def _repeats(table: pd.DataFrame, cold: float) -> Finding:
    mean = float(table.loc[table["temperature"] == cold, "repetition"].mean())
    holds = mean >= CRITERIA["repeats"].threshold
    verb = "repeat themselves" if holds else "do not repeat themselves much"
    text = f"Samples at temperature {cold:g} {verb}: {mean:.1%} of their 3-grams occurred before."
    return Finding(text, "repeats", holds)


_TASK = ("temperature_by_position", "fragility")


def _means(table: pd.DataFrame, measure: str, *temperatures: float) -> pd.DataFrame:
    """Kind by temperature."""
    rows = table[table["temperature"].isin(temperatures)]
    return rows.pivot_table(index="kind", columns="temperature", values=measure, sort=False)


def _own(table: pd.DataFrame, kind: str, seed: int) -> pd.DataFrame:
    return table[(table["model"] == kind) & (table["seed"] == seed)]


def _half_points(table: pd.DataFrame) -> pd.DataFrame:
    """One row per model, seed, head set and ablation, at the lowest temperature."""
    names = ["model", "seed", "heads", "ablation", "clean_half_point", "ablated_half_point"]
    rows = table[table["temperature"] == table["temperature"].min()].reset_index(drop=True)
    found = pd.DataFrame(rows[[*names, "clean", "ablated"]])
    fall = 1 - found["ablated_half_point"] / found["clean_half_point"]
    found.insert(len(names), "fall", fall)
    return found
