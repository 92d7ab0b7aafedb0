"""Pattern substitution against hooks on whole runs, a float64 formula, and the other engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from analyses.attention_patterns import PATTERNS, Targets, attention_patterns
from analyses.inputs import as_batch, real_positions, reference_batch
from analyses.substitution import explained_by_pattern, substitute_pattern
from models.attention import visible_keys
from models.errors import InputError, UnknownNameError
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
NUMBERS = ["clean", "substituted", "change", "ci_low", "ci_high", "uniform_change"]


def pattern_of(model: Any, batch: Batch, layer: int) -> Tensor:
    name = f"blocks.{layer}.attn.hook_pattern"
    return capture(model, batch.tokens, [name]).activations[name]


def losses(
    model: Any, batch: Batch, rows: dict[tuple[int, int], Tensor], queries: Tensor
) -> Tensor:
    """Loss of each sequence with some heads' rows replaced, by hooks on a whole run."""

    def putting(head: int, new: Tensor) -> Callable[..., Tensor]:
        def hook(pattern: Tensor, *, hook: Any) -> Tensor:
            pattern = pattern.clone()
            pattern[:, head] = torch.where(queries[..., None], new.float(), pattern[:, head])
            return pattern

        return hook

    hooks = [
        (f"blocks.{layer}.attn.hook_pattern", putting(head, new))
        for (layer, head), new in rows.items()
    ]
    with hooked(model, hooks):
        logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    return sequence_loss(logits, batch).double()


def uniform(model: Any, n: int) -> Tensor:
    visible = visible_keys(n, n, window=shape(model).window).double()
    return (visible / visible.sum(-1, keepdim=True))[None]


def rows_and_queries(
    model: Any, batch: Batch, pattern: str, heads: list[tuple[int, int]]
) -> tuple[dict[tuple[int, int], Tensor], Tensor]:
    """The pattern as `EVIDENCE` defines it, written out."""
    n = batch.tokens.shape[1]
    real = real_positions(batch)
    if pattern == "uniform":
        return dict.fromkeys(heads, uniform(model, n)), real
    if pattern == "ideal":
        keys = batch.target_keys
        near = keys > torch.arange(n) - (shape(model).window or n)
        return dict.fromkeys(heads, F.one_hot(keys.clamp_min(0), n)), (keys >= 0) & near
    if pattern == "previous_token":
        keys = (torch.arange(n) - 1).expand_as(batch.tokens)
        return dict.fromkeys(heads, F.one_hot(keys.clamp_min(0), n)), (keys >= 0) & real
    others = reference_batch(model, batch, seed=4)
    return {h: pattern_of(model, others, h[0])[:, h[1]].mean(0, keepdim=True) for h in heads}, real


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("pattern", ["ideal", "previous_token", "mean", "uniform"])
@pytest.mark.parametrize("name", ["batch", "ragged_batch"])
def test_substitution_equals_hooks_on_a_whole_run(
    request: pytest.FixtureRequest,
    make_model: Callable[..., GPT],
    changes: dict[str, Any],
    pattern: str,
    name: str,
) -> None:
    model, batch = make_model(std=0.3, **changes), request.getfixturevalue(name)
    if name == "ragged_batch" and pattern == "mean":
        with pytest.raises(InputError, match=r"one length, but lengths are 5\.\.11"):
            substitute_pattern(model, batch, heads=["0.1"], pattern=pattern)
        return
    heads = [(0, 1), (1, 2), (1, 0)]
    table = substitute_pattern(model, batch, heads=heads, pattern=pattern, metric="loss", seed=4)
    rows, queries = rows_and_queries(model, batch, pattern, heads)
    flat = dict.fromkeys(heads, uniform(model, batch.tokens.shape[1]))
    touched = queries.any(1)
    clean = losses(model, batch, {}, queries)[touched]
    new, even = (losses(model, batch, some, queries)[touched] for some in (rows, flat))
    (row,) = table.to_dict("records")
    # measured: 9e-7
    assert row["clean"] == pytest.approx(float(clean.mean()), abs=1e-5)
    assert row["substituted"] == pytest.approx(float(new.mean()), abs=1e-5)
    assert row["change"] == pytest.approx(float((new - clean).mean()), abs=1e-5)
    assert row["uniform_change"] == pytest.approx(float((even - clean).mean()), abs=1e-5)
    assert row["n"] == int(touched.sum())
    assert table.attrs["queries"] == int(queries.sum())
    assert (new - clean).abs().max() > 0.01, "the case must show an effect"


