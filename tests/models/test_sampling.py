import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from models.config import GPTConfig
from models.errors import InputError, LengthError, ProbeError, VocabularyError
from models.gpt import GPT
from models.interface import hooked
from models.sampling import (
    CUT_BY,
    ContextNotice,
    _pick,
    filter_distribution,
    generate,
    probabilities,
    stream,
)


@pytest.fixture(scope="module")
def model() -> GPT:
    return GPT(GPTConfig(d_vocab=11, n_ctx=13, n_heads=3, d_model=15), seed=1, init_std=0.4)


@pytest.fixture(params=["gpt2", "sinusoidal", "no_positions", "llama", "window", "grouped_window"])
def any_kind(request: pytest.FixtureRequest, build: Callable[..., GPT]) -> GPT:
    return build(request.param)


@pytest.mark.parametrize(
    ("temperature", "p"),
    [(2.0, 0.731059), (1.0, 0.880797), (0.5, 0.982014), (0.0, 1.0), (1e-8, 1.0), (1e-40, 1.0)],
)
def test_temperature_divides_the_logits_once(temperature: float, p: float) -> None:
    found = probabilities(torch.tensor([2.0, 0.0]), temperature)
    assert float(found[0]) == pytest.approx(p, abs=1e-6)
    assert float(found.sum()) == pytest.approx(1)


@pytest.mark.parametrize("temperature", [1e-320, 5e-324, 1e-40, 1e300])
def test_extreme_temperatures_give_numbers(temperature: float) -> None:
    found = probabilities(torch.tensor([[50.0, -1e30, 49.0], [3.0, 3.0, -torch.inf]]), temperature)
    assert found.isfinite().all()
    assert found.sum(-1).tolist() == pytest.approx([1, 1])
    assert found[1].tolist() == pytest.approx([0.5, 0.5, 0]), "a tie stays a tie"


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf"), -1e-9])
def test_a_temperature_that_cannot_be_is_refused(model: GPT, temperature: float) -> None:
    for call in (
        lambda: probabilities(torch.zeros(2), temperature),
        lambda: filter_distribution(torch.zeros(2), temperature=temperature),
        lambda: generate(model, [[1]], 2, temperature=temperature),
    ):
        with pytest.raises(ValueError, match=r"temperature must be 0 .* but got"):
            call()


def test_logits_that_are_no_numbers_are_refused() -> None:
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ProbeError, match="logits are not finite"):
            probabilities(torch.tensor([[0.0, 1.0], [bad, 1.0]]), 1.0)


def test_a_token_without_probability_is_never_drawn() -> None:
    p = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64).expand(5, -1)
    edge = np.nextafter(0.5, 0), np.nextafter(1.0, 0)
    draws = torch.tensor([0.0, edge[0], 0.5, np.nextafter(0.5, 1), edge[1]], dtype=torch.float64)
    assert _pick(p, draws).tolist() == [1, 1, 3, 3, 3]


def test_the_largest_draw_stays_on_a_token_that_has_probability() -> None:
    """The sum of rounded probabilities may be a little under or over 1."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(2_000, 37, generator=generator, dtype=torch.float64)
    p[:, 30:] = 0
    p = p / p.sum(-1, keepdim=True)
    largest = torch.full((2_000,), float(np.nextafter(1.0, 0)), dtype=torch.float64)
    picked = _pick(p, largest)
    assert (p.gather(1, picked[:, None]) > 0).all()


def test_draws_follow_the_probabilities() -> None:
    """A chi-square statistic with 4 degrees of freedom; 99.99% lies under 23.5."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.05, 0.05], dtype=torch.float64)
    n = 20_000
    draws = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = torch.bincount(_pick(p.expand(n, -1), draws), minlength=5)
    assert float(((counts - n * p) ** 2 / (n * p)).sum()) < 23.5


def test_samples_have_the_frequencies_of_the_model(model: GPT) -> None:
    with torch.no_grad():
        p = probabilities(model.eval()(torch.tensor([[1, 2]]))[0, -1], 1.5)
    n = 4_000
    counts = torch.bincount(generate(model, [[1, 2]] * n, 1, temperature=1.5)[:, 0], minlength=11)
    z = (counts - n * p) / (n * p * (1 - p)).sqrt()
    assert float(z.abs().max()) < 4  # measured: 2.4


