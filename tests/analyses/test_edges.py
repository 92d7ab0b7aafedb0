"""Cut edges against hooks on whole runs, zero ablation, and the other engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from analyses.ablation import ablate
from analyses.edges import cut_edges, cut_edges_every_head
from analyses.inputs import as_batch, real_positions
from models.attention import visible_keys
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture, hooked, shape
from models.load import load
from models.tasks import Batch, sequence_loss

SHAPES: dict[str, dict[str, Any]] = {
    "learned": {},
    "window": {"window": 3},
    "grouped": {"n_heads": 4, "n_key_value_heads": 2, "d_head": 5},
    "llama": {"positions": "rotary", "normalization": "rms", "mlp": "swiglu", "d_head": 6},
}
NUMBERS = ["clean", "ablated", "change", "ci_low", "ci_high"]


def losses(model: Any, batch: Batch, heads: list[tuple[int, int]], edges: Any, norm: bool) -> Any:
    """Loss of each sequence, the pattern edited cell by cell in a whole run."""

    def cutting(head: int) -> Callable[..., Tensor]:
        def hook(pattern: Tensor, *, hook: Any) -> Tensor:
            pattern = pattern.clone()
            for s, query, key in edges:
                pattern[s, head, query, key] = 0
            if norm:
                for s, query in {(s, query) for s, query, _ in edges}:
                    pattern[s, head, query] /= pattern[s, head, query].sum()
            return pattern

        return hook

    hooks = [(f"blocks.{layer}.attn.hook_pattern", cutting(head)) for layer, head in heads]
    with hooked(model, hooks):
        logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    return sequence_loss(logits, batch).double()


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("name", ["batch", "ragged_batch"])
def test_cut_edges_equal_hooks_on_a_whole_run(
    request: pytest.FixtureRequest,
    make_model: Callable[..., GPT],
    changes: dict[str, Any],
    renormalize: bool,
    name: str,
) -> None:
    model, batch = make_model(std=0.3, **changes), request.getfixturevalue(name)
    heads = [(0, 1), (1, 2), (1, 0)]
    pairs = [(-2, -3), (-2, -2), (3, 2)]
    edges = [
        (s, query % length, key % length)
        for s, length in enumerate(batch.lengths.tolist())
        for query, key in pairs
    ]
    table = cut_edges(
        model, batch, edges=pairs, heads=heads, renormalize=renormalize, metric="loss"
    )
    clean = losses(model, batch, [], edges, renormalize)
    new = losses(model, batch, heads, edges, renormalize)
    # measured: 3e-7
    assert table["clean"].item() == pytest.approx(float(clean.mean()), abs=1e-5)
    assert table["ablated"].item() == pytest.approx(float(new.mean()), abs=1e-5)
    assert table["change"].item() == pytest.approx(float((new - clean).mean()), abs=1e-5)
    assert table["n"].item() == len(batch)
    assert (new - clean).abs().max() > 0.01, "the case must show an effect"


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_cutting_every_edge_without_renormalising_is_zero_ablation(
    request: pytest.FixtureRequest, engine: str
) -> None:
    model = request.getfixturevalue(engine)
    batch = as_batch(model, [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1], [1, 6, 1, 8, 0]])
    every = torch.ones(3, 7, 7, dtype=torch.bool).tril()
    heads = ["0.1", "1.2"]
    cut = cut_edges(model, batch, edges=every, heads=heads, renormalize=False)
    gone = ablate(model, batch, heads=heads, ablation="zero")
    for column in ("clean", "ablated", "change"):
        np.testing.assert_allclose(cut[column], gone[column], rtol=0, atol=1e-5)  # measured: 3e-8


def test_edges_of_all_heads_cut_a_position_off(model: GPT) -> None:
    """Without edges from a token to later ones, later predictions do not depend on it."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 1, 4, 1, 5, 9]])
    clean = cut_edges(model, ids, edges=[(0, 0)], renormalize=False, metric=_last)
    cut = [
        cut_edges(model, ids[i : i + 1], edges=[(q, 0) for q in range(1, 6)], metric=_last)
        for i in (0, 1)
    ]
    assert abs(cut[0]["ablated"].item() - cut[1]["ablated"].item()) < 1e-5
    assert abs(cut[0]["clean"].item() - cut[1]["clean"].item()) > 0.01
    assert clean["n"].item() == 2


