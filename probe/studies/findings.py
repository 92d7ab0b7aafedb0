"""What the reversal study found, in sentences.

Every sentence rests on one criterion of `analyses.criteria`, says in how many seeds it holds,
and may come out the other way.
"""

from __future__ import annotations

import pandas as pd

from analyses.criteria import CRITERIA
from probe.studies.effect_findings import needs, together, top_heads
from probe.studies.kinds import LOCAL, NEXT_TOKEN, OUTPUTS_ONLY, UNTRAINED
from probe.studies.sentences import Finding, Found, count, spread


def findings(found: Found) -> list[Finding]:
    """All sentences, in the order of the chapter's claims."""
    parts = (_learning, _looks, _specialisation, needs, together, _temperature, _confidence)
    return [finding for part in parts for finding in part(found)]


def _learning(found: Found) -> list[Finding]:
    out = []
    for model, words in ((NEXT_TOKEN, "every position"), (OUTPUTS_ONLY, "output positions only")):
        rows = found.models[found.models["model"] == model]
        yes = rows["exact_match"] >= CRITERIA["learns"].threshold
        n = int(rows["n"].iloc[0])
        out.append(
            count(
                yes,
                f"the model trained on {words} writes all of {n:,} held-out sequences right "
                "(greedily)",
                "learns",
                bound=True,
            )
        )
    return [*out, _local(found)]


def _local(found: Found) -> Finding:
    """The control counts only where the same recipe without it learns."""
    local, whole = found.exact_match(LOCAL), found.exact_match(NEXT_TOKEN)
    local = local[whole >= CRITERIA["measurable"].threshold]
    if local.empty:
        text = "Whether local attention fails is not testable here: the whole model fails too."
        return Finding(text, "fails", None)
    note = "" if len(local) == len(whole) else ", of the seeds in which the whole model learns"
    return count(
        local <= CRITERIA["fails"].threshold,
        "the same recipe fails when each layer's attention reaches back over half the input only "
        f"(exact match {spread(local)}{note})",
        "fails",
    )


def _looks(found: Found) -> list[Finding]:
    out = []
    top = top_heads(found.heads)
    own = top[top["model"] == NEXT_TOKEN]
    out.append(
        count(
            own["anti_diagonal"] >= CRITERIA["clean"].threshold,
            "the best head is a clean reversal head, on the alignment that predicts "
            f"(anti-diagonal score {spread(own['anti_diagonal'])}; on the alignment that holds "
            f"the letter {spread(own['anti_diagonal_holding'])})",
            "clean",
        )
    )
    low = own["entropy_predicting"] < CRITERIA["low_entropy"].threshold
    nats = spread(own["entropy_predicting"])
    out.append(count(low, f"that head has very low entropy ({nats} nats)", "low_entropy"))
    lowest = _lowest_entropy(found.heads[found.heads["model"] == NEXT_TOKEN])
    same = lowest["anti_diagonal"] >= CRITERIA["clean"].threshold
    out.append(
        count(
            same,
            "the head with the lowest entropy is itself a clean reversal head, so that low "
            "entropy alone would have found it",
            "clean",
        )
    )
    untrained = found.heads[found.heads["model"] == UNTRAINED]
    highest = untrained.groupby("seed")["anti_diagonal"].max()
    chance = untrained.groupby("seed")["anti_diagonal_chance"].max()
    out.append(
        count(
            highest <= CRITERIA["chance_like"].threshold * chance,
            f"every head of the untrained model is near chance (highest {spread(highest)}, chance "
            f"{spread(chance)})",
            "chance_like",
        )
    )
    return out


def _specialisation(found: Found) -> list[Finding]:
    out = []
    broad = found.heads[found.heads["model"] == NEXT_TOKEN].groupby("seed")["entropy_predicting"]
    yes = broad.max() >= CRITERIA["broad"].threshold
    out.append(
        count(
            yes,
            f"the {NEXT_TOKEN} model has a head that attends broadly (up to "
            f"{spread(broad.max())} nats)",
            "broad",
        )
    )
    for model in (NEXT_TOKEN, OUTPUTS_ONLY):
        apart = _spread_in_best_layer(found.heads[found.heads["model"] == model])
        out.append(
            count(
                apart >= CRITERIA["specialised"].threshold,
                f"the heads of the {model} model are specialised: in the layer of the best one, "
                f"anti-diagonal scores differ by {spread(apart)}",
                "specialised",
            )
        )
    return out


def _confidence(found: Found) -> list[Finding]:
    by_steps = found.confidence.groupby("steps")["half_point"].first().sort_index()
    halves = by_steps.dropna()
    if len(halves) < 2:
        text = "Whether longer training makes the model more confident cannot be told: fewer than "
        return [Finding(f"{text}two lengths of training reach 50% exact match.", "confident", None)]
    holds = bool((halves.diff().dropna() >= CRITERIA["confident"].threshold).all())
    points = ", ".join(f"{value:.2f} after {steps:,} steps" for steps, value in halves.items())
    never = [f"{steps:,}" for steps in by_steps.index[by_steps.isna()]]
    note = f"; never after {' and '.join(never)}" if never else ""
    verb = "makes" if holds else "does not always make"
    text = f"Longer training {verb} the model more confident: exact match is 50% at temperature "
    return [Finding(f"{text}{points}{note} (seed 0).", "confident", holds)]


def _temperature(found: Found) -> list[Finding]:
    out = []
    own = found.temperature[found.temperature["model"] == NEXT_TOKEN].set_index("seed")
    cold = own[own["temperature"] == 0.1]["exact_match"]
    hot = own[own["temperature"] == 2.0]["exact_match"]
    out.append(
        count(
            cold >= CRITERIA["right_when_cold"].threshold,
            f"at temperature 0.1 sampling is right (exact match {spread(cold, digits=4)})",
            "right_when_cold",
        )
    )
    out.append(
        count(
            hot < CRITERIA["errs_when_hot"].threshold,
            f"at temperature 2.0 sampling errs (exact match {spread(hot)})",
            "errs_when_hot",
        )
    )
    tails = found.temperature["tail"].dropna()
    limit = CRITERIA["sampling_agrees"].threshold / len(tails)
    agrees = bool(tails.min() >= limit)
    out.append(
        Finding(
            f"{'The samples agree' if agrees else 'The samples disagree'} with the exact "
            f"probabilities: of {len(tails)} cells, {int((tails < 0.05).sum())} have a two-sided "
            f"tail under 5% where at most {0.05 * len(tails):.1f} are expected, and the smallest "
            f"tail is {tails.min():.4f}.",
            "sampling_agrees",
            agrees,
        )
    )
    return out


def _lowest_entropy(heads: pd.DataFrame) -> pd.DataFrame:
    known = heads.dropna(subset=["entropy_predicting"])
    return known.loc[known.groupby("seed")["entropy_predicting"].idxmin()]


def _spread_in_best_layer(heads: pd.DataFrame) -> pd.Series[float]:
    def difference(rows: pd.DataFrame) -> float:
        layer = rows["layer"].to_numpy()[rows["anti_diagonal"].to_numpy().argmax()]
        scores = rows.loc[rows["layer"] == layer, "anti_diagonal"]
        return float(scores.max() - scores.min())

    return pd.Series({seed: difference(rows) for seed, rows in heads.groupby("seed")})
