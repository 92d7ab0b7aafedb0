"""Sweeps of language models: the exact part against scipy and transformers, samples by loops."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from analyses import language_temperature
from analyses.language_temperature import (
    DISTRIBUTION,
    MEASURES,
    OF_SAMPLES,
    Fed,
    by_kind,
    feed,
    next_logits,
    repetition,
    temperature_sweep,
)
from analyses.prompts import PROMPTS, Prompt
from models.errors import InputError, LengthError
from models.gpt import GPT
from models.interface import capture
from models.sampling import ContextNotice, generate
from models.text_codec import codec_of

IDS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]]
STEPS = (0.3, 1.0, 3.0)
A = [3, 1, 4, 1, 5, 9, 2, 6]


def last_logits(model: Any, ids: list[int]) -> Any:
    logits = capture(model, [ids], logits=True).logits
    assert logits is not None
    return logits[0, -1].double()


def warped(logits: Any, t: float, **filters: Any) -> Any:
    """What transformers keeps."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = TemperatureLogitsWarper(t)(None, logits[None])
    if filters.get("top_k"):
        scores = TopKLogitsWarper(filters["top_k"])(None, scores)
    if filters.get("top_p"):
        scores = TopPLogitsWarper(filters["top_p"])(None, scores)
    return scores[0]


@pytest.mark.parametrize("filters", [{"top_p": 0.7}, {"top_k": 5, "top_p": 0.8}, {"top_p": None}])
def test_the_distributions_are_those_of_scipy_and_transformers(
    gpt2_twin: GPT, filters: dict[str, Any]
) -> None:
    table = temperature_sweep(gpt2_twin, IDS, temperatures=STEPS, samples=0, **filters)
    assert table[["prompt", "temperature"]].to_numpy().tolist() == [
        [i, t] for i in range(3) for t in STEPS
    ]
    for row in table.itertuples():
        logits = last_logits(gpt2_twin, IDS[row.prompt])
        p = (logits / row.temperature).softmax(-1).numpy()
        assert row.entropy == pytest.approx(stats.entropy(p), abs=1e-5)  # measured: 1e-6
        assert row.effective_tokens == pytest.approx(math.exp(stats.entropy(p)), rel=1e-5)
        assert row.top_probability == pytest.approx(p.max(), abs=1e-5)  # measured: 6e-7
        kept = warped(logits, row.temperature, **filters)
        assert row.nucleus == int(kept.isfinite().sum())
    assert table[list(OF_SAMPLES)].isna().all(axis=None)
    assert table["kind"].unique().tolist() == ["given"]
    assert table["ids"][0] == "3 1 4 1 5"


@pytest.mark.parametrize(("t", "p0"), [(2.0, 0.328967), (1.0, 0.651093), (0.5, 0.947237)])
def test_the_mini_model_has_its_known_probabilities(mini: Any, t: float, p0: float) -> None:
    """Token 0 is the likeliest after A; applied twice it would be another number."""
    row = temperature_sweep(mini, [A], temperatures=[t], samples=0).iloc[0]
    assert row["top_probability"] == pytest.approx(p0, abs=1e-5)  # measured: 4e-7


def test_entropy_never_falls_as_the_temperature_rises(gpt2_twin: GPT) -> None:
    """Its derivative is the variance of the logits over t cubed."""
    steps = np.geomspace(0.05, 50, 37).tolist()
    table = temperature_sweep(gpt2_twin, IDS, temperatures=steps, samples=0)
    for _, rows in table.groupby("prompt"):
        assert (np.diff(rows["entropy"]) >= -1e-12).all()
        assert (np.diff(rows["top_probability"]) <= 1e-12).all()
        assert (np.diff(rows["nucleus"]) >= 0).all()
    assert table["effective_tokens"].between(1, 23 + 1e-9).all()


@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_p": None, "top_k": 7}])
def test_samples_are_measured_as_loops_measure_them(
    gpt2_twin: GPT, filters: dict[str, Any]
) -> None:
    table = temperature_sweep(
        gpt2_twin, IDS, temperatures=STEPS, samples=5, n=11, seed=3, **filters
    )
    greedy = [generate(gpt2_twin, [ids], 11)[0].tolist() for ids in IDS]
    for row in table.itertuples():
        i = row.prompt
        ids = [IDS[i]] * 5
        written = generate(gpt2_twin, ids, 11, seed=3, temperature=row.temperature, **filters)
        repeated, likely, same, before = [], [], [], []
        for sample in written.tolist():
            grams = Counter(tuple(sample[k : k + 3]) for k in range(9))
            repeated.append(1 - len(grams) / 9)
            logits = capture(gpt2_twin, [[*IDS[i], *sample]], logits=True).logits
            assert logits is not None
            log_p = logits[0].double().log_softmax(-1)
            start = len(IDS[i]) - 1
            likely.append(
                np.mean([float(log_p[start + k, token]) for k, token in enumerate(sample)])
            )
            same.append(np.mean([a == b for a, b in zip(sample, greedy[i], strict=True)]))
            pairs = zip(sample, greedy[i], strict=True)
            before.append(next((k for k, (a, b) in enumerate(pairs) if a != b), 11))
        assert row.repetition == pytest.approx(np.mean(repeated))
        assert row.log_likelihood == pytest.approx(np.mean(likely), abs=1e-5)  # measured: 1e-7
        assert row.agreement == pytest.approx(np.mean(same))
        assert row.agreed_tokens == pytest.approx(np.mean(before))
        assert row.n_samples == 5
    assert table["agreement"].between(0.01, 0.99).any(), "the case must not be all or nothing"


