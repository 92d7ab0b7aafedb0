"""The study of a language model, on a tiny GPT-2 folder with a tokenizer made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from analyses.detection import detect_heads
from analyses.entropy import entropy
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
from analyses.random_tokens import repeated_tokens
from models.config import GPTConfig
from models.errors import InputError
from models.gpt import GPT
from models.interface import hooked
from models.load import load
from models.text_codec import codec_of
from probe.cli import execute
from probe.studies.language_model import BLOCK, SEQUENCES, measure, report
from probe.studies.literature import NAMED, compare_with_literature


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
    assert table["chance"].to_numpy() == pytest.approx(1 / len(ids))
    others = table[table["key"] > 0]
    # a figure once held both against 1 / keys, and its sentence against 1 / (keys - 1)
    assert others["chance_without_first"].to_numpy() == pytest.approx(1 / (len(ids) - 1))
    assert table.loc[table["key"] == 0, "chance_without_first"].isna().all()
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


def ids_of(folder: Path, name: str, column: str = "ids") -> list[list[int]]:
    table = pd.read_csv(folder / "tables" / f"{name}.csv")
    return [[int(i) for i in ids.split()] for ids in table[column]]


def test_bos_is_put_before_all_that_is_fed(
    language_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["report", str(language_folder), "--engine", "gpt"]
    assert execute([*command, "--bos", "--out", str(tmp_path / "with")]) == 0
    report(load(language_folder, engine="gpt"), tmp_path / "usual")
    capsys.readouterr()
    codec = codec_of(load(language_folder, engine="gpt"))
    bos = codec.bos
    for name in ("prompts", "capitals"):
        usual, fed = (ids_of(tmp_path / way, name) for way in ("usual", "with"))
        assert fed == [[bos, *ids] for ids in usual]
    ids = " ".join(map(str, [bos, *codec.encode(CAPITALS[0].text)]))
    pages = {
        way: (tmp_path / way / "index.html").read_text(encoding="utf-8")
        for way in ("usual", "with")
    }
    assert f"(ids {ids}, after BOS (id {bos}))" in pages["with"]
    assert f"fed after BOS (id {bos}), as was asked for" in pages["with"]
    assert "fed without BOS, as the tokenizer does by itself" in pages["usual"]
    assert "repeated once, without BOS" in pages["usual"]
    assert "repeated once, after BOS" in pages["with"]
    ways = {
        way: pd.read_csv(tmp_path / way / "tables" / "last_token.csv")["input"].unique().tolist()
        for way in ("usual", "with")
    }
    assert ways["usual"] == ["as the tokenizer gives it", "with BOS"]
    assert ways["with"] == ["with BOS", "without BOS"]
    for way, other in (("usual", "with BOS"), ("with", "without BOS")):
        told = f"Fed {other} instead, the same random tokens"
        assert told in pages[way]
        assert f"The same blocks fed {other} are in tables/detection.csv" in pages[way]
        inputs = pd.read_csv(tmp_path / way / "tables" / "detection.csv")["input"].unique()
        assert inputs.tolist() == [ways[way][0], other]
    records = [
        json.loads((tmp_path / way / "report.json").read_text(encoding="utf-8"))
        for way in ("usual", "with")
    ]
    asked = [record["provenance"]["configuration"]["bos"] for record in records]
    assert asked == [None, True]


def test_every_table_of_the_study_follows_bos(language_folder: Path) -> None:
    """Each equals the analysis asked for by itself."""
    model = load(language_folder, engine="gpt")
    tables = measure(model, [], bos=True, seed=0, stage=lambda text: None)
    assert tables["detection"].attrs["input"].endswith("repeated after BOS")
    tokens = repeated_tokens(model, n=SEQUENCES, block=BLOCK, bos=True, seed=0)
    pd.testing.assert_frame_equal(tables["entropy"], entropy(model, tokens))
    detected = tables["detection"]
    assert detected["input"].unique().tolist() == ["with BOS", "without BOS"]
    for way, bos in (("with BOS", True), ("without BOS", False)):
        rows = detected[detected["input"] == way].drop(columns="input").reset_index(drop=True)
        alone = detect_heads(model, n=SEQUENCES, block=BLOCK, bos=bos)
        pd.testing.assert_frame_equal(rows, alone, check_dtype=False)
    pd.testing.assert_frame_equal(tables["cut"], cut_country(model, bos=True))
    last = tables["last_token"]
    assert (last.loc[last["input"] == "with BOS", "key"].max()) == (
        last.loc[last["input"] == "without BOS", "key"].max() + 1
    )
    assert not tables["cut"].equals(cut_country(model))


def test_no_bos_takes_away_the_one_that_the_tokenizer_adds(
    language_folder: Path, tmp_path: Path
) -> None:
    """A folder whose tokenizer begins every text with BOS, as Llama's does."""
    from tokenizers.processors import TemplateProcessing

    model = load(language_folder, engine="gpt")
    backend = codec_of(model).tokenizer.backend_tokenizer
    end = "<|endoftext|>"
    backend.post_processor = TemplateProcessing(
        single=f"{end} $A", pair=None, special_tokens=[(end, codec_of(model).bos)]
    )
    plain = codec_of(model).encode(CAPITALS[0].text, bos=False)
    assert codec_of(model).encode(CAPITALS[0].text) == [codec_of(model).bos, *plain]
    report(model, tmp_path / "out", bos=False)
    usual = [codec_of(model).encode(prompt.text) for prompt in PROMPTS]
    assert ids_of(tmp_path / "out", "prompts") == [ids[1:] for ids in usual]
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "fed without BOS, as was asked for" in page
    table = pd.read_csv(tmp_path / "out" / "tables" / "last_token.csv")
    assert table["input"].unique().tolist() == ["without BOS", "with BOS"]


def test_bos_without_a_bos_token_is_refused_before_anything_is_measured(
    language_folder: Path, tmp_path: Path
) -> None:
    model = load(language_folder, engine="gpt")
    codec_of(model).tokenizer.bos_token = None
    with pytest.raises(InputError, match="has no BOS token: leave out bos"):
        report(model, tmp_path / "out", bos=True, stage=refuse_to_score)
    assert not (tmp_path / "out").exists()


def refuse_to_score(text: str) -> None:
    assert "scoring" not in text


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