def test_the_same_seed_gives_the_same_tokens(model: GPT) -> None:
    prompt = [[1, 2, 3]]
    first, again, other = (
        generate(model, prompt, 8, temperature=1.0, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_prompt_s_sample_does_not_depend_on_the_batch_it_is_in(model: GPT) -> None:
    prompts = [[1, 2, 3], [4, 5], [6], [1, 2, 3, 0]]
    alone = [generate(model, [p], 6, temperature=1.3)[0].tolist() for p in prompts]
    assert generate(model, prompts, 6, temperature=1.3).tolist() == alone
    assert generate(model, prompts[::-1], 6, temperature=1.3).tolist() == alone[::-1]
    assert len({tuple(row) for row in alone}) == len(prompts), "each has its own stream"


def test_equal_prompts_get_different_streams(model: GPT) -> None:
    written = generate(model, [[1, 2]] * 5, 8, temperature=1.5).tolist()
    assert len({tuple(row) for row in written}) == 5
    assert written[0] == generate(model, [[1, 2]], 8, temperature=1.5)[0].tolist()
    mixed = generate(model, [[1, 2], [7], [1, 2]], 8, temperature=1.5).tolist()
    assert [mixed[0], mixed[2]] == written[:2]


def test_streams_of_prompts_that_differ_by_zeros_differ(model: GPT) -> None:
    written = generate(model, [[2], [2, 0], [2, 0, 0]], 3, temperature=1e9)  # uniform
    assert len({tuple(row) for row in written.tolist()}) == 3


@pytest.mark.usefixtures("unchecked")  # the type checker draws from `random`
def test_the_callers_random_state_and_mode_are_left_alone(model: GPT) -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    model.train()
    generate(model, [[1, 2]], 5, temperature=1.0, seed=3)
    assert model.training
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    model.eval()


def test_greedy_is_the_argmax_of_every_step(model: GPT) -> None:
    ids = [1, 2, 3]
    for _ in range(6):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert generate(model, [[1, 2, 3]], 6)[0].tolist() == ids[3:]
    assert generate(model, [[1, 2, 3]], 6, temperature=1e-9)[0].tolist() == ids[3:]


def test_hooks_act_while_sampling(model: GPT) -> None:
    def force_token_seven(x: Any, *, hook: Any) -> Any:
        return model.unembed[7].detach().expand_as(x) * 1e3

    with hooked(model, [("ln_final.hook_normalized", force_token_seven)]):
        assert generate(model, [[1, 2], [3]], 4).tolist() == [[7] * 4] * 2


def test_bad_arguments_are_refused_at_the_call_before_anything_runs(model: GPT) -> None:
    def fail(x: Any, *, hook: Any) -> Any:
        raise AssertionError("it ran")

    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ([[1]], {"n": 0}, InputError, "n must be at least 1 token, but got 0"),
        ([[1]], {"seed": -1}, InputError, "seed must be at least 0, but got -1"),
        ([[]], {}, InputError, "non-empty"),
        ([[1], []], {}, InputError, "non-empty"),
        ([[11]], {}, VocabularyError, "got 11"),
        ([[1] * 14], {}, LengthError, "13 tokens, but got 14"),
        ([[1]], {"stop": [3, 11]}, VocabularyError, r"stop tokens must be 0\.\.10, but got \[11\]"),
        ([[1]], {"temperature": 1.0, "top_k": 0}, InputError, "top_k must be at least 1"),
        ([[1]], {"top_k": 3}, InputError, "temperature 0 is greedy"),
        ([[1]], {"top_p": 0.5}, InputError, "temperature 0 is greedy"),
        *[
            ([[1]], {"temperature": 1.0, "top_p": p}, InputError, "top_p must be above 0")
            for p in (0.0, -0.1, 1.5, float("nan"))
        ],
    ]
    with hooked(model, [("hook_embed", fail)]):
        for prompts, options, error, words in cases:
            n = options.pop("n", 1)
            for call in (generate, stream):
                with pytest.raises(error, match=words):
                    call(model, prompts, n, **options)


@pytest.mark.usefixtures("unchecked")
def test_values_of_wrong_types_are_refused_before_anything_runs(model: GPT) -> None:
    def fail(x: Any, *, hook: Any) -> Any:
        raise AssertionError("it ran")

    cases: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 1.0, "top_k": 2.5}, r"top_k must be .* but got 2\.5"),
        ({"temperature": 1.0, "top_k": True}, "top_k must be .* but got True"),
        ({"temperature": 1.0, "top_p": "a"}, "top_p must be .* but got 'a'"),
        ({"temperature": "hot"}, "temperature must be .* but got 'hot'"),
        ({"stop": "a"}, "stop must be a list of token ids, but got 'a'"),
        ({"stop": 5}, "stop must be a list of token ids, but got 5"),
        ({"stop": [1.5]}, "stop must be a list of token ids"),
        ({"n": 2.0}, r"n must be .* but got 2\.0"),
        ({"seed": 0.5}, r"seed must be .* but got 0\.5"),
        ({"topk": 3}, "no option of sampling named 'topk'; did you mean top_k"),
    ]
    with hooked(model, [("hook_embed", fail)]):
        for options, words in cases:
            given = {"n": 1} | options
            for call in (generate, stream):
                with pytest.raises(InputError, match=words) as error:
                    call(model, [[1]], given["n"], **{k: v for k, v in given.items() if k != "n"})
                assert "\n" not in str(error.value)


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_of_any_library_are_taken(model: GPT) -> None:
    expected = generate(model, [[1]], 3, stop=[2, 5], temperature=1.0, top_k=4)
    for stop in (torch.tensor([5, 2]), np.array([2, 5]), {2, 5}):
        found = generate(model, [[1]], 3, stop=stop, temperature=1.0, top_k=4)
        assert torch.equal(found, expected)


