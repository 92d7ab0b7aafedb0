"""Every example of the README and the guide runs, and prints what the page says it prints."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES_THAT_RUN = [
    "README.md",
    "guide.md",
    "interventions.md",
    "sampling.md",
    "scores.md",
    "command-line.md",
]


@pytest.fixture(scope="session")
def build() -> ModuleType:
    """docs/build.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def models(build: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models that the pages use."""
    folder = tmp_path_factory.mktemp("docs")
    build.make_models(folder)
    return folder


@pytest.mark.parametrize("page", PAGES_THAT_RUN)
def test_examples_print_what_the_page_says(page: str, build: ModuleType, models: Path) -> None:
    path = next(p for p in build.PAGES if p.name == page)
    text = path.read_text(encoding="utf-8")
    assert build.form(build.rendered(text, models)) == build.form(text)


def test_a_changed_output_is_noticed(build: ModuleType, tmp_path: Path) -> None:
    page = "```python\nprint('exact match', 0.5)\n```\n\n```text\nexact_match 0.7\n```\n"
    assert build.form(build.rendered(page, tmp_path)) != build.form(page)
    right = page.replace("exact_match 0.7", "exact match 0.9")
    assert build.form(build.rendered(right, tmp_path)) == build.form(right)


def test_the_calibration_page_prints_its_table(build: ModuleType) -> None:
    """The command takes minutes: what it printed is held against the table that it wrote."""
    import pandas as pd

    from probe.cli.calibrate import false_labels, power_by_strength
    from probe.cli.show import print_table

    path = DOCS / "calibration.md"
    assert build.tables_of(path) == ["calibration.csv"]
    table = pd.read_csv(DOCS / "calibration.csv").astype({"power": float})
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_table(power_by_strength(table))
    ((kind, body),) = build.BLOCK.findall(path.read_text(encoding="utf-8"))
    command, *printed = body.splitlines()
    assert kind == "console"
    assert command == "$ probe calibrate --untrained 100 --csv calibration.csv"
    assert printed[:-1] == [*out.getvalue().splitlines(), false_labels(table)]
    assert re.fullmatch(
        r"labels on 100 untrained models: 0 of 1400 heads \(highest score 0\.\d\d\)", printed[-1]
    )


def test_the_calibration_table_is_what_the_command_gives_now() -> None:
    """The same columns, detectors, strengths and heads; two of its strengths, measured anew."""
    import pandas as pd

    from analyses.calibration import STRENGTHS, calibrate

    table = pd.read_csv(DOCS / "calibration.csv")
    assert sorted(table["strength"].unique()) == list(STRENGTHS)
    now = calibrate(strengths=(0.0, 1.0))
    then = table[table["strength"].isin([0.0, 1.0])].reset_index(drop=True)
    # planted patterns at full strength are found on any machine, and nothing at strength 0
    pd.testing.assert_frame_equal(then, now, check_dtype=False)


def test_the_tables_of_a_page_are_kept_beside_it(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "DOCS", tmp_path)
    page, ran = tmp_path / "page.md", tmp_path / "ran"
    page.write_text("```console\n$ probe heads m --csv some.csv\n$ probe show m\n```\n")
    ran.mkdir()
    (ran / "some.csv").write_text("a\n1\n")
    build.keep_tables(page, ran)
    assert (tmp_path / "some.csv").read_text() == "a\n1\n"


def test_every_page_is_checked_and_links_lead_somewhere(build: ModuleType) -> None:
    checked = {
        "README.md",
        "guide.md",
        "interventions.md",
        "sampling.md",
        "scores.md",
        "command-line.md",
        "benchmarks.md",
        "published.md",
        "calibration.md",
    }
    assert {path.name for path in build.PAGES} == checked
    for path in build.PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_every_public_name_is_in_the_guide_s_table() -> None:
    import probe

    guide = (DOCS / "guide.md").read_text(encoding="utf-8")
    section = guide.split("## All public names\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(names) == sorted(probe.__all__)


def test_every_command_and_score_is_in_the_docs() -> None:
    from analyses.attention_patterns import PATTERNS
    from analyses.registry import ANALYSES
    from probe.cli import app

    commands = (DOCS / "command-line.md").read_text(encoding="utf-8")
    for info in app.registered_commands:
        assert info.callback is not None
        assert f"## probe {info.callback.__name__}" in commands
    scores = (DOCS / "scores.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in scores for name in PATTERNS)
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in ANALYSES)
