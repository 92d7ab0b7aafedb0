"""Necessity and sufficiency of head sets: p-values as counted by hand, verdicts that say no."""

from itertools import combinations, product
from math import comb
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from analyses import hypothesis
from analyses.ablation import ablate
from analyses.criteria import CRITERIA
from analyses.hypothesis import (
    claim_verdict,
    combine_seeds,
    hypothesis_sentence,
    hypothesis_table,
    prompts_to_test,
)
from analyses.inputs import as_batch
from analyses.matched_sets import (
    CLAIMS,
    HeadSet,
    MatchedSets,
    SetScores,
    hypothesis_sets,
    matched_sets,
    measure_sets,
)
from analyses.metrics import KL, Custom, LogitDifference, Loss, Metric
from models.errors import InputError, UnknownNameError
from models.gpt import GPT
from models.interface import shape
from models.tasks import Batch, Task

KINDS = ("zero", "mean", "resample")
NUMBERS = ["clean", "none", "value", "monte_carlo_error", "share", "rank", "p"]


def planted(
    removed: Any,
    kept: Any,
    *,
    none: float = 1.0,
    metric: Metric | None = None,
    kinds: tuple[Any, ...] = ("mean", "resample"),
    total: int | None = None,
) -> SetScores:
    """Scores of 13 sequences whose mean over sequences is what is given; clean is 0."""
    noise = 0.01 * np.sin(np.arange(13.0))
    noise -= noise.mean()
    n = len(removed)
    sets = tuple(((0, head),) for head in range(n))

    def each(values: Any) -> np.ndarray:
        return np.stack([np.asarray(values, float)[:, None] + noise] * len(kinds))

    return SetScores(
        matched=MatchedSets(sets, n if total is None else total),
        metric=metric or Loss(),
        ablations=kinds,
        clean=np.zeros(13),
        removed=each(removed),
        kept=each(kept),
        none=each([none])[:, 0],
        errors=np.full((3, len(kinds)), np.nan),
        baselines=("planted",) * len(kinds),
        seed=0,
    )


def row(table: pd.DataFrame, claim: str, kind: str = "mean") -> Any:
    return table[(table["claim"] == claim) & (table["ablation"] == kind)].iloc[0]


def plainly(
    model: Any, tokens: Any, heads: HeadSet, metric: Any, kind: str, seed: int
) -> tuple[float, float]:
    """Clean and ablated, by the function that removes one set."""
    some = ablate(model, tokens, heads=list(heads), metric=metric, ablation=kind, seed=seed)
    return float(some["clean"].iloc[0]), float(some["ablated"].iloc[0])


@pytest.mark.parametrize("name", ["batch", "ragged_batch"])
@pytest.mark.parametrize("heads", [["0.1", "1.2"], ["1.0", "1.2"]])
def test_an_enumerated_p_value_is_what_counting_by_hand_gives(
    request: pytest.FixtureRequest, model: GPT, name: str, heads: list[str]
) -> None:
    """A plain loop over all sets with as many heads in every layer, one ablation at a time."""
    inputs = request.getfixturevalue(name)
    metric = KL(at="outputs")  # removing all heads changes it in every model
    kinds = ["zero", "resample"] if name == "ragged_batch" else list(KINDS)
    table = hypothesis.test_hypothesis(
        model, inputs, heads=heads, metric=metric, ablation=kinds, seed=5
    )
    tested = tuple((int(h[0]), int(h[2])) for h in heads)
    every = shape(model).heads
    counts = [sum(layer == at for at, _ in tested) for layer in (0, 1)]
    choices = [
        list(combinations([h for h in every if h[0] == at], n)) for at, n in enumerate(counts)
    ]
    sets = [first + second for first, second in product(*choices)]
    assert len(sets) == comb(3, counts[0]) * comb(3, counts[1])
    for kind in kinds:
        none = plainly(model, inputs, tuple(every), metric, kind, 5)[1]
        effect, retained = {}, {}
        for some in sets:
            clean, ablated = plainly(model, inputs, some, metric, kind, 5)
            rest = tuple(h for h in every if h not in some)
            effect[some] = ablated - clean
            kept = plainly(model, inputs, rest, metric, kind, 5)[1]
            retained[some] = (kept - none) / (clean - none)
        for claim, by_hand in (("necessary", effect), ("sufficient", retained)):
            found = row(table, claim, kind)
            at_least = sum(value >= by_hand[tested] for value in by_hand.values())
            assert found["p"] == at_least / len(sets)
            assert found["rank"] == at_least, "no ties here"
            assert found["n_sets"] == len(sets)
            assert found["enumerated"]
            # float32 in batches of another size; measured: 2e-8
            assert found["value"] == pytest.approx(by_hand[tested], abs=1e-5)
            assert found["share"] == pytest.approx(
                effect[tested] / (none - clean) if claim == "necessary" else retained[tested],
                abs=1e-5,
            )