def test_logits_of_no_token_are_refused() -> None:
    with pytest.raises(InputError, match=r"one or more tokens, but got shape \(0,\)"):
        filter_distribution(torch.zeros(0))


# The filters


def at(p: Sequence[float], **filters: Any) -> list[float]:
    return filter_distribution(torch.tensor(p).log(), **filters).after_top_p.tolist()


QUARTERS = [0.5, 0.25, 0.125, 0.125]
NO_CHANGE = pytest.approx(QUARTERS, abs=1e-7)


@pytest.mark.parametrize(
    ("top_p", "n"),
    [(0.74, 2), (0.75, 2), (0.76, 3), (0.875, 3), (0.88, 4), (1.0, 4), (1e-8, 1), (0.5, 1)],
)
def test_top_p_keeps_the_smallest_set_that_is_enough(top_p: float, n: int) -> None:
    total = sum(QUARTERS[:n])
    expected = [p / total for p in QUARTERS[:n]] + [0] * (4 - n)
    assert at(QUARTERS, top_p=top_p) == pytest.approx(expected, abs=1e-7)


def test_top_k_keeps_that_many_and_all_when_there_are_fewer() -> None:
    assert at(QUARTERS, top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert at(QUARTERS, top_k=10**6) == NO_CHANGE
    assert at(QUARTERS) == NO_CHANGE


def test_top_p_counts_what_top_k_left() -> None:
    found = filter_distribution(torch.tensor(QUARTERS).log(), top_k=3, top_p=0.5)
    assert found.after_top_k.tolist() == pytest.approx([0.571429, 0.285714, 0.142857, 0], abs=1e-6)
    assert found.after_top_p.tolist() == [1, 0, 0, 0]
    assert [CUT_BY[i] for i in found.cut_by] == ["", "top_p", "top_p", "top_k"]
    assert at([0.1] * 10, top_k=1, top_p=0.8) == [1, *[0] * 9]


def test_equally_likely_tokens_are_cut_from_the_last_id_on() -> None:
    assert at([0.2] * 5, top_k=2) == pytest.approx([0.5, 0.5, 0, 0, 0])
    assert at([0.2] * 5, top_p=0.55) == pytest.approx([1 / 3] * 3 + [0, 0])
    assert at([0.1, 0.4, 0.1, 0.4], top_k=3) == pytest.approx([1 / 9, 4 / 9, 0, 4 / 9])


def test_every_field_of_a_filtered_distribution() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 4.0]])
    found = filter_distribution(logits, temperature=2.0, top_k=2)
    assert torch.equal(found.logits, logits)
    assert torch.equal(found.scaled, logits.double() / 2)
    torch.testing.assert_close(found.before, (logits.double() / 2).softmax(-1))
    assert found.kept.tolist() == [[True, False, True], [True, False, True]]
    assert found.after_top_k is found.after_top_p or torch.equal(
        found.after_top_k, found.after_top_p
    )


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.9}, {"top_k": 3, "top_p": 0.5}])
@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-40, 1e-8, 1e300])
def test_extreme_temperatures_go_through_the_filters(
    temperature: float, filters: dict[str, Any]
) -> None:
    logits = torch.tensor([[50.0, -1e30, 49.0], [-torch.inf, 1.0, -3.0]])
    found = filter_distribution(logits, temperature=temperature, **filters)
    for p in (found.before, found.after_top_k, found.after_top_p):
        assert p.isfinite().all()
        assert p.sum(-1).tolist() == pytest.approx([1, 1])
    assert found.after_top_p.argmax(-1).tolist() == [0, 1]
    if temperature < 1e-4:
        assert found.after_top_p.amax(-1).tolist() == [1, 1]
    assert bool(found.scaled.isnan().all()) == (temperature == 0)


