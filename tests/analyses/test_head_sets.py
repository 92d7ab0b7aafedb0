"""Sets of heads against single calls of `ablate`."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyses.ablation import ablate, ablate_every_head
from analyses.head_sets import greedy_ablation, interactions, keep_only
from analyses.metrics import LogitDifference
from models.errors import InputError
from models.gpt import GPT
from models.interface import shape
from models.names import head_name
from models.tasks import Batch

HEADS = ["0.1", "0.2", "1.0"]


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_keeping_heads_is_removing_the_others(model: GPT, batch: Batch, kind: str) -> None:
    rest = [head for head in shape(model).heads if head_name(*head) not in HEADS]
    found = keep_only(model, batch, heads=HEADS, ablation=kind, seed=3)
    pd.testing.assert_frame_equal(found, ablate(model, batch, heads=rest, ablation=kind, seed=3))
    everything = keep_only(model, batch, heads=shape(model).heads, ablation=kind)
    assert (everything["change"] == 0).all()


def test_layers_cannot_be_kept_alone(model: GPT, batch: Batch) -> None:
    with pytest.raises(InputError, match="only heads can be kept alone"):
        keep_only(model, batch, heads=["mlp.0"])


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_an_interaction_is_what_a_pair_does_beyond_its_members(
    model: GPT, batch: Batch, kind: str
) -> None:
    def effect(*heads: str) -> float:
        table = ablate(model, batch, heads=heads, ablation=kind, metric="loss")
        return float(table["change"].iloc[0])

    table = interactions(model, batch, heads=HEADS, ablation=kind)
    pairs = list(combinations(HEADS, 2))
    assert list(zip(table["first"], table["second"], strict=True)) == pairs
    for (a, b), row in zip(pairs, table.itertuples(), strict=True):
        numbers: Any = row
        assert numbers.joint == pytest.approx(effect(a, b), abs=1e-5)  # measured: 3e-7
        expected = effect(a, b) - effect(a) - effect(b)
        assert numbers.interaction == pytest.approx(expected, abs=2e-5)
        assert numbers.ci_low <= numbers.interaction <= numbers.ci_high
        assert numbers.n == len(batch)
    assert table["interaction"].abs().max() > 0.01, "the case must show one"


def test_a_greedy_order_takes_the_largest_step_each_time(model: GPT, batch: Batch) -> None:
    heads = [head_name(*head) for head in shape(model).heads]
    table = greedy_ablation(model, batch, heads=heads, ablation="zero", most=3)
    single = ablate_every_head(model, batch, metric="loss", ablation="zero")
    first = single.loc[single["change"].abs().idxmax()]
    assert table["head"].iloc[0] == head_name(int(first["layer"]), int(first["head"]))
    gone: list[str] = []
    before = float(single["clean"].iloc[0])
    for row in table.itertuples():
        numbers: Any = row
        steps = {}
        for head in heads:
            if head not in gone:
                after = ablate(model, batch, heads=[*gone, head], ablation="zero", metric="loss")
                steps[head] = float(after["ablated"].iloc[0]) - before
        assert abs(steps[numbers.head]) == pytest.approx(max(map(abs, steps.values())), abs=1e-5)
        assert numbers.step == pytest.approx(steps[numbers.head], abs=1e-5)
        gone.append(numbers.head)
        before += steps[numbers.head]
    assert table["n_heads"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_prompts_and_both_engines(request: pytest.FixtureRequest, engine: str) -> None:
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6]]
    metric = LogitDifference(3, 5)
    table = interactions(
        request.getfixturevalue(engine), prompts, heads=["0.0", "1.1"], metric=metric
    )
    expected = interactions(
        request.getfixturevalue("gpt2_twin"), prompts, heads=["0.0", "1.1"], metric=metric
    )
    np.testing.assert_allclose(table["interaction"], expected["interaction"], rtol=0, atol=1e-4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda *given: interactions(*given, heads=["0.1"]), "at least two heads"),
        (lambda *given: interactions(*given, heads=["0.1", "0.1"]), "named once"),
        (
            lambda *given: keep_only(*given, heads=["0.1"], ablation=["zero", "mean"]),
            "one ablation",
        ),
        (
            lambda *given: greedy_ablation(*given, heads=["0.1"], metric=["loss", "exact_match"]),
            "needs one metric",
        ),
    ],
)
def test_what_makes_no_set_is_refused_in_one_line(
    model: GPT, batch: Batch, call: Callable[..., Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        call(model, batch)
    assert "\n" not in str(error.value)