def test_uniform_substitution_equals_a_float64_recomputation(
    gpt2: Any, gpt2_twin: GPT, gpt2_bridge: Any
) -> None:
    ids = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]]
    x, flat = _forward64(gpt2, ids[0], {(0, 2), (1, 1)}), _forward64(gpt2, ids[0], set())
    for model in (gpt2_twin, gpt2_bridge):
        table = substitute_pattern(
            model, ids, heads=["0.2", "1.1"], pattern="uniform", metric="loss"
        )
        # measured: 1e-7
        assert table["clean"].item() == pytest.approx(flat, abs=1e-5)
        assert table["substituted"].item() == pytest.approx(x, abs=1e-5)
        assert abs(x - flat) > 0.01


def _forward64(gpt2: Any, ids: list[int], even: set[tuple[int, int]]) -> float:
    """Loss of a GPT-2, heads in ``even`` attending uniformly, from the weights in float64."""
    p = {name: value.detach().double() for name, value in gpt2.transformer.named_parameters()}
    n, n_heads = len(ids), gpt2.config.n_head
    x = p["wte.weight"][ids] + p["wpe.weight"][:n]

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + gpt2.config.layer_norm_epsilon).sqrt()
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    for layer in range(gpt2.config.n_layer):
        block = f"h.{layer}"
        q, k, v = linear(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn").chunk(3, dim=-1)
        mixed = []
        for head in range(n_heads):
            a, b, c = (t.chunk(n_heads, dim=-1)[head] for t in (q, k, v))
            rows = []
            for i in range(n):
                s = a[i] @ b[: i + 1].T / a.shape[-1] ** 0.5
                w = torch.full_like(s, 1 / (i + 1)) if (layer, head) in even else s.softmax(0)
                rows.append(w @ c[: i + 1])
            mixed.append(torch.stack(rows))
        x = x + linear(torch.cat(mixed, dim=-1), f"{block}.attn.c_proj")
        h = linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        h = 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))
        x = x + linear(h, f"{block}.mlp.c_proj")
    logits = norm(x, "ln_f") @ p["wte.weight"].T
    return float(F.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_a_heads_own_pattern_changes_nothing(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    batch = as_batch(model, [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1], [1, 6, 1, 8, 0]])
    for layer, head in shape(model).heads:
        own = pattern_of(model, batch, layer)[:, head].tril()

        def as_it_is(batch: Batch, own: Tensor = own) -> Tensor:
            return own

        table = substitute_pattern(
            model, batch, heads=[(layer, head)], pattern=as_it_is, metric="loss"
        )
        assert table["change"].item() == pytest.approx(0, abs=1e-5)  # measured: 2e-7


def test_a_bridge_gives_the_numbers_of_our_own_model(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    ids = [torch.randint(22, (n,), generator=generator).tolist() for n in (5, 7, 7, 3, 11) * 3]
    same = torch.randint(22, (13, 7), generator=generator)
    reference = torch.randint(22, (29, 7), generator=generator)
    cases: list[tuple[Any, str, Any]] = [
        (ids, "uniform", None),
        (ids, "previous_token", None),
        (ids, "induction", None),
        (same, "mean", reference),
    ]
    for tokens, pattern, given in cases:
        ours, theirs = (
            substitute_pattern(m, tokens, heads=["0.1", "1.2"], pattern=pattern, reference=given)
            for m in (gpt2_twin, gpt2_bridge)
        )
        # measured: 9e-7
        np.testing.assert_allclose(ours[NUMBERS], theirs[NUMBERS], rtol=0, atol=1e-4)
        ours, theirs = (
            explained_by_pattern(m, tokens, pattern=pattern, reference=given)
            for m in (gpt2_twin, gpt2_bridge)
        )
        damage = ["damage_substituted", "damage_uniform"]
        np.testing.assert_allclose(ours[damage], theirs[damage], rtol=0, atol=1e-4)
        np.testing.assert_allclose(ours["explained"], theirs["explained"], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("kind", "window"), [("Llama", None), ("Mistral", 5)])
def test_rotary_grouped_and_windowed_heads_on_a_bridge(
    llama: Callable[..., Any], llama_to_ours: Callable[..., GPT], kind: str, window: int | None
) -> None:
    theirs = llama(kind) if window is None else llama(kind, sliding_window=window)
    ids = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7, 1, 8], [1, 6, 1, 8, 0, 3, 3]]
    for pattern in ("uniform", "previous_token", "first_token"):
        tables = [
            explained_by_pattern(model, ids, pattern=pattern)
            for model in (llama_to_ours(theirs, window), load(theirs))
        ]
        for column in ("damage_substituted", "damage_uniform"):
            # measured: 9e-7
            np.testing.assert_allclose(tables[0][column], tables[1][column], rtol=0, atol=1e-4)
            assert tables[0][column].abs().max() > 1e-3


