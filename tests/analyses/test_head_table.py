"""One row per head: the columns are those of the analyses it joins."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import head_table as module
from analyses.ablation import ablate_every_head
from analyses.anti_diagonal import anti_diagonal, label_anti_diagonal
from analyses.attention_patterns import attention_patterns
from analyses.entropy import entropy
from analyses.head_table import head_table
from analyses.metrics import DEFAULT as METRICS
from models.gpt import GPT
from models.tasks import Batch


def test_every_column_is_what_its_own_analysis_says(model: GPT, batch: Batch) -> None:
    table = head_table(model, batch, seed=2).set_index(["layer", "head"])
    for long in (attention_patterns(model, batch, seed=2), entropy(model, batch, seed=2)):
        for row in long.itertuples():
            for part in ("value", "chance", "ci_low", "ci_high"):
                column = row.score + ("" if part == "value" else f"_{part}")
                # one pass or two, in different company; measured: 6e-8
                assert table.loc[(row.layer, row.head), column] == pytest.approx(
                    getattr(row, part), abs=1e-6, nan_ok=True
                )
    for row in ablate_every_head(model, batch, seed=2).itertuples():
        stem = f"{row.metric}_change_{row.ablation}"
        found = table.loc[(row.layer, row.head), [stem, f"{stem}_ci_low", f"{stem}_ci_high"]]
        np.testing.assert_array_equal(found.astype(float), [row.change, row.ci_low, row.ci_high])
    labels = label_anti_diagonal(anti_diagonal(model, batch, seed=2)).set_index(["layer", "head"])
    assert (table["labelled"] == labels["labelled"]).all()
    assert (table["rival_offset"] == labels["rival_offset"]).all()
    np.testing.assert_allclose(table["rival"], labels["rival"], rtol=0, atol=1e-6)
    assert table["name"].tolist() == [f"{layer}.{head}" for layer, head in table.index]


def test_patterns_are_formed_in_one_pass(
    model: GPT, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    stream = module.stream_patterns

    def counted(*args: Any, **options: Any) -> Any:
        passes.append(args)
        return stream(*args, **options)

    monkeypatch.setattr(module, "stream_patterns", counted)
    head_table(model, batch, ablation=())
    assert len(passes) == 1


def test_scores_alone_cost_no_ablation(model: GPT, batch: Batch) -> None:
    assert not effects(head_table(model, batch, ablation=()))
    assert effects(head_table(model, batch, ablation=["mean"])) == [
        f"{metric}_change_mean{end}" for metric in METRICS for end in ("", "_ci_low", "_ci_high")
    ]


def effects(table: pd.DataFrame) -> list[str]:
    return [column for column in table if "_change_" in column]


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_plain_ids_need_no_task(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(22, (11, 7), generator=generator)
    table = head_table(model, ids)
    assert len(table) == 6
    assert {"loss_change_zero", "loss_change_resample"} < set(table.columns)
    assert not {"loss_change_mean", "anti_diagonal", "labelled"} & set(table.columns)
    assert "label" in table
    with_mean = head_table(model, ids, reference=torch.randint(22, (13, 7), generator=generator))
    assert "loss_change_mean" in with_mean
    alone = head_table(model, [[3, 1, 4, 1, 5]])
    assert "loss_change_zero" in alone
    assert "loss_change_resample" not in alone


def test_a_trained_model_has_a_labelled_head_that_is_sharp_and_above_chance(trained: GPT) -> None:
    table = head_table(trained, ablation=())
    best = table.loc[table["anti_diagonal"].idxmax()]
    assert best["labelled"]
    assert best["anti_diagonal"] > 0.9
    assert best["anti_diagonal_chance"] == pytest.approx(
        np.mean([1 / (5 + j) for j in range(1, 6)])
    )
    assert best["entropy_predicting"] < 0.5
    assert best["anti_diagonal_holding"] < 0.2, "the alignment decides everything"
