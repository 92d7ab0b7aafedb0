"""Run every example of the README and the guide, and write or check its output.

    python docs/build.py           # run the examples and write their outputs
    python docs/build.py --check   # fail where an output has another form

In a page, a ``python`` block is run, in one namespace per page, and the ``text`` block after it
holds what it prints. A ``console`` block holds ``$ probe ...`` lines and their output. A check
compares everything but the digits: a number may differ between machines, a column may not.

Pages are run in a folder that holds the models of ``make reversal``'s first seed. A file there that
a page in ``docs/`` names as ``--csv NAME.csv`` is kept beside the page: the table that its command
printed, for tests that cannot wait for the command.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description="Run the examples of the documentation.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        make_models(Path(folder))
        stale = []
        for page in PAGES:
            old = page.read_text(encoding="utf-8")
            new = rendered(old, Path(folder))
            if not check:
                page.write_text(new, encoding="utf-8")
                keep_tables(page, Path(folder))
            elif form(old) != form(new):
                stale.append(page.name)
    if stale:
        sys.exit(f"examples give another output in {', '.join(stale)}: run python docs/build.py")


def keep_tables(page: Path, folder: Path) -> None:
    """Copy the tables that a page's commands wrote to stand beside it."""
    for name in tables_of(page):
        shutil.copyfile(folder / name, page.parent / name)


def tables_of(page: Path) -> list[str]:
    """The csv files that the commands of a page in ``docs/`` write."""
    if page.parent != DOCS:
        return []
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    lines = [line for kind, body in blocks if kind == "console" for line in body.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("$ ")]
    return [words[words.index("--csv") + 1] for words in commands if "--csv" in words]


def make_models(folder: Path) -> None:
    """The two models of the reversal study's seed 0, where the study puts them."""
    from models import tasks
    from models.checkpoints import save_run
    from models.training import TrainingConfig, train

    for name, objective in (("next-token-0", "all"), ("outputs-only-0", "outputs")):
        config = TrainingConfig(objective=objective)  # type: ignore[arg-type]
        run = train(tasks.create("reversal"), config=config, device="cpu")
        save_run(folder / "out/reversal/models" / name, run)


def rendered(page: str, folder: Path) -> str:
    """The page with the outputs of its examples as they are now."""
    namespace: dict[str, Any] = {}
    printed: list[str] = []

    def replace(match: re.Match[str]) -> str:
        kind, body = match.groups()
        if kind == "python":
            printed[:] = [_run_python(body, namespace)]
        elif kind == "console":
            body = "".join(_run_command(line) for line in body.splitlines() if line[:2] == "$ ")
        elif printed:
            body = printed.pop()
        return f"```{kind}\n{body}```\n"

    with _inside(folder):
        return BLOCK.sub(replace, page)


def form(page: str) -> str:
    """A page without what may differ between machines: digits, signs, padding."""
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d.,e+-]*", "#", page))


def _run_python(code: str, namespace: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "<example>", "exec"), namespace)
    return out.getvalue()


def _run_command(line: str) -> str:
    from probe.cli import execute

    arguments = shlex.split(line.removeprefix("$ "))
    assert arguments[0] == "probe", line
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(err):
        status = execute(arguments[1:])
    shown = out.getvalue() + (err.getvalue() if status else "")
    return f"{line}\n{shown}"


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    main()
