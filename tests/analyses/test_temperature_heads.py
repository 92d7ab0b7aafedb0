"""Curves without heads against the same curves of models whose heads are really gone."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analyses.ablation import ablation_runs
from analyses.inputs import as_batch
from analyses.reruns import as_hooks
from analyses.temperature import half_point, temperature
from analyses.temperature_heads import COLDEST, HOTTEST, fragility, head_sets
from models.errors import InputError, UnknownNameError
from models.gpt import GPT
from models.interface import hooked, shape
from models.tasks import Batch

STEPS = (0.3, 1.0, 3.0)


def without(model: GPT, heads: list[tuple[int, int]]) -> GPT:
    """A copy in which these heads write nothing: their rows of the output projection are 0."""
    model, own = copy.deepcopy(model), shape(model).d_head
    for layer, head in heads:
        out = model.blocks[layer].attn.out
        out.weight.data[:, head * own : (head + 1) * own] = 0
    return model


def test_without_a_head_the_curve_is_that_of_a_model_that_has_none(
    model: GPT, batch: Batch
) -> None:
    table = fragility(model, batch, temperatures=STEPS, ablation="zero")
    assert table["heads"].unique().tolist() == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    clean = temperature(model, batch, temperatures=STEPS, samples=0)["exact_match"]
    for heads, rows in table.groupby("heads"):
        layer, head = map(int, str(heads).split("."))
        gone = temperature(without(model, [(layer, head)]), batch, temperatures=STEPS, samples=0)
        assert rows["temperature"].tolist() == list(STEPS)
        # measured: relative 1e-5
        np.testing.assert_allclose(rows["clean"], clean, rtol=1e-4)
        np.testing.assert_allclose(rows["ablated"], gone["exact_match"], rtol=1e-4)
        np.testing.assert_allclose(rows["change"], rows["ablated"] - rows["clean"], atol=1e-15)
        assert (rows["n"] == len(batch)).all()


@pytest.mark.parametrize("ablation", ["mean", "resample"])
def test_a_set_of_heads_goes_together_and_draws_are_averaged(
    model: GPT, ragged_batch: Batch, ablation: str
) -> None:
    heads = ["0.1", "1.2"]
    table = fragility(model, ragged_batch, heads=heads, temperatures=STEPS, ablation=ablation)
    assert table["heads"].tolist() == ["0.1 1.2"] * 3
    known = as_batch(model, ragged_batch)
    runs = ablation_runs(model, known, heads, ablation=ablation)
    curves = []
    for run in runs:
        with hooked(model, as_hooks(known, run)):
            curve = temperature(model, known, temperatures=STEPS, samples=0)
        curves.append(curve["exact_match"].to_numpy())
    assert len(runs) == (10 if ablation == "resample" else 1)
    # measured: relative 3e-6
    np.testing.assert_allclose(table["ablated"], np.mean(curves, axis=0), rtol=1e-4)
    error = table["monte_carlo_error"]
    if ablation == "resample":
        np.testing.assert_allclose(error, np.std(curves, axis=0, ddof=1) / 10**0.5, rtol=1e-3)
    else:
        assert error.isna().all()


def test_no_head_removed_changes_nothing(model: GPT, batch: Batch) -> None:
    table = fragility(model, batch, heads=[[]], temperatures=STEPS)
    assert (table["change"] == 0).all()
    assert table["ci_low"].isna().all(), "all sequences are equal"


def test_the_half_points_are_those_of_the_curves(trained: GPT) -> None:
    """A spline through 49 temperatures against a root of the exact curve."""
    batch = as_batch(trained, None, n=61, seed=3)
    table = fragility(trained, batch, temperatures=[1.0], ablation="zero")
    assert table["clean_half_point"].nunique() == 1
    found = table["clean_half_point"][0]
    assert found == pytest.approx(half_point(trained, batch), rel=5e-4)  # measured: 2e-5
    reached = 0
    for row in table.itertuples():
        layer, head = map(int, row.heads.split("."))
        exact = half_point(without(trained, [(layer, head)]), batch)
        if not np.isnan(exact):
            assert row.ablated_half_point == pytest.approx(exact, rel=5e-4)  # measured: 6e-5
            reached += 1
    assert reached, "the case must have half points"
    assert COLDEST < found < HOTTEST


def test_a_curve_that_never_reaches_half_has_no_half_point(make_model: Callable[..., GPT]) -> None:
    table = fragility(make_model(std=0.02), temperatures=[1.0], heads=["0.0"])
    assert table[["clean_half_point", "ablated_half_point"]].isna().all(axis=None)


def test_several_ablations_stand_one_after_another(model: GPT, batch: Batch) -> None:
    table = fragility(
        model, batch, heads=[["0.0"], ["1.*"]], temperatures=[1.0], ablation=["zero", "mean"]
    )
    assert table[["heads", "ablation"]].to_numpy().tolist() == [
        ["0.0", "zero"],
        ["0.0", "mean"],
        ["1.0 1.1 1.2", "zero"],
        ["1.0 1.1 1.2", "mean"],
    ]
    assert table["baseline"].str.split().str[0].tolist() == ["zero", "position"] * 2


def test_a_bridge_has_our_own_model_s_curves(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    ids = [[3, 1, 4, 1], [5, 9, 2, 6]]
    ours, theirs = (
        fragility(m, ids, temperatures=(0.5, 2.0), ablation="zero")
        for m in (gpt2_twin, gpt2_bridge)
    )
    for column in ("clean", "ablated"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-4)  # measured: 4e-6


def test_heads_are_one_set_or_a_list_of_sets(model: GPT) -> None:
    assert head_sets(model, None)[:2] == [[(0, 0)], [(0, 1)]]
    assert head_sets(model, ["0.0", (1, 2)]) == [["0.0", (1, 2)]]
    assert head_sets(model, [["0.0"], ["1.1", "1.2"]]) == [["0.0"], ["1.1", "1.2"]]
    for bad in ([], ["0.0", ["1.1"]]):
        with pytest.raises(InputError, match="set by set"):
            head_sets(model, bad)


def test_what_has_no_curve_is_refused(model: GPT, batch: Batch) -> None:
    with pytest.raises(UnknownNameError):
        fragility(model, batch, heads=["7.7"])
    with pytest.raises(InputError, match="no outputs"):
        fragility(model, [[7]])
    with pytest.raises(InputError, match="0 is greedy"):
        fragility(model, batch, temperatures=[0.0])
    with pytest.raises(InputError, match="not trained on a task"):
        fragility(GPT(model.config, seed=1))
