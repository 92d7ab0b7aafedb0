"""Is a set of heads necessary, and is it sufficient, compared with sets like it?

Removing any heads hurts, so an effect alone says little. The set is compared with all sets that
have as many heads in every layer (`analyses.matched_sets`): p is the share of them, the set itself
and ties included, that are at least as extreme. That says "exceptional among such sets" and
nothing more causal. Zero ablation decides nothing; mean and resample ablation have to agree.

Source: after Shi et al. 2024, "Hypothesis testing the circuit hypothesis in LLMs" (2410.13032).
"""

# ruff: noqa: PT028 - test_hypothesis is no test of pytest's, and may have defaults
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.ablation import Metrics
from analyses.criteria import CRITERIA
from analyses.hypothesis_words import (
    CLAIMS,
    UNDECLARED,
    claim_verdict,
    hypothesis_sentence,
    rank_verdict,
    row_sentence,
    verdict,
)
from analyses.inputs import SEQUENCES, Inputs, as_batch, has_task, select, sequences
from analyses.matched_sets import CONTROLS, SetScores, measure_sets, set_name, units_of_claims
from analyses.reruns import Array
from analyses.statistics import INTERVAL, mean_interval, rank_sum_p, ratio_interval
from models.errors import InputError
from models.interface import HookedModel
from models.names import HeadLike
from models.tasks import Batch

__all__ = [
    "claim_verdict",
    "combine_seeds",
    "hypothesis_sentence",
    "hypothesis_table",
    "prompts_to_test",
    "test_hypothesis",
]

TIE = 1e-6
"""Sets that differ by less, in units of the largest, are ties: runs in one batch differ so much."""

DRAWN = 256
"""Default sequences drawn, of which the first new ones are used."""

REDRAWS = 16
"""How often a model without a task draws default sequences anew until all are new."""

KEYS = ["claim", "ablation", "metric"]
COMBINED = [*KEYS, "p", "n_sets", "smallest_p", "share"]


