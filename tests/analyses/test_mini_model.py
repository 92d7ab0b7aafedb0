"""Known numbers of a GPT-2 whose weights follow from a formula, on our GPT and on a bridge.

They were computed with another implementation in float32.
"""

from typing import Any

import numpy as np
import pytest
import torch

from analyses.ablation import ablate, ablate_every_head
from analyses.attention_patterns import attention_patterns
from analyses.entropy import entropy
from analyses.head_table import head_table
from analyses.inputs import as_batch
from analyses.temperature import answer_log_probability, answer_logits

A = [3, 1, 4, 1, 5, 9, 2, 6]
B = [3, 7, 4, 9, 3, 7, 4, 9]
CLOSE = 1e-4  # the numbers have six digits; measured: 2e-6 on either engine


def scores(model: Any, tokens: list[int], name: str) -> list[float]:
    return attention_patterns(model, [tokens], scores=[name])["value"].tolist()


def test_entropies(mini: Any) -> None:
    table = entropy(mini, [A])
    found = table.loc[table["score"] == "entropy", "value"].tolist()
    assert found == pytest.approx([0.765529, 0.748971, 1.225485, 1.239516], abs=CLOSE)


def test_pattern_scores(mini: Any) -> None:
    expected = {
        (tuple(A), "previous_token"): [0.061845, 0.249462, 0.215449, 0.273708],
        (tuple(B), "previous_token"): [0.204329, 0.369631, 0.241807, 0.235321],
        (tuple(B), "induction"): [0.186795, 0.013574, 0.156878, 0.236271],
        (tuple(B), "duplicate_token"): [0.284910, 0.099955, 0.159091, 0.081023],
    }
    for (tokens, name), values in expected.items():
        assert scores(mini, list(tokens), name) == pytest.approx(values, abs=CLOSE)


def test_zero_ablation_changes_of_the_loss(mini: Any) -> None:
    table = ablate_every_head(mini, [A], ablation=["zero"])
    loss = table[table["metric"] == "loss"]
    assert loss["clean"].tolist() == pytest.approx([3.572329] * 4, abs=CLOSE)
    expected = [-0.158370, 0.451316, -0.307105, 0.193738]
    assert loss["change"].tolist() == pytest.approx(expected, abs=CLOSE)
    one = ablate(mini, [A], heads=["0.1"], ablation="zero").set_index("metric")
    assert one.loc["loss", "change"] == pytest.approx(0.451316, abs=CLOSE)


def test_prompts_in_one_batch_are_prompts_alone(mini: Any) -> None:
    """Padding, other rows and the engine's own attention mask change nothing."""
    prompts = [A, B[:5], A[:3], [10, *B]]
    table = ablate_every_head(mini, prompts, ablation=["zero"])
    alone = [ablate_every_head(mini, [p], ablation=["zero"]) for p in prompts]
    expected = np.mean([t["change"] for t in alone], axis=0)
    np.testing.assert_allclose(table["change"], expected, rtol=0, atol=CLOSE)  # measured: 2e-6
    mean = attention_patterns(mini, prompts, scores=["previous_token"])["value"]
    each = np.mean([scores(mini, p, "previous_token") for p in prompts], axis=0)
    np.testing.assert_allclose(mean, each, rtol=0, atol=CLOSE)  # measured: 6e-8


def test_temperature_divides_once(mini: Any) -> None:
    """Token 0 after the last of A: appended, it is the last output."""
    logits, targets, _ = answer_logits(mini, as_batch(mini, [[*A, 0]]))
    for t, p in ((2.0, 0.328967), (1.0, 0.651093), (0.5, 0.947237)):
        found = answer_log_probability(logits, targets, t)[0, -1].exp()
        assert float(found) == pytest.approx(p, abs=CLOSE)


def test_the_table_of_both_engines_is_one(
    filled_gpt2: Any, gpt2_to_ours: Any, to_bridge: Any
) -> None:
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(10, (n,), generator=generator).tolist() for n in (9, 7, 9, 8, 9)]
    ours = head_table(gpt2_to_ours(filled_gpt2), prompts).drop(columns=["name", "label"])
    theirs = head_table(to_bridge(filled_gpt2), prompts).drop(columns=["name", "label"])
    assert list(ours.columns) == list(theirs.columns)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE)  # measured: 3e-6