def test_nearly_greedy_samples_are_the_greedy_continuation(gpt2_twin: GPT) -> None:
    table = temperature_sweep(gpt2_twin, IDS, temperatures=[1e-6], samples=2, n=7)
    assert table["agreement"].tolist() == [1.0] * 3
    assert table["agreed_tokens"].tolist() == [7.0] * 3


def test_the_first_sampled_token_agrees_with_greedy_as_often_as_is_exact(gpt2_twin: GPT) -> None:
    """One token of 601 samples: binomial with the exact probability; 1 in 1000 seeds fails."""
    table = temperature_sweep(
        gpt2_twin, [IDS[0]], temperatures=[1.5], top_p=None, samples=601, n=1, seed=1
    )
    row = table.iloc[0]
    right = round(row["agreement"] * 601)
    assert stats.binomtest(right, 601, row["top_probability"]).pvalue > 0.001
    assert 0.05 < row["top_probability"] < 0.95, "the case must not be all or nothing"


def test_the_log_likelihood_of_single_tokens_is_minus_the_entropy(gpt2_twin: GPT) -> None:
    """At temperature 1 without filters, in expectation; a z-test that fails 1 seed in 1000."""
    table = temperature_sweep(
        gpt2_twin, [IDS[1]], temperatures=[1.0], top_p=None, samples=601, n=1, seed=2
    )
    p = last_logits(gpt2_twin, IDS[1]).softmax(-1).numpy()
    spread = math.sqrt(float((p * np.log(p) ** 2).sum()) - stats.entropy(p) ** 2)
    z = (table["log_likelihood"][0] + table["entropy"][0]) / (spread / math.sqrt(601))
    assert 2 * stats.norm.sf(abs(z)) > 0.001


