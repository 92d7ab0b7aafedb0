"""A whole report: every file, every number, the same bytes again."""

import json
from pathlib import Path

import pandas as pd
import pytest

from models.errors import InputError
from reports.assembly import write_report
from reports.figures import save_figure
from reports.folder import is_report, report_folder
from reports.heads import score_against_entropy
from reports.page import Criterion, Figure, Page, Section, Sentence, Table
from reports.provenance import provenance
from reports.style import new_figure


def build(target: Path, heads: pd.DataFrame, figures: Path | None = None) -> Path:
    with report_folder(target) as folder:
        figure = new_figure()
        score_against_entropy(figure.subplots(), heads, score="anti_diagonal", entropy="entropy")
        files = save_figure(figure, figures or folder / "figures", "entropy")
        page = Page(
            "someorg/my.gpt2-v1.5",
            "Lead.",
            [Sentence("In 3 of 3 seeds.", "rule", True)],
            [Section("Heads", "", [Figure(files, "c"), Table("heads", heads, "c", max_rows=4)])],
            [Criterion("rule", "score", 0.95)],
        )
        write_report(
            folder,
            page,
            tables={"sweep": heads.head(2)},
            provenance=provenance(command="c", configuration={}, seeds=[0], timings={"all": 1.0}),
        )
    return target


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_report_has_its_files_and_no_others(heads: pd.DataFrame, tmp_path: Path) -> None:
    made = contents(build(tmp_path / "out", heads))
    assert sorted(made) == [
        "figures/entropy.png",
        "figures/entropy.svg",
        "index.html",
        "report.json",
        "tables/heads.csv",
        "tables/sweep.csv",
    ]
    assert is_report(tmp_path / "out")


def test_the_same_input_gives_the_same_bytes(heads: pd.DataFrame, tmp_path: Path) -> None:
    first, second = (contents(build(tmp_path / name, heads)) for name in ("a", "b"))
    for report in (first, second):
        del report["report.json"]
    assert first == second


def test_json_holds_every_row_and_null_for_the_undefined(
    heads: pd.DataFrame, tmp_path: Path
) -> None:
    text = (build(tmp_path / "out", heads) / "report.json").read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    content = json.loads(text, parse_constant=refuse)
    assert len(content["tables"]["heads"]) == len(heads)
    assert content["tables"]["heads"][3]["entropy"] is None
    assert content["summary"] == [{"text": "In 3 of 3 seeds.", "criterion": "rule", "holds": True}]
    assert content["title"] == "someorg/my.gpt2-v1.5"
    assert content["criteria"][0]["threshold"] == 0.95


def test_the_csv_has_the_rows_that_the_page_leaves_out(heads: pd.DataFrame, tmp_path: Path) -> None:
    made = contents(build(tmp_path / "out", heads))
    assert len(made["tables/heads.csv"].splitlines()) == len(heads) + 1
    assert b"Shown: the first 4 of 60 rows." in made["index.html"]


def test_figures_made_elsewhere_are_brought_along(heads: pd.DataFrame, tmp_path: Path) -> None:
    made = contents(build(tmp_path / "out", heads, figures=tmp_path / "elsewhere"))
    assert made["figures/entropy.svg"] == (tmp_path / "elsewhere" / "entropy.svg").read_bytes()


@pytest.mark.parametrize("name", ["../heads", "a/b"])
def test_a_table_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="plain file name"):
        write_report(tmp_path, Page("t", "l", [], [], []), tables={name: pd.DataFrame()})
    assert list(tmp_path.iterdir()) == []


def test_two_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    tables = [Table("heads", pd.DataFrame({"x": [n]}), "c") for n in range(2)]
    with pytest.raises(InputError, match="heads"):
        write_report(tmp_path, Page("t", "l", [], [Section("s", "", tables)], []))
