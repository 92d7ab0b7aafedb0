"""Detection: planted heads, the contrast, copying, labels, and a real model by two engines."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.attention_patterns import attention_patterns
from analyses.calibration import with_planted
from analyses.copying import copying
from analyses.detection import PATTERNS, detect_heads, labels
from analyses.head_table import head_table
from analyses.random_tokens import fresh_tokens, repeated_tokens
from analyses.streaming import stream_patterns
from models.config import GPTConfig
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture


@pytest.fixture(scope="module")
def small() -> GPT:
    """A model without a task whose heads differ."""
    config = GPTConfig(43, 37, n_layers=2, n_heads=3, d_model=21)
    return GPT(config, seed=3, init_std=0.5).eval()


@pytest.fixture(scope="module")
def table(small: GPT) -> pd.DataFrame:
    return detect_heads(small, seed=2)


def rows_of(table: pd.DataFrame, score: str) -> pd.DataFrame:
    return table[table["score"] == score].set_index(["layer", "head"])


def test_values_are_the_pattern_scores_of_repeated_tokens(small: GPT, table: pd.DataFrame) -> None:
    expected = attention_patterns(small, repeated_tokens(small, seed=2), scores=PATTERNS, seed=2)
    columns = list(expected.columns)
    # measured: 1e-7
    pd.testing.assert_frame_equal(table[columns], expected, rtol=0, atol=1e-6, check_dtype=False)
    assert table.attrs["input"] == "64 sequences of 18 random tokens, repeated"


def test_the_rival_is_the_best_other_offset_or_key(small: GPT, table: pd.DataFrame) -> None:
    batch = repeated_tokens(small, seed=2)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)]
    pattern = capture(small, batch.tokens, names).activations[names[1]][:, 2].double()
    n, block = 36, 18
    diagonals = {
        d: float(pattern.diagonal(-d, 1, 2)[:, int(d == 0) :].mean()) for d in range(n // 2 + 1)
    }
    keys = {k: float(pattern[:, max(1, k) :, k].mean()) for k in range(n // 2 + 1)}
    second = {
        d: float(np.mean([pattern[:, i, i - d].mean() for i in range(max(block, d), n)]))
        for d in range(n)
        if n - max(block, d) >= block / 2
    }
    own = {"previous_token": 1, "current_token": 0, "duplicate_token": block, "induction": 17}
    for name, d in own.items():
        profile = second if name in ("duplicate_token", "induction") else diagonals
        others = {k: v for k, v in profile.items() if k != d}
        best = max(others, key=others.__getitem__)
        row = rows_of(table, name).loc[(1, 2)]
        assert row["rival_offset"] == best
        assert row["rival"] == pytest.approx(others[best], abs=1e-6)
    del keys[0]
    row = rows_of(table, "first_token").loc[(1, 2)]
    assert row["rival_offset"] == max(keys, key=keys.__getitem__)
    assert row["rival"] == pytest.approx(max(keys.values()), abs=1e-6)


def test_the_contrast_is_the_fall_at_the_same_positions(small: GPT, table: pd.DataFrame) -> None:
    names = ["blocks.0.attn.hook_pattern"]
    means = []
    for batch in (repeated_tokens(small, seed=2), fresh_tokens(small, seed=2)):
        pattern = capture(small, batch.tokens, names).activations[names[0]][:, 1].double()
        means.append(float(np.mean([pattern[:, i, i - 17].mean() for i in range(18, 36)])))
    row = rows_of(table, "induction").loc[(0, 1)]
    assert row["contrast"] == pytest.approx(means[0] - means[1], abs=1e-6)
    assert rows_of(table, "previous_token")["contrast"].isna().all()


def test_copying_stands_beside_induction_only(small: GPT, table: pd.DataFrame) -> None:
    expected = copying(small, repeated_tokens(small, seed=2)).mean(0).numpy().ravel()
    found = rows_of(table, "induction")
    np.testing.assert_allclose(found["copying"], expected, rtol=0, atol=1e-9)
    assert (found["copying_ci_low"] < found["copying"]).all()
    assert rows_of(table, "duplicate_token")["copying"].isna().all()


def test_a_test_needs_sixty_four_sequences(small: GPT) -> None:
    fewer = detect_heads(small, n=63)
    assert fewer["p_family"].isna().all()
    assert rows_of(fewer, "induction")["contrast"].notna().all()
    assert rows_of(detect_heads(small, n=64), "induction")["p_family"].between(1e-4, 1).all()


PLANTED = ["induction", "duplicate_token", "previous_token", "first_token", "two_back", "fixed_key"]


def test_planted_heads_are_labelled_and_decoys_are_not(small: GPT) -> None:
    table = with_planted(small, PLANTED, 1.0)
    for kind, (_, part) in zip(PLANTED, table.groupby(["layer", "head"]), strict=True):
        labelled = part.loc[part["label"], "score"].tolist()
        assert labelled == ([kind] if kind in PATTERNS else [])
    induction = rows_of(table, "induction").loc[(0, 0)]
    assert induction["value"] == pytest.approx(1)
    assert induction["contrast"] > 0.5
    assert induction["p_family"] == pytest.approx(1e-4)


def test_induction_needs_copying_and_the_words_say_so(small: GPT) -> None:
    """The planted head writes whatever its random values give: its interval decides."""
    table = with_planted(small, PLANTED, 1.0)
    induction = table["score"] == "induction"
    for low, word in ((0.1, "induction"), (-0.1, "induction pattern")):
        copies = table.assign(labelled=table["labelled"])
        copies.loc[induction, "labelled"] = table["pattern_label"] & (low > 0)
        copies.attrs = table.attrs
        assert labels(copies)["label"].iloc[0] == word
    row = table[induction].iloc[0]
    assert row["labelled"] == (row["copying_ci_low"] > 0)
    assert labels(table)["label"].tolist()[1:] == [
        "duplicate token",
        "previous token",
        "first token",
        "",
        "",
    ]


def test_thresholds_can_be_changed_and_are_recorded(small: GPT) -> None:
    loose = detect_heads(small, thresholds={"label_floor": 0.0, "label_ratio": 0.0})
    assert rows_of(loose, "previous_token")["labelled"].all()
    assert loose.attrs["criteria"] == {
        "label_floor": 0.0,
        "label_ratio": 0.0,
        "content_margin": 0.05,
        "family_p": 0.05,
    }
    with pytest.raises(InputError, match=r"thresholds are label_floor.*but got floor"):
        detect_heads(small, thresholds={"floor": 0.1})


def test_own_text_has_no_contrast_and_no_rival_of_content(small: GPT) -> None:
    generator = torch.Generator().manual_seed(0)
    table = detect_heads(small, torch.randint(9, (12, 20), generator=generator))
    content = table["score"].isin(["duplicate_token", "induction"])
    assert table.loc[content, ["rival", "contrast", "p_family"]].isna().all(axis=None)
    assert not table.loc[content, "labelled"].any()
    assert table.loc[~content, "rival"].notna().all()
    assert rows_of(table, "induction")["copying"].notna().all()
    high = table.assign(ci_low=0.5)
    high.attrs = table.attrs
    assert "induction (untested)" in labels(high)["label"].iloc[0]


def test_patterns_stop_the_forward_pass(small: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("computed after the last pattern")

    monkeypatch.setattr(GPT, "logits", refuse)
    monkeypatch.setattr(small.blocks[1].mlp, "forward", refuse)
    from analyses.attention_patterns import pattern_reducers

    batch = repeated_tokens(small)
    assert len(stream_patterns(small, batch, pattern_reducers(batch))["induction"]) == 64


def test_the_head_table_of_a_model_without_a_task_has_labels(small: GPT) -> None:
    table = head_table(small, seed=2)
    detected = detect_heads(small, seed=2)
    assert table["label"].tolist() == labels(detected)["label"].tolist()
    found = table.set_index(["layer", "head"])
    induction = rows_of(detected, "induction")
    for column, source in (("induction", "value"), ("copying", "copying")):
        np.testing.assert_allclose(found[column], induction[source], rtol=0, atol=1e-6)
    assert {"entropy", "entropy_second_block", "induction_p"} <= set(table.columns)
    assert not [column for column in table if "_change_" in column]


# --- a real model


@pytest.fixture(scope="module")
def real_tables(smollm2_gpt: GPT, smollm2_lens: Any) -> dict[str, pd.DataFrame]:
    """The detection table of one real model by each engine."""
    models = {"gpt": smollm2_gpt, "lens": smollm2_lens}
    return {engine: detect_heads(model, n=64, block=8) for engine, model in models.items()}


@pytest.mark.parametrize("engine", ["gpt", "lens"])
def test_a_language_model_has_induction_and_previous_token_heads(
    real_tables: dict[str, pd.DataFrame], engine: str
) -> None:
    """18.6 and 17.3 induction, 16.0 and 11.1 previous token."""
    table = real_tables[engine]
    best = rows_of(table, "induction")["value"].idxmax()
    assert best in ((18, 6), (17, 4), (17, 3))
    for name, layer, head in (
        ("previous_token", 16, 0),
        ("previous_token", 11, 1),
        ("induction", 18, 6),
    ):
        row = rows_of(table, name).loc[(layer, head)]
        assert row["labelled"]
        assert row["ci_low"] > 3 * row["chance"], "far above chance"


def test_both_engines_find_the_same_heads(real_tables: dict[str, pd.DataFrame]) -> None:
    gpt, lens = real_tables["gpt"], real_tables["lens"]
    assert labels(gpt)["label"].tolist() == labels(lens)["label"].tolist()
    assert (labels(gpt)["label"] != "").sum() > 3, "heads were found at all"
    # measured: 7e-8
    np.testing.assert_allclose(gpt["value"], lens["value"], rtol=0, atol=1e-4)
