"""The training recipe: what it learns, that it repeats bit for bit, that it leaves no trace."""

import json
import os
import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.config import GPTConfig
from models.errors import InputError, TrainingError
from models.gpt import GPT
from models.sequence_tasks import Reversal
from models.tasks import Task, create, sequence_loss
from models.training import (
    Run,
    TrainingConfig,
    advance,
    batch_loss,
    evaluate,
    make_optimizer,
    model_config,
    one_thread,
    pick_device,
    start,
    train,
)

TASK = create("reversal", length=5)
RANGE = create("reversal", length=5, min_length=2)


def small(task: Task = TASK, steps: int = 12, **changes: Any) -> Run:
    """A run at step 0, of a model that takes milliseconds a step."""
    shape = model_config(
        task, n_layers=2, n_heads=2, d_model=14, dropout=changes.pop("dropout", 0.0)
    )
    sizes = {"batch_size": 7, "evaluate_every": 3, "evaluation_size": 11, "warmup": 2}
    return start(task, shape, TrainingConfig(steps=steps, **{**sizes, **changes}), device="cpu")


def weights(run: Run) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


def test_reversal_is_learned_without_an_error(trained: GPT) -> None:
    heldout = TASK.heldout(2_000, seed=1)
    assert evaluate(trained, heldout)["exact_match"] == 1.0
    shape = model_config(TASK, n_layers=1)
    run = train(TASK, shape, TrainingConfig(steps=100, objective="outputs"), device="cpu")
    assert evaluate(run.model, heldout)["exact_match"] == 1.0
    assert not run.model.training
    assert [row["step"] for row in run.history] == [20, 40, 60, 80, 100]


