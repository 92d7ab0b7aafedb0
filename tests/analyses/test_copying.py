"""The direct effect of a head on the copied token against the definition."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from analyses.copying import copying, final_norm
from analyses.inputs import as_batch
from models.gpt import GPT
from models.interface import capture

ROWS = [[3, 1, 4, 3, 1, 4], [2, 7, 1, 8, 2, 8]]


def slowly(model: Any, row: list[int], layer: int, head: int) -> float:
    """Logits of the head's output alone under the frozen scale, one query at a time."""
    names = [f"blocks.{layer}.attn.hook_z", "ln_final.hook_scale"]
    kept = capture(model, [row], names).activations
    weight, centred = final_norm(model)
    effects = []
    for query, token in enumerate(row):
        earlier = [key for key in range(query) if row[key] == token]
        if earlier:
            written = kept[names[0]][0, query, head] @ model.W_O[layer, head].detach()
            written = written - written.mean() if centred else written
            logits = written / kept[names[1]][0, query] * weight @ model.W_U.detach()
            effects.append(float(logits[row[earlier[-1] + 1]] - logits.mean()))
    return float(np.mean(effects))


@pytest.mark.parametrize("normalization", ["layer", "rms"])
def test_copying_is_its_definition(make_model: Callable[..., GPT], normalization: str) -> None:
    model = make_model(normalization=normalization, n_heads=7)
    with torch.no_grad():
        model.ln_final.weight += 0.3 * torch.randn(21, generator=torch.Generator().manual_seed(0))
    found = copying(model, as_batch(model, ROWS))
    for layer, head in ((0, 3), (1, 6)):
        expected = [slowly(model, row, layer, head) for row in ROWS]
        # measured: 2e-7
        np.testing.assert_allclose(found[:, layer, head], expected, rtol=0, atol=1e-5)


def test_both_engines_agree(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    ours, theirs = (copying(m, as_batch(m, ROWS)) for m in (gpt2_twin, gpt2_bridge))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)  # measured: 3e-6


def test_a_sequence_without_a_copy_is_undefined_and_padding_is_none(model: GPT) -> None:
    found = copying(model, as_batch(model, [[0, 1, 2, 3], [5, 0, 5]]))
    assert found[0].isnan().all()
    assert torch.allclose(found[1], copying(model, as_batch(model, [[5, 0, 5]]))[0], atol=1e-5)


def test_no_logits_are_computed(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: GPT, x: Any) -> None:
        self.ln_final(x)
        raise AssertionError("logits were computed")

    monkeypatch.setattr(GPT, "logits", refuse)
    copying(model, as_batch(model, ROWS))