def test_hypothesis(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    heads: Sequence[HeadLike],
    metric: Metrics = "loss",
    ablation: str | Iterable[str] | None = None,
    n_controls: int = CONTROLS,
    selected_on: Inputs | int = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Whether a set of heads is necessary and sufficient, against matched sets.

    Necessity: the change of the metric when the set is removed. More extreme is what is worse:
    larger for loss, KL and rank; smaller for logit difference, logit, (log-)probability and
    accuracies; of any other metric, the larger absolute change. Sufficiency: retained = (keep
    only - none) / (clean - none), more extreme is larger, where "none" has all heads removed and
    the MLPs kept; not clipped. Where clean is not better than none, by two standard errors of the
    paired difference over sequences, there is nothing to need or to keep: shares are NaN and
    verdicts ``undefined``, so on a single sequence always. Of a metric of which neither direction
    is better, the size of that difference counts.

    Args:
        model: a hooked model.
        tokens: test prompts, see `analyses.inputs.as_batch`; default 64 held-out sequences that
            are not in ``selected_on``.
        heads: the set, e.g. ``["1.2", "0.3"]``, or ``"1.*"`` for all heads of a layer.
        metric: one, see `analyses.metrics.as_metrics`; default ``loss``.
        ablation: the kind, or several; default all that the input allows. The mean is over the
            task's training sequences, or, of a model without a task, over ``selected_on``.
        n_controls: how many other sets at most. All sets are tried where no more others match;
            otherwise this many distinct ones, drawn at random.
        selected_on: the prompts on which the heads were chosen, or the seed of the 64 default
            ones; ``None`` leaves that undeclared, and the sentence says so.
        seed: of the default batches, the sets drawn, the resampling partners and the intervals.

    Returns:
        One row per claim and ablation: ``heads``; ``claim`` (``necessary``, ``sufficient``);
        ``ablation``; ``metric``; ``clean`` and ``none``, means of the metric over ``n``
        sequences; ``value`` (change on removal, in the metric's unit; or the share retained) with
        ``ci_low``, ``ci_high`` (95% BCa over sequences; NaN under 10) and ``monte_carlo_error``
        (from the finite number of resampling draws; of a share to first order, taking draws as
        independent); ``share`` (of what all heads give, lost on removal or retained);
        ``rank`` (1 = most extreme; ties share the better rank) of ``n_sets``; ``enumerated``
        (whether these are all); ``p``; ``smallest_p`` (1 / ``n_sets``); ``baseline``;
        ``selection`` (how many prompts the heads were chosen on); ``verdict``; ``sentence``.

    Raises:
        UnknownNameError: a head that the model does not have.
        InputError: no head, or one named twice; ``n_controls`` under 1; several metrics; prompts
            on which the heads were chosen are among the test prompts.

    Source: Shi et al. 2024, arXiv 2410.13032.

    Identity: keeping all heads retains 1; ``value`` on removal is the change of
    `analyses.ablation.ablate`.
    """
    batch, selected = prompts_to_test(model, tokens, selected_on=selected_on, seed=seed)
    given = None if isinstance(selected_on, int) or has_task(model) else selected_on
    scores = measure_sets(
        model,
        batch,
        heads=heads,
        metric=metric,
        ablation=ablation,
        n_controls=n_controls,
        reference=given,
        seed=seed,
    )
    return hypothesis_table(scores, selected=selected)


test_hypothesis.__test__ = False  # type: ignore[attr-defined]  # pytest: not a test of yours


def prompts_to_test(
    model: HookedModel,
    tokens: Inputs = None,
    *,
    selected_on: Inputs | int = None,
    seed: int = 0,
) -> tuple[Batch, int | None]:
    """The prompts to test on, and on how many others the heads were chosen.

    Args:
        all: as in `test_hypothesis`.
    """
    batch = as_batch(model, tokens, n=DRAWN, seed=seed)
    chosen = None if selected_on is None else _selection(model, selected_on)
    known = set() if chosen is None else set(sequences(chosen))
    fresh, default = _fresh(batch, known), tokens is None
    for again in range(1, REDRAWS if default and not has_task(model) else 0):
        if bool(fresh.all()):
            break
        batch = as_batch(model, None, n=DRAWN, seed=seed + again)
        fresh = _fresh(batch, known)
    n = int(fresh.sum())
    if n < len(batch) and not (default and n >= SEQUENCES):
        raise InputError(
            "heads must be tested on other prompts than they were chosen on, but "
            f"{len(batch) - n} of {len(batch)} test prompts are in selected_on: use others"
        )
    if default:
        batch = select(batch, fresh.to(batch.tokens.device))[:SEQUENCES]
    return batch, None if chosen is None else len(chosen)


def hypothesis_table(scores: SetScores, *, selected: int | None = None) -> pd.DataFrame:
    """The test of scores that are there already: see `test_hypothesis`.

    Args:
        scores: of all sets, see `analyses.matched_sets.measure_sets`.
        selected: how many prompts, none of them measured, the heads were chosen on.
    """
    rows = [
        _row(scores, claim, kind, selected)
        for claim in CLAIMS
        for kind in range(len(scores.ablations))
    ]
    table = pd.DataFrame(rows)
    table["sentence"] = [row_sentence(row) for row in table.to_dict("records")]
    unit, value = scores.metric.unit, units_of_claims(scores.metric)
    units = {"clean": unit, "none": unit, "share": "share of clean - none"}
    units |= dict.fromkeys(("value", "ci_low", "ci_high", "monte_carlo_error"), value)
    table.attrs |= {"units": units, "interval": INTERVAL}
    return table


def combine_seeds(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One test over several models, such as training seeds: an exact stratified rank sum.

    In a model, a set that is not exceptional has any rank among its reference sets with equal
    probability, independently of the other models. The distribution of the sum of ranks is
    their convolution; p is the probability of a sum that is at most the one found. A tied set has
    the worst of the tied ranks, so that p can only be too large.

    Args:
        tables: one of `test_hypothesis` for each model.

    Returns:
        One row per claim, ablation and metric: ``n_seeds`` where the share is defined and
        ``undefined`` where it is not (these are left out); ``n_first`` (how often the set is
        alone in front); ``n_testable`` (how many models could be tested alone); ``rank_sum``, its
        ``expected`` value, ``p``, ``smallest_p`` (each set alone in front); ``share_low``,
        ``share_high`` (range of ``share``); ``verdict`` (``exceptional``, ``not exceptional``,
        ``not testable here``, ``undefined``).

    Raises:
        InputError: no table, or one that is not of `test_hypothesis`.
    """
    given: list[Any] = list(tables)
    if not given:
        raise InputError("combining needs the table of at least one model, but got none")
    for table in given:
        if not isinstance(table, pd.DataFrame):
            raise InputError(f"combining needs a list of tables, but it holds {table!r}")
        if lacks := [name for name in COMBINED if name not in table]:
            raise InputError(
                f"combining needs tables of test_hypothesis, but got one without {', '.join(lacks)}"
            )
    rows = [table[COMBINED] for table in given]
    return pd.DataFrame(
        [
            dict(zip(KEYS, key, strict=True)) | _combined(group)
            for key, group in pd.concat(rows).groupby(KEYS, sort=False)
        ]
    )


def _combined(group: pd.DataFrame) -> dict[str, Any]:
    known = group.dropna(subset=["p", "share"])
    sizes = known["n_sets"].astype(int).tolist()
    ranks = [round(p * size) for p, size in zip(known["p"], sizes, strict=True)]
    p = rank_sum_p(ranks, sizes) if ranks else np.nan
    smallest = rank_sum_p([1] * len(sizes), sizes) if ranks else np.nan
    limit = CRITERIA["exceptional"].threshold
    return {
        "n_seeds": len(known),
        "undefined": len(group) - len(known),
        "n_first": ranks.count(1),
        "n_testable": int((known["smallest_p"] <= limit).sum()),
        "rank_sum": sum(ranks),
        "expected": sum(size + 1 for size in sizes) / 2,
        "p": p,
        "smallest_p": smallest,
        "share_low": known["share"].min(),
        "share_high": known["share"].max(),
        "verdict": rank_verdict(p, smallest),
    }


def _row(scores: SetScores, claim: str, kind: int, selected: int | None) -> dict[str, Any]:
    necessary = claim == "necessary"
    change = scores.removed[kind, 0] - scores.clean
    known = ~np.isnan(change)
    share = float((scores.costs if necessary else scores.retained)[kind, 0])
    if necessary:
        interval = mean_interval(change, seed=scores.seed)
        low, high, error = float(interval.low), float(interval.high), scores.errors[0, kind]
    else:
        low, high, error = _retained_interval(scores, kind, share)
    rank, at_least = _rank(scores.extremity(claim)[kind])
    n_sets = len(scores.matched.sets)
    p = at_least / n_sets
    row = {
        "heads": set_name(scores.matched.sets[0]),
        "claim": claim,
        "ablation": scores.ablations[kind],
        "metric": scores.metric.name,
        "clean": _mean(scores.clean[known]),
        "none": _mean(scores.none[kind][known]),
        "value": float(scores.values(claim)[kind, 0]),
        "ci_low": low,
        "ci_high": high,
        "monte_carlo_error": float(error),
        "share": share,
        "rank": rank,
        "n_sets": n_sets,
        "enumerated": scores.matched.enumerated,
        "p": p,
        "smallest_p": 1 / n_sets,
        "n": int(known.sum()),
        "baseline": scores.baselines[kind],
        "selection": UNDECLARED if selected is None else f"{selected} other prompts",
    }
    return row | {"verdict": verdict(claim, share, p, rank, n_sets)}


def _rank(extremity: Array) -> tuple[float, float]:
    """Rank of the first, and how many are at least as extreme; an undefined other one is."""
    own, others = extremity[0], extremity[1:]
    if np.isnan(own):
        return np.nan, np.nan
    tie = TIE * max(1.0, float(np.nanmax(np.abs(extremity))))
    return 1.0 + int((others > own + tie).sum()), 1.0 + int((~(others < own - tie)).sum())


def _retained_interval(scores: SetScores, kind: int, share: float) -> tuple[float, float, float]:
    """Ends of the interval, and the Monte-Carlo error, of the share retained."""
    gap = scores.gaps[kind]
    if np.isnan(gap):
        return np.nan, np.nan, np.nan
    none = scores.none[kind]
    low, high = ratio_interval(scores.kept[kind, 0] - none, scores.clean - none, seed=scores.seed)
    _, kept, nothing = scores.errors[:, kind]
    return low, high, float(np.hypot(kept, (1 - share) * nothing) / abs(gap))


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else np.nan


def _selection(model: HookedModel, selected_on: Inputs | int) -> Batch:
    if isinstance(selected_on, int):
        return as_batch(model, None, n=SEQUENCES, seed=selected_on)
    return as_batch(model, selected_on)


def _fresh(batch: Batch, known: set[tuple[int, ...]]) -> torch.Tensor:
    """Which sequences are none of the known ones."""
    return torch.tensor([sequence not in known for sequence in sequences(batch)])
