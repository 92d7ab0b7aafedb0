"""The order in which heads are taken, and that it is a ranking by score."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyses.attention_patterns import attention_patterns
from analyses.cumulative import cumulative, order_of_heads
from analyses.head_sets import cumulative_ablation
from models.errors import InputError
from models.gpt import GPT
from models.tasks import Batch


def test_heads_come_in_falling_order_ties_to_the_earlier_and_undefined_ones_last() -> None:
    heads = [(layer, head) for layer in (0, 1) for head in (0, 1, 2)]
    scores = pd.DataFrame(heads, columns=["layer", "head"])
    scores["score"], scores["value"] = "induction", [np.nan, 0.2, 0.7, 0.2, 0.9, np.nan]
    other = scores.assign(score="entropy", value=range(6))
    order = order_of_heads(pd.concat([other, scores]), "induction")
    assert order == [(1, 1), (0, 2), (0, 1), (1, 0), (0, 0), (1, 2)]


def test_heads_are_removed_in_the_order_of_their_score(model: GPT, batch: Batch) -> None:
    found = cumulative(model, batch, seed=3)
    scores = attention_patterns(model, batch, scores=["anti_diagonal"])
    order = order_of_heads(scores, "anti_diagonal")
    assert found.equals(cumulative_ablation(model, batch, order=order, seed=3))
    last = found[found["n_heads"] == 6]["heads"]
    assert set(last) == {" ".join(f"{layer}.{head}" for layer, head in order)}


def test_another_score_gives_another_order(model: GPT, batch: Batch) -> None:
    one = cumulative(model, batch, ablation="zero")
    other = cumulative(model, batch, score="current_token", ablation="zero")
    assert not one["heads"].equals(other["heads"])


def test_a_score_that_the_input_does_not_define_is_refused(gpt2_bridge: Any) -> None:
    ids = [[3, 1, 4, 1], [5, 9, 2, 6]]
    with pytest.raises(InputError, match="anti_diagonal is not defined on this input"):
        cumulative(gpt2_bridge, ids)
    table = cumulative(gpt2_bridge, ids, score="previous_token")
    assert list(table["ablation"].unique()) == ["zero", "resample"]
