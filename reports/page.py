"""The page of a report: one HTML file that opens from disk and asks no network.

A page is data: sentences that were computed, each with the criterion it rests
on, then sections of figures, tables and paragraphs. The template, its styles
and its script are written into the file, figures as SVG images. All text is
escaped where it lands, and a content security policy lets only the page's own
script run. A page holds no date: equal input gives equal bytes.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from models.errors import InputError
from reports.figures import FigureFiles
from reports.tables import Format, html_table
from reports.text import prose

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Criterion:
    """What a verb in the summary means, in numbers.

    Attributes:
        name: Short and unique, such as "finds the mirrored letter".
        rule: The predicate in words.
        threshold: The number it is held against, printed beside the sentence.
        explanation: Why this rule, and what it does not say.
    """

    name: str
    rule: str
    threshold: float | str
    explanation: str = ""


@dataclass(frozen=True)
class Sentence:
    """One computed statement.

    Attributes:
        text: What this run found, whatever it is.
        criterion: Name of the criterion it rests on.
        holds: Whether the criterion is met; ``None`` where it cannot be tested.
    """

    text: str
    criterion: str
    holds: bool | None


@dataclass(frozen=True)
class Figure:
    """A figure on the page, with its caption; ``alt`` is the files' if left out."""

    files: FigureFiles
    caption: str
    alt: str | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """A table on the page; ``name`` is that of its CSV file, which holds every row.

    Formats, tooltips, labels and ``max_rows`` are those of `reports.html_table`.
    """

    name: str
    frame: pd.DataFrame
    caption: str
    formats: Mapping[str, Format] = field(default_factory=dict)
    tooltips: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    max_rows: int | None = None


Item = Figure | Table | str


@dataclass(frozen=True)
class Section:
    """A heading, an introduction, and figures, tables or paragraphs in order."""

    title: str
    intro: str = ""
    items: Sequence[Item] = ()


@dataclass(frozen=True)
class Page:
    """A whole report page.

    Attributes:
        title: The heading; the full name of the model belongs here or in the lead.
        lead: What was run, in one paragraph.
        summary: The computed sentences.
        sections: The evidence.
        criteria: Every criterion that a sentence names.
        footer: Closing line, such as how to run it again.
    """

    title: str
    lead: str
    summary: Sequence[Sentence]
    sections: Sequence[Section]
    criteria: Sequence[Criterion]
    footer: str = ""


def render_page(page: Page) -> str:
    """Return the page as one HTML document.

    Raises:
        InputError: If a sentence names a criterion that is not there, or two
            criteria share a name.
    """
    _check_criteria(page)
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    anchors = Anchors()
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            sections=[(anchors(section.title), section) for section in page.sections],
            criteria={
                rule.name: (anchors(f"criterion {rule.name}"), rule) for rule in page.criteria
            },
            styles=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_digest=f"sha256-{digest}",
        )
    )


def page_figures(page: Page) -> list[Figure]:
    """Return the figures of a page in order."""
    return [item for section in page.sections for item in section.items if isinstance(item, Figure)]


def page_tables(page: Page) -> list[Table]:
    """Return the tables of a page in order."""
    return [item for section in page.sections for item in section.items if isinstance(item, Table)]


class Anchors:
    """Ids for headings, from their words, each one once.

    >>> anchors = Anchors()
    >>> anchors("What heads do?"), anchors("what heads do")
    ('what-heads-do', 'what-heads-do-2')
    """

    def __init__(self) -> None:
        self._taken = {"summary", "criteria"}

    def __call__(self, title: str) -> str:
        """Return an id that no earlier title got."""
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}-{count}"
        self._taken.add(name)
        return name


def _check_criteria(page: Page) -> None:
    names = [criterion.name for criterion in page.criteria]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"criteria need names of their own, got {', '.join(repeated)} twice")
    missing = sorted({said.criterion for said in page.summary} - set(names))
    if missing:
        raise InputError(
            f"every sentence needs its criterion on the page; missing: {', '.join(missing)}"
        )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "plain": lambda text: prose(str(text)),
        "threshold": _threshold,
        "svg_uri": _svg_uri,
        "table": _table,
    }
    environment.filters.update(filters)
    environment.tests.update(
        figure=lambda item: isinstance(item, Figure), table=lambda item: isinstance(item, Table)
    )
    return environment


def _threshold(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _svg_uri(files: FigureFiles) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(files.svg.read_bytes()).decode()


def _table(table: Table) -> Markup:
    return html_table(
        table.frame,
        caption=table.caption,
        formats=table.formats,
        tooltips=table.tooltips,
        labels=table.labels,
        max_rows=table.max_rows,
    )