def test_the_interval_and_error_of_a_removal_are_those_of_ablate(model: GPT, batch: Batch) -> None:
    table = hypothesis.test_hypothesis(model, batch, heads=["0.1", "1.2"], seed=5)
    for kind in KINDS:
        one = ablate(model, batch, heads=["0.1", "1.2"], metric="loss", ablation=kind, seed=5)
        found = row(table, "necessary", kind)
        for ours, theirs in (("value", "change"), *[(c, c) for c in ("ci_low", "ci_high")]):
            assert found[ours] == pytest.approx(one[theirs].iloc[0], abs=1e-5)
        assert found["monte_carlo_error"] == pytest.approx(
            one["monte_carlo_error"].iloc[0], abs=1e-5, nan_ok=True
        )
        assert found["baseline"] == one["baseline"].iloc[0]


def test_a_bridge_gives_the_numbers_of_our_own_model(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    ids = [torch.randint(22, (n,), generator=generator).tolist() for n in (5, 7, 7, 3, 11) * 3]
    reference = torch.randint(22, (29, 11), generator=generator)
    tables = [
        hypothesis_table(
            measure_sets(one, ids, heads=["0.2", "1.0", "1.1"], reference=reference, seed=3)
        )
        for one in (gpt2_twin, gpt2_bridge)
    ]
    assert tables[0]["ablation"].tolist() == [*KINDS, *KINDS]
    for column in NUMBERS:
        # measured: 4e-7
        np.testing.assert_allclose(tables[0][column], tables[1][column], rtol=0, atol=1e-5)


def test_a_single_prompt_has_effects_but_no_share(gpt2_twin: GPT) -> None:
    """One sequence has no standard error, so that nothing says that there is anything to keep."""
    table = hypothesis.test_hypothesis(gpt2_twin, [[3, 1, 4, 1, 5]], heads=["0.2"])
    assert table["ablation"].tolist() == ["zero", "zero"]
    needed, enough = row(table, "necessary", "zero"), row(table, "sufficient", "zero")
    expected = ablate(gpt2_twin, [[3, 1, 4, 1, 5]], heads=["0.2"], metric="loss", ablation="zero")[
        "change"
    ].iloc[0]
    assert needed["value"] == pytest.approx(expected, abs=1e-5)
    assert np.isnan([needed["ci_low"], needed["share"], enough["value"], enough["p"]]).all()
    assert enough["verdict"] == "undefined"


def test_p_counts_ties_and_the_set_itself() -> None:
    removed = [2.0] * 3 + [5.0] + [0.0] * 36
    scores = planted(removed, [0.5] * 40)
    needed = row(hypothesis_table(scores), "necessary")
    assert (needed["rank"], needed["p"]) == (2, 4 / 40), "one is larger, two are ties"
    enough = row(hypothesis_table(scores), "sufficient")
    assert (enough["rank"], enough["p"]) == (1, 1.0), "all are ties"


def test_differences_of_rounding_are_ties() -> None:
    removed = np.array([1.0, 1.0 - 3e-7, 1.0 + 3e-7, *[0.0] * 20])
    needed = row(hypothesis_table(planted(removed, removed)), "necessary")
    assert (needed["rank"], needed["p"]) == (1, 3 / 23)


@pytest.mark.parametrize(
    ("removed", "kept", "word"),
    [
        (0.9, 0.05, "{} and exceptional"),
        (0.3, 0.30, "exceptional, but not {}"),
    ],
)
def test_verdicts_come_out_either_way(removed: float, kept: float, word: str) -> None:
    """Clean is 0 and none is 1: a share is the removed score, or 1 less the kept one."""
    scores = planted([removed, *[0.1] * 24], [kept, *[0.8] * 24])
    table = hypothesis_table(scores)
    for claim in CLAIMS:
        assert row(table, claim)["verdict"] == word.format(claim)
        assert claim_verdict(table, claim) == word.format(claim)
        assert row(table, claim)["p"] == 1 / 25
    assert f"Head 0.0 is {word.format('necessary')} (" in hypothesis_sentence(table)


def test_a_set_like_the_others_is_not_exceptional() -> None:
    table = hypothesis_table(planted([0.9] * 25, [0.05] * 25))
    assert row(table, "necessary")["verdict"] == "necessary, but not exceptional; ranks 1st of 25"
    table = hypothesis_table(planted([0.1, *[0.2] * 24], [0.8, *[0.7] * 24]))
    assert row(table, "sufficient")["verdict"] == "neither; ranks 25th of 25"
    assert "neither sufficient nor exceptional" in hypothesis_sentence(table)


def test_fewer_than_twenty_sets_are_not_testable_and_the_rank_is_told() -> None:
    table = hypothesis_table(planted([0.9, 0.1, 0.2, 0.3], [0.1, 0.5, 0.5, 0.5]))
    needed = row(table, "necessary")
    assert needed["verdict"] == "not testable here; ranks 1st of 4"
    assert needed["smallest_p"] == 0.25
    assert "Whether head 0.0 is necessary is not testable here" in hypothesis_sentence(table)
    least = hypothesis_table(planted(np.arange(20.0), np.arange(20.0)))
    assert "not testable" not in row(least, "necessary")["verdict"], "1 of 20 is 0.05"


def test_mean_and_resample_have_to_agree_and_zero_decides_nothing() -> None:
    scores = planted([0.9, *[0.1] * 24], [0.05] * 25, kinds=KINDS)
    scores.removed[2] = scores.removed[2, ::-1]  # under resample another set is the one
    table = hypothesis_table(scores)
    assert claim_verdict(table, "necessary") == "depends on the ablation"
    assert "is necessary depends on the ablation" in hypothesis_sentence(table)
    for kinds, missing in (
        (("zero",), "mean and resample ablation were not run"),
        (("zero", "resample"), "mean ablation was not run"),
    ):
        some = hypothesis_table(planted([0.9, *[0.1] * 24], [0.05] * 25, kinds=kinds))
        assert row(some, "necessary", "zero")["verdict"] == "necessary and exceptional"
        assert claim_verdict(some, "necessary") == "undecided"
        assert missing in hypothesis_sentence(some)


def test_worse_is_what_the_metric_says_and_any_change_of_the_users_own() -> None:
    changes = [-3.0, 2.0, *[0.0] * 23]
    better = planted(changes, changes, none=-1.0, metric=LogitDifference(answer=1, distractor=2))
    assert row(hypothesis_table(better), "necessary")["rank"] == 1
    assert row(hypothesis_table(planted(changes, changes)), "necessary")["rank"] == 25
    own = planted(changes, changes, metric=Custom(lambda logits: 0.0))
    assert row(hypothesis_table(own), "necessary")["rank"] == 1
    assert row(hypothesis_table(own), "necessary")["value"] == pytest.approx(-3.0)


@pytest.mark.parametrize(("none", "defined"), [(9.5, False), (0.0, False), (-9.5, True)])
def test_removing_what_made_the_model_worse_was_called_necessary(
    none: float, defined: bool
) -> None:
    metric = LogitDifference(answer=1, distractor=2)
    changes = [none, *[0.1 * none] * 24]
    scores = planted(changes, [0.0, *[none] * 24], none=none, metric=metric)
    table = hypothesis_table(scores)
    assert table["share"].notna().all() == defined
    for claim in CLAIMS:
        expected = f"{claim} and exceptional" if defined else "undefined"
        assert claim_verdict(table, claim) == expected
    if defined:
        return
    sentence = hypothesis_sentence(table)
    why = "because logit_difference with all heads (0) is not better than without any ("
    assert f"head 0.0 is necessary is undefined here, {why}" in sentence
    assert "removing costs an undefined share" in sentence
    assert row(table, "necessary")["value"] == pytest.approx(none, abs=1e-9)
    assert all("undefined" in said and "because" in said for said in table["sentence"])
    combined = combine_seeds([table, table])
    assert (combined["verdict"] == "undefined").all()
    assert (combined["undefined"] == 2).all()


def test_units_named_columns_that_are_not_there(model: GPT, batch: Batch) -> None:
    own: Any = {"heads": ["0.1"], "ablation": "zero"}
    test = hypothesis.test_hypothesis(model, batch, **own)
    sets = hypothesis_sets(model, batch, **own)
    value = "necessary: nats per output; sufficient: share of clean - none"
    for table in (test, sets):
        assert set(table.attrs["units"]) <= set(table.columns)
        assert table.attrs["units"]["value"] == value


@pytest.mark.parametrize(
    ("tables", "match"),
    [
        ([pd.DataFrame({"claim": ["necessary"]})], "without ablation, metric, p, n_sets"),
        (pd.DataFrame({"claim": ["necessary"]}), "a list of tables, but it holds 'claim'"),
    ],
)
def test_another_table_was_a_key_error(unchecked: None, tables: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        combine_seeds(tables)


def test_default_prompts_without_a_task_were_those_chosen_on(gpt2_twin: GPT) -> None:
    chosen = as_batch(gpt2_twin, None, n=64, seed=0)
    found, n = prompts_to_test(gpt2_twin, selected_on=0)
    assert (len(found), n) == (64, 64)
    assert not set(map(tuple, found.tokens.tolist())) & set(map(tuple, chosen.tokens.tolist()))
    again, _ = prompts_to_test(gpt2_twin, selected_on=0)
    assert torch.equal(found.tokens, again.tokens)
    other, _ = prompts_to_test(gpt2_twin, selected_on=1)
    assert torch.equal(other.tokens, chosen.tokens), "seed 0 is kept where it is free"


def test_retained_is_not_clipped_and_undefined_where_heads_give_nothing() -> None:
    scores = planted([0.0] * 4, [-0.25, 0.5, 1.5, 1.0])
    assert scores.retained[0].tolist() == pytest.approx([1.25, 0.5, -0.5, 0.0])
    weak = planted([0.0] * 4, [0.1] * 4, none=0.0)
    assert np.isnan(weak.retained).all()
    error = np.std(weak.none[0], ddof=1) / 13**0.5
    for times, defined in ((1.9, False), (2.1, True)):
        some = planted([0.0] * 4, [0.1] * 4, none=times * error)
        assert np.isfinite(some.retained).all() == defined
    assert row(hypothesis_table(weak), "sufficient")["verdict"] == "undefined"


def test_an_undefined_control_counts_against_the_set() -> None:
    scores = planted([0.9, *[0.1] * 24], [0.05] * 25)
    scores.removed[:, 7] = np.nan
    assert row(hypothesis_table(scores), "necessary")["p"] == 2 / 25


def test_p_values_of_a_set_like_any_other_are_valid() -> None:
    """Uniform when the set is drawn like the others; measured here: 0.052 of 2,000 below 0.05."""
    random = np.random.default_rng(0)
    values = random.normal(size=(2_000, 40))
    p = np.array([hypothesis._rank(each)[1] / 40 for each in values])
    for level in (0.05, 0.25, 0.5):
        assert (p <= level).mean() == pytest.approx(level, abs=0.03)
    tied = np.array([hypothesis._rank(each)[1] / 40 for each in values.round()])
    assert (tied <= 0.05).mean() <= 0.05, "ties only make p larger"


def test_controls_are_distinct_and_match_layer_by_layer() -> None:
    model = GPT(_wide(), seed=0)
    heads = ["0.1", "0.4", "2.6"]
    matched = matched_sets(model, heads, n_controls=31, seed=2)
    assert matched.total == comb(7, 2) * 7
    assert not matched.enumerated
    assert len(set(matched.sets)) == 32
    assert matched.sets[0] == ((0, 1), (0, 4), (2, 6))
    assert {tuple(layer for layer, _ in some) for some in matched.sets} == {(0, 0, 2)}
    assert matched_sets(model, heads[::-1], n_controls=31, seed=2) == matched
    assert matched_sets(model, heads, n_controls=31, seed=3) != matched
    whole = matched_sets(model, heads, n_controls=146)
    assert whole.enumerated, "as many others as asked for are all of them"
    assert len(set(whole.sets)) == 147


def test_every_other_set_is_drawn_equally_often() -> None:
    model = GPT(_wide(), seed=0)
    drawn = [
        some
        for seed in range(400)
        for some in matched_sets(model, ["0.1", "1.2"], n_controls=3, seed=seed).sets[1:]
    ]
    counts = pd.Series(drawn).value_counts()
    assert len(counts) == 48
    assert stats.chisquare(counts).pvalue > 0.001


def test_random_controls_give_a_p_value_of_their_number(model: GPT, batch: Batch) -> None:
    table = hypothesis.test_hypothesis(
        model, batch, heads=["0.1", "1.2"], metric=KL(at="outputs"), n_controls=4, seed=1
    )
    assert (table["n_sets"] == 5).all()
    assert not table["enumerated"].any()
    assert set(table["p"]) <= {i / 5 for i in range(1, 6)}
    assert "5 randomly drawn sets" in hypothesis_sentence(table)


def test_all_heads_have_no_control(model: GPT, batch: Batch) -> None:
    table = hypothesis.test_hypothesis(model, batch, heads=["0.*", "1.*"], metric=KL(at="outputs"))
    assert (table["verdict"] == "not testable here; ranks 1st of 1").all()
    assert row(table, "sufficient")["value"] == 1.0, "keeping all is the clean model"
    assert row(table, "necessary")["share"] == 1.0, "removing all is having none"
    assert "no other set" in hypothesis_sentence(table)


def test_the_sets_behind_a_test_are_a_table(model: GPT, batch: Batch) -> None:
    own = {"heads": ["1.1"], "metric": KL(at="outputs"), "ablation": "zero"}
    sets = hypothesis_sets(model, batch, seed=2, **own)
    test = hypothesis.test_hypothesis(model, batch, seed=2, **own)
    assert sets.groupby("claim")["heads"].apply(sorted).tolist() == [["1.0", "1.1", "1.2"]] * 2
    assert not sets.duplicated(["claim", "ablation", "heads"]).any()
    for claim in CLAIMS:
        tested = sets[(sets["claim"] == claim) & sets["tested"]]
        assert tested["heads"].tolist() == ["1.1"]
        assert tested["value"].tolist() == test.loc[test["claim"] == claim, "value"].tolist()


def test_prompts_that_heads_were_chosen_on_are_refused(model: GPT, batch: Batch) -> None:
    with pytest.raises(InputError, match=r"other prompts .* 4 of 13 test prompts are in"):
        hypothesis.test_hypothesis(model, batch, heads=["0.1"], selected_on=batch[3:7])
    chosen = as_batch(model, None, n=64, seed=3)
    with pytest.raises(InputError, match="64 of 64"):
        hypothesis.test_hypothesis(model, chosen, heads=["0.1"], selected_on=3)
    ids = batch.tokens[:5].tolist()
    with pytest.raises(InputError, match="2 of 5"):
        hypothesis.test_hypothesis(model, ids, heads=["0.1"], selected_on=ids[3:])


def test_default_prompts_are_others_than_those_chosen_on(model: GPT) -> None:
    chosen = as_batch(model, None, n=64, seed=3)
    found, n = prompts_to_test(model, selected_on=3, seed=3)
    assert (len(found), n) == (64, 64)
    assert not set(map(tuple, found.tokens.tolist())) & set(map(tuple, chosen.tokens.tolist()))


def test_a_table_says_on_what_heads_were_chosen(model: GPT, batch: Batch, task: Task) -> None:
    own = {"heads": ["0.1"], "ablation": "zero"}
    silent = hypothesis.test_hypothesis(model, batch, **own)
    assert (silent["selection"] == "not declared").all()
    assert "chosen is not declared" in hypothesis_sentence(silent)
    others = task.heldout(11, seed=99)
    said = hypothesis.test_hypothesis(model, batch, selected_on=others, **own)
    assert (said["selection"] == "11 other prompts").all()
    assert "chosen on 11 other prompts" in hypothesis_sentence(said)


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"heads": []}, InputError, "at least one head"),
        ({"heads": ["0.1", "0.1"]}, InputError, "named once"),
        ({"heads": ["0.3"]}, UnknownNameError, r"0\.3 does not exist"),
        ({"heads": ["mlp.0"]}, InputError, "about heads, but got mlp.0"),
        ({"n_controls": 0}, InputError, "n_controls must be at least 1, but got 0"),
        ({"metric": ["loss", "kl"]}, InputError, "one metric, but got 2"),
        ({"ablation": "men"}, InputError, "one of zero, mean, resample"),
    ],
)
def test_what_cannot_be_tested_is_refused(
    model: GPT, batch: Batch, change: dict[str, Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match) as error:
        measure_sets(model, batch, **{"heads": ["0.1"], **change})
    assert "\n" not in str(error.value)


def test_the_same_call_gives_the_same_table(model: GPT, batch: Batch) -> None:
    first, second = (
        hypothesis.test_hypothesis(model, batch, heads=["0.1", "1.0"], n_controls=3, seed=4)
        for _ in range(2)
    )
    pd.testing.assert_frame_equal(first, second)
    assert not any(point.watched for point in model.hook_dict.values())
    assert not model.training


def seed_table(rank: int, n_sets: int, *, share: float = 0.9) -> pd.DataFrame:
    values = -np.ones(n_sets)
    values[0], values[1:rank] = share, 2.0
    return hypothesis_table(planted(values, 1 - values))


def test_seeds_combine_to_what_brute_force_counts() -> None:
    ranks, sizes = [1, 3, 2], [4, 6, 3]
    combined = combine_seeds([seed_table(r, n) for r, n in zip(ranks, sizes, strict=True)])
    every = [sum(some) for some in product(*[range(1, n + 1) for n in sizes])]
    expected = np.mean([total <= sum(ranks) for total in every])
    assert combined["p"].tolist() == pytest.approx([expected] * 4, abs=1e-12)
    assert combined["smallest_p"].tolist() == pytest.approx([1 / len(every)] * 4, abs=1e-12)
    assert combined["expected"].tolist() == [np.mean(every)] * 4
    assert combined["rank_sum"].tolist() == [6] * 4
    assert combined["n_first"].tolist() == [1] * 4


def test_one_seed_combined_is_itself() -> None:
    for rank in (1, 2, 25):
        table = seed_table(rank, 25)
        combined = combine_seeds([table])
        assert combined["p"].tolist() == pytest.approx(table["p"].tolist(), abs=1e-12)
        others = [-r for r in range(1, 26) if r != rank]
        reference = stats.mannwhitneyu([-rank], others, alternative="greater", method="exact")
        assert combined["p"].iloc[0] == pytest.approx(reference.pvalue, abs=1e-12)


def test_seeds_that_are_untestable_alone_are_testable_together() -> None:
    tables = [seed_table(1, 4) for _ in range(3)]
    combined = combine_seeds(tables)
    assert (combined["p"] == 1 / 64).all()
    assert (combined["n_testable"] == 0).all()
    assert (combined["verdict"] == "exceptional").all()
    assert (combine_seeds(tables[:2])["verdict"] == "not testable here").all()
    last = combine_seeds([seed_table(4, 4) for _ in range(3)])
    assert (last["p"] == 1).all()
    assert (last["verdict"] == "not exceptional").all()


def test_seeds_where_a_share_is_undefined_are_left_out_and_counted() -> None:
    lost = hypothesis_table(planted([1.0] * 5, [1.0] * 5, none=0.0))
    combined = combine_seeds([lost, seed_table(1, 5)]).set_index(["claim", "ablation"])
    enough = combined.loc[("sufficient", "mean")]
    assert (enough["n_seeds"], enough["undefined"], enough["p"]) == (1, 1, 0.2)
    needed = combined.loc[("necessary", "mean")]
    assert (needed["n_seeds"], needed["undefined"], needed["p"]) == (1, 1, 0.2)
    assert combine_seeds([lost])["verdict"].tolist() == ["undefined"] * 4
    with pytest.raises(InputError, match="at least one model"):
        combine_seeds([])


def test_thresholds_are_criteria_with_words() -> None:
    assert CRITERIA["exceptional"].threshold == 0.05
    assert {"necessary", "sufficient"} <= CRITERIA.keys()


def _wide() -> Any:
    from models.config import GPTConfig

    return GPTConfig(d_vocab=11, n_ctx=5, n_layers=3, n_heads=7, d_model=14)
