"""What the study of a language model found, in sentences that can come out either way."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analyses.criteria import CRITERIA
from analyses.detection import WORDS
from models.names import head_name
from probe.studies import temperature_sections
from probe.studies.sentences import Finding

_NAMED = {
    "previous_token": "a previous-token",
    "duplicate_token": "a duplicate-token",
    "induction": "an induction",
    "first_token": "a first-token",
}


ERRORS = 2  # standard errors that a mean must be away from 0


def first_input(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the way in which the study feeds inputs; the others are beside it."""
    rows: pd.DataFrame = table[table["input"] == table["input"].iloc[0]]
    return rows


def signed(value: float) -> str:
    """A number with one decimal and its sign; what rounds to zero has none.

    >>> signed(0.26), signed(-1.0), signed(-0.04)
    ('+0.3', '-1.0', '0.0')
    """
    text = f"{value:+.1f}"
    return text if float(text) else "0.0"


def findings(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    """All sentences."""
    usual = first_input(tables["detection"])
    return [
        *_labels(usual),
        *_other_start(usual, tables["detection"]),
        *_last_token(tables["last_token"]),
        *_causal(tables),
        _peaked(tables["prompts"]),
        _kinds(tables["kinds"]),
        *temperature_sections.language_findings(tables),
    ]


def _labels(detection: pd.DataFrame) -> list[Finding]:
    out = []
    for score, words in _NAMED.items():
        rows = detection[detection["score"] == score].sort_values("value", ascending=False)
        labelled = rows[rows["labelled"].astype(bool)]
        names = [head_name(*key) for key in zip(labelled["layer"], labelled["head"], strict=True)]
        top = rows.iloc[0]
        best = f"highest score {top['value']:.2f}, chance {top['chance']:.3f}"
        if names:
            some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            kind = words.partition(" ")[2]
            text = f"{len(names)} of {len(rows)} heads are labelled {kind} heads: {some} ({best})."
        else:
            text = f"No head is labelled {words} head ({best})."
        out.append(Finding(text, "label_floor", bool(names)))
    return out


def _other_start(usual: pd.DataFrame, detection: pd.DataFrame) -> list[Finding]:
    """Whether the labels are the same on the same blocks with, or without, BOS."""
    key = ["layer", "head", "score"]
    labelled = usual.set_index(key)["labelled"].astype(bool)
    out = []
    for name, rows in detection.groupby("input", sort=False):
        if name == usual["input"].iloc[0]:
            continue
        other = rows.set_index(key)["labelled"].astype(bool).reindex(labelled.index)
        changed = [
            text
            for score in labelled.index.unique("score")
            for verb, part in (("more", other & ~labelled), ("fewer", labelled & ~other))
            if (text := _changed(str(score), verb, part))
        ]
        verdict = f"label {', '.join(changed)}" if changed else "give the same labels"
        text = f"Fed {name} instead, the same random tokens {verdict}."
        out.append(Finding(text, "label_floor", not changed))
    return out


def _changed(score: str, verb: str, part: pd.Series[bool]) -> str:
    """How many heads of one pattern, and the first of them; nothing for none."""
    heads = [head_name(*key[:2]) for key in part[part].index if key[2] == score]
    some = ", ".join(heads[:3]) + (", ..." if len(heads) > 3 else "")
    words = f"{WORDS[score].replace(' ', '-')} head{'s' if len(heads) > 1 else ''}"
    return f"{len(heads)} {verb} {words} ({some})" if heads else ""


def _last_token(table: pd.DataFrame) -> list[Finding]:
    columns = ["without_first", "chance_without_first"]
    share = first_input(table).groupby(["key", "token"])[columns].mean().reset_index()
    out = []
    for word in ("France", "capital"):
        own = share[share["token"].str.strip() == word]
        if own.empty:
            text = f"Attention on “{word}” is not testable here: it is no token of its own."
            out.append(Finding(text, "attends", None))
            continue
        looks, chance = (float(own[column].iloc[0]) for column in columns)
        times = looks / chance
        holds = times >= CRITERIA["attends"].threshold
        verb = "attends" if holds else "does not attend"
        out.append(
            Finding(
                f"Averaged over all heads and without the first key, the last token of “The "
                f"capital of France is” {verb} to “{word}”: {looks:.2f}, {times:.1f} times "
                f"chance ({chance:.2f}).",
                "attends",
                holds,
            )
        )
    return out


def _causal(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    found = []
    if "capitals" in tables:
        found.append(_follows(tables["capitals"]))
    if "cut" in tables:
        found.append(_carries(tables["cut"], tables["capitals"]))
    untested = tables.get("untested", pd.DataFrame(columns=["criterion", "question", "reason"]))
    for criterion, question, reason in untested.itertuples(index=False, name=None):
        found.append(Finding(f"{question} is not testable here: {reason}.", criterion, None))
    return found


def _follows(capitals: pd.DataFrame) -> Finding:
    k, n = int(capitals["follows"].sum()), len(capitals)
    text = f"When the country is swapped, the answer follows it in {k} of {n} prompts; the capital "
    first = int((capitals["rank"] == 1).sum())
    return Finding(
        f"{text}is the likeliest token of all in {first}.",
        "follows",
        k / n >= CRITERIA["follows"].threshold,
    )


def _carries(cut: pd.DataFrame, capitals: pd.DataFrame) -> Finding:
    ahead = capitals["ahead"]
    clean, error = float(ahead.mean()), float(ahead.std(ddof=1)) / len(ahead) ** 0.5
    k, n = int(capitals["follows"].sum()), len(capitals)
    if k / n < CRITERIA["follows_enough"].threshold or not clean > ERRORS * error:
        text = (
            "Which heads carry the country to the answer is not testable here: the answer follows "
            f"it in {k} of {n} prompts, and the right capital is {signed(clean)} logits ahead of "
            f"the others (standard error {error:.1f})."
        )
        return Finding(text, "follows_enough", None)
    limit = CRITERIA["carries"].threshold * clean
    rows = cut[-cut["change"] >= limit].sort_values("change")
    names = [
        f"{head_name(layer, head)} ({signed(change)})"
        for layer, head, change in zip(rows["layer"], rows["head"], rows["change"], strict=True)
    ]
    if names:
        heads = "one head carries" if len(names) == 1 else f"{len(names)} heads each carry"
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        text = f"Of {len(cut)} heads, {heads} the country to the answer: {some}"
    else:
        least = signed(float(cut["change"].min()))
        text = f"No head alone carries the country to the answer: at most {least}"
    return Finding(f"{text} of {clean:.1f} logits.", "carries", bool(names))


def _peaked(prompts: pd.DataFrame) -> Finding:
    counts = []
    for kind in ("factual", "open"):
        rows = prompts[prompts["kind"] == kind]
        above = int((rows["top_probability"] > CRITERIA["peaked"].threshold).sum())
        counts.append((above, len(rows)))
    (factual, n), (open_, m) = counts
    text = (
        f"{factual} of {n} factual prompts and {open_} of {m} open ones have a next token with a "
    )
    return Finding(f"{text}probability above 90%.", "peaked", factual == n)


def _kinds(kinds: pd.DataFrame) -> Finding:
    row = kinds[kinds["measure"] == "entropy"].iloc[0]
    p = float(row["p"])
    holds = p < CRITERIA["kinds_differ"].threshold and row["difference"] < 0
    verb = "are" if holds else "are not shown to be"
    return Finding(
        f"Predictions after factual prompts {verb} more peaked than after open ones: entropy "
        f"{row['factual']:.2f} against {row['open']:.2f} nats (exact permutation test over "
        f"{int(row['n_factual'] + row['n_open'])} prompts, p = {p:.4f}).",
        "kinds_differ",
        bool(holds),
    )
