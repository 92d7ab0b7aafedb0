"""Estimated effects against derivatives by hand, finite differences and the exact sweep."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from analyses import estimates
from analyses.ablation import ablate, ablate_every_head
from analyses.estimates import SaturationWarning, estimate_every_head
from analyses.inputs import as_batch, reference_batch
from analyses.metrics import KL, Logit, LogitDifference, Loss, Metric, Probability, Rank, as_metrics
from analyses.substitutes import DRAWS, mean_activations, partners, substitutes
from models.errors import InputError
from models.gpt import GPT
from models.interface import capture, hooked, shape
from models.tasks import Batch, sequence_loss

ROWS = [[3, 1, 4, 3, 1], [2, 7, 1, 8, 2], [6, 6, 0, 4, 5], [9, 2, 6, 5, 3]]
Z = "blocks.{}.attn.hook_z".format


def put_in(model: Any, batch: Batch, kind: str, layer: int, reference: Batch) -> Tensor:
    """What ablation puts in for the heads of a layer, ``[draw, sequence, pos, head, d_head]``."""
    z = capture(model, batch.tokens, [Z(layer)]).activations[Z(layer)]
    if kind == "zero":
        return torch.zeros_like(z)[None]
    if kind == "mean":
        return mean_activations(model, reference, [Z(layer)])[Z(layer)].float().expand_as(z)[None]
    return torch.stack([z[partners(batch, seed=3, draw=draw)] for draw in range(DRAWS)])


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_one_gradient_is_the_derivative_times_what_ablation_changes(
    model: GPT, batch: Batch, kind: str
) -> None:
    table = estimate_every_head(model, batch, ablation=kind, estimate="gradient", seed=3)
    reference = reference_batch(model, batch, seed=3)
    names = [Z(layer) for layer in range(2)]
    kept = capture(model, batch.tokens, names, logits=True, grad=True)
    assert kept.logits is not None
    loss = sequence_loss(kept.logits, batch).sum()
    slopes = torch.autograd.grad(loss, [kept.activations[name] for name in names])
    for layer, slope in enumerate(slopes):
        moved = put_in(model, batch, kind, layer, reference).mean(0)
        moved = moved - kept.activations[names[layer]].detach()
        expected = (slope * moved).double().sum((1, 3)).mean(0)
        found = table.loc[table["layer"] == layer, "estimate"]
        # measured: 3e-7
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6)


def moved(model: Any, tokens: Tensor, gates: Tensor, new: list[Tensor], metric: Metric) -> float:
    """The metric of one sequence with every gate ``[layer, head]`` where it is."""

    def hook(z: Tensor, *, hook: Any) -> Tensor:
        layer = int(hook.name.split(".")[1])
        return z + gates[layer][:, None] * (new[layer] - z)

    with hooked(model, [(Z(layer), hook) for layer in range(len(gates))]):
        logits = capture(model, tokens, logits=True).logits
    assert logits is not None
    last = logits[0, -1].double()
    return float(last[metric.answer[0]] - last[metric.distractor[0]])  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["gpt2_twin", "gpt2_bridge"])
def test_integrated_gradients_read_each_group_where_its_gates_are(
    request: pytest.FixtureRequest, engine: str
) -> None:
    """Central differences in double precision at the gates that were dealt."""
    given = request.getfixturevalue(engine)
    model = request.getfixturevalue("gpt2_twin")
    exact = copy.deepcopy(model).double()
    batch = as_batch(given, ROWS)
    metric = as_metrics(given, batch, LogitDifference(answer=4, distractor=7))[0]
    found = substitutes(given, batch, ["zero"], [Z(0), Z(1)])["zero"]
    passes = estimates._dealt(given, batch, found, 2, 1.0, 11)
    values, _ = estimates._integrate(given, batch, metric, passes)
    zero = [torch.zeros((), dtype=torch.float64)] * 2
    for i in range(len(ROWS)):
        for layer, head in shape(model).heads:
            (one,) = [p for p in passes if p.weight[i, layer, head]]
            ends = []
            for step in (1e-4, -1e-4):
                gates = one.gates[i].double().clone()
                gates[layer, head] += step
                ends.append(moved(exact, batch.tokens[i : i + 1], gates, zero, metric))
            # measured: 5e-6
            assert values[i, layer, head] == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=3e-5)


def test_gates_are_dealt_once_to_each_head_and_run_evenly_through_their_path(
    model: GPT, batch: Batch
) -> None:
    given = substitutes(model, batch, ["resample"], [Z(0), Z(1)])["resample"]
    passes = estimates._dealt(model, batch, given, 3, 0.5, 0)
    counted = torch.stack([p.weight for p in passes])
    gates = torch.stack([p.gates for p in passes])
    assert (counted.sum(0) == 0.5).all()
    assert (counted.sum((2, 3)) == 1).all(), "six heads in three groups"
    assert ((gates > 0) == (counted > 0)).all()
    steps = gates.sum(0).sort(0).values
    expected = (torch.arange(13) + 0.5) / 13
    assert torch.allclose(steps, expected[:, None, None].expand_as(steps))


def test_a_head_that_moves_alone_gets_its_exact_effect(
    make_model: Callable[..., GPT], batch: Batch
) -> None:
    """Six heads in six groups; of many copies of a prompt the mean is the midpoint rule."""
    model = make_model(std=0.2)
    copies = Batch(
        *(part[:1].expand(97, -1) for part in (batch.tokens,)),
        batch.lengths[:1].expand(97),
        batch.next_tokens[:1].expand(97, -1),
        batch.outputs[:1].expand(97, -1),
        batch.target_keys[:1].expand(97, -1),
    )
    exact = ablate_every_head(model, copies, metric="loss", ablation="zero")["change"]
    assert exact.abs().max() > 1e-3
    metric = as_metrics(model, copies, "loss")[0]
    given = substitutes(model, copies, ["zero"], [Z(0), Z(1)])["zero"]
    passes = estimates._dealt(model, copies, given, 6, 1.0, 0)
    path = estimates._integrate(model, copies, metric, passes)[0].mean(0).ravel()
    # measured: 5e-7
    np.testing.assert_allclose(path, exact, rtol=0, atol=2e-5)
    clean = estimate_every_head(model, copies, ablation="zero", estimate="gradient")["estimate"]
    found = estimate_every_head(model, copies, ablation="zero")["estimate"]
    np.testing.assert_allclose(found, (path + clean) / 2, rtol=0, atol=2e-5)


def test_ranks_are_those_of_the_exact_sweep_where_one_gradient_fails(trained: GPT) -> None:
    batch = trained.task.heldout(64, seed=1)  # type: ignore[union-attr]
    for kind in ("zero", "mean", "resample"):
        exact = ablate_every_head(trained, batch, metric="loss", ablation=kind)["change"]
        with pytest.warns(SaturationWarning, match="for the order of heads, and sizes come out"):
            integrated = estimate_every_head(trained, batch, ablation=kind)["estimate"]
        with pytest.warns(SaturationWarning, match="clean loss is 0.01.*use integrated-gradients"):
            one = estimate_every_head(trained, batch, ablation=kind, estimate="gradient")
        # measured: 1.00, 0.95, 0.95 against 0.48, 0.29, 0.26
        assert spearmanr(integrated, exact).statistic >= 0.85
        assert spearmanr(one["estimate"], exact).statistic <= 0.6


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_the_largest_estimates_are_recomputed_exactly(model: GPT, batch: Batch, kind: str) -> None:
    exact = ablate_every_head(model, batch, metric="loss", ablation=kind)["change"]
    table = estimate_every_head(model, batch, ablation=kind, top=2)
    size = table["estimate"].abs()
    assert table["recomputed"].sum() == 2
    assert (
        size[table["recomputed"]].min()
        >= size[~table["recomputed"]].max()
        == table.attrs["cut_off"]
    )
    np.testing.assert_allclose(
        table["change"][table["recomputed"]], exact[table["recomputed"]], rtol=0, atol=1e-6
    )
    assert table["change"][~table["recomputed"]].isna().all()
    assert table.attrs["cost"] == {"forward": 10, "backward": 10, "recomputed": 2}


def test_nothing_is_recomputed_unless_asked(model: GPT, batch: Batch) -> None:
    table = estimate_every_head(model, batch, metric=Probability(answer=3), ablation="zero")
    assert not table["recomputed"].any()
    assert table["change"].isna().all()
    assert table.attrs["cut_off"] == table["estimate"].abs().max()
    assert table.attrs["units"] == dict.fromkeys(
        ("estimate", "change", "monte_carlo_error"), "probability"
    )
    assert table.attrs["method"] == "integrated-gradients, 10 points"
    every = estimate_every_head(model, batch, ablation="zero", top=99)
    assert every["recomputed"].all()
    assert np.isnan(every.attrs["cut_off"])


@pytest.mark.parametrize("estimate", ["gradient", "integrated-gradients"])
def test_both_engines_agree(gpt2_twin: GPT, gpt2_bridge: Any, estimate: str) -> None:
    for metric in (Loss(), LogitDifference(answer=4, distractor=7)):
        ours, theirs = (
            estimate_every_head(m, ROWS, metric=metric, ablation="resample", estimate=estimate)
            for m in (gpt2_twin, gpt2_bridge)
        )
        # measured: 3e-6
        pd.testing.assert_frame_equal(ours, theirs, rtol=0, atol=3e-5)


def test_padding_changes_nothing(
    model: GPT, ragged_batch: Batch, widen: Callable[[Batch, int], Batch]
) -> None:
    for kind in ("zero", "resample"):
        table = estimate_every_head(model, ragged_batch, ablation=kind)
        wide = estimate_every_head(model, widen(ragged_batch, 2), ablation=kind)
        pd.testing.assert_frame_equal(wide, table, rtol=0, atol=1e-5)  # measured: 3e-7


def test_few_sequences_at_a_time_change_nothing(
    model: GPT, ragged_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = {"metric": KL(at="outputs"), "ablation": "resample"}
    with pytest.warns(SaturationWarning):
        whole = estimate_every_head(model, ragged_batch, **own)
    monkeypatch.setattr(estimates, "CELLS", 1)
    with pytest.warns(SaturationWarning):
        table = estimate_every_head(model, ragged_batch, **own)
    pd.testing.assert_frame_equal(table, whole, rtol=0, atol=1e-5)  # measured: 3e-7
    assert table.attrs["cost"]["forward"] == 11, "KL needs the clean run"


def test_what_no_sequence_can_stand_in_for_is_left_out(model: GPT) -> None:
    rows = [*ROWS[:3], [1, 2, 3, 4, 5, 6, 7]]
    assert set(estimate_every_head(model, rows, ablation="resample")["n"]) == {3}
    assert set(estimate_every_head(model, rows, ablation="zero")["n"]) == {4}


def test_a_function_of_the_logits_may_be_estimated(model: GPT, batch: Batch) -> None:
    def answer(logits: Tensor) -> Tensor:
        return logits[0, -1, 3]

    table = estimate_every_head(model, batch, metric=answer, ablation="zero")
    named = estimate_every_head(model, batch, metric=Logit(answer=3), ablation="zero")
    assert table["metric"].unique().tolist() == ["answer"]
    assert table["estimate"].abs().max() > 0.01
    np.testing.assert_allclose(named["estimate"], table["estimate"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("token_accuracy", "token_accuracy"),
        ("exact_match", "exact_match"),
        (Rank(answer=3), "rank"),
        (lambda logits: logits.detach().sum().item(), "custom"),
    ],
)
def test_a_metric_without_a_derivative_is_refused_by_name(
    model: GPT, batch: Batch, metric: Any, name: str
) -> None:
    with pytest.raises(InputError, match=f"has a derivative, but {name} has none"):
        estimate_every_head(model, batch, metric=metric)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top": 0}, "top must be a whole number of at least 1, but got 0"),
        ({"top": 1.5}, "top must be a whole number of at least 1, but got 1.5"),
        (
            {"ablation": ["zero", "mean"]},
            "one ablation is wanted here, but got zero, mean: name one",
        ),
        ({"estimate": "guess"}, "estimate must be one of integrated-gradients, gradient"),
        ({"ablation": "half"}, "ablation must be one of zero, mean, resample"),
    ],
)
def test_wrong_arguments_are_refused(
    model: GPT, batch: Batch, unchecked: None, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        estimate_every_head(model, batch, **arguments)


def test_sizes_that_came_out_at_half_are_warned_of(trained: GPT) -> None:
    batch = trained.task.heldout(64, seed=1)  # type: ignore[union-attr]
    with pytest.warns(SaturationWarning, match="clean loss is 0.01") as said:
        found = estimate_every_head(trained, batch, ablation="zero")["estimate"]
    assert "\n" not in str(said[0].message)
    exact = ablate_every_head(trained, batch, metric="loss", ablation="zero")["change"]
    assert 0.3 < found.abs().sum() / exact.abs().sum() < 0.8


def test_the_kl_of_integrated_gradients_came_out_small_unsaid(model: GPT, batch: Batch) -> None:
    with pytest.warns(SaturationWarning, match="KL .* derivative 0 .* sizes come out small"):
        estimate_every_head(model, batch, metric=KL(), ablation="zero")


def test_few_sequences_were_taken_for_an_integral(model: GPT, batch: Batch) -> None:
    few = estimate_every_head(model, batch[:3], ablation="zero")
    assert "at one point per sequence, and there are only 3" in few.attrs["note"]
    assert estimate_every_head(model, batch, ablation="zero").attrs["note"] == ""
    one = estimate_every_head(model, batch[:3], ablation="zero", estimate="gradient")
    assert one.attrs["note"] == "", "it reads no path"


def test_the_default_ablation_forgot_the_reference(gpt2_twin: GPT) -> None:
    reference = ROWS[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = estimate_every_head(gpt2_twin, ROWS[:1], reference=reference, top=6)
    assert set(table["ablation"]) == {"mean"}
    for row in table.itertuples():
        one = ablate(
            gpt2_twin,
            ROWS[:1],
            heads=[(row.layer, row.head)],  # type: ignore[list-item]
            metric="loss",
            reference=reference,
        )
        assert row.change == pytest.approx(one["change"].iloc[0], abs=1e-6)


def test_resampled_effects_were_called_exact(model: GPT, batch: Batch) -> None:
    table = estimate_every_head(model, batch, ablation="resample", top=2)
    assert "exact" not in table
    exact = ablate_every_head(model, batch, metric="loss", ablation="resample")
    known = table["recomputed"]
    np.testing.assert_allclose(
        table["monte_carlo_error"][known], exact["monte_carlo_error"][known], rtol=0, atol=1e-6
    )
    assert (table["monte_carlo_error"][known] > 0).all()
    assert table["monte_carlo_error"][~known].isna().all()


def test_one_gradient_of_the_kl_warns(model: GPT, batch: Batch) -> None:
    with pytest.warns(SaturationWarning, match="derivative 0 in the clean run"):
        table = estimate_every_head(model, batch, metric=KL(), ablation="zero", estimate="gradient")
    assert table["estimate"].abs().max() < 1e-5


def test_the_model_is_left_as_it_was(make_model: Callable[..., GPT], batch: Batch) -> None:
    model = make_model().train()
    state = torch.get_rng_state()
    with torch.no_grad():
        table = estimate_every_head(model, batch, ablation="mean")
        assert not torch.is_grad_enabled()
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(point.watched for point in model.hook_dict.values())
    frozen = make_model().requires_grad_(False)
    again = estimate_every_head(frozen, batch, ablation="mean")
    pd.testing.assert_frame_equal(again, table, rtol=0, atol=1e-6)
    assert not any(p.requires_grad for p in frozen.parameters())
