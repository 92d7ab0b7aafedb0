"""Activation patching against plain hooks, TransformerLens, and what must hold."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from analyses import patching
from analyses.metrics import LogitDifference
from analyses.pairs import Prompts
from analyses.patching import activation_patching
from models.errors import InputError, LengthError
from models.gpt import GPT
from models.interface import capture

CLEAN = [[1, 5, 9, 2, 7], [3, 3, 8, 1, 0], [11, 4, 6, 2, 2]]
CORRUPT = [[1, 6, 9, 2, 7], [3, 12, 8, 1, 0], [11, 13, 6, 2, 2]]  # position 1 differs
RAGGED = (
    [row[: 5 - i] for i, row in enumerate(CLEAN)],
    [row[: 5 - i] for i, row in enumerate(CORRUPT)],
)
ANSWER, OTHER = 4, 9
METRIC = LogitDifference(ANSWER, OTHER)
KEYS = ["mode", "kind", "layer", "head", "position"]


@pytest.fixture(params=["gpt", "bridge"])
def engine(request: pytest.FixtureRequest, gpt2_twin: GPT, gpt2_bridge: Any) -> Any:
    """The same weights in either engine."""
    return gpt2_twin if request.param == "gpt" else gpt2_bridge


def difference(logits: Tensor) -> float:
    return float(logits[0, -1, ANSWER] - logits[0, -1, OTHER])


def plainly(model: Any, base: list[int], value: Tensor, name: str, place: Any) -> float:
    """One hook, one prompt, one run."""

    def hook(activation: Tensor, *, hook: Any) -> Tensor:
        activation = activation.clone()
        activation[place] = value[place]
        return activation

    logits = capture(model, [base], logits=True, hooks=[(name, hook)]).logits
    assert logits is not None
    return difference(logits)


def everything(model: Any, rows: list[list[int]]) -> list[dict[str, Tensor]]:
    """All that is exchanged anywhere, prompt by prompt."""
    points = ("hook_resid_pre", "hook_resid_post", "hook_attn_out", "hook_mlp_out", "attn.hook_z")
    names = [f"blocks.{layer}.{point}" for layer in range(2) for point in points]
    return [capture(model, [row], names).activations for row in rows]


def place_of(row: Any) -> tuple[str, Any]:
    """The hook point and index that a row is about."""
    at = slice(None) if pd.isna(row.position) else int(row.position)
    if row.kind == "head":
        return f"blocks.{row.layer}.attn.hook_z", (slice(None), at, int(row.head))
    if row.kind == "resid":
        last = row.layer == 2
        return f"blocks.{row.layer - last}.hook_resid_{'post' if last else 'pre'}", (
            slice(None),
            at,
        )
    return f"blocks.{row.layer}.hook_{row.kind}_out", (slice(None), at)


@pytest.mark.parametrize("positions", [None, "each"])
def test_every_site_equals_a_loop_of_plain_hooks(engine: Any, positions: str | None) -> None:
    clean, corrupt = RAGGED
    table = activation_patching(
        engine, clean, corrupt, metric=METRIC, mode=("denoise", "noise"), positions=positions
    )
    assert not table.duplicated(KEYS).any()
    n_heads = 2 * 3
    rest = 2 * 2
    expected = {None: n_heads + rest + 3 * 5, "each": (n_heads + rest + 3) * 5}
    assert len(table) == 2 * expected[positions]
    kept = [everything(engine, rows) for rows in (clean, corrupt)]
    for row in table.itertuples():
        sides = (clean, kept[1]) if row.mode == "noise" else (corrupt, kept[0])
        name, place = place_of(row)
        each = [
            plainly(engine, base, other[name], name, place)
            for base, other in zip(*sides, strict=True)
            if pd.isna(row.position) or row.position < len(base)
        ]
        assert row.n == len(each)
        assert row.patched == pytest.approx(np.mean(each), abs=1e-5)  # measured: 9e-7


def test_both_engines_agree(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    ours, theirs = (
        activation_patching(m, CLEAN, CORRUPT, metric=METRIC) for m in (gpt2_twin, gpt2_bridge)
    )
    pd.testing.assert_frame_equal(ours, theirs, rtol=0, atol=1e-4)  # measured: 1.2e-6
    perturbed = ours.assign(patched=ours["patched"] + 1e-3)
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(perturbed, theirs, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # TransformerLens's own
def test_heads_and_layers_equal_transformer_lens_patching(gpt2_bridge: Any) -> None:
    from transformer_lens import patching as theirs

    clean, corrupt = torch.tensor(CLEAN), torch.tensor(CORRUPT)
    _, cache = gpt2_bridge.run_with_cache(clean)

    def metric(logits: Tensor) -> Tensor:
        return (logits[:, -1, ANSWER] - logits[:, -1, OTHER]).mean()

    found = activation_patching(gpt2_bridge, clean, corrupt, metric=METRIC, positions="each")
    whole = activation_patching(gpt2_bridge, clean, corrupt, metric=METRIC, sites="head")
    sweeps: dict[str, Callable[..., Any]] = {
        "resid": theirs.get_act_patch_resid_pre,
        "attn": theirs.get_act_patch_attn_out,
        "mlp": theirs.get_act_patch_mlp_out,
    }
    for kind, sweep in sweeps.items():
        rows = found[(found["kind"] == kind) & (found["layer"] < 2)]
        ours = rows["patched"].to_numpy().reshape(2, 5)
        np.testing.assert_allclose(ours, sweep(gpt2_bridge, corrupt, cache, metric), atol=1e-5)
    heads = theirs.get_act_patch_attn_head_out_all_pos(gpt2_bridge, corrupt, cache, metric)
    # measured: 3e-7
    np.testing.assert_allclose(whole["patched"].to_numpy().reshape(2, 3), heads, atol=1e-5)


def test_a_prompt_patched_with_itself_stays_as_it_is(engine: Any) -> None:
    table = activation_patching(
        engine, CLEAN, CLEAN, metric=METRIC, mode=("noise", "denoise"), positions="each"
    )
    np.testing.assert_allclose(table["patched"], table["clean"], rtol=0, atol=2e-6)
    assert table[["value", "ci_low", "ci_high"]].isna().to_numpy().all(), "nothing to recover"


def test_what_differs_restores_the_clean_run_and_the_rest_nothing(engine: Any) -> None:
    table = activation_patching(engine, CLEAN[:1], CORRUPT[:1], metric=METRIC, sites="resid")
    value = table.pivot(index="layer", columns="position", values="value").to_numpy()
    np.testing.assert_allclose(value[0], [0, 1, 0, 0, 0], atol=1e-5)
    np.testing.assert_allclose(value[2], [0, 0, 0, 0, 1], atol=1e-5)
    assert (np.abs(value[1]) > 1e-3).sum() > 2, "in between it is spread out"


@pytest.mark.parametrize(("mode", "value"), [("denoise", 1), ("noise", 0)])
def test_the_residual_stream_at_all_positions_is_the_other_run(
    engine: Any, mode: str, value: int
) -> None:
    table = activation_patching(
        engine, CLEAN[:1], CORRUPT[:1], metric=METRIC, sites="resid", mode=mode, positions="all"
    )
    assert table["layer"].tolist() == [0, 1, 2]
    np.testing.assert_allclose(table["value"], value, atol=1e-5)


def test_positions_by_number_from_either_end_and_by_name(engine: Any) -> None:
    clean, corrupt = RAGGED

    def patched(positions: Any, sites: str = "head") -> pd.DataFrame:
        return activation_patching(
            engine, clean, corrupt, metric=METRIC, sites=sites, positions=positions
        )

    named = patched({"word": [1, 1, 1], "END": [4, 3, 2]})
    numbered = patched([1, -1])
    assert named["position"].tolist() == ["word", "END"] * 6
    assert numbered["position"].tolist() == [1, -1] * 6
    np.testing.assert_array_equal(named["patched"], numbered["patched"])
    each = patched("each")
    first, again = (table.loc[table["position"] == 1, "patched"] for table in (each, numbered))
    np.testing.assert_allclose(first, again, rtol=0, atol=1e-6)  # measured: 2e-7
    assert each.loc[each["position"] == 4, "n"].eq(1).all(), "one prompt is so long"


def test_a_site_that_nothing_reads_gives_the_corrupted_run(gpt2_twin: GPT) -> None:
    table = activation_patching(
        gpt2_twin, CLEAN, CORRUPT, metric=METRIC, sites="mlp", positions=[0, -1]
    )
    nowhere = table[(table["layer"] == 1) & (table["position"] == 0)]
    np.testing.assert_array_equal(nowhere["patched"], nowhere["corrupted"])


def test_templates_are_the_unit(gpt2_twin: GPT) -> None:
    clean = Prompts(tuple(map(tuple, CLEAN)), (4, 9, 4))
    table = activation_patching(gpt2_twin, clean, CORRUPT, metric=METRIC)
    assert table["n"].eq(2).all()
    assert table["n_prompts"].eq(3).all()


def test_a_batch_equals_single_prompts(engine: Any) -> None:
    clean, corrupt = RAGGED
    together = activation_patching(engine, clean, corrupt, metric=METRIC, sites="attn")
    alone = [
        activation_patching(engine, [a], [b], metric=METRIC, sites="attn")
        for a, b in zip(clean, corrupt, strict=True)
    ]
    mean = np.mean([table["patched"] for table in alone], axis=0)
    np.testing.assert_allclose(together["patched"], mean, atol=1e-5)  # measured: 7e-8


def test_groups_of_layers_that_are_held_one_after_another_change_nothing(
    gpt2_twin: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = activation_patching(gpt2_twin, CLEAN, CORRUPT, metric=METRIC)
    monkeypatch.setattr(patching, "HELD", 1)
    pd.testing.assert_frame_equal(
        whole, activation_patching(gpt2_twin, CLEAN, CORRUPT, metric=METRIC)
    )


def test_the_model_is_left_as_it_was(engine: Any) -> None:
    before = torch.get_rng_state()
    activation_patching(engine, CLEAN, CORRUPT, metric=METRIC)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(
        getattr(p, "watched", False) or getattr(p, "fwd_hooks", ())
        for p in engine.hook_dict.values()
    )


def test_a_model_without_mlps_has_no_such_sites(make_model: Callable[..., GPT]) -> None:
    model = make_model(mlp="none")
    metric = LogitDifference(0, 1)
    table = activation_patching(model, [[1, 2, 3]], [[1, 3, 3]], metric=metric)
    assert set(table["kind"]) == {"head", "attn", "resid"}
    with pytest.raises(InputError, match="no MLP"):
        activation_patching(model, [[1, 2, 3]], [[1, 3, 3]], metric=metric, sites="mlp")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sites": "neuron"}, "site must be one of head, attn, mlp, resid, but got 'neuron'"),
        ({"mode": "ablate"}, "mode must be one of denoise, noise, but got 'ablate'"),
        ({"mode": []}, "at least one mode"),
        ({"sites": []}, "at least one site"),
        ({"positions": "last"}, "positions must be one of all, each, but got 'last'"),
        ({"positions": [5]}, "position must be -5..4 here, but got 5"),
        ({"positions": []}, "at least one position"),
        ({"positions": 1}, "positions must be a list of whole numbers, as in [3, -1], not 1"),
        ({"positions": {"END": 1}}, "positions 'END' must be a list of whole numbers"),
        ({"positions": [1.5]}, "a position must be a whole number, but got 1.5"),
        ({"positions": {"END": [1, 1.5, 1]}}, "a position must be a whole number, but got 1.5"),
        ({"positions": {}}, "at least one position"),
        ({"positions": {"END": [1]}}, "'END' must be one for each of 3 prompts, but got 1"),
        ({"positions": {"END": [1, 7, 1]}}, "'END' of prompt 1 must be -5..4, but got 7"),
    ],
)
def test_what_cannot_be_patched_is_refused_in_one_line(
    gpt2_twin: GPT, unchecked: None, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        activation_patching(gpt2_twin, CLEAN, CORRUPT, **{"metric": METRIC, **changes})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unequal_lengths_are_refused(gpt2_twin: GPT) -> None:
    with pytest.raises(LengthError, match="pair 0 has 5 and 4"):
        activation_patching(gpt2_twin, CLEAN[:1], [CORRUPT[0][:4]], metric=METRIC)
