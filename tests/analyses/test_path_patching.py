"""Direct paths against a float64 formula, TransformerLens, and what must hold."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from analyses import path_patching as module
from analyses.metrics import LogitDifference
from analyses.path_patching import path_patching
from models.errors import InputError, UnknownNameError
from models.gpt import GPT
from models.interface import capture, weights
from models.load import load

CLEAN = [[1, 5, 9, 2, 7], [3, 3, 8, 1, 0], [11, 4, 6, 2, 2]]
CORRUPT = [[1, 6, 9, 2, 7], [3, 12, 8, 1, 0], [11, 13, 6, 2, 2]]
ANSWER, OTHER = 4, 9
METRIC = LogitDifference(ANSWER, OTHER)


@pytest.fixture(params=["gpt", "bridge"])
def engine(request: pytest.FixtureRequest, gpt2_twin: GPT, gpt2_bridge: Any) -> Any:
    """The same weights in either engine."""
    return gpt2_twin if request.param == "gpt" else gpt2_bridge


def difference(logits: Tensor) -> Tensor:
    return logits[:, -1, ANSWER] - logits[:, -1, OTHER]


def write_change(model: Any, base: list[Any], other: list[Any], layer: int, head: int) -> Tensor:
    """What the sender would add to the residual stream, less what it adds."""
    name = f"blocks.{layer}.attn.hook_z"
    ours, theirs = (capture(model, rows, [name]).activations[name] for rows in (base, other))
    W_O = weights(model)["W_O"]
    assert W_O is not None
    return (theirs - ours)[:, :, head].double() @ W_O[layer, head].double()


def in_float64(
    ours: GPT, base: list[Any], other: list[Any], sender: tuple[int, int], receiver: str
) -> Tensor:
    """The receiver reads its norm of ``resid + delta``; the rest is an ordinary run."""
    double = GPT(ours.config, seed=None).double()
    double.load_state_dict(ours.state_dict())
    double.eval()
    delta = write_change(double, base, other, *sender)
    if receiver == "logits":
        name = f"blocks.{len(double.blocks) - 1}.hook_resid_post"
        resid = capture(double, base, [name]).activations[name]
        with torch.no_grad():
            return difference(double.logits(resid + delta))
    at, head, part = receiver.split(".")
    block = double.blocks[int(at)]
    name = f"blocks.{at}.hook_resid_pre"
    resid = capture(double, base, [name]).activations[name]
    with torch.no_grad():
        index = "qkv".index(part)
        new = block.attn.qkv(block.ln1(resid + delta)).split(block.attn.split, dim=-1)[index]
    grouped = double.config.n_heads // double.config.kv_heads
    which = int(head) if part == "q" else int(head) // grouped
    new = new.unflatten(-1, (-1, double.config.head_width))[:, :, which]

    def put(activation: Tensor, *, hook: Any) -> Tensor:
        activation = activation.clone()
        activation[:, :, which] = new
        return activation

    hooks = [(f"blocks.{at}.attn.hook_{part}", put)]
    logits = capture(double, base, logits=True, hooks=hooks).logits
    assert logits is not None
    return difference(logits)


RECEIVERS = ["1.2.q", "1.0.k", "1.1.v", "logits"]


def check(model: Any, ours: GPT, receivers: list[str], **sizes: Any) -> float:
    """Largest difference from the formula, over all senders, receivers and modes."""
    clean, corrupt = sizes.get("clean", CLEAN), sizes.get("corrupt", CORRUPT)
    table = path_patching(
        model, clean, corrupt, metric=METRIC, receivers=receivers, mode=("noise", "denoise")
    )
    gaps, moved = [], []
    for row in table.itertuples():
        sender = tuple(int(part) for part in str(row.sender).split("."))
        sides = (clean, corrupt) if row.mode == "noise" else (corrupt, clean)
        expected = in_float64(ours, *sides, (sender[0], sender[1]), str(row.receiver))
        gaps.append(abs(float(expected.mean()) - row.patched))
        moved.append(abs(row.patched - (row.clean if row.mode == "noise" else row.corrupted)))
    assert np.median(moved) > 1e-3, "the paths carry something"
    return max(gaps)


def test_every_path_equals_the_float64_formula(engine: Any, gpt2_twin: GPT) -> None:
    assert check(engine, gpt2_twin, RECEIVERS) < 1e-5  # measured: 9e-7


def test_three_layers_hold_what_lies_between(make_model: Callable[..., GPT]) -> None:
    model = make_model(n_layers=3)
    clean, corrupt = [[1, 2, 3, 4]], [[1, 5, 3, 4]]
    receivers = ["2.1.q", "2.0.k", "2.2.v", "1.1.q", "logits"]
    assert check(model, model, receivers, clean=clean, corrupt=corrupt) < 1e-5  # measured: 2e-6


@pytest.mark.parametrize("engine_name", ["gpt", "bridge"])
def test_a_key_of_grouped_heads_is_that_of_the_group(
    engine_name: str, llama: Callable[..., Any], llama_to_ours: Callable[..., GPT]
) -> None:
    theirs = llama("Llama")
    ours = llama_to_ours(theirs)
    model = ours if engine_name == "gpt" else load(theirs)
    receivers = ["1.3.q", "1.3.k", "1.5.v", "logits"]
    assert check(model, ours, receivers) < 2e-5  # measured: 1.5e-6
    table = path_patching(
        model, CLEAN, CORRUPT, metric=METRIC, receivers=receivers, senders=["0.0"]
    )
    assert table["kv_head"].tolist() == [pd.NA, 1, 2, pd.NA]


@pytest.mark.filterwarnings("ignore")  # TransformerLens's own
@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_paths_equal_transformer_lens(gpt2_bridge: Any, part: str) -> None:
    from transformer_lens.patching import get_act_patch_direct_path

    clean, corrupt = torch.tensor(CLEAN), torch.tensor(CORRUPT)
    caches = [gpt2_bridge.run_with_cache(tokens)[1] for tokens in (clean, corrupt)]
    theirs = get_act_patch_direct_path(
        gpt2_bridge,
        corrupt,
        *caches,
        lambda logits: difference(logits).mean(),
        src_layer=0,
        src_head=1,
        component=part,
        verbose=False,
    )
    ours = path_patching(
        gpt2_bridge,
        clean,
        corrupt,
        metric=METRIC,
        senders=["0.1"],
        receivers=[f"1.{head}.{part}" for head in range(3)],
        mode="denoise",
    )
    np.testing.assert_allclose(ours["patched"], theirs[1], atol=1e-5)  # measured: 1.1e-6


def test_a_prompt_patched_with_itself_stays_as_it_is(engine: Any) -> None:
    table = path_patching(engine, CLEAN, CLEAN, metric=METRIC, receivers=RECEIVERS)
    np.testing.assert_allclose(table["patched"], table["clean"], rtol=0, atol=2e-6)
    assert table["value"].isna().all()


def test_the_same_in_a_padded_batch_and_alone(engine: Any) -> None:
    pairs = [(clean[: 5 - i], CORRUPT[i][: 5 - i]) for i, clean in enumerate(CLEAN)]
    together = path_patching(
        engine, [a for a, _ in pairs], [b for _, b in pairs], metric=METRIC, receivers=RECEIVERS
    )
    alone = [path_patching(engine, [a], [b], metric=METRIC, receivers=RECEIVERS) for a, b in pairs]
    mean = np.mean([table["patched"] for table in alone], axis=0)
    np.testing.assert_allclose(together["patched"], mean, atol=1e-5)  # measured: 4e-7


def test_every_earlier_head_is_a_sender_by_default(gpt2_twin: GPT) -> None:
    table = path_patching(gpt2_twin, CLEAN, CORRUPT, metric=METRIC, receivers=["1.0.q", "logits"])
    senders = table.groupby("receiver")["sender"].agg(list)
    assert senders["1.0.q"] == ["0.0", "0.1", "0.2"]
    assert senders["logits"] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]


def test_paths_held_one_after_another_and_in_chunks_change_nothing(
    gpt2_twin: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> pd.DataFrame:
        return path_patching(gpt2_twin, CLEAN, CORRUPT, metric=METRIC, receivers=RECEIVERS)

    whole = run()
    monkeypatch.setattr(module, "HELD", 1)
    pd.testing.assert_frame_equal(whole, run())
    monkeypatch.setattr(module, "chunk_size", lambda *_: 2)
    pd.testing.assert_frame_equal(whole, run(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("receiver", "sender", "message"),
    [
        ("1.0.q", "1.1", "1.0.q is not later than 1.1"),
        ("0.0.k", "1.1", "0.0.k is not later than 1.1"),
        ("0.0.k", None, "no head is earlier than layer 0"),
    ],
)
def test_a_receiver_that_is_not_later_is_refused_in_one_line(
    gpt2_twin: GPT, receiver: str, sender: str | None, message: str
) -> None:
    senders = None if sender is None else [sender]
    with pytest.raises(InputError) as error:
        path_patching(gpt2_twin, CLEAN, CORRUPT, metric=METRIC, receivers=receiver, senders=senders)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("receiver", "message"),
    [
        ("1.0", "written layer.head.q"),
        ("1.0.z", "written layer.head.q"),
        ("1.3.q", "heads 0..2"),
        ("2.0.v", "layers are 0..1"),
    ],
)
def test_an_unknown_receiver_says_what_there_is(
    gpt2_twin: GPT, receiver: str, message: str
) -> None:
    with pytest.raises(UnknownNameError, match=message):
        path_patching(gpt2_twin, CLEAN, CORRUPT, metric=METRIC, receivers=[receiver])