distributions = st.lists(
    st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, 1.0, -5.0])),
    min_size=1,
    max_size=37,
)
ranges = {
    "logits": distributions,
    "temperature": st.floats(0.01, 100),
    "top_k": st.one_of(st.none(), st.integers(1, 40)),
    "top_p": st.one_of(st.none(), st.floats(1e-9, 1)),
}


@settings(deadline=None)
@given(**ranges)
def test_the_survivors_are_the_smallest_set_with_enough_mass(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    found = filter_distribution(
        torch.tensor(logits), temperature=temperature, top_k=top_k, top_p=top_p
    )
    left = found.after_top_k
    kept = found.kept
    assert bool(kept.any())
    assert float(found.before.sum()) == pytest.approx(1)
    assert float(left.sum()) == pytest.approx(1)
    assert float(found.after_top_p.sum()) == pytest.approx(1)
    assert bool((found.after_top_p[~kept] == 0).all())
    assert int((found.cut_by != 1).sum()) == min(top_k or len(logits), len(logits))
    assert min(found.logits[kept]) >= max(found.logits[~kept], default=-np.inf)
    if top_p is not None:
        assert float(left[kept].sum()) >= top_p - 2e-7
        if top_p < 1 and int(kept.sum()) > 1:
            assert float(left[kept].sum() - left[kept].min()) < top_p
    ratio = found.after_top_p[kept] * found.before[kept].sum()
    torch.testing.assert_close(ratio, found.before[kept])


@settings(deadline=None)
@given(**ranges, more=st.floats(0, 1), several=st.integers(0, 5))
def test_a_larger_k_or_p_never_keeps_fewer(
    logits: list[float],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    more: float,
    several: int,
) -> None:
    k, p = top_k or 3, top_p or 0.3

    def kept(**filters: Any) -> Tensor:
        return filter_distribution(torch.tensor(logits), temperature=temperature, **filters).kept

    assert bool((kept(top_k=k) <= kept(top_k=k + several)).all())
    assert bool((kept(top_k=k, top_p=p) <= kept(top_k=k, top_p=p + more * (1 - p))).all())


# Against transformers


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(
    request: pytest.FixtureRequest,
    gpt2: Any,
    llama: Callable[..., Any],
    gpt2_to_ours: Callable[[Any], GPT],
    llama_to_ours: Callable[[Any], GPT],
) -> tuple[GPT, Any]:
    """The same weights in our GPT and in transformers."""
    theirs = gpt2 if request.param == "gpt2" else llama("Llama")
    to_ours = gpt2_to_ours if request.param == "gpt2" else llama_to_ours
    return to_ours(theirs), theirs


PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 8, 2], [9, 9, 9, 9, 9]]


def test_greedy_tokens_are_those_of_transformers(pair: tuple[GPT, Any]) -> None:
    ours, theirs = pair
    ids = torch.tensor(PROMPTS)
    reference = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert torch.equal(generate(ours, ids, 12), reference[:, 5:])


