"""All files of a report, written into one folder.

::

    index.html            the page
    tables/NAME.csv       every table, every row
    figures/NAME.png|svg  every figure
    report.json           every number on the page, and where it comes from
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from models.errors import InputError
from reports.folder import GENERATOR, safe_name
from reports.page import Page, page_figures, page_tables, render_page
from reports.tables import jsonable, write_csv

SCHEMA = 1


def write_report(
    folder: str | Path,
    page: Page,
    *,
    tables: Mapping[str, pd.DataFrame] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a report into a folder that `report_folder` made.

    Args:
        folder: Where to; figures that are not yet in ``figures/`` are copied there.
        page: What to show. Its tables are written by their names.
        tables: Further tables, or the full form of one that the page shows in part.
        provenance: What `reports.provenance` returned.

    Returns:
        The path of the page.

    Raises:
        InputError: If a table's name is no plain file name, or two different
            tables of the page share one.
    """
    folder = Path(folder)
    frames = _frames(page, tables or {})
    _copy_figures(folder / "figures", page)
    (folder / "tables").mkdir(exist_ok=True)
    for name, frame in frames.items():
        write_csv(frame, folder / "tables" / f"{name}.csv")
    index = folder / "index.html"
    index.write_text(render_page(page), encoding="utf-8", newline="\n")
    content = _content(page, frames, provenance or {})
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8", newline="\n")
    return index


def _frames(page: Page, more: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    frames: dict[str, pd.DataFrame] = {}
    for table in page_tables(page):
        if table.name in frames and frames[table.name] is not table.frame:
            raise InputError(f"two tables of the page are called {table.name!r}; rename one")
        frames[table.name] = table.frame
    frames |= more
    unsafe = [name for name in frames if safe_name(name) != name]
    if unsafe:
        raise InputError(f"a table's name must be a plain file name, got {', '.join(unsafe)}")
    return frames


def _copy_figures(folder: Path, page: Page) -> None:
    folder.mkdir(exist_ok=True)
    for figure in page_figures(page):
        for source in (figure.files.png, figure.files.svg):
            target = folder / source.name
            if source.resolve() != target.resolve():
                shutil.copyfile(source, target)


def _content(
    page: Page,
    frames: Mapping[str, pd.DataFrame],
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "generator": GENERATOR,
        "schema": SCHEMA,
        "title": page.title,
        "lead": page.lead,
        "summary": list(page.summary),
        "criteria": list(page.criteria),
        "figures": {figure.files.name: figure.caption for figure in page_figures(page)},
        "tables": frames,
        "provenance": provenance,
    }
    return {name: jsonable(value) for name, value in content.items()}