def test_a_seed_decides_everything() -> None:
    first, same, other = (advance(small(seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(weights(first), weights(same))
    assert first.history == same.history
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.usefixtures("unchecked")  # the type checker draws from `random`
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_callers_state_is_left_alone(dropout: float) -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    threads = torch.get_num_threads()
    with torch.no_grad():
        advance(small(dropout=dropout))
        assert not torch.is_grad_enabled()
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_callers_random_state_has_no_effect(dropout: float) -> None:
    torch.manual_seed(1)
    first = advance(small(dropout=dropout))
    torch.manual_seed(2)
    assert torch.equal(weights(first), weights(advance(small(dropout=dropout))))
    if dropout:
        assert not torch.equal(weights(first), weights(advance(small())))


def test_every_step_draws_new_dropout() -> None:
    states: set[bytes] = set()
    run = small(dropout=0.1, accumulation=2)
    advance(run, report=lambda run: states.add(run.dropout_state.numpy().tobytes()))
    assert len(states) == 12


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_how_often_it_is_evaluated_does_not_change_the_loss_curve(dropout: float) -> None:
    every, seldom = (advance(small(dropout=dropout, evaluate_every=n)) for n in (1, 6))
    assert torch.equal(weights(every), weights(seldom))
    curve = {row["step"]: row for row in every.history}
    assert [row["step"] for row in seldom.history] == [6, 12]
    assert all(curve[row["step"]] == row for row in seldom.history)


@pytest.mark.parametrize("task", [TASK, RANGE], ids=["fixed", "range"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_stopping_and_going_on_changes_nothing(task: Task, accumulation: int) -> None:
    options = {"accumulation": accumulation, "dropout": 0.1}
    straight = advance(small(task, **options))
    halves = advance(advance(small(task, **options), until=5))
    assert halves.step == 12
    assert torch.equal(weights(straight), weights(halves))
    assert straight.history == halves.history


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    config = TrainingConfig(steps=101, warmup=20, learning_rate=2.0, final_fraction=0.1)
    assert config.rate(0) == pytest.approx(0.1)
    assert config.rate(19) == pytest.approx(2.0)
    assert config.rate(20) == pytest.approx(2.0)
    assert config.rate(60) == pytest.approx(1.1), "half way: the mean of 2.0 and 0.2"
    assert config.rate(100) == pytest.approx(0.2)
    rates = [config.rate(step) for step in range(20, 101)]
    assert rates == sorted(rates, reverse=True)
    assert TrainingConfig(warmup=0, learning_rate=2.0).rate(0) == pytest.approx(2.0)


def test_matrices_decay_and_vectors_do_not() -> None:
    run = small()
    decays = {
        id(p): group["weight_decay"]
        for group in run.optimizer.param_groups
        for p in group["params"]
    }
    for name, parameter in run.model.named_parameters():
        expected = 0.1 if name.endswith(("weight", "W_E", "W_pos", "unembed")) else 0.0
        expected = 0.0 if parameter.ndim == 1 else expected
        assert decays[id(parameter)] == expected, name
    assert len(decays) == len(list(run.model.parameters()))


def test_one_step_is_the_step_of_a_plain_loop() -> None:
    """AdamW, the mean next-token loss of the drawn batch, gradients clipped to norm 1."""
    run = small(objective="all", clip=0.1)
    plain = GPT(run.model.config, seed=0, init_std=0.02)
    generator = torch.Generator().manual_seed(0)
    optimizer = make_optimizer(plain, run.config)
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = run.config.rate(step)
        batch = TASK.draw(7, generator=generator)
        optimizer.zero_grad()
        plain(batch.tokens, return_type="loss").backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizer.step()
    advance(run, until=3)
    for mine, theirs in zip(run.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)  # measured: 1.5e-7


@pytest.mark.parametrize("task", [TASK, RANGE], ids=["fixed", "range"])
@pytest.mark.parametrize("objective", ["all", "outputs"])
def test_logits_are_formed_only_where_the_loss_reads_them(task: Task, objective: Any) -> None:
    model = small(task).model
    batch = task.heldout(13)
    rows = None
    if task.fixed_layout:
        rows = slice(0, 10) if objective == "all" else slice(5, 10)
    loss = batch_loss(model, batch, objective, rows)
    logits = model(batch.tokens)
    read = batch.read(objective)
    by_hand = -logits.log_softmax(-1)[read].gather(1, batch.next_tokens[read][:, None]).mean()
    torch.testing.assert_close(loss, by_hand, atol=1e-5, rtol=0)  # measured: 4.8e-7
    if task.fixed_layout:
        each = sequence_loss(logits, batch, objective=objective).mean()
        torch.testing.assert_close(loss, each, atol=1e-5, rtol=0)


def test_accumulated_batches_are_averaged() -> None:
    """Two batches of 7 take the step of the one batch of 14 they make up."""
    run = small(accumulation=2, objective="all")
    plain = GPT(run.model.config, seed=0, init_std=0.02)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.cat([TASK.draw(7, generator=generator).tokens for _ in range(2)])
    plain(tokens, return_type="loss").backward()
    advance(run, until=1)
    gradients = [parameter.grad for parameter in plain.parameters()]
    norm = torch.nn.utils.get_total_norm(gradients)
    scale = min(1.0, 1 / float(norm))
    for mine, theirs in zip(run.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(mine.grad, theirs * scale, atol=1e-6, rtol=1e-4)


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    run = small(steps=4, evaluate_every=100)
    with torch.no_grad():
        run.model.W_E[0, 0] = torch.nan
    with pytest.raises(TrainingError, match=r"not finite at step 4: use a smaller .* than 0\.003"):
        advance(run)
    assert not run.model.training


def test_the_report_sees_every_step_and_may_end_the_run() -> None:
    seen: list[int] = []

    def report(run: Run) -> None:
        seen.append(run.step)
        if run.step == 5:
            raise KeyboardInterrupt

    run = small(dropout=0.1)
    with pytest.raises(KeyboardInterrupt):
        advance(run, report=report)
    assert seen == [1, 2, 3, 4, 5]
    assert not run.model.training
    assert torch.is_grad_enabled()
    assert torch.equal(weights(advance(run)), weights(advance(small(dropout=0.1))))


def test_evaluation_chunks_do_not_matter(trained: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = RANGE.heldout(37)
    whole = evaluate(trained, batch)
    monkeypatch.setattr("models.training.EVALUATION_CHUNK", 5)
    assert evaluate(trained, batch) == pytest.approx(whole, abs=1e-6)  # measured: 6e-8
    assert whole["exact_match"] < 1, "lengths it never saw"


def test_tied_weights_stay_tied_while_training() -> None:
    shape = model_config(TASK, n_layers=1, n_heads=2, d_model=14, tied=True)
    run = advance(start(TASK, shape, TrainingConfig(steps=3), device="cpu"))
    assert run.model.W_U.data_ptr() == run.model.W_E.data_ptr()
    assert "unembed" not in dict(run.model.named_parameters())


def test_a_model_that_does_not_fit_the_task_is_refused() -> None:
    for changes in ({"d_vocab": 26}, {"n_ctx": 10}):
        with pytest.raises(InputError, match=r"needs 27 tokens and a context of 11, but the model"):
            start(TASK, GPTConfig(**{"d_vocab": 27, "n_ctx": 11, **changes}), device="cpu")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, but got 0"),
        ({"learning_rate": 0}, "learning_rate must be above 0 and finite, but got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0 and finite, but got nan"),
        ({"clip": float("inf")}, "clip must be above 0 and finite, but got inf"),
        ({"warmup": -1}, "warmup must be at least 0 and finite, but got -1"),
        ({"beta2": 1.0}, r"beta2 must be at least 0 and below 1, but got 1\.0"),
        ({"final_fraction": 1.5}, r"final_fraction must be in 0\.\.1, but got 1\.5"),
        ({"objective": "some"}, "objective must be one of all, outputs, but got 'some'"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainingConfig(**changes)


def test_devices_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(InputError, match="cuda is not available on this machine; cpu always is"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("auto") == torch.device("cuda:1")


def test_one_thread_ends_with_the_block() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt), one_thread():
        _interrupt_when(torch.get_num_threads() == 1)
    assert torch.get_num_threads() == before


def _interrupt_when(condition: bool) -> None:
    if condition:
        raise KeyboardInterrupt


SCRIPT = """
import json, sys
import torch
from models.tasks import create
from models.training import TrainingConfig, advance, model_config, process_group, start

results = {}
with process_group() as rank:
    for least in (5, 2):
        task = create("reversal", length=5, min_length=least)
        shape = model_config(task, n_layers=1, n_heads=2, d_model=14)
        config = TrainingConfig(steps=7, batch_size=6, accumulation=2, evaluate_every=1)
        run = advance(start(task, shape, config, device="cpu"))
        weights = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        results[least] = [weights.tolist(), [row["loss"] for row in run.history]]
    with open(f"{sys.argv[1]}-{rank}.json", "w") as file:
        json.dump(results, file)
"""


def test_two_processes_train_what_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun; sequences of one length, and of several, whose shares weigh differently."""
    script, out = tmp_path / "script.py", str(tmp_path / "out")
    script.write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", [str(script), out + "-alone"])
    runpy.run_path(str(script))
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command = [sys.executable, *launcher, "--rdzv-endpoint=127.0.0.1:0", str(script), out]
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "GLOO_SOCKET_IFNAME": "lo"}
    launched = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert launched.returncode == 0, launched.stderr
    expected, first, second = (
        json.loads(Path(f"{out}-{name}.json").read_text()) for name in ("alone-0", "0", "1")
    )
    for least in ("5", "2"):
        assert first[least][0] == second[least][0], "both hold the same weights"
        # measured: 6.8e-7
        assert first[least][0] == pytest.approx(expected[least][0], abs=1e-5)
        assert first[least][1] == pytest.approx(expected[least][1], abs=1e-5)


def test_the_task_of_a_run_is_the_task_of_its_model() -> None:
    run = small()
    assert isinstance(run.model.task, Reversal)
    assert run.model.vocabulary == TASK.vocabulary