@pytest.mark.parametrize("top_p", [None, 0.03, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("top_k", [None, 1, 2, 7, 22, 100])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_filtered_distributions_are_those_of_transformers(
    pair: tuple[GPT, Any], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    ids = torch.tensor(PROMPTS)
    with torch.no_grad():
        logits = pair[1](ids).logits[:, -1]
    scores = TemperatureLogitsWarper(temperature)(ids, logits)
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p is not None:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    found = filter_distribution(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert torch.equal(found.after_top_p > 0, scores.softmax(-1) > 0)
    # measured: 3.2e-7, theirs are float32
    torch.testing.assert_close(found.after_top_p, scores.double().softmax(-1), atol=1e-6, rtol=0)


# Streaming


def test_steps_say_what_was_drawn_and_what_the_filters_removed(model: GPT) -> None:
    filters: dict[str, Any] = {"temperature": 1.4, "top_k": 7, "top_p": 0.8}
    ids = [1, 2, 3]
    for step in stream(model, [ids], 6, seed=5, **filters):
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -1]
        token = int(step.tokens)
        found = filter_distribution(logits, **filters)
        assert float(step.probability) == pytest.approx(float(found.after_top_p[token]), abs=1e-5)
        own = float(logits.softmax(-1)[token])
        assert float(step.model_probability) == pytest.approx(own, abs=1e-5)
        assert int(step.rank) == logits.argsort(descending=True).tolist().index(token) + 1
        assert int(step.n_removed) == int((~found.kept).sum())
        removed = float(found.before[~found.kept].sum())
        assert float(step.mass_removed) == pytest.approx(removed, abs=1e-5)
        ids.append(token)
    assert generate(model, [[1, 2, 3]], 6, seed=5, **filters)[0].tolist() == ids[3:]


def test_a_greedy_step_is_certain_and_of_rank_one(model: GPT) -> None:
    for step in stream(model, [[1, 2]], 3):
        assert (float(step.probability), int(step.rank), int(step.n_removed)) == (1, 1, 0)
        assert 0 < float(step.model_probability) < 1


def test_a_stream_that_is_left_changes_nothing_of_the_model(model: GPT) -> None:
    model.train()
    steps = stream(model, [[1, 2]], 5, temperature=1.0)
    next(steps)
    for _ in range(2):  # while it waits, and when it is closed
        assert model.training
        assert torch.is_grad_enabled()
        assert not any(point.watched for point in model.hook_dict.values())
        steps.close()
    model.eval()


# The ends of sequences


def test_a_stop_token_ends_its_sequence_and_is_its_last(model: GPT) -> None:
    prompts = [[1, 2, 3], [4, 5], [6], [7, 7, 7, 7]]
    free = generate(model, prompts, 8, temperature=1.5).tolist()
    stop = [free[0][2], free[2][5]]
    found = generate(model, prompts, 8, temperature=1.5, stop=stop).tolist()
    width = 0
    for row, written in zip(free, found, strict=True):
        end = next((i + 1 for i, token in enumerate(row) if token in stop), 8)
        assert written[:end] == row[:end]
        assert set(written[end:]) <= {-1}
        width = max(width, end)
    assert [len(row) for row in found] == [width] * 4
    assert found[0][-1] == -1


def test_it_ends_at_once_when_every_first_token_stops(model: GPT) -> None:
    assert generate(model, [[1], [2]], 8, stop=range(11)).shape == (2, 1)


@pytest.mark.parametrize("cached", [True, False])
def test_at_the_end_of_the_context_it_stops_with_a_notice(model: GPT, cached: bool) -> None:
    assert generate(model, [[1] * 10], 4, cached=cached).shape == (1, 4), "the last is not fed"
    alone = generate(model, [[2] * 3], 8, cached=cached)
    with pytest.warns(ContextNotice, match="context of 13 tokens is full: a sequence ended early"):
        found = generate(model, [[1] * 10, [2] * 3], 8, cached=cached)
    assert found[1].tolist() == alone[0].tolist(), "the others go on"
    assert found[0, :4].tolist() == generate(model, [[1] * 10], 4)[0].tolist()
    assert found[0, 4:].tolist() == [-1] * 4
    with pytest.warns(ContextNotice, match="2 sequences"):
        assert generate(model, [[1] * 13, [2] * 13], 5, cached=cached).shape == (2, 1)


def test_a_sequence_that_stops_as_the_context_fills_gives_no_notice(model: GPT) -> None:
    last = int(generate(model, [[1] * 13], 1))
    assert generate(model, [[1] * 13], 5, stop=[last]).tolist() == [[last]]


# With and without the cache


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_with_and_without_cache_the_tokens_are_the_same(any_kind: GPT, temperature: float) -> None:
    prompts = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3], [8, 8]]
    found = generate(any_kind, prompts, 7, temperature=temperature, stop=[10])
    whole = generate(any_kind, prompts, 7, temperature=temperature, stop=[10], cached=False)
    assert torch.equal(found, whole)
    for prompt, row in zip(prompts, found.tolist(), strict=True):
        alone = generate(any_kind, [prompt], 7, temperature=temperature, stop=[10])[0].tolist()
        assert row == alone + [-1] * (len(row) - len(alone))


def test_an_ablated_head_stays_ablated_while_generating(any_kind: GPT) -> None:
    def ablate(z: Any, *, hook: Any) -> None:
        z[:, :, 1] = 0

    prompts = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3]]
    free = generate(any_kind, prompts, 7)
    with hooked(any_kind, [("blocks.0.attn.hook_z", ablate), ("blocks.2.attn.hook_z", ablate)]):
        found = generate(any_kind, prompts, 7)
        assert torch.equal(found, generate(any_kind, prompts, 7, cached=False))
    assert torch.equal(generate(any_kind, prompts, 7), free)


