"""Temperature on both pages: tables as analyses make them, and sentences that turn around."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyses.language_temperature import MEASURES, by_kind
from analyses.prompts import Prompt
from models.gpt import GPT
from probe.studies import temperature_sections
from probe.studies.drawer import Drawer, Study
from probe.studies.temperature_sections import (
    SWEEP,
    TOKENS,
    UNCACHED,
    language_findings,
    language_section,
    language_tables,
    task_findings,
    task_items,
    task_tables,
)
from reports.page import Figure, Table
from reports.temperature import costliest

KIND = "next token"


def fragile(half: dict[str, float], cold: dict[str, float] | None = None) -> dict[str, Any]:
    """Two heads in one seed; half points and cold exact match by head and ablation."""
    rows = [
        {
            "model": KIND,
            "seed": seed,
            "heads": heads,
            "ablation": kind,
            "temperature": t,
            "clean": 1.0,
            "ablated": (cold or {}).get(f"{heads} {kind}", 1.0),
            "clean_half_point": half.get("clean", 2.0),
            "ablated_half_point": half.get(f"{heads} {kind}", 2.0),
        }
        for seed in (0, 1)
        for heads in ("0.0", "0.1")
        for kind in ("mean", "resample")
        for t in (0.1, 1.0)
    ]
    return {"fragility": pd.DataFrame(rows)}


BOTH = {"0.1 mean": 1.7, "0.1 resample": 1.5}


@pytest.mark.parametrize(
    ("half", "cold", "holds", "words"),
    [
        (BOTH, {}, True, "In 2 of 2 seeds of “next token” there is a head"),
        (BOTH, {}, True, "seed 0: 0.1; seed 1: 0.1"),
        ({"0.1 mean": 1.7}, {}, False, "In 0 of 2 seeds"),  # the kinds must agree
        (BOTH, {"0.1 mean": 0.9}, False, "seed 0: none; seed 1: none"),  # needed when cold
        ({**BOTH, "0.1 mean": np.nan}, {}, False, "In 0 of 2 seeds"),  # never at 50%
        ({"clean": np.nan}, {}, None, "not testable here"),
    ],
)
def test_a_head_makes_fragile_only_where_both_ablations_say_so(
    half: dict[str, float], cold: dict[str, float], holds: bool | None, words: str
) -> None:
    (finding,) = task_findings(fragile(half, cold), KIND)
    assert (finding.criterion, finding.holds) == ("fragile", holds)
    assert words in finding.text
    assert task_findings(fragile(half, cold), "outputs only") == []


def test_the_tables_of_a_task_fill_their_items(trained: GPT, tmp_path: Path) -> None:
    tables = task_tables(trained, seed=2)
    assert list(tables) == ["temperature_by_position", "fragility"]
    for table in tables.values():
        table.insert(0, "model", KIND)
        table.insert(1, "seed", 0)
    draw = Drawer(Study(5, 1, tables, {}, []), tmp_path)
    items = task_items(draw, [KIND, "outputs only"])
    figures = [item for item in items if isinstance(item, Figure)]
    assert [figure.files.name for figure in figures] == [
        "temperature-by-position-next-token",
        "fragility-next-token",
    ]
    assert all(figure.files.png.exists() for figure in figures)
    coloured = len(costliest(tables["fragility"]))
    assert f"coloured are the {coloured} that cost most" in figures[1].caption
    (points,) = (item for item in items if isinstance(item, Table))
    assert len(points.frame) == 8 * 2, "heads and ablations"
    row = points.frame.iloc[0]
    assert row["fall"] == pytest.approx(1 - row["ablated_half_point"] / row["clean_half_point"])
    (finding,) = task_findings(tables, KIND)
    assert finding.text.startswith("In ")


def sweep(**changes: Any) -> pd.DataFrame:
    """Ten prompts of each kind at two temperatures; values by measure, kind and temperature."""
    rows = []
    for i in range(20):
        kind = "factual" if i < 10 else "open"
        for t in (0.3, 1.0):
            values = dict.fromkeys(MEASURES, 0.5)
            for name, change in changes.items():
                values[name] = change(kind, t) + i * 1e-6
            rows.append({"prompt": i, "kind": kind, "temperature": t, "n_samples": 1} | values)
    return pd.DataFrame(rows)


CASES = {
    "entropy_rises": ("entropy", lambda kind, t: 3 * t, lambda kind, t: t, "entropy rises"),
    "keeps_fewer": (
        "nucleus",
        lambda kind, t: 3.0 if kind == "factual" else 30.0,
        lambda kind, t: 30.0 if kind == "factual" else 3.0,
        "keep fewer tokens after factual prompts than after open ones: 3.0 against 30.0",
    ),
    "less_likely": ("log_likelihood", lambda kind, t: -3 * t, lambda kind, t: -t, "is less likely"),
    "follows_greedy": (
        "agreement",
        lambda kind, t: 0.7,
        lambda kind, t: 0.7 if kind == "factual" else 0.2,
        "follow the greedy continuation: they have its token in 70% of the places after",
    ),
    "repeats": ("repetition", lambda kind, t: 0.2, lambda kind, t: 0.02, "repeat themselves: 20"),
}


@pytest.mark.parametrize("criterion", CASES)
def test_every_sentence_can_come_out_either_way(criterion: str) -> None:
    measure, yes, no, words = CASES[criterion]
    for change, holds in ((yes, True), (no, False)):
        found = language_findings({"temperature": sweep(**{measure: change})})
        (finding,) = (f for f in found if f.criterion == criterion)
        assert finding.holds is holds
        assert (words in finding.text) is holds
        assert "nan" not in finding.text


def test_without_samples_only_the_exact_sentences_are_there() -> None:
    nothing = dict.fromkeys(("log_likelihood", "repetition"), lambda kind, t: np.nan)
    table = sweep(**nothing)
    criteria = [finding.criterion for finding in language_findings({"temperature": table})]
    assert criteria == ["entropy_rises", "keeps_fewer"]


def test_the_section_names_its_prompts_and_samples(tmp_path: Path) -> None:
    table = sweep(entropy=lambda kind, t: t)
    table.attrs["n_tokens"] = 20
    tables = {"temperature": table, "temperature_kinds": by_kind(table)}
    section = language_section(tables, tmp_path, model="tiny", start="without BOS")
    figure, kinds = section.items
    assert isinstance(figure, Figure)
    assert figure.files.png.exists()
    assert "tiny, after 10 factual, 10 open prompts fed without BOS" in figure.caption
    assert "1 sample of 20 tokens per prompt" in figure.caption
    assert isinstance(kinds, Table)
    assert len(kinds.frame) == 2 * 2 * len(MEASURES)


def test_a_language_model_is_swept_with_its_kinds_and_start(
    gpt2_bridge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [Prompt("a", "factual"), Prompt("b", "open")]
    tables = language_tables(gpt2_bridge, prompts, bos=True)
    sweep, kinds = tables["temperature"], tables["temperature_kinds"]
    assert sweep["ids"].unique().tolist() == ["22 0", "22 1"]
    assert sweep["temperature"].unique().tolist() == list(SWEEP)
    assert sweep.attrs["n_tokens"] == UNCACHED, "a bridge has no cache: every token is a pass"
    monkeypatch.setattr(temperature_sections, "UNCACHED", TOKENS)
    longer = language_tables(gpt2_bridge, prompts, bos=True)["temperature"]
    assert longer.attrs["n_tokens"] == 16 < TOKENS, "two tokens are fed, and 17 fit"
    assert kinds["kind"].unique().tolist() == ["factual", "open"]
    assert kinds["n"].max() == 1
