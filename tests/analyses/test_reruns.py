"""Shortcuts against the plain way: hooks on a whole run, one run at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analyses import reruns
from analyses.inputs import as_batch
from analyses.metrics import KL, Custom, Metric, as_metrics
from analyses.progress import listening
from analyses.reruns import (
    Edit,
    Run,
    Runner,
    Where,
    chunk_size,
    final_step,
    output_logits,
    replace,
    score_runs,
    watched,
)
from models.gpt import GPT
from models.interface import capture, hooked, shape
from models.tasks import Batch

SHAPES: dict[str, dict[str, Any]] = {
    "learned": {},
    "window": {"window": 3},
    "grouped": {"n_heads": 4, "n_key_value_heads": 2, "d_head": 5},
    "llama": {"positions": "rotary", "normalization": "rms", "mlp": "swiglu", "d_head": 6},
    "attention only": {"mlp": "none", "n_layers": 3, "tied": True, "bias": False},
    "one layer": {"n_layers": 1},
}
POINTS = (
    "hook_resid_pre",
    "attn.hook_q",
    "attn.hook_v",
    "attn.hook_pattern",
    "attn.hook_z",
    "hook_attn_out",
    "hook_resid_mid",
    "hook_mlp_out",
    "hook_resid_post",
)


def random_edit(model: Any, batch: Batch, layer: int, point: str, *, seed: int = 0) -> Edit:
    """Another value of one head, at some places; all of what has no heads."""
    name = f"blocks.{layer}.{point}"
    value = capture(model, batch.tokens, [name]).activations[name]
    generator = torch.Generator().manual_seed(seed)
    new = torch.rand(value.shape, generator=generator)
    if point == "attn.hook_pattern":
        new = (new * value.gt(0)).div((new * value.gt(0)).sum(-1, keepdim=True))

        def change(part: Tensor, where: Where) -> None:
            # queries may be the last ones only, and keys end where reading ends
            queries = new[where.sequences, 1, where.positions, : part.shape[-1]]
            part[:, 1] = queries

        return Edit(layer, point, change)
    mask = torch.rand(batch.tokens.shape, generator=generator) < 0.7
    if value.ndim == 4:
        return replace(layer, point, new[:, :, [1, 0]], heads=[1, 0], mask=mask)
    return replace(layer, point, new, mask=mask)


def runs_for(model: Any, batch: Batch) -> list[Run]:
    """No edit, one at every point of every layer, and edits in two layers."""
    points = [point for point in POINTS if f"blocks.0.{point}" in model.hook_dict]
    layers = range(shape(model).n_layers)
    runs: list[Run] = [[]]
    runs += [[random_edit(model, batch, layer, point)] for layer in layers for point in points]
    last = layers[-1]
    z = random_edit(model, batch, 0, "attn.hook_z", seed=1)
    return [*runs, [z, random_edit(model, batch, last, "hook_attn_out", seed=2)], [*runs[-1], z]]


def plainly(model: Any, batch: Batch, run: Run) -> Tensor:
    """Logits of a whole run, one hook an edit."""
    where = Where(slice(0, len(batch)), slice(0, batch.tokens.shape[1]))

    def hook_for(edit: Edit) -> Callable[..., Tensor]:
        def hook(activation: Tensor, *, hook: Any) -> Tensor:
            activation = activation.clone()
            edit.change(activation, where)
            return activation

        return hook

    with hooked(model, [(edit.name, hook_for(edit)) for edit in run]):
        logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    return logits


def judged(metrics: list[Metric], batch: Batch, logits: Tensor, clean: Tensor) -> Tensor:
    """Scores of whole logits."""
    from analyses.metrics import Rows
    from analyses.readout import Readout

    found = []
    for metric in metrics:
        read = metric.positions(batch)
        rows = Rows(*read.nonzero(as_tuple=True), batch, 1, Readout(clean[read]))
        found.append(metric.combine(metric.values(Readout(logits[read]), rows), rows)[0])
    return torch.stack(found, dim=-1)


def every_metric(model: Any, batch: Batch) -> list[Metric]:
    from analyses.metrics import Logit, LogitDifference

    return as_metrics(
        model,
        batch,
        [
            "loss",
            "token_accuracy",
            LogitDifference(3, 5),
            Logit(1),
            KL(),
            Custom(lambda logits: logits[0, -1, 2] - logits[0, 0, 1]),
        ],
    )


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
    metrics = every_metric(model, inputs)
    runs = runs_for(model, inputs)
    clean_logits = plainly(model, inputs, [])
    for some in ([0], [2], [0, 2], [3], list(range(len(metrics)))):  # what is read differs
        chosen = [metrics[i] for i in some]
        clean, scores = score_runs(model, inputs, chosen, runs)
        assert float(np.abs(scores[0] - clean).max()) < 2e-5
        for run, score in zip(runs, scores, strict=True):
            expected = judged(chosen, inputs, plainly(model, inputs, run), clean_logits)
            # measured: 8e-6
            np.testing.assert_allclose(score, expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("some", [[0, 1], [2], [5]])
def test_both_engines_give_the_same(gpt2_twin: GPT, gpt2_bridge: Any, some: list[int]) -> None:
    batch = as_batch(gpt2_twin, [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8], [1, 6, 1]])
    found = []
    for model in (gpt2_twin, gpt2_bridge):
        metrics = [every_metric(model, batch)[i] for i in some]
        runs = runs_for(gpt2_twin, batch)
        found.append(score_runs(model, batch, metrics, runs)[1])
        assert not any(getattr(p, "fwd_hooks", ()) for p in model.hook_dict.values())
    ours, theirs = found
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)  # measured: 2e-5
    clean_logits = plainly(gpt2_bridge, batch, [])
    for run, score in zip(runs, theirs, strict=True):
        expected = judged(metrics, batch, plainly(gpt2_bridge, batch, run), clean_logits)
        np.testing.assert_allclose(score, expected, rtol=0, atol=1e-4)


def test_a_bridge_that_does_more_after_its_blocks_is_read_whole(
    gpt2_twin: GPT, gpt2_bridge: Any
) -> None:
    """What a model does to its logits at the end is noticed by one clean run."""
    batch = as_batch(gpt2_bridge, [[3, 1, 4, 1, 5], [2, 7, 1]])
    metrics, run = every_metric(gpt2_bridge, batch), [replace(0, "hook_mlp_out", torch.zeros(1))]
    assert final_step(gpt2_bridge, batch.tokens) is not None
    plain, _ = score_runs(gpt2_bridge, batch, metrics, [run])
    handle = gpt2_bridge.unembed.register_forward_hook(lambda module, given, logits: 2 * logits)
    try:
        assert final_step(gpt2_bridge, batch.tokens) is None
        doubled, _ = score_runs(gpt2_bridge, batch, metrics, [run])
    finally:
        handle.remove()
    difference = [metric.name for metric in metrics].index("logit_difference")
    np.testing.assert_allclose(doubled[:, difference], 2 * plain[:, difference], atol=1e-4)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_a_watched_model_is_known(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    assert not watched(model)
    with hooked(model, [("ln_final.hook_scale", lambda x, *, hook: None)]):
        assert watched(model)
        assert chunk_size(model, 5) > 10**9
    assert not watched(model)


def test_a_watched_model_is_run_whole_so_that_its_watcher_acts_once(
    model: GPT, batch: Batch
) -> None:
    """A start from captured activations would apply an outer hook a second time."""

    def double(activation: Tensor, *, hook: Any) -> Tensor:
        return activation * 2

    run = [random_edit(model, batch, 1, "attn.hook_z")]
    metrics = as_metrics(model, batch)
    for name in ("blocks.0.attn.hook_z", "blocks.0.hook_resid_pre", "ln_final.hook_scale"):
        with hooked(model, [(name, double)]):
            _, scores = score_runs(model, batch, metrics, [run])
            logits = plainly(model, batch, run)
        expected = judged(metrics, batch, logits, logits)
        np.testing.assert_allclose(scores[0], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_the_order_stays_however_many_go_together_and_however_the_batch_is_cut(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    model = request.getfixturevalue(engine)
    batch = as_batch(model, [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8], [1, 6, 1], [5, 5], [8, 7, 3]])
    metrics, runs = (
        every_metric(model, batch),
        runs_for(request.getfixturevalue("gpt2_twin"), batch),
    )
    whole = score_runs(model, batch, metrics, runs)
    for chunk, cells in ((2, 2**24), (256, 1), (3, 6000)):
        monkeypatch.setattr(reruns, "CHUNK", chunk)
        monkeypatch.setattr(reruns, "RUNS", cells)
        for one, other in zip(whole, score_runs(model, batch, metrics, runs), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)  # measured: 4e-6
    assert score_runs(model, batch, metrics, [])[1].shape == (0, 5, 6)


def test_nothing_before_the_first_edit_is_run_again(
    make_model: Callable[..., GPT], batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither earlier blocks nor the attention of the block whose heads are replaced."""
    model = make_model()
    runner = Runner(model, batch, as_metrics(model, batch), slice(0, len(batch)))
    ran = []
    for layer, block in enumerate(model.blocks):
        for part in (block.attn, block.mlp):
            name = f"{layer} {type(part).__name__}"
            part.register_forward_hook(lambda *_, name=name: ran.append(name))
        attend = block.attn.queries_keys_values
        monkeypatch.setattr(
            block.attn,
            "queries_keys_values",
            lambda *args, layer=layer, attend=attend, **rest: (
                ran.append(f"{layer} QKV"),
                attend(*args, **rest),
            )[1],
        )
    value = torch.zeros(1)
    runner.scores([[replace(1, "attn.hook_z", value, heads=[0])]])
    assert ran == ["1 FeedForward"]
    ran.clear()
    runner.scores([[replace(0, "hook_mlp_out", value)]])
    assert ran == ["0 FeedForward", "1 QKV", "1 Attention", "1 FeedForward"]
    ran.clear()
    runner.scores([[replace(1, "attn.hook_q", value, heads=[0])]])
    assert ran == ["1 QKV", "1 Attention", "1 FeedForward"]


