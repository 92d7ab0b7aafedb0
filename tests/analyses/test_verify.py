import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from analyses.verify import LOG_PROBS, check, compare, summary, verify
from models.errors import InputError
from models.gpt import GPT


def test_two_engines_agree_on_a_folder(gpt2: Any, tmp_path: Path) -> None:
    gpt2.save_pretrained(tmp_path)
    table = verify(str(tmp_path))
    assert table["point"].iloc[-1] == LOG_PROBS
    assert {"hook_embed", "blocks.1.attn.hook_attn_scores"} <= set(table["point"])
    assert check(table) is None
    assert float(table["difference"].max()) < 1e-4  # measured: 1.2e-6
    assert (table["largest"] > 0.1).all()
    pattern = table.set_index("point").loc["blocks.1.attn.hook_pattern", "largest"]
    assert float(pattern) == 1.0, "the first row looks at the only key it sees"


def test_a_model_compared_with_itself_differs_by_nothing(gpt2_twin: GPT) -> None:
    assert (compare(gpt2_twin, gpt2_twin)["difference"] == 0).all()


def test_a_changed_weight_is_found_where_it_acts(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    changed = copy.deepcopy(gpt2_twin)
    with torch.no_grad():
        changed.blocks[1].attn.qkv.weight[0, 0] += 1
    table = compare(changed, gpt2_bridge, [[3, 1, 4, 1, 5]]).set_index("point")["difference"]
    assert float(table["blocks.1.hook_resid_pre"]) < 1e-4
    assert float(table["blocks.1.attn.hook_q"]) > 0.01
    text = check(table.reset_index())
    assert text is not None
    assert text.startswith("the engines disagree: log-probabilities differ by")


def test_the_summary_is_one_row_per_kind_of_point(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    table = compare(gpt2_twin, gpt2_bridge)
    short = summary(table)
    assert short["point"].is_unique
    assert short["point"].tolist()[:2] == ["hook_embed", "hook_pos_embed"]
    assert short["point"].tolist()[-1] == LOG_PROBS
    assert short["points"].sum() == len(table)
    assert short["difference"].max() == table["difference"].max()
    row = short.set_index("point").loc["blocks.*.attn.hook_pattern"]
    whole = table.set_index("point").loc[f"blocks.{int(row['layer'])}.attn.hook_pattern"]
    assert row["points"] == 2
    assert row["difference"] == whole["difference"]
    assert row["largest"] == whole["largest"]


def test_the_summary_says_in_which_layer_and_hides_no_nan() -> None:
    rows = [
        ("hook_embed", 0.0, 1.0),
        ("blocks.0.mlp.hook_pre", 2.0, 3.0),
        ("blocks.0.attn.hook_q", 1.0, 5.0),
        ("blocks.10.mlp.hook_pre", float("nan"), 7.0),
        ("blocks.10.attn.hook_q", 1.5, 9.0),
        (LOG_PROBS, 0.5, 4.0),
    ]
    expected = pd.DataFrame(
        [
            ("hook_embed", 0.0, pd.NA, 1.0, 1),
            ("blocks.*.mlp.hook_pre", float("nan"), 10, 7.0, 2),
            ("blocks.*.attn.hook_q", 1.5, 10, 9.0, 2),
            (LOG_PROBS, 0.5, pd.NA, 4.0, 1),
        ],
        columns=["point", "difference", "layer", "largest", "points"],
    ).astype({"layer": "Int64"})
    found = summary(pd.DataFrame(rows, columns=["point", "difference", "largest"]))
    pd.testing.assert_frame_equal(found, expected)


def test_text_and_seed_choose_what_is_run(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    first, again, other = (compare(gpt2_twin, gpt2_bridge, seed=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert not first.equals(other)


def test_a_model_trained_here_has_one_engine(trained: GPT, trained_folder: Path) -> None:
    for model in (trained, trained_folder, str(trained_folder)):
        with pytest.raises(InputError, match="trained here: there is one engine"):
            verify(model)
