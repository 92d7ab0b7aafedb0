"""Ablation against the plain loop: one head, one hook, one whole run at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from analyses import reruns
from analyses.ablation import (
    Variant,
    ablate,
    ablate_every_head,
    parts_of,
    score_variants,
)
from analyses.head_sets import cumulative_ablation
from analyses.inputs import as_batch, chosen_positions, reference_batch
from analyses.metrics import DEFAULT as METRICS
from analyses.metrics import Logit, LogitDifference, as_metrics
from analyses.statistics import mean_interval
from analyses.substitutes import DRAWS, partners
from models.errors import InputError, UnknownNameError
from models.gpt import GPT
from models.interface import capture, hooked, shape
from models.tasks import Batch, Task, correct_tokens, exact_match, sequence_loss
from models.text_codec import codec_of

Heads = list[tuple[int, int]]
NUMBERS = ["clean", "ablated", "change", "ci_low", "ci_high", "monte_carlo_error"]


def z_of(model: Any, batch: Batch, layer: int) -> Tensor:
    name = f"blocks.{layer}.attn.hook_z"
    return capture(model, batch.tokens, [name]).activations[name]


def measured(model: Any, batch: Batch, values: dict[tuple[int, int], Tensor]) -> Tensor:
    """``[sequence, metric]`` with the ``z`` of some heads replaced, by hooks on a whole run."""

    def replacing(head: int, value: Tensor) -> Callable[..., Tensor]:
        def hook(z: Tensor, *, hook: Any) -> Tensor:
            z = z.clone()
            z[:, :, head] = value
            return z

        return hook

    hooks = [
        (f"blocks.{layer}.attn.hook_z", replacing(head, value))
        for (layer, head), value in values.items()
    ]
    with hooked(model, hooks):
        logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    right = correct_tokens(logits, batch).sum(1).double() / batch.outputs.sum(1)
    scores = (sequence_loss(logits, batch), right, exact_match(logits, batch))
    return torch.stack([score.double() for score in scores], dim=-1)


def replacements(
    model: Any, batch: Batch, kind: str, heads: Heads, *, reference: Batch, seed: int
) -> Iterator[dict[tuple[int, int], Tensor]]:
    """The new ``z`` of each head, once for each draw."""
    if kind == "zero":
        yield {head: torch.zeros(()) for head in heads}
    elif kind == "mean":
        yield {(layer, h): z_of(model, reference, layer)[:, :, h].mean(0) for layer, h in heads}
    else:
        for draw in range(DRAWS):
            partner = partners(batch, seed=seed, draw=draw)
            yield {(layer, h): z_of(model, batch, layer)[partner][:, :, h] for layer, h in heads}


def plainly(
    model: Any, batch: Batch, kind: str, heads: Heads, *, reference: Batch, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Scores ``[sequence, metric]`` averaged over draws, and each draw's mean."""
    draws = torch.stack(
        [
            measured(model, batch, values)
            for values in replacements(model, batch, kind, heads, reference=reference, seed=seed)
        ]
    )
    return draws.mean(0), draws.mean(1)


def check(table: pd.DataFrame, scores: Tensor, clean: Tensor, seed: int = 0) -> None:
    """A table's three rows against per-sequence scores."""
    assert table["metric"].tolist() == list(METRICS)
    change = (scores - clean).numpy()
    interval = mean_interval(change, seed=seed)
    for i, row in enumerate(table.itertuples()):
        # measured: 1e-6
        assert row.clean == pytest.approx(float(clean[:, i].mean()), abs=1e-5)
        assert row.ablated == pytest.approx(float(scores[:, i].mean()), abs=1e-5)
        assert row.change == pytest.approx(change[:, i].mean(), abs=1e-5)
        assert row.ci_low == pytest.approx(interval.low[i], abs=1e-5, nan_ok=True)
        assert row.ci_high == pytest.approx(interval.high[i], abs=1e-5, nan_ok=True)
        assert row.n == len(scores)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("zero", "batch"),
        ("mean", "batch"),
        ("resample", "batch"),
        ("zero", "ragged_batch"),
        ("resample", "ragged_batch"),
    ],
)
def test_every_head_equals_the_plain_loop(
    request: pytest.FixtureRequest, model: GPT, kind: str, name: str
) -> None:
    inputs = request.getfixturevalue(name)
    table = ablate_every_head(model, inputs, ablation=[kind], seed=5)
    reference = reference_batch(model, inputs, seed=5)
    clean = measured(model, inputs, {})
    for head in shape(model).heads:
        scores, draws = plainly(model, inputs, kind, [head], reference=reference, seed=5)
        rows = table[(table["layer"] == head[0]) & (table["head"] == head[1])]
        check(rows, scores, clean, seed=5)
        error = draws.std(0) / DRAWS**0.5 if kind == "resample" else [torch.nan] * 3
        assert rows["monte_carlo_error"].tolist() == pytest.approx(
            [float(e) for e in error], abs=1e-5, nan_ok=True
        )
    assert table["change"].abs().max() > 0.01, "the case must show an effect"


