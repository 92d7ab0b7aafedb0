"""The study of a language model, on a tiny GPT-2 folder with a tokenizer made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from analyses.prediction import (
    compare_kinds,
    cut_country,
    last_token_attention,
    next_token_probabilities,
    prediction,
    prompt_patterns,
    swap_countries,
)
from analyses.prompts import CAPITALS, PROMPTS, Prompt, read_prompts
from models.config import GPTConfig
from models.errors import InputError
from models.gpt import GPT
from models.interface import hooked
from models.load import load
from models.text_codec import codec_of
from probe.cli import execute
from probe.studies.language_findings import findings
from probe.studies.literature import NAMED, compare_with_literature


@pytest.fixture(scope="session")
def language_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of random weights whose byte-level tokenizer knows the words of the prompts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    texts = [prompt.text for prompt in PROMPTS]
    texts += [f"{capital.text}{capital.capital}" for capital in CAPITALS]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        min_frequency=1,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    folder = tmp_path_factory.mktemp("language") / "tiny.model-v1.5"
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=end, eos_token=end).save_pretrained(
        folder
    )
    config = GPT2Config(
        vocab_size=bpe.get_vocab_size(),
        n_positions=64,
        n_embd=15,
        n_layer=2,
        n_head=3,
        initializer_range=0.4,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=["gpt", "lens"])
def language_model(language_folder: Path, request: pytest.FixtureRequest) -> Any:
    """The model in both engines."""
    return load(language_folder, engine=request.param)


def test_prediction_equals_the_softmax_of_transformers(
    language_folder: Path, language_model: Any
) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(language_folder).eval()
    table = prediction(language_model)
    assert len(table) == len(PROMPTS)
    for row in table.itertuples():
        ids = torch.tensor([[int(i) for i in row.ids.split()]])
        with torch.no_grad():
            p = theirs(ids).logits[0, -1].double().softmax(-1)
        # measured: 2e-7 between the two implementations
        assert row.top_probability == pytest.approx(float(p.max()), abs=1e-5)
        assert row.entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
        ordered = p.sort(descending=True).values
        assert float(ordered[: row.tokens_90].sum()) >= 0.9
        assert float(ordered[: row.tokens_90 - 1].sum()) < 0.9


def test_the_permutation_test_counts_every_relabelling() -> None:
    table = pd.DataFrame(
        {
            "kind": ["factual"] * 3 + ["open"] * 3,
            "top_probability": [0.9, 0.8, 0.7, 0.3, 0.2, 0.1],
            "entropy": [1.0, 1.1, 1.2, 3.0, 3.1, 3.2],
            "tokens_90": [1, 1, 1, 1, 1, 1],
        }
    )
    result = compare_kinds(table).set_index("measure")
    # of the 20 ways to call three prompts factual, the observed one and its mirror are extreme
    assert result.loc["top_probability", "p"] == pytest.approx(2 / 20)
    assert result.loc["entropy", "difference"] == pytest.approx(-2.0)
    assert result.loc["tokens_90", "p"] == pytest.approx(1.0)
    with pytest.raises(InputError, match="factual and open"):
        compare_kinds(table[table["kind"] == "open"])


def test_last_token_attention_is_the_last_row_of_every_pattern(language_model: Any) -> None:
    text = CAPITALS[0].text
    table = last_token_attention(language_model, text)
    ids = codec_of(language_model).encode(text)
    pattern, valued = prompt_patterns(language_model, ids)
    assert len(table) == 2 * 3 * len(ids)
    assert table["attention"].to_numpy() == pytest.approx(pattern[:, :, -1].flatten().numpy())
    for column in ("attention", "without_first", "value_weighted"):
        sums = table.groupby(["layer", "head"])[column].sum()
        assert sums.to_numpy() == pytest.approx(1.0, abs=1e-5)
    assert table.loc[table["key"] == 0, "without_first"].isna().all()
    # value weighting by hand, in float64
    W_O = language_model.W_O[1, 2].detach().double()
    v_name = "blocks.1.attn.hook_v"
    from models.interface import capture

    v = capture(language_model, [ids], [v_name]).activations[v_name][0, :, 2].double()
    mass = pattern[1, 2, -1].double() * (v @ W_O).norm(dim=-1)
    assert valued[1, 2, -1].numpy() == pytest.approx((mass / mass.sum()).numpy(), abs=1e-5)


def test_cutting_a_heads_attention_equals_one_hook_at_a_time(language_model: Any) -> None:
    codec = codec_of(language_model)
    table = cut_country(language_model).set_index(["layer", "head"])
    answers = [codec.encode(c.capital, bos=False)[0] for c in CAPITALS]
    layer, head = 1, 2
    changes = []
    for i, capital in enumerate(CAPITALS):
        ids = codec.encode(capital.text)
        place = [k for k, t in enumerate(ids) if codec.decode([t]) == f" {capital.country}"]
        assert place

        def cut(pattern: torch.Tensor, *, hook: Any, place: list[int] = place) -> torch.Tensor:
            pattern = pattern.clone()
            pattern[0, head, -1, place] = 0
            pattern[0, head, -1] /= pattern[0, head, -1].sum()
            return pattern

        def measure(ids: list[int] = ids, i: int = i) -> float:
            p = next_token_probabilities(language_model, [ids])[0].log()[answers]
            return float(p[i] - (p.sum() - p[i]) / (len(p) - 1))

        clean = measure()
        with hooked(language_model, [(f"blocks.{layer}.attn.hook_pattern", cut)]):
            changes.append(measure() - clean)
    row = table.loc[(layer, head)]
    # measured: 3e-7
    assert row["change"] == pytest.approx(sum(changes) / len(changes), abs=1e-5)
    assert row["smallest"] == pytest.approx(min(changes), abs=1e-5)


def test_swapping_ranks_the_answer_among_all_tokens(language_model: Any) -> None:
    table = swap_countries(language_model)
    assert table["country"].tolist() == [c.country for c in CAPITALS]
    codec = codec_of(language_model)
    p = next_token_probabilities(language_model, [codec.encode(CAPITALS[1].text)])[0]
    answer = codec.encode(" Rome", bos=False)[0]
    assert table.loc[1, "rank"] == int((p > p[answer]).sum()) + 1


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_prompts_file_of_any_line_ending_with_or_without_a_mark(
    ending: bytes, mark: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(mark + ending.join([b"Hello", b"", b" world ", b""]))
    assert read_prompts(path) == [Prompt("Hello", "given"), Prompt(" world ", "given")]


def test_prompts_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_prompts(tmp_path / "nowhere.txt")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"UTF-8.*byte 3"):
        read_prompts(tmp_path / "latin.txt")


@pytest.mark.parametrize("engine", ["gpt", "lens"])
def test_probe_report_writes_a_whole_report(
    engine: str, language_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "mine.txt"
    prompts.write_text("The sun rises\n<script>alert(1)</script>\n", encoding="utf-8")
    out = tmp_path / "report"
    arguments = ["report", str(language_folder), "--out", str(out), "--engine", engine]
    assert execute([*arguments, "--prompts", str(prompts)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == str(out / "index.html")
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "tiny.model-v1.5" in page
    assert (out / "tables" / "literature.csv").exists() is False
    shown = pd.read_csv(out / "tables" / "prompts.csv")
    assert shown["kind"].tolist()[-2:] == ["given", "given"]
    record = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert record["provenance"]["configuration"]["model"] == str(language_folder)
    assert execute(arguments) == 1
    assert "holds a report" in capsys.readouterr().err


def test_a_tokenizer_that_splits_the_names_makes_the_causal_claim_untestable() -> None:
    detection = pd.DataFrame(
        {
            "score": ["previous_token", "duplicate_token", "induction", "first_token"],
            "layer": 0,
            "head": 0,
            "value": 0.1,
            "chance": 0.1,
            "labelled": False,
        }
    )
    last = pd.DataFrame(
        {"input": "x", "key": [0, 1], "token": ["a", "b"], "without_first": [float("nan"), 1.0]}
    )
    prompts = pd.DataFrame({"kind": ["factual", "open"], "top_probability": [0.95, 0.2]})
    kinds = pd.DataFrame(
        [("entropy", 1.0, 2.0, -1.0, 0.5, 1, 1)],
        columns=["measure", "factual", "open", "difference", "p", "n_factual", "n_open"],
    )
    tables = {"detection": detection, "last_token": last, "prompts": prompts, "kinds": kinds}
    found = {f.criterion: f for f in findings(tables)}
    assert found["follows"].holds is None
    assert found["attends"].holds is None
    assert found["label_floor"].holds is False
    assert found["peaked"].holds is True
    assert found["kinds_differ"].holds is False


def test_the_literature_is_compared_for_gpt2_small_only(language_model: Any) -> None:
    shape = GPTConfig(d_vocab=50257, n_ctx=2, n_layers=12, n_heads=12, d_model=768, d_mlp=1)
    small = GPT(shape)
    rows = [
        {
            "score": s,
            "layer": a,
            "head": b,
            "value": 0.5,
            "chance": 0.1,
            "labelled": a + b == 15,
        }
        for s in NAMED
        for a in range(12)
        for b in range(12)
    ]
    detection = pd.DataFrame(rows)
    table = compare_with_literature(small, "gpt2", detection)
    assert table["head"].tolist() == [h for heads, _ in NAMED.values() for h in heads]
    agreed = table[table["agrees"].str.startswith("agrees")]
    assert agreed["head"].tolist() == ["4.11", "6.9"]
    assert compare_with_literature(small, "someone/else", detection).empty
    assert compare_with_literature(language_model, "gpt2", detection).empty
