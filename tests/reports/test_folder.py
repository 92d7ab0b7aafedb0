"""A report is seen whole or not at all, and replaces only a report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InputError, OutputExistsError
from reports.folder import GENERATOR, is_report, report_folder, safe_name


def write(folder: Path, text: str = "new") -> None:
    (folder / "index.html").write_text(text)
    (folder / "report.json").write_text(json.dumps({"generator": GENERATOR}))


def attempt(
    target: Path | str, action: Callable[[Path], object] = write, *, force: bool = False
) -> None:
    with report_folder(target, force=force) as folder:
        action(folder)


def refuse(target: Path | str, *, force: bool = False) -> None:
    attempt(target, lambda folder: pytest.fail("the block must not run"), force=force)


def write_and_raise(error: type[BaseException]) -> Callable[[Path], object]:
    def action(folder: Path) -> None:
        write(folder)
        raise error

    return action


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_nothing_stands_at_the_target_until_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with report_folder(target) as folder:
        assert folder.parent == tmp_path
        write(folder)
        assert not target.exists()
    assert listing(tmp_path) == ["out", "out/index.html", "out/report.json"]
    assert is_report(target)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_report_leaves_nothing_behind(
    tmp_path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        attempt(tmp_path / "new" / "deep" / "out", write_and_raise(error))
    assert listing(tmp_path) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_replacement_keeps_the_old_report(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "old")
    with pytest.raises(error):
        attempt(tmp_path / "out", write_and_raise(error), force=True)
    assert listing(tmp_path) == ["out", "out/index.html", "out/report.json"]
    assert (tmp_path / "out" / "index.html").read_text() == "old"


def test_missing_parents_are_made_and_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "a" / "b", tmp_path / "empty"):
        attempt(target)
        assert (target / "index.html").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "empty"}


def test_a_report_is_replaced_with_force_only(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    write(target, "old")
    (target / "stale.csv").write_text("x")
    with pytest.raises(OutputExistsError, match=r"new or empty.*holds a report.*--force"):
        refuse(target)
    assert (target / "index.html").read_text() == "old"
    attempt(target, force=True)
    assert listing(tmp_path) == ["out", "out/index.html", "out/report.json"]
    assert (target / "index.html").read_text() == "new"


@pytest.mark.parametrize("marker", [None, "{}", "[1]", "not json", '{"generator": "other"}'])
def test_force_never_replaces_what_is_not_a_report(tmp_path: Path, marker: str | None) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter.txt").write_text("years of work")
    if marker is not None:
        (target / "report.json").write_text(marker)
    before = listing(tmp_path)
    with pytest.raises(OutputExistsError, match="replaces only a report of ours"):
        refuse(target, force=True)
    assert listing(tmp_path) == before


def test_a_file_at_the_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputExistsError, match="is a file"):
        refuse(tmp_path / "out", force=True)
    assert (tmp_path / "out").read_text() == "a file"


def test_a_place_that_cannot_be_written_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another output folder") as caught:
        refuse(tmp_path / "file" / "sub" / "out")
    assert "\n" not in str(caught.value)


def test_the_current_folder_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for target in (".", ".."):
        with pytest.raises(InputError, match="folder of its own"):  # noqa: SIM117
            with report_folder(target, force=True):
                pytest.fail("the block must not run")


def test_a_folder_that_appears_meanwhile_costs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def action(folder: Path) -> None:
        write(folder)
        target.mkdir()
        (target / "other.txt").write_text("x")

    with pytest.raises(OutputExistsError, match="complete in") as caught:
        attempt(target, action)
    kept = Path(str(caught.value).rsplit(" ", 1)[1])
    assert (kept / "index.html").read_text() == "new"
    assert listing(target) == ["other.txt"]


def test_a_link_to_a_report_is_followed_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    write(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    attempt(tmp_path / "link", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "index.html").read_text() == "new"


AWKWARD = [
    "someorg/my.gpt2-v1.5",
    "/abs/path/ft gpt2/",
    "../ft",
    "..",
    ".",
    "",
    "a:b",
    "a/b",
    "a-b",
]


def test_model_names_become_one_component_below_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "reports"
    for name in AWKWARD:
        assert (root / safe_name(name)).resolve().parent == root


def test_plain_names_and_their_dots_are_kept() -> None:
    assert safe_name("SmolLM2-135M_v1.5") == "SmolLM2-135M_v1.5"
    assert safe_name("someorg/my.gpt2-v1.5").startswith("someorg-my.gpt2-v1.5~")


@pytest.mark.parametrize("name", ["con", "NUL.txt", "com1", ".hidden", "-rf", "end.", "a" * 300])
def test_names_that_a_file_system_treats_specially_are_replaced(name: str) -> None:
    made = safe_name(name)
    assert made != name
    assert len(made) < 100
    assert made[0] not in ".-"


def test_names_never_collide() -> None:
    names = [*AWKWARD, *(safe_name(name) for name in AWKWARD), "a\\b", "a b", "a  b", "A:b"]
    made = [safe_name(name) for name in set(names)]
    assert len(set(made)) == len(made)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_two_names_stay_apart(first: str, second: str) -> None:
    assert (safe_name(first) == safe_name(second)) == (first == second)
    assert not {"/", "\\", "\0", ":"} & set(safe_name(first))