def test_unequal_lengths_are_ablated_by_the_pooled_mean(
    model: GPT, ragged_task: Task, ragged_batch: Batch
) -> None:
    reference = ragged_task.heldout(19, seed=8)
    table = ablate(model, ragged_batch, heads=["1.2"], ablation="mean", reference=reference)
    z = z_of(model, reference, 1)
    real = torch.arange(11) < reference.lengths[:, None]
    scores = measured(model, ragged_batch, {(1, 2): z[real][:, 2].mean(0)})
    check(table, scores, measured(model, ragged_batch, {}))
    assert table["baseline"].unique().tolist() == ["token mean of 19"]


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_heads_together_are_removed_in_one_run(model: GPT, batch: Batch, kind: str) -> None:
    heads: Heads = [(1, 1), (0, 2), (0, 0)]
    table = ablate(model, batch, heads=["1.1", (0, 2), "0.0"], ablation=kind, seed=2)
    reference = reference_batch(model, batch, seed=2)
    scores, _ = plainly(model, batch, kind, heads, reference=reference, seed=2)
    check(table, scores, measured(model, batch, {}), seed=2)
    single = ablate_every_head(model, batch, ablation=[kind], seed=2)
    loss = single[single["metric"] == "loss"].set_index(["layer", "head"])["change"]
    joint = table.loc[table["metric"] == "loss", "change"].iloc[0]
    assert abs(joint - sum(loss[head] for head in heads)) > 0.01, "effects do not just add up"


def test_one_head_alone_is_its_row_of_every_head(model: GPT, batch: Batch) -> None:
    every = ablate_every_head(model, batch, ablation=["resample"], seed=3)
    one = ablate(model, batch, heads=["0.1"], ablation="resample", seed=3)
    row = every[(every["layer"] == 0) & (every["head"] == 1)]
    for column in NUMBERS:
        # other runs share the larger products; measured: 5e-7
        np.testing.assert_allclose(one[column], row[column], rtol=0, atol=1e-5)


def test_ablating_no_head_changes_nothing(model: GPT, gpt2_bridge: Any, batch: Batch) -> None:
    ids = [[3, 1, 4], [1, 5]]
    for table in (ablate(model, batch, heads=[]), ablate(gpt2_bridge, ids, heads=[])):
        assert (table["change"] == 0).all()
        assert (table["clean"] == table["ablated"]).all()
        assert table[["ci_low", "ci_high"]].isna().all(axis=None), "degenerate, not certain"


def test_a_batch_is_its_sequences_one_by_one(model: GPT, batch: Batch) -> None:
    together = ablate_every_head(model, batch, ablation=["zero"])
    alone = [ablate_every_head(model, batch[i : i + 1], ablation="zero") for i in range(13)]
    for column in ("clean", "ablated", "change"):
        expected = np.mean([table[column] for table in alone], axis=0)
        np.testing.assert_allclose(together[column], expected, rtol=0, atol=1e-5)  # measured: 6e-7


