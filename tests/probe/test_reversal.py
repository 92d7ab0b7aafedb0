"""The reversal study as a whole: what it writes, that it repeats, and that it loses nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from models.checkpoints import load_model
from models.errors import InputError, OutputExistsError
from probe.studies import reversal as module
from probe.studies.kinds import KINDS, LOCAL, NEXT_TOKEN, OUTPUTS_ONLY, UNTRAINED
from probe.studies.reversal import ReversalStudy, reversal


def digests(folder: Path) -> dict[str, str]:
    """Every file that must repeat byte for byte."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "report.json"
    }


def test_running_the_study_again_in_two_workers_gives_the_same_bytes(
    report: Path, study: ReversalStudy, tmp_path: Path
) -> None:
    again, _ = reversal(tmp_path / "again", study=replace(study, workers=2))
    assert digests(again) == digests(report)


def test_the_report_has_page_tables_figures_and_numbers(report: Path) -> None:
    names = {path.stem for path in (report / "tables").iterdir()}
    wanted = {"history", "heads", "profile", "ablation", "cumulative", "joint", "temperature"}
    wanted |= {"models", "ranks", "confidence", "temperature_by_position", "fragility"}
    wanted |= {"half_points"}
    labelled = {"hypotheses", "hypothesis_sets", "attention_temperature"}
    if "hypotheses" in names:  # where a head is labelled
        wanted |= labelled
        tests = pd.read_csv(report / "tables" / "hypotheses.csv")
        if (tests["n_sets"] > 1).any():  # and there are others to compare it with
            wanted |= {"hypotheses_combined"}
    assert names == wanted
    figures = [path.stem for path in (report / "figures").glob("*.svg")]
    assert len(figures) == len(list((report / "figures").glob("*.png"))) >= 12
    page = (report / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml") == len(figures)
    numbers = json.loads((report / "report.json").read_text(encoding="utf-8"))
    assert numbers["provenance"]["seeds"] == [0, 1]
    assert len(numbers["summary"]) >= 15
    assert all(sentence["text"] in page for sentence in numbers["summary"])


def test_the_head_table_has_one_row_per_model_seed_and_head_beside_its_controls(
    report: Path, study: ReversalStudy
) -> None:
    heads = pd.read_csv(report / "tables" / "heads.csv")
    keys = ["model", "seed", "layer", "head"]
    assert not heads.duplicated(keys).any()
    counts = heads.groupby("model").size()
    assert counts.to_dict() == dict.fromkeys(KINDS, study.seeds * study.layers * study.heads)
    trained = heads["model"].isin([NEXT_TOKEN, OUTPUTS_ONLY])
    assert heads.loc[trained, "loss_change_mean"].notna().all()
    assert heads.loc[~trained, "loss_change_mean"].isna().all()
    # uniform attention at queries 5..9 puts 1/(i+1) on one key; untrained heads are near it
    chance = sum(1 / (i + 1) for i in range(5, 10)) / 5
    untrained = heads[heads["model"] == UNTRAINED]
    assert untrained["anti_diagonal_chance"].to_numpy() == pytest.approx(chance, abs=1e-6)
    assert untrained["anti_diagonal"].max() < 1.5 * chance


def test_local_attention_never_writes_a_whole_word(report: Path) -> None:
    models = pd.read_csv(report / "tables" / "models.csv").set_index(["model", "seed"])
    assert (models.loc[LOCAL, "exact_match"] <= 0.05).all()


def test_the_models_of_the_report_can_be_loaded(report: Path) -> None:
    folders = sorted(path.name for path in (report / "models").iterdir())
    assert folders == ["next-token-0", "next-token-1", "outputs-only-0", "outputs-only-1"]
    model = load_model(report / "models" / "outputs-only-1")
    assert model.task is not None
    assert model.task.parameters() == {"length": 5, "min_length": None}


def test_a_report_that_is_there_is_refused_before_anything_runs(
    report: Path, study: ReversalStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_jobs", lambda *a, **k: pytest.fail("it ran"))
    before = digests(report)
    with pytest.raises(OutputExistsError, match="--force"):
        reversal(report, study=study)
    assert digests(report) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_study_that_stops_leaves_nothing_behind(
    error: type[BaseException],
    study: ReversalStudy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, "collect", stop)
    monkeypatch.setattr(module, "run_jobs", lambda *a, **k: [])
    with pytest.raises(error):
        reversal(tmp_path / "out" / "report", study=study)
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_make_no_study_are_refused() -> None:
    with pytest.raises(InputError, match="seeds must be at least 1, but got 0"):
        ReversalStudy(seeds=0)
    with pytest.raises(InputError, match="at least 4 letters, but got 3"):
        ReversalStudy(length=3)
    with pytest.raises(InputError, match="multiple of n_heads"):
        ReversalStudy(heads=3)


def test_progress_names_every_job_and_reaches_the_end(
    study: ReversalStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    quick = replace(study, seeds=1)
    monkeypatch.setattr(module, "build_page", lambda *a, **k: pytest.skip("the rest is not asked"))
    with pytest.raises(pytest.skip.Exception):
        reversal(
            tmp_path / "report",
            study=quick,
            progress=lambda job, message: seen.append((job.name, message)),
        )
    names = {job.name for job in quick.jobs()}
    assert {name for name, message in seen if message.get("done")} == names
    assert all({"step", "stage", "done"} & message.keys() for _, message in seen)