def _last(logits: Tensor) -> Tensor:
    return logits[0, -1].log_softmax(-1)[7]


def test_a_bridge_gives_the_numbers_of_our_own_model(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    ids = [torch.randint(22, (n,), generator=generator).tolist() for n in (5, 7, 7, 3, 11) * 3]
    for renormalize in (True, False):
        for function in (cut_edges, cut_edges_every_head):
            ours, theirs = (
                function(m, ids, edges=[(-2, 0), (2, 1)], renormalize=renormalize)
                for m in (gpt2_twin, gpt2_bridge)
            )
            # measured: 7e-7
            np.testing.assert_allclose(ours[NUMBERS], theirs[NUMBERS], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("kind", "window"), [("Llama", None), ("Mistral", 5)])
def test_rotary_grouped_and_windowed_heads_on_a_bridge(
    llama: Callable[..., Any], llama_to_ours: Callable[..., GPT], kind: str, window: int | None
) -> None:
    theirs = llama(kind) if window is None else llama(kind, sliding_window=window)
    ids = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7, 1, 8], [1, 6, 1, 8, 0, 3, 3]]
    ours, lens = (
        cut_edges_every_head(model, ids, edges=[(-2, -3), (2, 2)], metric="loss")
        for model in (llama_to_ours(theirs, window), load(theirs))
    )
    for column in ("attention", "change"):
        # measured: 7e-7
        np.testing.assert_allclose(ours[column], lens[column], rtol=0, atol=1e-4)
    assert ours["change"].abs().max() > 1e-3
    assert shape(llama_to_ours(theirs, window)).window == window


def test_every_head_alone_is_its_cut(model: GPT, ragged_batch: Batch) -> None:
    edges = [[(-1, 0), (-2, 1)] if i % 3 else [] for i in range(len(ragged_batch))]
    every = cut_edges_every_head(model, ragged_batch, edges=edges)
    assert every[["layer", "head"]].drop_duplicates().to_numpy().tolist() == [
        list(head) for head in shape(model).heads
    ]
    prompts = cut_edges_every_head(model, ragged_batch, edges=edges, per_prompt=True)
    for (layer, head), rows in every.groupby(["layer", "head"]):
        one = cut_edges(model, ragged_batch, edges=edges, heads=[(layer, head)])
        # intervals rest on ranks of nearly equal means; measured: 2e-5 there
        np.testing.assert_allclose(rows[NUMBERS], one[NUMBERS], rtol=0, atol=1e-4)
        assert (rows["n"] == sum(map(bool, edges))).all()
        mine = prompts[(prompts["layer"] == layer) & (prompts["head"] == head)]
        means = mine.groupby("metric", sort=False)["change"].mean()
        assert means.tolist() == pytest.approx(rows["change"].tolist(), abs=1e-12)
        lost = mine.groupby("prompt")["change"].first().notna()
        assert lost.tolist() == list(map(bool, edges))
        name = f"blocks.{layer}.attn.hook_pattern"
        pattern = capture(model, ragged_batch.tokens, [name]).activations[name][:, head]
        mass = [
            (pattern[s, n - 1, 0] + pattern[s, n - 2, 1]).item() / 2
            for s, n in enumerate(ragged_batch.lengths.tolist())
            if edges[s]
        ]
        assert rows["attention"].iloc[0] == pytest.approx(np.mean(mass), abs=1e-6)


def test_a_batch_is_its_sequences_one_by_one_whatever_the_padding(
    model: GPT, ragged_batch: Batch, widen: Callable[[Batch, int], Batch]
) -> None:
    columns = ["attention", "clean", "ablated", "change"]
    edges = [(-2, -3), (1, 0)]
    prompts = cut_edges_every_head(model, ragged_batch, edges=edges, metric="loss", per_prompt=True)
    wide = cut_edges_every_head(
        model, widen(ragged_batch, 2), edges=edges, metric="loss", per_prompt=True
    )
    np.testing.assert_allclose(prompts[columns], wide[columns], rtol=0, atol=1e-5)
    for i in range(len(ragged_batch)):
        alone = cut_edges_every_head(model, ragged_batch[i : i + 1], edges=edges, metric="loss")
        rows = prompts[prompts["prompt"] == i]
        # measured: 5e-6
        np.testing.assert_allclose(rows[columns], alone[columns], rtol=0, atol=1e-5)


