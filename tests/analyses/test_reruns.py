"""Shortcuts against the plain way: hooks on a whole run, one replacement at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from analyses import reruns
from analyses.inputs import as_batch
from analyses.metrics import per_sequence
from analyses.reruns import Edits, Runner, chunk_size, output_logits
from models.gpt import GPT
from models.interface import capture, hooked
from models.tasks import Batch, common_rows

SHAPES: dict[str, dict[str, Any]] = {
    "learned": {},
    "window": {"window": 3},
    "grouped": {"n_heads": 4, "n_key_value_heads": 2, "d_head": 5},
    "llama": {"positions": "rotary", "normalization": "rms", "mlp": "swiglu", "d_head": 6},
    "attention only": {"mlp": "none", "n_layers": 3, "tied": True, "bias": False},
    "one layer": {"n_layers": 1},
}


def edits_for(model: Any, batch: Batch, *, seed: int = 0) -> list[Edits]:
    """One head, several heads of one layer, heads of two layers, a constant."""
    z = capture(model, batch.tokens, ["blocks.0.attn.hook_z"]).activations["blocks.0.attn.hook_z"]
    generator = torch.Generator().manual_seed(seed)

    def new(heads: list[int], *, batch: int | None = None, pos: int | None = None) -> Any:
        size = (batch or z.shape[0], pos or z.shape[1], len(heads), z.shape[-1])
        return heads, torch.randn(size, generator=generator)

    last = len(model.blocks) - 1
    edits: list[Edits] = [{0: new([1])}, {0: new([2, 0])}, {0: new([2], batch=1, pos=1)}]
    edits += [{0: new([0, 1]), last: new([1], batch=1)}] if last else []
    return [*edits, {last: new([0, 2])}, {last: ([1], torch.zeros(1, 1, 1, 1))}]


def plainly(model: Any, batch: Batch, edit: Edits) -> Tensor:
    """The whole model, one hook a head."""

    def hook_for(head: int, value: Tensor) -> Callable[..., Tensor]:
        def hook(z: Tensor, *, hook: Any) -> Tensor:
            z = z.clone()
            z[:, :, head] = value
            return z

        return hook

    hooks = [
        (f"blocks.{layer}.attn.hook_z", hook_for(head, values[:, :, i]))
        for layer, (heads, values) in edit.items()
        for i, head in enumerate(heads)
    ]
    with hooked(model, hooks):
        logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    return logits


def read(logits: Tensor, batch: Batch) -> Tensor:
    rows = common_rows(batch.outputs)
    return logits if rows is None else logits[:, rows]


def gap(left: Tensor, right: Tensor, batch: Batch) -> float:
    """Largest difference at real positions."""
    assert left.shape == right.shape
    real = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    rows = common_rows(batch.outputs)
    real = real if rows is None else real[:, rows]
    return float((left - right)[real].abs().max())


def by_first_layer(edits: list[Edits]) -> list[list[Edits]]:
    return [[e for e in edits if min(e) == layer] for layer in sorted({min(e) for e in edits})]


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("ragged", [False, True])
def test_runs_that_start_late_equal_whole_runs(
    make_model: Callable[..., GPT],
    batch: Batch,
    ragged_batch: Batch,
    changes: dict[str, Any],
    ragged: bool,
) -> None:
    model, inputs = make_model(std=0.3, **changes), ragged_batch if ragged else batch
    runner = Runner(model, inputs)
    assert (common_rows(inputs.outputs) is None) == ragged
    for some in by_first_layer(edits_for(model, inputs)):
        for edit, logits in zip(some, runner.logits(some), strict=True):
            # measured: 3e-6
            assert gap(logits, read(plainly(model, inputs, edit), inputs), inputs) < 2e-5


def test_a_bridge_runs_whole_and_gives_what_our_own_model_gives(
    gpt2_twin: GPT, gpt2_bridge: Any
) -> None:
    batch = as_batch(gpt2_twin, [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8], [1, 6, 1]])
    assert not Runner(gpt2_bridge, batch).clean
    for some in by_first_layer(edits_for(gpt2_twin, batch)):
        ours = Runner(gpt2_twin, batch).logits(some).log_softmax(-1)
        theirs = Runner(gpt2_bridge, batch).logits(some).log_softmax(-1)
        for edit, mine, yours in zip(some, ours, theirs, strict=True):
            plain = read(plainly(gpt2_bridge, batch, edit), batch).log_softmax(-1)
            # measured: 1.3e-5 at most
            assert gap(yours, plain, batch) < 1e-4
            assert gap(mine, yours, batch) < 1e-4


def test_a_watched_model_is_run_whole_so_that_its_watcher_acts_once(
    model: GPT, batch: Batch
) -> None:
    """A start from captured activations would apply an outer hook a second time."""

    def double(activation: Tensor, *, hook: Any) -> Tensor:
        return activation * 2

    (edit,) = edits_for(model, batch)[:1]
    for name in ("blocks.0.attn.hook_z", "blocks.0.hook_resid_pre", "ln_final.hook_scale"):
        with hooked(model, [(name, double)]):
            found = Runner(model, batch).logits([edit])[0]
            assert gap(found, read(plainly(model, batch, edit), batch), batch) < 2e-5


def test_no_edit_is_the_clean_model(model: GPT, batch: Batch, ragged_batch: Batch) -> None:
    for inputs in (batch, ragged_batch):
        clean = capture(model, inputs.tokens, logits=True).logits
        assert clean is not None
        assert gap(Runner(model, inputs).logits([{}])[0], read(clean, inputs), inputs) < 2e-5


def test_replacing_by_what_was_there_changes_nothing(model: GPT, batch: Batch) -> None:
    runner = Runner(model, batch)
    clean = runner.logits([{}])[0]
    for layer in (0, 1):
        name = f"blocks.{layer}.attn.hook_z"
        z = capture(model, batch.tokens, [name]).activations[name]
        same = runner.logits([{layer: ([0, 2], z[:, :, [0, 2]])}])[0]
        assert gap(same, clean, batch) < 2e-5  # measured: 4e-6


def test_scores_keep_the_order_of_the_edits_however_many_run_together(
    model: GPT, batch: Batch
) -> None:
    edits: list[Edits] = [{}, *edits_for(model, batch)]
    alone = torch.stack([Runner(model, batch).scores([edit])[0] for edit in edits])
    for together in (1, 2, 17):
        found = Runner(model, batch, together=together).scores(iter(edits))
        # the same arithmetic in larger products; measured: 1.4e-6
        assert float((found - alone).abs().max()) < 1e-5
    assert Runner(model, batch).scores([]).shape == (0, 13, 3)
    expected = per_sequence(read(plainly(model, batch, edits[1]), batch), _read_batch(batch))
    assert float((alone[1] - expected).abs().max()) < 1e-5


def _read_batch(batch: Batch) -> Batch:
    rows = common_rows(batch.outputs)
    assert rows is not None
    return Batch(
        batch.tokens[:, rows],
        batch.lengths,
        batch.next_tokens[:, rows],
        batch.outputs[:, rows],
        batch.target_keys[:, rows],
    )


def test_an_edit_reaches_its_own_copy_only(model: GPT, batch: Batch) -> None:
    edits = edits_for(model, batch)[:2]
    runner = Runner(model, batch)
    first, second = runner.logits(edits)
    assert gap(first, second, batch) > 0.1
    assert gap(runner.logits(edits[1:])[0], second, batch) < 2e-5
    assert gap(runner.logits([{}])[0], first, batch) > 0.1, "nor does it stay"


def test_nothing_before_the_first_edit_is_run_again(
    make_model: Callable[..., GPT], batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither earlier blocks nor the attention of the block whose heads are replaced."""
    model = make_model()
    runner = Runner(model, batch)
    ran = []
    for layer, block in enumerate(model.blocks):
        for part in (block.attn, block.mlp):
            name = f"{layer} {type(part).__name__}"
            part.register_forward_hook(lambda *_, name=name: ran.append(name))
        attend = block.attn.queries_keys_values
        monkeypatch.setattr(
            block.attn,
            "queries_keys_values",
            lambda *args, layer=layer, attend=attend: (ran.append(f"{layer} QKV"), attend(*args))[
                1
            ],
        )
    value = torch.zeros(1, 1, 1, 1)
    runner.logits([{1: ([0], value)}])
    assert ran == ["1 FeedForward"]
    ran.clear()
    runner.logits([{0: ([0], value)}])
    assert ran == ["0 FeedForward", "1 QKV", "1 FeedForward"]


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_output_logits_are_rows_of_the_logits(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]])
    logits = capture(model, tokens, logits=True).logits
    assert logits is not None
    for rows in (None, slice(2, 5), slice(0, 7)):
        found = output_logits(model, tokens, rows).log_softmax(-1)
        expected = logits[:, rows or slice(None)].log_softmax(-1)
        assert float((found - expected).abs().max()) < 1e-4  # measured: 4e-6
        assert not found.requires_grad


def test_wide_models_go_through_in_smaller_chunks(
    make_model: Callable[..., GPT], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    assert chunk_size(model, 11) == reruns.CHUNK
    monkeypatch.setattr(reruns, "CELLS", 11 * 84 * 5)  # 84 = 2 layers of 21, twice
    assert chunk_size(model, 11) == 5
    monkeypatch.setattr(reruns, "CELLS", 1)
    assert chunk_size(model, 11) == 1


def test_without_any_head_only_the_last_token_counts(make_model: Callable[..., GPT]) -> None:
    """Ablating every head everywhere must remove all context."""
    model = make_model(n_layers=3)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(20, (2, 7), generator=generator)
    tokens[1, -1] = tokens[0, -1]
    nothing: Edits = {layer: ([0, 1, 2], torch.zeros(1, 1, 1, 1)) for layer in range(3)}
    batch = as_batch(model, torch.cat([tokens, tokens[:, :1]], dim=1))
    last = Runner(model, batch).logits([nothing])[0, :, -1]
    assert torch.equal(last[0], last[1])
    clean = Runner(model, batch).logits([{}])[0, :, -1]
    assert float((clean[0] - clean[1]).abs().max()) > 0.1