@pytest.mark.parametrize("pattern", ["ideal", "uniform", "previous_token"])
def test_a_batch_is_its_sequences_one_by_one_whatever_the_padding(
    model: GPT, ragged_batch: Batch, widen: Callable[[Batch, int], Batch], pattern: str
) -> None:
    columns = ["damage_substituted", "damage_uniform"]
    together = explained_by_pattern(model, ragged_batch, pattern=pattern)
    wide = explained_by_pattern(model, widen(ragged_batch, 2), pattern=pattern)
    alone = [
        explained_by_pattern(model, ragged_batch[i : i + 1], pattern=pattern)[columns]
        for i in range(len(ragged_batch))
    ]
    # measured: 5e-7
    np.testing.assert_allclose(together[columns], wide[columns], rtol=0, atol=1e-5)
    np.testing.assert_allclose(together[columns], np.mean(alone, axis=0), rtol=0, atol=1e-5)


def test_every_head_alone_is_its_substitution(model: GPT, batch: Batch) -> None:
    every = explained_by_pattern(model, batch, pattern="ideal", metric="loss")
    assert every[["layer", "head"]].to_numpy().tolist() == [list(h) for h in shape(model).heads]
    for row in every.itertuples():
        one = substitute_pattern(model, batch, heads=[(row.layer, row.head)], metric="loss")
        assert row.damage_substituted == pytest.approx(one["change"].item(), abs=1e-5)
        assert row.damage_uniform == pytest.approx(one["uniform_change"].item(), abs=1e-5)
        assert row.explained == pytest.approx(one["explained"].item(), abs=1e-3, nan_ok=True)
        assert row.n == 13


def test_explained_is_one_minus_the_quotient_where_the_denominator_is_known(
    trained: GPT,
) -> None:
    batch = as_batch(trained, None, n=64)
    table = explained_by_pattern(trained, batch, pattern="ideal")
    seen = set()
    for row in table.itertuples():
        even = dict.fromkeys([(row.layer, row.head)], uniform(trained, batch.tokens.shape[1]))
        queries = batch.target_keys >= 0
        damage = losses(trained, batch, even, queries) - losses(trained, batch, {}, queries)
        error = float(damage.std()) / len(damage) ** 0.5
        known = abs(float(damage.mean())) >= 2 * error
        seen.add(known)
        if known:
            assert row.explained == pytest.approx(
                1 - row.damage_substituted / row.damage_uniform, abs=1e-9
            )
        else:
            assert np.isnan(row.explained)
    assert True in seen


def test_a_trained_model_still_reverses_with_the_ideal_pattern_in_its_anti_diagonal_heads(
    trained: GPT,
) -> None:
    """What these heads look like is what they do: the pattern may be put in by hand."""
    scores = attention_patterns(trained, scores=["anti_diagonal"])
    named = scores[scores["value"] > 0.9]
    heads = list(zip(named["layer"].tolist(), named["head"].tolist(), strict=True))
    assert len(heads) >= 2
    single = explained_by_pattern(trained, pattern="ideal").set_index(["layer", "head"])
    for head in heads:
        assert single.loc[head, "explained"] > 0.99
    together = substitute_pattern(trained, heads=heads).set_index("metric")
    assert together.loc["exact_match", "substituted"] == 1.0
    assert together.loc["exact_match", "uniform_change"] < -0.5
    worse = substitute_pattern(trained, heads=heads, pattern="previous_token")
    assert worse["explained"].iloc[0] < 0.5, "another pattern does not do"


def test_uniform_explains_nothing_of_itself(trained: GPT) -> None:
    table = explained_by_pattern(trained, pattern="uniform")
    known = table["explained"].dropna()
    assert len(known)
    assert (known == 0).all()


def test_target_keys_from_a_function_are_those_of_the_score(model: GPT, batch: Batch) -> None:
    function = PATTERNS["previous_token"][0]
    named = substitute_pattern(model, batch, heads=["0.0"], pattern="previous_token")

    def dense(batch: Batch) -> Targets:
        n = batch.tokens.shape[1]
        keys = torch.eye(n, dtype=torch.bool).roll(-1, 1).tril().expand(len(batch), -1, -1)
        return Targets(keys, keys.any(-1))

    def rows(batch: Batch) -> Tensor:
        return dense(batch).keys.float()[:1]

    for given in (function, dense, lambda batch: dense(batch).keys, rows):
        table = substitute_pattern(model, batch, heads=["0.0"], pattern=given)
        pd.testing.assert_frame_equal(table, named, check_flags=False, rtol=0, atol=1e-6)