def test_chunks_change_nothing(
    model: GPT, batch: Batch, ragged_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partners come from the whole batch, however it is cut."""
    for inputs in (batch, ragged_batch):
        whole = ablate_every_head(model, inputs)
        with monkeypatch.context() as patch:
            patch.setattr(reruns, "CHUNK", 5)
            apart = ablate_every_head(model, inputs)
        for column in NUMBERS:
            np.testing.assert_allclose(whole[column], apart[column], rtol=0, atol=1e-4)


def test_a_bridge_gives_the_numbers_of_our_own_model(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    ids = [torch.randint(22, (n,), generator=generator).tolist() for n in (5, 7, 7, 3, 11) * 3]
    reference = torch.randint(22, (29, 11), generator=generator)
    ours = ablate_every_head(gpt2_twin, ids, reference=reference)
    theirs = ablate_every_head(gpt2_bridge, ids, reference=reference)
    assert list(ours["ablation"].unique()) == ["zero", "mean", "resample"]
    for column in NUMBERS:
        # measured: 3e-6; intervals rest on ranks of nearly equal means
        np.testing.assert_allclose(ours[column], theirs[column], rtol=0, atol=1e-4)


def test_a_sequence_without_a_partner_is_left_out_of_clean_and_ablated(model: GPT) -> None:
    ids = [[3, 1, 4], [1, 5, 9, 2], [6, 5, 3], [5, 8]]
    table = ablate(model, ids, heads=["0.1"], ablation="resample")
    kept = as_batch(model, [ids[0], ids[2], ids[3]])
    assert (table["n"] == 3).all()
    clean = measured(model, kept, {}).mean(0)
    assert table["clean"].tolist() == pytest.approx(clean.tolist(), abs=1e-5)
    assert table["change"].tolist() == pytest.approx(
        (table["ablated"] - table["clean"]).tolist(), abs=1e-12
    )


def test_a_sequence_of_one_token_predicts_nothing_and_is_left_out(model: GPT) -> None:
    table = ablate(model, [[3, 1, 4], [7], [6, 5, 3]], heads=["0.1"], ablation="zero")
    other = ablate(model, [[3, 1, 4], [6, 5, 3]], heads=["0.1"], ablation="zero")
    assert (table["n"] == 2).all()
    assert table["ablated"].tolist() == pytest.approx(other["ablated"].tolist(), abs=1e-5)
    with pytest.raises(InputError, match="tokens with outputs"):
        ablate(model, [[3], [7]], heads=["0.1"], ablation="zero")


def test_the_default_evaluates_256_held_out_sequences(model: GPT) -> None:
    default = ablate(model, heads=["0.1"], seed=6)
    given = ablate(
        model, as_batch(model, None, n=256, seed=6), heads=["0.1"], ablation="mean", seed=6
    )
    assert default.equals(given)
    assert (default["n"] == 256).all()


def test_bad_heads_and_kinds_are_named(model: GPT, batch: Batch) -> None:
    with pytest.raises(UnknownNameError, match=r"0\.3 does not exist: .*heads 0\.\.2"):
        ablate(model, batch, heads=["0.3"])
    with pytest.raises(UnknownNameError, match=r"layers are 0\.\.1"):
        ablate(model, batch, heads=["2.0"])
    with pytest.raises(UnknownNameError, match="-1"):
        ablate(model, batch, heads=[(-1, 0)])
    with pytest.raises(InputError, match="named once"):
        ablate(model, batch, heads=["0.1", "0.1"])
    with pytest.raises(InputError, match="one of zero, mean, resample, but got 'men'"):
        ablate(model, batch, heads=["0.1"], ablation="men")
    with pytest.raises(InputError, match="at least one ablation"):
        ablate_every_head(model, batch, ablation=[])


def test_an_overlapping_reference_is_refused(model: GPT, batch: Batch) -> None:
    with pytest.raises(InputError, match="not be among those evaluated"):
        ablate(model, batch, heads=["0.1"], ablation="mean", reference=batch[3:5])
    table = ablate(model, batch, heads=["0.1"], ablation="zero", reference=batch[3:5])
    assert len(table) == 3, "what is not used is not checked"


def test_ablated_heads_really_matter_to_a_trained_model(trained: GPT) -> None:
    """All heads gone, all that is left is guessing; none gone, nothing is lost."""
    order = shape(trained).heads
    table = cumulative_ablation(trained, order=order)
    ends = table.set_index(["mode", "ablation", "n_heads"])
    for kind in ("zero", "mean"):
        assert ends.loc[("remove", kind, 0), "exact_match"] == 1.0
        assert ends.loc[("remove", kind, len(order)), "exact_match"] < 0.05
        assert ends.loc[("remove", kind, len(order)), "loss"] > 2


def test_cumulative_rows_are_joint_ablations(model: GPT, batch: Batch) -> None:
    order = ["1.0", "0.2", "0.0", "1.2", "1.1", "0.1"]
    table = cumulative_ablation(model, batch, order=order, seed=7)
    assert table[["mode", "ablation"]].drop_duplicates().to_numpy().tolist() == [
        [mode, kind] for mode in ("remove", "keep") for kind in ("zero", "mean")
    ]
    rows = table.set_index(["mode", "ablation", "n_heads"])
    for kind in ("zero", "mean"):
        for n in range(7):
            removed = ablate(model, batch, heads=order[:n], ablation=kind, seed=7)
            kept = ablate(model, batch, heads=order[n:], ablation=kind, seed=7)
            for mode, one in (("remove", removed), ("keep", kept)):
                found = rows.loc[(mode, kind, n), list(METRICS)].tolist()
                # measured: 1e-6
                assert found == pytest.approx(one["ablated"].tolist(), abs=1e-5)
            assert rows.loc[("keep", kind, n), "heads"] == " ".join(order[:n])
        nothing_left = rows.loc[("remove", kind, 6), list(METRICS)]
        assert nothing_left.equals(rows.loc[("keep", kind, 0), list(METRICS)])
    assert (table["n"] == 13).all()


def test_heads_that_an_order_leaves_out_stay(model: GPT, batch: Batch) -> None:
    table = cumulative_ablation(model, batch, order=["1.0", "0.2"], ablation="zero")
    kept_none = table[(table["mode"] == "keep") & (table["n_heads"] == 0)]
    both = ablate(model, batch, heads=["1.0", "0.2"], ablation="zero")
    assert kept_none[list(METRICS)].iloc[0].tolist() == pytest.approx(
        both["ablated"].tolist(), abs=1e-5
    )


def test_a_model_in_half_precision_is_ablated(make_model: Callable[..., GPT], batch: Batch) -> None:
    table = ablate_every_head(make_model(std=0.1).bfloat16(), batch)
    single = ablate_every_head(make_model(std=0.1), batch)
    loss, expected = (t.loc[t["metric"] == "loss", "ablated"] for t in (table, single))
    # weights and activations of eight bits; measured: 0.01
    np.testing.assert_allclose(loss, expected, rtol=0, atol=0.1)


# --- parts, positions, metrics


PARTS = {
    "mlp.1": ("hook_mlp_out", 1),
    "attn.0": ("hook_attn_out", 0),
    "attn.1": ("hook_attn_out", 1),
}


def with_hooks(model: Any, batch: Batch, hooks: Any) -> Tensor:
    with hooked(model, hooks):
        logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    return logits


def putting(value: Any, where: Any = Ellipsis, head: int | None = None) -> Callable[..., Tensor]:
    def hook(activation: Tensor, *, hook: Any) -> Tensor:
        activation = activation.clone()
        part = activation if head is None else activation[:, :, head]
        part[where] = value[where] if isinstance(value, Tensor) else value
        return activation

    return hook


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
@pytest.mark.parametrize("part", PARTS)
def test_outputs_of_layers_are_removed_as_hooks_remove_them(
    model: GPT, batch: Batch, part: str, kind: str
) -> None:
    point, layer = PARTS[part]
    name = f"blocks.{layer}.{point}"
    own = capture(model, batch.tokens, [name]).activations[name]
    if kind == "zero":
        values = [torch.zeros_like(own)]
    elif kind == "mean":
        reference = reference_batch(model, batch, seed=2)
        kept = capture(model, reference.tokens, [name]).activations[name]
        values = [kept.mean(0, keepdim=True).expand_as(own)]
    else:
        values = [own[partners(batch, seed=2, draw=draw)] for draw in range(DRAWS)]
    losses = [
        sequence_loss(with_hooks(model, batch, [(name, putting(value))]), batch).mean()
        for value in values
    ]
    table = ablate(model, batch, heads=[part], ablation=kind, metric="loss", seed=2)
    expected = float(torch.stack(losses).mean())
    assert table["ablated"].tolist() == pytest.approx([expected], abs=1e-5)  # measured: 5e-7
    assert abs(table["change"].iloc[0]) > 0.01


def test_all_heads_of_a_layer_have_a_short_name(model: GPT, batch: Batch) -> None:
    short = ablate(model, batch, heads=["1.*"], ablation="zero")
    pd.testing.assert_frame_equal(
        short, ablate(model, batch, heads=["1.0", "1.1", "1.2"], ablation="zero")
    )


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
@pytest.mark.parametrize("part", ["1.2", "0.1", "mlp.0"])
@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_chosen_positions_of_a_batch_are_those_of_the_prompts_alone(
    request: pytest.FixtureRequest, engine: str, part: str, kind: str
) -> None:
    model = request.getfixturevalue(engine)
    prompts = [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8], [1, 6, 1, 8, 0]]
    places: Any = [[1, -1], [], [0, 2]]
    reference = [[5, 3, 5, 8, 9, 7], [9, 3, 2, 3], [8, 4, 6, 2, 6]]
    options: Any = {"heads": [part], "ablation": kind, "metric": ["loss", Logit(7)]}
    metrics = as_metrics(model, as_batch(model, prompts), options["metric"])
    variants = [Variant(tuple(parts_of(model, [part])), kind)]
    scored = score_variants(
        model, as_batch(model, prompts), metrics, variants, positions=places, reference=reference
    )
    assert np.isnan(scored.ablated[0, 1]).all(), "nothing of this prompt is chosen"
    if kind == "resample":  # partners are of the batch: alone there is none
        assert np.isfinite(scored.ablated[0, 2]).all()
        return
    for i in (0, 2):
        alone = ablate(
            model, prompts[i : i + 1], positions=places[i], reference=reference, **options
        )
        # measured: 4e-6
        assert scored.ablated[0, i].tolist() == pytest.approx(alone["ablated"].tolist(), abs=1e-4)
    assert np.abs(scored.ablated[0, 0] - scored.clean[0]).max() > 0.01


def test_a_bos_in_front_can_be_left_alone(gpt2_bridge: Any, gpt2_twin: GPT) -> None:
    bos = codec_of(gpt2_bridge).bos
    prompts = [[bos, 1, 4, 1], [3, 1, 4, 1]]
    options: Any = {"heads": ["0.1"], "ablation": "zero", "metric": Logit(7)}
    metrics = as_metrics(gpt2_bridge, as_batch(gpt2_bridge, prompts), options["metric"])
    variants = [Variant(((0, 1),), "zero")]
    batch = as_batch(gpt2_bridge, prompts)
    found = score_variants(gpt2_bridge, batch, metrics, variants, positions="skip_bos")
    places = [[1, 2, 3], [0, 1, 2, 3]]
    expected = score_variants(gpt2_bridge, batch, metrics, variants, positions=places)
    np.testing.assert_allclose(found.ablated, expected.ablated, rtol=0, atol=1e-6)
    plain = ablate(gpt2_twin, prompts, positions="skip_bos", **options)
    assert plain.equals(ablate(gpt2_twin, prompts, **options)), "a model without a tokenizer"


def test_identical_prompts_have_no_partner_to_resample_from(gpt2_twin: GPT) -> None:
    with pytest.raises(InputError, match="needs a second sequence"):
        ablate(gpt2_twin, [[3, 1, 4]] * 6, heads=["0.0"], ablation="resample")
    table = ablate(gpt2_twin, [[3, 1, 4]] * 2 + [[5, 1, 4]], heads=["0.0"], ablation="resample")
    assert table["n"].unique().tolist() == [3]
    assert (table.loc[table["metric"] == "loss", "change"].abs() > 1e-6).all()


def test_what_stood_in_is_counted_and_what_is_left_out_is_named(gpt2_twin: GPT) -> None:
    two = ablate(gpt2_twin, [[3, 1, 4], [5, 9, 2]], heads=["0.0"], ablation="resample")
    assert two["baseline"].unique().tolist() == ["another sequence"]
    assert two["monte_carlo_error"].isna().all()
    long = [[3, 1, 4], [5, 9, 2], [1, 2, 3, 4]]
    table = ablate(gpt2_twin, long, heads=["0.0"], ablation="resample", metric="loss")
    assert table["baseline"].iloc[0].endswith("(1 without one left out)")
    assert table["n"].tolist() == [2]


@pytest.mark.parametrize("name", ["blocks.0.hook_resid_pre", "blocks.1.attn.hook_z"])
@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_an_outer_hook_that_counts_rows_sees_whole_runs(
    request: pytest.FixtureRequest, engine: str, name: str
) -> None:
    """Nested scopes: several runs in one batch would show it other rows."""
    model = request.getfixturevalue(engine)
    batch = as_batch(model, [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 9]])
    added = torch.randn(
        capture(model, batch.tokens, [name]).activations[name].shape,
        generator=torch.Generator().manual_seed(0),
    )

    def outer(activation: Tensor, *, hook: Any) -> Tensor:
        return activation + added

    with hooked(model, [(name, outer)]):
        table = ablate_every_head(model, batch, metric="loss", ablation="zero", per_prompt=True)
        for layer, head in shape(model).heads:
            zero = (f"blocks.{layer}.attn.hook_z", putting(0.0, head=head))
            expected = sequence_loss(with_hooks(model, batch, [zero]), batch)
            rows = table[(table["layer"] == layer) & (table["head"] == head)]
            # measured: 1e-6
            np.testing.assert_allclose(rows["ablated"], expected, rtol=0, atol=2e-5)


def test_a_position_that_is_not_there_is_refused(model: GPT, ragged_batch: Batch) -> None:
    shortest = int(ragged_batch.lengths.min())
    ragged: Any
    for ragged in ([shortest], [-shortest - 1], [[0]] * 3, torch.ones(2, 2).bool(), [], [[]] * 17):
        with pytest.raises(InputError) as error:
            ablate(model, ragged_batch, heads=["0.0"], ablation="zero", positions=ragged)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "positions", [1, [1], np.array([1]), torch.tensor([1]), [np.int64(1)], range(1, 2)]
)
def test_positions_come_in_any_integer_form(model: GPT, batch: Batch, positions: Any) -> None:
    found = chosen_positions(batch, positions)
    assert found.sum(0).tolist() == [0, len(batch), *[0] * 9]


def test_a_row_for_each_prompt_averages_to_the_row_of_the_head(model: GPT, batch: Batch) -> None:
    metric = ["loss", Logit(3)]
    whole = ablate_every_head(model, batch, metric=metric, ablation="mean")
    each = ablate_every_head(model, batch, metric=metric, ablation="mean", per_prompt=True)
    keys = ["layer", "head", "ablation", "metric"]
    assert len(each) == len(whole) * len(batch)
    means = each.groupby(keys, sort=False)[["clean", "ablated", "change"]].mean().reset_index()
    for column in ("clean", "ablated", "change"):
        np.testing.assert_allclose(means[column], whole[column], rtol=0, atol=1e-12)
    assert not each.duplicated([*keys, "prompt"]).any()


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_a_metric_of_the_user_equals_the_built_in_one(
    request: pytest.FixtureRequest, engine: str
) -> None:
    model = request.getfixturevalue(engine)
    prompts = [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8]]

    def difference(logits: Tensor) -> Tensor:
        return logits[0, -1, 3] - logits[0, -1, 5]

    own = ablate_every_head(model, prompts, metric=difference, ablation="zero")
    built_in = ablate_every_head(model, prompts, metric=LogitDifference(3, 5), ablation="zero")
    np.testing.assert_allclose(own["change"], built_in["change"], rtol=0, atol=1e-5)
    assert own["metric"].unique().tolist() == ["difference"]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("2.0", "head 2.0 does not exist"),
        ("mlp.2", "mlp.2 does not exist"),
        ("attn.7", "attn.7 does not exist"),
        ("9.*", "does not exist"),
        ("mlp.-1", "layer.head"),
    ],
)
def test_a_part_that_does_not_exist_is_refused(model: GPT, head: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        ablate(model, heads=[head], ablation="zero")


def test_a_model_without_mlp_has_none_to_remove(make_model: Callable[..., GPT]) -> None:
    with pytest.raises(InputError, match="has no MLP"):
        ablate(make_model(mlp="none"), heads=["mlp.0"], ablation="zero")


def test_a_head_named_twice_is_refused(model: GPT) -> None:
    with pytest.raises(InputError, match="named once"):
        ablate(model, heads=["1.*", "1.0"], ablation="zero")


@pytest.mark.usefixtures("unchecked")  # what is compiled is the code as users run it
def test_a_compiled_model_is_ablated_like_any_other(
    make_model: Callable[..., GPT], batch: Batch
) -> None:
    """Hooks added after the first compiled call must not be passed over in silence."""
    model = make_model()
    expected = ablate(model, batch, heads=["1.1"], ablation="zero")
    compiled: Any = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(batch.tokens)
    found = ablate(compiled, batch, heads=["1.1"], ablation="zero")
    np.testing.assert_allclose(found["change"], expected["change"], rtol=0, atol=1e-4)
    assert found["change"].abs().max() > 0.01