def test_only_what_is_read_is_unembedded(
    make_model: Callable[..., GPT], batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyses.metrics import LogitDifference

    model = make_model()
    sizes = []
    norm = model.ln_final.forward
    monkeypatch.setattr(model.ln_final, "forward", lambda x: (sizes.append(x.shape), norm(x))[1])
    metrics = as_metrics(model, batch, LogitDifference(1, 2))
    edit = replace(0, "attn.hook_z", torch.zeros(1), heads=[0])
    score_runs(model, batch, metrics, [[edit], [edit]])
    assert sizes == [(1, 13, 21), (1, 26, 21)], "one row a sequence and run"


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


def test_progress_is_told_to_whoever_listens(model: GPT, batch: Batch) -> None:
    heard: list[tuple[str, int, int]] = []
    edit = replace(0, "attn.hook_z", torch.zeros(1), heads=[0])
    with listening(lambda *told: heard.append(told)):
        score_runs(model, batch, as_metrics(model, batch), [[edit]] * 3, what="trying")
    assert heard[-1] == ("trying", 3, 3)
    n = len(heard)
    score_runs(model, batch, as_metrics(model, batch), [[edit]])
    assert len(heard) == n


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interruption_leaves_no_hook_and_the_mode(
    request: pytest.FixtureRequest, engine: str, error: type[BaseException]
) -> None:
    model = request.getfixturevalue(engine)
    batch = as_batch(model, [[3, 1, 4, 1, 5, 9]])

    def fail(part: Tensor, where: Where) -> None:
        raise error

    before = capture(model, batch.tokens, logits=True).logits
    with pytest.raises(error):
        score_runs(model, batch, as_metrics(model, batch), [[Edit(1, "attn.hook_z", fail)]])
    after = capture(model, batch.tokens, logits=True).logits
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_without_any_head_only_the_last_token_counts(
    request: pytest.FixtureRequest, engine: str
) -> None:
    """Ablating every head everywhere must remove all context."""
    model = request.getfixturevalue(engine)
    batch = as_batch(model, [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 9]])
    nothing = [replace(layer, "attn.hook_z", torch.zeros(1)) for layer in range(2)]
    logits = Custom(lambda logits: logits[0, -1, 4] - logits[0, -1, 7])
    clean, scores = score_runs(model, batch, as_metrics(model, batch, logits), [nothing])
    assert abs(scores[0, 0, 0] - scores[0, 1, 0]) <= 1e-6
    assert abs(clean[0, 0] - clean[1, 0]) > 0.1