def test_a_prompt_s_row_does_not_depend_on_the_others(
    gpt2_twin: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AH-11: nor on their order, nor on how many prompts are sampled at a time."""
    how: dict[str, Any] = {"temperatures": (0.7, 2.0), "samples": 3, "n": 6, "seed": 4}
    table = temperature_sweep(gpt2_twin, IDS, **how)
    turned = temperature_sweep(gpt2_twin, IDS[::-1], **how)
    monkeypatch.setattr(language_temperature, "CELLS", 1)
    apart = temperature_sweep(gpt2_twin, IDS, **how)
    for i in range(3):
        own, other = (t[t["prompt"] == k] for t, k in ((table, i), (turned, 2 - i)))
        for again in (other, apart[apart["prompt"] == i]):
            left, right = own[list(MEASURES)].to_numpy(), again[list(MEASURES)].to_numpy()
            np.testing.assert_allclose(left, right, atol=1e-5)  # measured: 2e-7


@pytest.mark.usefixtures("unchecked")  # the type checker draws from `random`
def test_equal_seeds_give_equal_tables_and_leave_the_caller_s_random_state(gpt2_twin: GPT) -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    first = temperature_sweep(gpt2_twin, IDS, temperatures=[1.5], samples=2, n=5)
    second = temperature_sweep(gpt2_twin, IDS, temperatures=[1.5], samples=2, n=5)
    pd.testing.assert_frame_equal(first, second)
    other = temperature_sweep(gpt2_twin, IDS, temperatures=[1.5], samples=2, n=5, seed=1)
    assert (first[list(DISTRIBUTION)] == other[list(DISTRIBUTION)]).all(axis=None)
    assert (first["log_likelihood"] != other["log_likelihood"]).any()
    assert torch.equal(state[0], torch.get_rng_state())
    assert (state[1] == np.random.get_state()[1]).all()  # type: ignore[index]


def test_samples_that_fill_the_context_are_measured_as_far_as_they_go(gpt2_twin: GPT) -> None:
    """AH-13: the context is 17; the last token is predicted at its last position."""
    long, short = [1] * 16, [2, 3]
    with pytest.warns(ContextNotice, match="context of 17 tokens is full: 2 sequences"):
        table = temperature_sweep(
            gpt2_twin, [long, short], temperatures=[2.0], samples=2, n=5, top_p=None
        )
    assert math.isnan(table["repetition"][0]), "two tokens have no 3-gram"
    assert not math.isnan(table["repetition"][1])
    assert table["agreed_tokens"][0] <= 2
    alone = [generate(gpt2_twin, [long] * 2, 2, temperature=2.0).tolist()]
    logits = capture(gpt2_twin, [[*long, row[0]] for row in alone[0]], logits=True).logits
    assert logits is not None
    log_p = logits.double().log_softmax(-1)
    expected = np.mean(
        [
            [float(log_p[i, 15, row[0]]), float(log_p[i, 16, row[1]])]
            for i, row in enumerate(alone[0])
        ]
    )
    assert table["log_likelihood"][0] == pytest.approx(expected, abs=1e-4)
    with pytest.raises(LengthError, match="17"):
        temperature_sweep(gpt2_twin, [[1] * 18], samples=0)


def test_a_bridge_has_the_sweep_of_our_own_model(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    how: dict[str, Any] = {"temperatures": (0.5, 2.0), "samples": 2, "n": 5}
    ours, theirs = (temperature_sweep(m, IDS, **how) for m in (gpt2_twin, gpt2_bridge))
    for name in MEASURES:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-4)  # measured: 8e-6


@pytest.mark.parametrize(
    ("tokens", "share"),
    [([1, 2], math.nan), ([1, 2, 3], 0.0), ([5] * 10, 7 / 8), ([1, 2, 3, 1, 2, 3, 1], 2 / 5)],
)
def test_repetition_is_one_minus_distinct_over_all_3_grams(tokens: list[int], share: float) -> None:
    assert repetition(tokens) == pytest.approx(share, nan_ok=True)


def test_kinds_have_means_and_intervals_over_prompts() -> None:
    random = np.random.default_rng(3)
    n = {"factual": 13, "open": 7}
    rows = [
        {"prompt": 20 * (kind == "open") + i, "kind": kind, "temperature": t}
        | dict.fromkeys(MEASURES, float(random.normal(t)))
        for kind, k in n.items()
        for i in range(k)
        for t in (1.0, 2.0)
    ]
    table = pd.DataFrame(rows)
    table.loc[0, "repetition"] = np.nan
    found = by_kind(table)
    assert len(found) == 2 * 2 * len(MEASURES)
    for row in found.itertuples():
        own = table[(table["kind"] == row.kind) & (table["temperature"] == row.temperature)]
        values = own[row.measure].dropna()
        assert row.mean == pytest.approx(values.mean())
        assert (row.smallest, row.largest, row.n) == (values.min(), values.max(), len(values))
        if row.kind == "open":
            assert math.isnan(row.ci_low)
            assert math.isnan(row.ci_high)
        else:
            assert row.ci_low < row.mean < row.ci_high


def test_prompts_are_fed_as_texts_ids_or_prompts_with_their_kind(gpt2_bridge: Any) -> None:
    texts = feed(gpt2_bridge, ["c", "d"], bos=False)
    assert texts == [Fed("c", "given", (2,)), Fed("d", "given", (3,))]
    assert feed(gpt2_bridge, texts, bos=True) == texts
    assert feed(gpt2_bridge, "c", bos=False) == texts[:1]
    assert feed(gpt2_bridge, [Prompt("a", "open")], bos=True) == [Fed("a", "open", (22, 0))]
    default = tuple(codec_of(gpt2_bridge).encode("c"))
    assert feed(gpt2_bridge, ["c"])[0].ids == default
    assert feed(gpt2_bridge, torch.tensor([[0, 1]]))[0].ids == (0, 1)


def test_a_model_without_a_tokenizer_takes_ids(gpt2_twin: GPT) -> None:
    assert feed(gpt2_twin, [[4, 5]]) == [Fed("4 5", "given", (4, 5))]
    with pytest.raises(InputError, match="without a tokenizer"):
        feed(gpt2_twin)


def test_the_set_that_ships_keeps_its_kinds(smollm2_gpt: GPT) -> None:
    table = temperature_sweep(
        smollm2_gpt, PROMPTS[:2] + PROMPTS[-2:], temperatures=[1.0], samples=0
    )
    assert table["kind"].tolist() == ["factual", "factual", "open", "open"]
    assert table["text"][0] == "The capital of France is"
    assert table["top_probability"][0] == pytest.approx(0.77, abs=0.01), "Paris"
    p = last_logits(smollm2_gpt, list(feed(smollm2_gpt, PROMPTS[:1])[0].ids)).softmax(-1).numpy()
    assert table["entropy"][0] == pytest.approx(stats.entropy(p), abs=1e-4)


def test_next_logits_are_the_last_row_of_a_full_pass(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    for model in (gpt2_twin, gpt2_bridge):
        for ids in (*IDS, [7]):
            gap = (next_logits(model, ids).double() - last_logits(model, ids)).abs().max()
            assert float(gap) < 1e-5  # measured: 1e-6


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"temperatures": [0.0]}, "0 is greedy"),
        ({"temperatures": [float("nan")]}, "temperature must be"),
        ({"temperatures": []}, "at least one temperature"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"samples": -1}, "samples must be at least 0"),
        ({"n": 0}, "n at least 1"),
    ],
)
def test_what_is_no_sweep_is_refused(gpt2_twin: GPT, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        temperature_sweep(gpt2_twin, IDS, **how)
    with pytest.raises(InputError, match="at least one"):
        temperature_sweep(gpt2_twin, [])
