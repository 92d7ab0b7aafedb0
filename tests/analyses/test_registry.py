"""What holds for every analysis: generic properties, run on all that are registered.

A new analysis is covered by being registered; one that is not registered fails here.
"""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import analyses
from analyses import registry, statistics, substitutes
from analyses.inputs import select
from analyses.registry import ANALYSES, Analysis, find, run_module
from models.errors import InputError, UnknownNameError
from models.gpt import GPT
from models.interface import hooked, shape
from models.tasks import Batch

Make = Callable[..., GPT]
Run = Callable[..., pd.DataFrame]
FOLDER = Path(analyses.__file__).parent


@pytest.fixture(params=ANALYSES.values(), ids=ANALYSES.keys())
def analysis(request: pytest.FixtureRequest) -> Analysis:
    found: Analysis = request.param
    return found


SMALLER: dict[str, dict[str, Any]] = {
    "temperature": {"temperatures": (0.7, 2.0)},
    "attention_temperature": {"temperatures": (0.5, 2.0)},
}


@pytest.fixture
def run(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The analysis, with fewer random draws: what is tested here does not hang on their number."""
    monkeypatch.setattr(statistics, "RESAMPLES", 199)
    monkeypatch.setattr(substitutes, "DRAWS", 3)
    return partial(analysis.load(), **SMALLER.get(analysis.name, {}))


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    return table.select_dtypes("number").astype(float)


def close(left: pd.DataFrame, right: pd.DataFrame, *, atol: float = 1e-4) -> None:
    """Equal but for rounding; undefined in the same places."""
    assert list(left.columns) == list(right.columns)
    rest = [column for column in left if column not in numbers(left).columns]
    pd.testing.assert_frame_equal(left[rest], right[rest])
    np.testing.assert_allclose(numbers(left), numbers(right), rtol=0, atol=atol)


# --- the registry itself


def test_every_module_that_runs_by_itself_is_registered() -> None:
    runnable = [
        path.stem
        for path in FOLDER.glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    assert sorted(runnable) == sorted(ANALYSES)


def test_a_name_is_the_name_of_its_module_and_says_what_it_answers(analysis: Analysis) -> None:
    assert ANALYSES[analysis.name] is analysis
    assert analysis.load().__module__ == f"analyses.{analysis.name}"
    assert analysis.load().__doc__
    assert "\n" not in analysis.answers


def test_an_unknown_name_gets_the_closest_ones() -> None:
    assert find("entropy") is ANALYSES["entropy"]
    with pytest.raises(UnknownNameError, match="no analysis named 'entrpy'; did you mean entropy"):
        find("entrpy")


def test_running_a_module_is_running_the_command(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -m analyses.NAME MODEL --out DIR`` is ``probe run NAME MODEL --out DIR``."""
    calls: list[list[str]] = []
    entry = SimpleNamespace(load=lambda: calls.append)

    def entry_points(**selection: str) -> list[Any]:
        assert selection == {"group": "console_scripts", "name": "probe"}
        return [entry]

    monkeypatch.setattr(registry.metadata, "entry_points", entry_points)
    monkeypatch.setattr(sys, "argv", ["module", "MODEL", "--out", "DIR"])
    name = f"analyses.{analysis.name}"
    monkeypatch.delitem(sys.modules, name)
    runpy.run_module(name, run_name="__main__")
    assert calls == [["run", analysis.name, "MODEL", "--out", "DIR"]]


def test_without_an_installation_running_a_module_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.metadata, "entry_points", lambda **selection: [])
    with pytest.raises(SystemExit, match="not installed"):
        run_module("entropy", [])


def in_a_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=FOLDER.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, analyses; assert analyses.__all__; print('torch' in sys.modules)"
    assert in_a_process(code) == "False"


def test_every_name_that_the_package_exports_is_there() -> None:
    for name in analyses.__all__:
        assert callable(getattr(analyses, name))
    assert set(analyses.__all__) <= set(dir(analyses))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = analyses.nothing


# --- the table


def test_a_row_is_one_thing(run: Run, analysis: Analysis, model: GPT) -> None:
    """Every key is there and tells the rows apart; heads are complete; nothing is infinite."""
    table = run(model)
    assert isinstance(table, pd.DataFrame)
    assert len(table)
    keys = list(analysis.keys)
    assert not table[keys].isna().any(axis=None)
    assert not table.duplicated(keys).any()
    assert not np.isinf(numbers(table)).any(axis=None)
    assert table.attrs["units"]
    if keys[:2] == ["layer", "head"]:
        heads = zip(table["layer"], table["head"], strict=True)
        if len(keys) == 2:
            assert list(heads) == shape(model).heads
        for _, part in table.groupby(keys[2:]) if len(keys) > 2 else ():
            assert list(zip(part["layer"], part["head"], strict=True)) == shape(model).heads


