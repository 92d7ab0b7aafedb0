"""What the study of a language model found, in sentences that can come out either way."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analyses.criteria import CRITERIA
from models.names import head_name
from probe.studies.sentences import Finding

_NAMED = {
    "previous_token": "previous-token",
    "duplicate_token": "duplicate-token",
    "induction": "induction",
    "first_token": "first-token",
}


def findings(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    """All sentences."""
    return [
        *_labels(tables["detection"]),
        *_last_token(tables["last_token"]),
        *_causal(tables),
        _peaked(tables["prompts"]),
        _kinds(tables["kinds"]),
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
            text = f"{len(names)} of {len(rows)} heads are labelled {words} heads: {some} ({best})."
        else:
            text = f"No head is labelled a {words} head ({best})."
        out.append(Finding(text, "label_floor", bool(names)))
    return out


def _last_token(table: pd.DataFrame) -> list[Finding]:
    rows = table[table["input"] == table["input"].iloc[0]]
    share = rows.groupby(["key", "token"])["without_first"].mean().reset_index()
    keys = len(share)
    chance = 1 / (keys - 1) if keys > 1 else float("nan")
    out = []
    for word in ("France", "capital"):
        own = share[share["token"].str.strip() == word]["without_first"]
        if own.empty:
            text = f"Attention on “{word}” is not testable here: it is no token of its own."
            out.append(Finding(text, "attends", None))
            continue
        times = float(own.iloc[0]) / chance
        holds = times >= CRITERIA["attends"].threshold
        verb = "attends" if holds else "does not attend"
        out.append(
            Finding(
                f"Averaged over all heads and without the first key, the last token of “The "
                f"capital of France is” {verb} to “{word}”: {own.iloc[0]:.2f}, {times:.1f} times "
                "chance.",
                "attends",
                holds,
            )
        )
    return out


def _causal(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    if "cut" not in tables:
        text = "Whether the answer follows the country is not testable here: this tokenizer splits "
        return [Finding(f"{text}the names.", "follows", None)]
    return [_follows(tables["capitals"]), _carries(tables["cut"])]


def _follows(capitals: pd.DataFrame) -> Finding:
    k, n = int(capitals["follows"].sum()), len(capitals)
    text = f"When the country is swapped, the answer follows it in {k} of {n} prompts; the capital "
    first = int((capitals["rank"] == 1).sum())
    return Finding(
        f"{text}is the likeliest token of all in {first}.",
        "follows",
        k / n >= CRITERIA["follows"].threshold,
    )


def _carries(cut: pd.DataFrame) -> Finding:
    clean = float(cut["clean"].iloc[0])
    limit = CRITERIA["carries"].threshold * clean
    if clean <= 0:
        text = "Which heads carry the country to the answer is not testable here: "
        return Finding(f"{text}the right capital is not ahead of the others.", "carries", None)
    rows = cut[-cut["change"] >= limit].sort_values("change")
    names = [
        f"{head_name(layer, head)} ({change:+.1f})"
        for layer, head, change in zip(rows["layer"], rows["head"], rows["change"], strict=True)
    ]
    if names:
        heads = "one head carries" if len(names) == 1 else f"{len(names)} heads each carry"
        text = f"Of {len(cut)} heads, {heads} the country to the answer: {', '.join(names[:5])}"
    else:
        text = (
            f"No head alone carries the country to the answer: at most {cut['change'].min():+.1f}"
        )
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
