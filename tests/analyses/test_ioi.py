"""Prompts of indirect object identification are what they say, for any tokenizer."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from analyses import ioi as module
from analyses.ioi import NAMES, ORDERS, PLACES, TEMPLATES, ioi, single_token_names
from analyses.metrics import as_metrics
from analyses.pairs import as_pairs
from analyses.patching import activation_patching
from analyses.reruns import score_runs
from models.config import GPTConfig
from models.errors import InputError
from models.gpt import GPT
from models.text_codec import TextCodec

REAL = Path(__file__).parents[3] / "shared" / "data" / "gpt2-tokenizer"


def words(names: tuple[str, ...] = NAMES) -> TextCodec:
    """One word or sign, one token; names that are left out become the unknown token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    text = " ".join(template.format(A="", B="", S="") for template in TEMPLATES)
    known = sorted({*text.replace(",", " , ").split(), *names})
    ids = {word: i for i, word in enumerate(["<unk>", *known])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    kind: Any = PreTrainedTokenizerFast
    return TextCodec(kind(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<unk>"))


def gpt2_codec() -> TextCodec:
    """GPT-2's own tokenizer, where its files are."""
    from transformers import GPT2TokenizerFast

    if not REAL.is_dir():
        pytest.skip(f"GPT-2's tokenizer files are not in {REAL.name}")
    kind: Any = GPT2TokenizerFast
    return TextCodec(kind(vocab=str(REAL / "vocab.json"), merges=str(REAL / "merges.txt")))


def with_codec(codec: TextCodec) -> GPT:
    config = GPTConfig(
        d_vocab=len(codec.tokenizer), n_ctx=29, n_layers=2, n_heads=3, d_model=15, tied=True
    )
    return GPT(config, seed=3, init_std=0.5, vocabulary=codec).eval()


@pytest.fixture(scope="module", params=["words", "GPT-2"])
def model(request: pytest.FixtureRequest) -> GPT:
    return with_codec(words() if request.param == "words" else gpt2_codec())


def test_the_prompt_of_the_paper_is_among_the_templates() -> None:
    text = TEMPLATES[0].format(A="Mary", B="John", S="John")
    assert text == "When Mary and John went to the store, John gave a drink to"
    assert len(set(TEMPLATES)) == len(TEMPLATES) >= 10, "intervals need ten independent units"


def test_every_name_stands_where_it_is_said_to(model: GPT) -> None:
    task = ioi(model, n=2 * len(TEMPLATES))
    codec: Any = model.vocabulary
    assert set(task.positions) == set(PLACES)
    for i, ids in enumerate(task.clean.ids):
        at = {place: task.positions[place][i] for place in PLACES}
        said = {place: codec.decode([ids[p]]).strip() for place, p in at.items()}
        answer, subject = task.answers[i].strip(), task.distractors[i].strip()
        assert (said["IO"], said["S1"], said["S2"]) == (answer, subject, subject)
        assert at["END"] == len(ids) - 1
        assert (at["IO"] < at["S1"]) == (task.orders[i] == "ABBA")
        assert max(at["IO"], at["S1"]) < at["S2"] < at["END"]
        assert list(ids) == codec.encode(task.texts[i])


def test_counterparts_differ_at_the_second_subject_alone(model: GPT) -> None:
    task = ioi(model, n=31)
    codec: Any = model.vocabulary
    for other, expected in ((task.abc, task.third), (task.swapped, task.answers)):
        for i, (ours, theirs) in enumerate(zip(task.clean.ids, other.ids, strict=True)):
            differing = [p for p, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
            assert differing == [task.positions["S2"][i]]
            assert codec.decode([theirs[differing[0]]]).strip() == expected[i].strip()
    for names in zip(task.answers, task.distractors, task.third, strict=True):
        assert len(set(names)) == 3


def test_templates_and_orders_are_balanced_and_the_template_is_the_unit(model: GPT) -> None:
    task = ioi(model, n=2 * len(TEMPLATES))
    seen = set(zip(task.templates, task.orders, strict=True))
    assert seen == {(t, order) for t in range(len(TEMPLATES)) for order in ORDERS}
    pairs = as_pairs(model, task.clean, task.abc)
    assert len(set(pairs.units)) == len(TEMPLATES)
    table = activation_patching(model, task.clean, task.swapped, metric=task.metric, sites="attn")
    assert table["n"].eq(len(TEMPLATES)).all()
    assert table["n_prompts"].eq(len(task)).all()


def test_the_metric_reads_the_indirect_object_above_the_subject(model: GPT) -> None:
    task = ioi(model, n=3)
    pairs = as_pairs(model, task.clean, task.abc)
    (metric,) = as_metrics(model, pairs.clean, task.metric)
    ids = [
        [task.clean.ids[i][task.positions[place][i]] for i in range(3)] for place in ("IO", "S1")
    ]
    assert torch.equal(metric.answer, torch.tensor(ids[0]))  # type: ignore[attr-defined]
    assert torch.equal(metric.distractor, torch.tensor(ids[1]))  # type: ignore[attr-defined]


def test_patching_the_second_subject_restores_everything(model: GPT) -> None:
    task = ioi(model, n=1)
    table = activation_patching(
        model, task.clean, task.abc, metric=task.metric, sites="resid", positions=task.positions
    )
    first = table[table["layer"] == 0].set_index("position")["value"]
    assert first["S2"] == pytest.approx(1, abs=1e-4)
    assert first[["IO", "S1", "END"]].abs().max() < 1e-4


def test_the_same_seed_draws_the_same_prompts_and_a_prefix_of_more(model: GPT) -> None:
    assert ioi(model, n=7, seed=1) == ioi(model, n=7, seed=1)
    assert ioi(model, n=7, seed=1).texts == ioi(model, n=9, seed=1).texts[:7]
    assert ioi(model, n=7, seed=1).texts != ioi(model, n=7, seed=2).texts


def test_the_table_has_one_row_per_prompt(model: GPT) -> None:
    task = ioi(model, n=5)
    table = task.table()
    assert len(table) == len(task) == 5
    assert table["text"].tolist() == list(task.texts)
    assert table["S2"].tolist() == list(task.positions["S2"])
    assert table["ids"][0] == " ".join(map(str, task.clean.ids[0]))


def test_bos_moves_every_position_by_one() -> None:
    model = with_codec(words())
    plain, with_bos = ioi(model, n=3), ioi(model, n=3, bos=True)
    assert with_bos.clean.ids[0][1:] == plain.clean.ids[0]
    for place in PLACES:
        assert with_bos.positions[place] == tuple(p + 1 for p in plain.positions[place])


def test_names_of_several_tokens_are_left_out_and_counted() -> None:
    model = with_codec(words(("Mary", "John", "Tom", "Dan")))
    known, left_out = single_token_names(model)
    assert known == ["Mary", "John", "Tom", "Dan"]
    assert len(left_out) == len(NAMES) - 4
    task = ioi(model, n=11)
    assert task.left_out == left_out
    assert {name.strip() for name in task.answers} <= set(known)


def test_gpt2_knows_every_name() -> None:
    assert ioi(with_codec(gpt2_codec()), n=1).left_out == ()


def test_too_few_names_are_refused_in_one_line(make_model: Callable[..., GPT]) -> None:
    for model, n in ((with_codec(words(("Mary", "John"))), 2), (make_model(), 0)):
        with pytest.raises(InputError, match=f"3 names .* only {n} are") as error:
            ioi(model)
        assert "\n" not in str(error.value)


def test_a_name_that_becomes_another_token_in_a_sentence_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = with_codec(words())
    twice = tuple(f"{template} {{S}}" for template in TEMPLATES)
    monkeypatch.setattr(module, "TEMPLATES", twice)
    with pytest.raises(InputError, match="must stay one token inside a sentence"):
        ioi(model, n=1)


def test_counts_below_one_are_refused(model: GPT) -> None:
    for changes in ({"n": 0}, {"seed": -1}):
        with pytest.raises(InputError, match="n must be at least 1 and seed at least 0"):
            ioi(model, **changes)  # type: ignore[arg-type]


def test_a_bridge_gets_the_same_prompts(gpt2: Any) -> None:
    """Needs a tokenizer only; the model behind it is never run."""
    codec = words()
    ours = with_codec(codec)
    theirs: Any = copy.copy(ours)
    theirs.vocabulary = None
    theirs.tokenizer = codec.tokenizer
    assert ioi(theirs, n=5) == ioi(ours, n=5)


def test_smollm2_knows_every_name_and_the_answer(smollm2_gpt: GPT) -> None:
    task = ioi(smollm2_gpt, n=6)
    assert task.left_out == ()
    pairs = as_pairs(smollm2_gpt, task.clean, task.abc)
    metrics = as_metrics(smollm2_gpt, pairs.clean, task.metric)
    clean = score_runs(smollm2_gpt, pairs.clean, metrics, [])[0]
    assert clean.mean() > 1, "it says the indirect object"
