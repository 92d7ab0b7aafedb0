"""What a worker of the reversal study measures of the heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyses.anti_diagonal import anti_diagonal, label_anti_diagonal
from analyses.attention_patterns import pattern_reducers
from analyses.content_dependence import mean_pattern
from analyses.entropy import entropy_reducers
from analyses.inputs import as_batch
from analyses.tables import KEYS, score_heads, wide
from models.gpt import GPT
from probe.studies.jobs import Measured, _look
from probe.studies.kinds import NEXT_TOKEN


def test_the_looks_of_the_heads_are_the_separate_analyses(trained: GPT) -> None:
    found = Measured(NEXT_TOKEN, 3)
    _look(found, trained)
    batch = as_batch(trained, None, seed=3)
    reducers = {**pattern_reducers(batch), **entropy_reducers(batch)}
    scores = score_heads(trained, batch, reducers, unit="", seed=3)
    profile = anti_diagonal(trained, batch, seed=3)
    heads = wide(scores).merge(label_anti_diagonal(profile), on=KEYS)
    pd.testing.assert_frame_equal(found.tables["scores"], scores, check_exact=True)
    pd.testing.assert_frame_equal(found.tables["profile"], profile, check_exact=True)
    pd.testing.assert_frame_equal(found.tables["heads"].drop(columns="name"), heads)
    assert found.tables["heads"]["name"].iloc[0] == "0.0"
    np.testing.assert_array_equal(found.pattern, mean_pattern(trained, batch)[0].numpy())


def test_one_forward_pass_gives_all_looks(trained: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    stream = GPT.stream_patterns

    def count(self: GPT, tokens: Any, query_chunk: int = 128) -> Iterator[Any]:
        ran.append(len(tokens))
        return stream(self, tokens, query_chunk)

    monkeypatch.setattr(GPT, "stream_patterns", count)
    _look(Measured(NEXT_TOKEN, 0), trained)
    assert sum(ran) == 64, "every sequence once"