def test_two_calls_give_equal_tables(run: Run, model: GPT, batch: Batch) -> None:
    tables = [run(model, batch, seed=3) for _ in range(2)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_the_default_input_follows_from_the_seed(run: Run, model: GPT) -> None:
    assert not run(model, seed=0).equals(run(model, seed=1))


def test_the_order_of_sequences_does_not_matter(run: Run, model: GPT, ragged_batch: Batch) -> None:
    """Except to what is drawn by place: bootstrap draws and resampling partners."""
    order = torch.randperm(len(ragged_batch), generator=torch.Generator().manual_seed(1))
    tables = [run(model, b) for b in (ragged_batch, select(ragged_batch, order))]
    drawn = ("ci_low", "ci_high", "monte_carlo_error")
    for i, table in enumerate(tables):
        table = table[[c for c in table if not c.endswith(drawn) and "resample" not in c]]
        table = table[table["ablation"] != "resample"] if "ablation" in table else table
        tables[i] = table.reset_index(drop=True)
    close(*tables)


def test_padding_changes_nothing(
    run: Run,
    model: GPT,
    batch: Batch,
    ragged_batch: Batch,
    widen: Callable[[Batch, int], Batch],
) -> None:
    for inputs in (batch, ragged_batch):
        close(run(model, inputs), run(model, widen(inputs, 2)))


# --- what is left behind


def test_inputs_are_unchanged(run: Run, model: GPT, ragged_batch: Batch) -> None:
    parts = ("tokens", "lengths", "next_tokens", "outputs", "target_keys")
    before = [getattr(ragged_batch, part).clone() for part in parts]
    groups = {name: group.clone() for name, group in ragged_batch.groups.items()}
    run(model, ragged_batch)
    assert all(torch.equal(getattr(ragged_batch, p), b) for p, b in zip(parts, before, strict=True))
    assert all(torch.equal(ragged_batch.groups[name], group) for name, group in groups.items())


def test_the_model_is_as_it_was(run: Run, make_model: Make, batch: Batch) -> None:
    """Weights, the mode of each module, gradients, hooks; dropout is off meanwhile."""
    model, plain = make_model(dropout=0.3), make_model()
    model.train()
    model.blocks[1].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    modes = [module.training for module in model.modules()]
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    close(run(model, batch), run(plain, batch))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    assert all(p.requires_grad and bool((p.grad == 1).all()) for p in model.parameters())
    assert not any(point.watched for point in model.hook_dict.values())


def test_nothing_stays_attached_and_an_outer_hook_stays(run: Run, model: GPT, batch: Batch) -> None:
    calls = []
    with hooked(model, [("blocks.0.hook_resid_pre", lambda x, *, hook: calls.append(1))]):
        watched = run(model, batch)
        assert [name for name, p in model.hook_dict.items() if p.watched] == [
            "blocks.0.hook_resid_pre"
        ]
    assert calls
    assert not any(point.watched for point in model.hook_dict.values())
    close(watched, run(model, batch))


@pytest.mark.parametrize("grad", [True, False])
def test_global_state_is_untouched(run: Run, model: GPT, batch: Batch, grad: bool) -> None:
    """Random states, grad mode, threads, default dtype."""

    def state() -> list[Any]:
        return [
            torch.get_rng_state().tolist(),
            [np.asarray(part).tolist() for part in np.random.get_state()],
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            np.geterr(),
        ]

    with torch.set_grad_enabled(grad):
        before = state()
        run(model, batch, seed=2)
        assert state() == before


def test_the_users_own_random_draws_are_unaffected() -> None:
    """All three generators, default inputs, in a process whose types nobody checks at random."""
    code = """
import random
import numpy as np
import torch
from analyses.registry import ANALYSES
from models.gpt import GPT
from models.tasks import create
from models.training import model_config

def draws():
    return [f(3) for f in (torch.rand, np.random.rand, lambda n: [random.random()] * n)]

def seed():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)

task = create("reversal", length=3)
model = GPT(model_config(task, n_layers=1, d_model=12), vocabulary=task.vocabulary)
model.task = task
seed()
without = draws()
seed()
for analysis in ANALYSES.values():
    analysis.load()(model)
for left, right in zip(without, draws(), strict=True):
    assert list(left) == list(right)
print("unaffected")
"""
    assert in_a_process(code) == "unaffected"


def test_an_interrupt_leaves_no_hook_and_the_mode(run: Run, make_model: Make, batch: Batch) -> None:
    model = make_model()
    model.train()

    def interrupt(activation: Tensor, *, hook: Any) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        hooked(model, [("blocks.0.hook_resid_post", interrupt)]),
    ):
        run(model, batch)
    assert not any(point.watched for point in model.hook_dict.values())
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


# --- a bridge


def test_a_bridge_is_measured_and_left_as_it_was(
    run: Run, analysis: Analysis, gpt2_bridge: Any
) -> None:
    """On plain ids without a task; where that makes no sense it is said in one line."""
    ids = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9]]
    points = {id(point): point for point in gpt2_bridge.hook_dict.values()}.values()
    before = [len(point.fwd_hooks) for point in points]
    modes = [module.training for module in gpt2_bridge.modules()]
    if analysis.name in ("anti_diagonal", "cumulative", "substitution"):
        with pytest.raises(InputError, match=r"anti.diagonal|ideal pattern") as error:
            run(gpt2_bridge, ids)
        assert "\n" not in str(error.value)
    else:
        assert len(run(gpt2_bridge, ids))
    assert [len(point.fwd_hooks) for point in points] == before
    assert [module.training for module in gpt2_bridge.modules()] == modes
    assert torch.is_grad_enabled()