def test_pairs_lists_and_masks_name_the_same_edges(model: GPT, batch: Batch) -> None:
    n = batch.tokens.shape[1]
    mask = torch.zeros(len(batch), n, n, dtype=torch.bool)
    mask[:, n - 1, 3] = mask[:, 6, 2] = True
    ways: list[Any] = [
        [(-1, 3), (6, 2)],
        [[(-1, 3), (6, 2)]] * len(batch),
        torch.tensor([(-1, 3), (6, 2)]),
        mask,
    ]
    tables = [cut_edges(model, batch, edges=edges, metric="loss") for edges in ways]
    assert all(table.equals(tables[0]) for table in tables)


def test_a_row_whose_rest_is_next_to_nothing_is_still_renormalised(
    make_model: Callable[..., GPT], batch: Batch
) -> None:
    """A head so sharp that its other keys' shares are 0 in float32."""
    model = make_model(std=6.0)
    name = "blocks.0.attn.hook_pattern"
    pattern = capture(model, batch.tokens, [name]).activations[name]
    best = pattern[:, :, 9].argmax(-1)
    spare = 1 - pattern[:, :, 9].gather(-1, best[..., None])[..., 0]
    s, head = (spare == 0).nonzero()[0].tolist()
    table = cut_edges(
        model,
        batch[s : s + 1],
        edges=[(9, int(best[s, head]))],
        heads=[(0, head)],
        metric="loss",
    )
    assert np.isfinite(table["ablated"].item())


def test_edges_that_cannot_be_cut_are_refused(
    make_model: Callable[..., GPT], model: GPT, ragged_batch: Batch, unchecked: None
) -> None:
    ids = [[3, 1, 4], [1, 5]]
    edges: list[tuple[Any, str]] = [
        ([(1, 2)], "a position of sequence 1 must be 0..1"),
        ([[(1, 2)], []], "query 1 of sequence 0 does not see key 2"),
        ([(0, 0)], "must keep a key to look at, but query 0 of sequence 0 loses all"),
        ([[], [(1, 0), (1, 1)]], "query 1 of sequence 1 loses all"),
        ([], "at least one edge"),
        ([[], []], "at least one edge"),
        ([[(1, 0)]], "for each of 2 sequences, but got 1"),
        ([(1, 0, 2)], r"an edge is \(query, key\), but got \(1, 0, 2\)"),
        ((3, 1), r"list of \(query, key\), as in \[\(3, 1\)\], not \[3, 1\]"),
        (None, r"list of \(query, key\), as in \[\(3, 1\)\], not None"),
        ([(1.7, 1)], "a position must be a whole number, but got 1.7"),
        (torch.ones(1, 2), "a position must be a whole number, but got 1.0"),
        (torch.ones(2, 3, 2, dtype=torch.bool), r"must be \[2, 3, 3\], but got \[2, 3, 2\]"),
        (torch.ones(2, 3, 3, dtype=torch.bool), "query 0 of sequence 0 does not see key 1"),
    ]
    for bad, message in edges:
        with pytest.raises(InputError, match=message):
            cut_edges(model, ids, edges=bad)
    narrow = make_model(window=3)
    with pytest.raises(InputError, match=r"does not see key 1 \(its window is 3 keys\)"):
        cut_edges(narrow, [[3, 1, 4, 1, 5]], edges=[(4, 1)])
    with pytest.raises(InputError, match="query 4 of sequence 0 loses all"):
        cut_edges(narrow, [[3, 1, 4, 1, 5]], edges=[(4, 2), (4, 3), (4, 4)])
    cut_edges(model, ids, edges=[(0, 0)], renormalize=False)
    mask = np.zeros((2, 3, 3), dtype=bool)
    mask[:, 1, 0] = True
    by_mask = cut_edges(model, ids, edges=mask)  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(by_mask, cut_edges(model, ids, edges=[(1, 0)]))
    seen = visible_keys(11, 11) & real_positions(ragged_batch)[..., None]
    cut_edges(model, ragged_batch, edges=seen, renormalize=False, metric="loss")