def test_each_position_is_read_once_and_one_row_of_logits_formed(model: GPT) -> None:
    rows: list[tuple[str, int]] = []

    def count(x: Tensor, *, hook: Any) -> None:
        rows.append((hook.name, x.shape[1]))

    names = ["hook_embed", "ln_final.hook_normalized"]
    with hooked(model, [(name, count) for name in names]):
        generate(model, [[1, 2, 3], [4]], 3)
    assert [n for name, n in rows if name == "hook_embed"] == [3, 1, 1]
    assert [n for name, n in rows if name != "hook_embed"] == [1, 1, 1]


def test_a_bridge_writes_what_our_gpt_writes(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    options: dict[str, Any] = {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "stop": [22]}
    prompts = [[3, 1, 4], [1], [5, 9, 2, 6]]
    found = generate(gpt2_bridge, prompts, 9, **options)
    assert torch.equal(found, generate(gpt2_twin, prompts, 9, **options))


def test_sampled_frequencies_fit_the_filtered_distribution_over_seeds(model: GPT) -> None:
    """Pairs of tokens, 3,000 samples of 30 seeds, against their exact probabilities.

    Chi-square over the pairs expected at least five times, the rest pooled. For seeds that were
    not chosen a correct sampler would fail one time in a thousand.
    """
    filters: dict[str, Any] = {"temperature": 1.5, "top_k": 5, "top_p": 0.9}
    with torch.no_grad():
        first = filter_distribution(model(torch.tensor([[1, 2]]))[0, -1], **filters).after_top_p
        pairs = torch.tensor([[1, 2, i] for i in range(11)])
        second = filter_distribution(model(pairs)[:, -1], **filters).after_top_p
    exact, n = (first[:, None] * second).flatten(), 3_000
    counts = torch.zeros(121)
    for seed in range(n // 100):
        # equal prompts have streams of their own
        written = generate(model, [[1, 2]] * 100, 2, seed=seed, **filters)
        counts += torch.bincount(written[:, 0] * 11 + written[:, 1], minlength=121)
    assert float(counts[exact == 0].sum()) == 0
    often = exact * n >= 5
    observed = [*counts[often].tolist(), float(counts[~often].sum())]
    expected = [*(exact[often] * n).tolist(), float(exact[~often].sum()) * n]
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1]
        expected = [e * sum(observed) / sum(expected) for e in expected]
    assert len(observed) > 5
    assert chisquare(observed, expected).pvalue > 0.001


def test_seeds_give_the_same_tokens_in_another_process(model: GPT) -> None:
    code = (
        "from models.config import GPTConfig; from models.gpt import GPT\n"
        "from models.sampling import generate\n"
        "model = GPT(GPTConfig(d_vocab=11, n_ctx=13, n_heads=3, d_model=15), seed=1, init_std=0.4)"
        "\nprint(generate(model, [[1, 2], [3]], 5, temperature=1.0, seed=4).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = generate(model, [[1, 2], [3]], 5, temperature=1.0, seed=4)
    assert json.loads(done.stdout) == found.tolist()
