import random
from typing import Any

import numpy as np
import pytest
import torch

from models.config import GPTConfig
from models.errors import InputError, LengthError, ProbeError, VocabularyError
from models.gpt import GPT
from models.interface import hooked
from models.sampling import _pick, generate, probabilities


@pytest.fixture(scope="module")
def model() -> GPT:
    return GPT(GPTConfig(d_vocab=11, n_ctx=13, n_heads=3, d_model=15), seed=1, init_std=0.4)


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


def test_what_does_not_fit_is_refused_before_anything_runs(model: GPT) -> None:
    assert generate(model, [[1] * 10], 4).shape == (1, 4), "the last token need not be fed"
    with pytest.raises(LengthError, match=r"10 tokens and 5 new ones need .* 14, .* is 13"):
        generate(model, [[1] * 10], 5)
    with pytest.raises(LengthError, match="13 tokens, but got 14"):
        generate(model, [[1] * 14], 1)
    with pytest.raises(InputError, match="n must be at least 1 token, but got 0"):
        generate(model, [[1]], 0)
    with pytest.raises(InputError, match="seed must be at least 0, but got -1"):
        generate(model, [[1]], 1, seed=-1)
    with pytest.raises(InputError, match="non-empty"):
        generate(model, [[]], 1)
    with pytest.raises(VocabularyError, match="got 11"):
        generate(model, [[11]], 1)
