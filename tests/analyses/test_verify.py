import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from analyses.verify import LOG_PROBS, check, compare, verify
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


def test_text_and_seed_choose_what_is_run(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    first, again, other = (compare(gpt2_twin, gpt2_bridge, seed=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert not first.equals(other)


def test_a_model_trained_here_has_one_engine(trained: GPT, trained_folder: Path) -> None:
    for model in (trained, trained_folder, str(trained_folder)):
        with pytest.raises(InputError, match="trained here: there is one engine"):
            verify(model)
