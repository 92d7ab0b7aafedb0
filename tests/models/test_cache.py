"""Chunks on top of a cache are the full pass: every kind of GPT, every cut, every point."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from models.cache import KeyValueCache
from models.errors import InputError, LengthError
from models.gpt import GPT
from models.interface import hooked
from models.names import act_name

Build = Callable[..., GPT]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])
N = TOKENS.shape[1]
CUTS = [[11], [1] * 11, [5, 6], [2, 1, 7, 1], [10, 1]]
CLOSE = 1e-4  # log-probabilities and activations up to 20; measured: 7.2e-6


def in_chunks(model: GPT, sizes: Sequence[int], cache: KeyValueCache | None = None) -> Tensor:
    cache = cache or KeyValueCache()
    with torch.no_grad():
        return torch.cat([model(part, cache=cache) for part in TOKENS.split([*sizes], 1)], dim=1)


def difference(found: Tensor, reference: Tensor) -> float:
    return float((found.log_softmax(-1) - reference.log_softmax(-1)).abs().max())


@torch.no_grad()
@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_chunks_give_every_row_of_the_full_pass(model: GPT, sizes: list[int]) -> None:
    cache = KeyValueCache()
    assert difference(in_chunks(model, sizes, cache), model(TOKENS)) < CLOSE
    assert cache.lengths == [N, N]


@torch.no_grad()
def test_the_comparison_would_notice_a_position_that_is_off_by_one(build: Build) -> None:
    model, cache = build("llama"), KeyValueCache()
    model(TOKENS[:, :5], cache=cache)
    model(TOKENS[:, 5:6], cache=cache)
    shifted = model(TOKENS[:, 5:], cache=cache)
    assert difference(shifted, model(TOKENS)[:, 5:]) > 100 * CLOSE


@torch.no_grad()
@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_hooks_see_the_new_rows_of_every_point(model: GPT, sizes: list[int]) -> None:
    whole: dict[str, list[Tensor]] = {name: [] for name in model.hook_dict}
    parts: dict[str, list[Tensor]] = {name: [] for name in model.hook_dict}
    for kept, run in ((whole, lambda: model(TOKENS)), (parts, lambda: in_chunks(model, sizes))):

        def keep(x: Tensor, *, hook: Any, kept: dict[str, list[Tensor]] = kept) -> None:
            kept[hook.name].append(x.clone())

        with hooked(model, [(name, keep) for name in model.hook_dict]):
            run()
    starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    for name, (full,) in whole.items():
        assert len(parts[name]) == len(sizes), "once in a pass"
        for part, start, size in zip(parts[name], starts, sizes, strict=False):
            rows = slice(start, start + size)
            by_key = name.endswith(("hook_attn_scores", "hook_pattern"))
            expected = full[:, :, rows, : rows.stop] if by_key else full[:, rows]
            torch.testing.assert_close(part, expected, atol=CLOSE, rtol=1e-5)


EDITS: dict[str, Callable[[Tensor], Tensor]] = {
    "q": lambda x: x.flip(2),
    "k": lambda x: 0.5 * x,
    "v": lambda x: x - 1,
    "z": lambda x: x * torch.tensor([1.0, 0, 1, 1, 0, 1])[:, None],
    "pattern": lambda x: x * (torch.arange(x.shape[-1]) != 1),
    "resid_mid": lambda x: x.roll(1, dims=-1),
}


@torch.no_grad()
@pytest.mark.parametrize("point", EDITS)
@pytest.mark.parametrize("kind", ["gpt2", "llama", "grouped_window"])
def test_edits_act_as_in_the_full_pass_and_not_afterwards(
    build: Build, kind: str, point: str
) -> None:
    model = build(kind)

    def edit(x: Tensor, *, hook: Any) -> Tensor:
        return EDITS[point](x)

    before = model(TOKENS)
    with hooked(model, [(act_name(point, layer), edit) for layer in (0, 2)]):
        reference = model(TOKENS)
        assert difference(in_chunks(model, [4, 1, 1, 5]), reference) < CLOSE
    assert difference(reference, before) > 100 * CLOSE, "the edit matters"
    assert torch.equal(model(TOKENS), before), "a later uncached call knows nothing of it"


@torch.no_grad()
@pytest.mark.parametrize("following", [1, 3])
def test_rows_of_different_lengths_go_on_each_at_its_own_place(model: GPT, following: int) -> None:
    """Padded on the right, run as they are, cut, and continued."""
    lengths, cache = [3, 8], KeyValueCache()
    padded = TOKENS[:, :8].clone()
    padded[0, 3:] = 0
    model(padded, cache=cache)
    cache.truncate(lengths)
    new = torch.stack([row[n : n + following] for row, n in zip(TOKENS, lengths, strict=True)])
    found = model(new, cache=cache)
    for i, n in enumerate(lengths):
        alone = model(TOKENS[i : i + 1, : n + following])[0, n:]
        assert difference(found[i], alone) < CLOSE
    assert cache.lengths == [n + following for n in lengths]


@torch.no_grad()
def test_watching_the_pattern_of_rows_of_different_lengths_changes_little(build: Build) -> None:
    model = build("llama")

    def run(watch: list[Any]) -> Tensor:
        cache = KeyValueCache()
        with hooked(model, watch):
            model(TOKENS[:, :6], cache=cache)
            cache.truncate([2, 6])
            logits: Tensor = model(TOKENS[:, 6:8], cache=cache)
            return logits

    seen: list[Tensor] = []
    watched = run([(act_name("pattern", 1), lambda p, hook: seen.append(p.clone()))])
    assert difference(watched, run([])) < CLOSE
    torch.testing.assert_close(seen[1].sum(-1), torch.ones(2, 6, 2))
    assert float(seen[1][0, :, :, 4:].abs().max()) == 0, "places that the short row does not hold"


@torch.no_grad()
def test_a_cache_that_was_cut_forgets(model: GPT) -> None:
    cache = KeyValueCache()
    model(TOKENS.flip(1), cache=cache)
    cache.truncate([0, 0])
    model(TOKENS[:, :9], cache=cache)
    cache.truncate([4, 4])
    assert difference(model(TOKENS[:, 4:], cache=cache), model(TOKENS)[:, 4:]) < CLOSE


@torch.no_grad()
def test_a_pass_that_breaks_off_leaves_the_cache_as_it_was(build: Build) -> None:
    model, cache = build("llama"), KeyValueCache()
    model(TOKENS[:, :4], cache=cache)

    def fail(x: Tensor, *, hook: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), hooked(model, [("blocks.1.hook_resid_pre", fail)]):
        model(TOKENS.flip(1)[:, :5], cache=cache)
    assert cache.lengths == [4, 4]
    assert difference(model(TOKENS[:, 4:], cache=cache), model(TOKENS)[:, 4:]) < CLOSE


@torch.no_grad()
def test_memory_grows_by_doubling_up_to_the_context(build: Build) -> None:
    model, cache = build("window", n_ctx=1000), KeyValueCache()
    rooms = []
    for _ in range(500):
        model(TOKENS[:, :2], cache=cache, return_type=None)
        keys = cache[0].keys
        assert keys is not None
        rooms.append(keys.shape[2])
    assert sorted(set(rooms)) == [64, 132, 268, 540, 1000]
    with pytest.raises(LengthError, match="context is 1000 tokens, but the cache holds 1000"):
        model(TOKENS[:, :1], cache=cache)


@torch.no_grad()
def test_logits_of_some_rows_are_those_of_all(model: GPT) -> None:
    cache = KeyValueCache()
    model(TOKENS[:, :4], cache=cache)
    found = model(TOKENS[:, 4:], cache=cache, rows=slice(-3, -1))
    assert difference(found, model(TOKENS)[:, -3:-1]) < CLOSE


def test_what_a_cache_cannot_do_is_refused(build: Build) -> None:
    model, cache = build(), KeyValueCache()
    with pytest.raises(InputError, match=r"no graph: run it under torch\.no_grad"):
        model(TOKENS, cache=cache)
    with torch.no_grad():
        model(TOKENS[:, :4], cache=cache)
        for options in ({"start_at_layer": 0}, {"stop_at_layer": 1}):
            with pytest.raises(InputError, match="a cache holds all layers"):
                model(TOKENS[:, :4], cache=cache, **options)
        with pytest.raises(InputError, match="a loss needs all tokens"):
            model(TOKENS[:, :4], cache=KeyValueCache(), return_type="loss")
        with pytest.raises(InputError, match="holds 2 rows, but got 1"):
            model(TOKENS[:1], cache=cache)
        with pytest.raises(LengthError, match="13 tokens, but the cache holds 4 and got 11 more"):
            model(TOKENS, cache=cache)
        for lengths in ([5, 4], [-1, 0], [4]):
            with pytest.raises(LengthError, match=r"\[4, 4\] positions cannot be cut"):
                cache.truncate(lengths)
    assert cache.lengths == [4, 4]