def test_sequences_without_the_pattern_are_left_out(gpt2_twin: GPT) -> None:
    ids = [[3, 1, 4, 1, 5], [2, 7, 1, 8], [6, 6, 6]]
    table = substitute_pattern(gpt2_twin, ids, heads=["0.1"], pattern="induction", metric="loss")
    kept = substitute_pattern(
        gpt2_twin, [ids[0], ids[2]], heads=["0.1"], pattern="induction", metric="loss"
    )
    assert table["n"].item() == 2
    for column in ("clean", "substituted", "change", "uniform_change"):
        assert table[column].item() == pytest.approx(kept[column].item(), abs=1e-5)


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_the_model_is_left_as_it_was(request: pytest.FixtureRequest, engine: str) -> None:
    model = request.getfixturevalue(engine)
    ids = [[3, 1, 4, 1, 5]]
    before = capture(model, ids, logits=True).logits
    explained_by_pattern(model, ids, pattern="previous_token")
    after = capture(model, ids, logits=True).logits
    assert before is not None
    assert torch.equal(before, after)
    assert not any(getattr(point, "watched", False) for point in model.hook_dict.values())


def test_what_cannot_be_substituted_is_refused(
    model: GPT, gpt2_twin: GPT, batch: Batch, unchecked: None
) -> None:
    ids = [[3, 1, 4], [1, 5, 9]]
    with pytest.raises(InputError, match="only a task has an ideal pattern: name a score"):
        substitute_pattern(gpt2_twin, ids, heads=["0.1"])
    with pytest.raises(InputError, match="mean pattern needs reference sequences"):
        substitute_pattern(gpt2_twin, ids, heads=["0.1"], pattern="mean")
    with pytest.raises(InputError, match="not be among those evaluated"):
        substitute_pattern(model, batch, heads=["0.1"], pattern="mean", reference=batch[2:4])
    with pytest.raises(UnknownNameError, match="did you mean previous_token"):
        substitute_pattern(model, batch, heads=["0.1"], pattern="previous_tokn")
    with pytest.raises(InputError, match="separator is not defined on this input"):
        substitute_pattern(gpt2_twin, ids, heads=["0.1"], pattern="separator")
    with pytest.raises(InputError, match="induction is defined for no query"):
        substitute_pattern(gpt2_twin, ids, heads=["0.1"], pattern="induction")
    with pytest.raises(InputError, match=r"of heads, as in 4\.11 or 4\.\*, but got mlp\.0"):
        substitute_pattern(model, batch, heads=["mlp.0"])
    with pytest.raises(InputError, match="needs one metric, but got 2"):
        explained_by_pattern(model, batch, metric=["loss", "kl"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        (None, "pattern must be a name, as in ideal, mean, uniform, .* but got None"),
        (torch.ones(2, 3, 3), "or a function of the batch, but got Tensor"),
        (lambda batch: None, "a pattern must return Targets.* but returned None"),
        (lambda batch: np.ones((2, 3, 3)), "a pattern must return Targets.* but returned ndarray"),
    ],
)
def test_what_is_no_pattern_was_a_traceback(
    gpt2_twin: GPT, unchecked: None, pattern: Any, match: str
) -> None:
    with pytest.raises(InputError, match=match) as error:
        substitute_pattern(gpt2_twin, [[3, 1, 4], [1, 5, 9]], heads=["0.1"], pattern=pattern)
    assert "\n" not in str(error.value)


def test_attention_that_is_none_is_refused(gpt2_twin: GPT) -> None:
    ids = [[3, 1, 4], [1, 5, 9]]

    def given(rows: Tensor) -> Callable[[Batch], Tensor]:
        return lambda batch: rows

    even = torch.ones(3, 3).tril()
    even = even / even.sum(-1, keepdim=True)
    ahead = torch.eye(3).roll(1, 1)
    substitute_pattern(gpt2_twin, ids, heads=["0.1"], pattern=given(even[None]))
    for bad in (2 * even, ahead, even * torch.nan):
        with pytest.raises(InputError, match=r"query [01] of sequence 0 does not"):
            substitute_pattern(gpt2_twin, ids, heads=["0.1"], pattern=given(bad[None]))
    with pytest.raises(
        InputError, match=r"must be \[2, 3, 3\] or \[1, 3, 3\], but got \[1, 2, 3\]"
    ):
        substitute_pattern(gpt2_twin, ids, heads=["0.1"], pattern=given(even[None, 1:]))


def test_an_engine_that_drops_what_is_put_in_is_refused(
    gpt2_bridge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge may fire its attention points after the fact."""
    from transformer_lens.hook_points import HookPoint

    points = [gpt2_bridge.hook_dict[f"blocks.{i}.attn.hook_pattern"] for i in (0, 1)]
    call = HookPoint.__call__

    def deaf(self: Any, x: Tensor) -> Tensor:
        found = call(self, x.clone())
        return x if any(self is point for point in points) else found

    monkeypatch.setattr(HookPoint, "__call__", deaf)
    with pytest.raises(InputError, match="does not go on with what is put in"):
        substitute_pattern(gpt2_bridge, [[3, 1, 4]], heads=["0.1"], pattern="uniform")
