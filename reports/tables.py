"""Tables as files, as JSON and as HTML.

Undefined stays undefined: NaN is ``NaN`` in a CSV file, ``null`` in JSON and
"n/a" on a page, where it sorts last in both directions. Equal frames give
equal bytes. The index is never written: call ``reset_index()`` to keep it.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from models.errors import InputError
from reports.text import prose, visible

Format = str | Callable[[Any], str]

FLOAT_FORMAT = "%.6g"
MISSING = "n/a"
_DIGITS = 3


def write_csv(frame: pd.DataFrame, path: str | Path) -> Path:
    r"""Write a frame as CSV: UTF-8, ``\n``, six significant digits, ``NaN``.

    Columns are written by position, so equal names are kept apart.

    Returns:
        The path written.
    """
    path = Path(path)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([str(column) for column in frame.columns])
        for row in frame.itertuples(index=False, name=None):
            writer.writerow([_csv_cell(value) for value in row])
    return path


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one JSON-ready dictionary per row.

    Raises:
        InputError: If two columns share a name, which would lose one of them.
    """
    names = [str(column) for column in frame.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"column names must differ, got {', '.join(repeated)} more than once; rename them"
        )
    return [
        {name: jsonable(value) for name, value in zip(names, row, strict=True)}
        for row in frame.itertuples(index=False, name=None)
    ]


def jsonable(value: Any) -> Any:
    """Return the value as strict JSON: numpy becomes Python, what is not finite ``None``.

    Frames become lists of records, arrays nested lists, dataclasses
    dictionaries, paths, dates and anything else their text.
    """
    if is_missing(value):
        return None
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, pd.DataFrame):
        return records(value)
    return _jsonable_container(value)


def is_missing(value: Any) -> bool:
    """Return whether a cell is undefined: ``None``, NaN, NA or NaT."""
    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def html_table(
    frame: pd.DataFrame,
    *,
    caption: str,
    formats: Mapping[str, Format] | None = None,
    tooltips: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    max_rows: int | None = None,
) -> Markup:
    """Return a sortable table; every text in it is escaped.

    Args:
        frame: What to show, in this order; the index is left out.
        caption: Plain text; when rows are capped it says so.
        formats: Column to a format such as ``".2f"`` or to a function of the
            value; otherwise digits follow from the column's size.
        tooltips: Column to an explanation of it.
        labels: Column to the heading shown instead of its name.
        max_rows: Rows shown at most.

    Returns:
        Markup with ``data-type`` on headings and ``data-sort`` on cells, which
        the page's script sorts by; an empty ``data-sort`` stands for n/a.
    """
    shown = frame if max_rows is None else frame.head(max_rows)
    columns = [
        _column(shown.iloc[:, place], str(name), formats or {})
        for place, name in enumerate(frame.columns)
    ]
    headings = Markup("").join(
        _heading(str(name), column.kind, tooltips or {}, labels or {})
        for name, column in zip(frame.columns, columns, strict=True)
    )
    rows = Markup("").join(_row(row, columns) for row in shown.itertuples(index=False, name=None))
    full_caption = prose(caption) + _cap_note(len(shown), len(frame))
    return Markup(
        '<div class="scroll" role="region" tabindex="0" aria-label="{0}">'
        '<table class="sortable"><caption><span>{0}</span></caption>'
        "<thead><tr>{1}</tr></thead><tbody>{2}</tbody></table></div>"
    ).format(full_caption, headings, rows)


def number_format(values: Sequence[float]) -> Callable[[float], str]:
    """Return a format with one number of decimals for a column: about three digits.

    A value that is not zero is never shown as zero.
    """
    finite = [abs(value) for value in values if math.isfinite(value)]
    largest = max(finite, default=0.0)
    if all(float(value).is_integer() for value in finite):
        return lambda value: f"{value:.0f}"
    if largest >= 1e6 or largest < 1e-4:
        return lambda value: f"{value:.3g}"
    decimals = max(0, _DIGITS - 1 - math.floor(math.log10(largest)))
    return lambda value: _fixed(value, min(decimals, 6))


class _Column:
    """How the cells of one column are shown and sorted."""

    def __init__(self, kind: str, show: Callable[[Any], str]) -> None:
        self.kind = kind
        self.show = show


def _column(values: pd.Series, name: str, formats: Mapping[str, Format]) -> _Column:
    present = [value for value in values.tolist() if not is_missing(value)]
    kind = "number" if present and all(_is_number(value) for value in present) else "text"
    given = formats.get(name)
    if isinstance(given, str):
        spec = given
        return _Column(kind, lambda value: format(value, spec))
    if given is not None:
        return _Column(kind, given)
    floats = kind == "number" and any(isinstance(value, float) for value in present)
    return _Column(kind, number_format(present) if floats else _plain)


def _heading(
    name: str, kind: str, tooltips: Mapping[str, str], labels: Mapping[str, str]
) -> Markup:
    text = prose(labels.get(name, name.replace("_", " ")))
    tip = tooltips.get(name)
    title = Markup(' title="{}"').format(prose(tip)) if tip else Markup("")
    return Markup(
        '<th scope="col" class="{0}" data-type="{0}" aria-sort="none"{1}>'
        '<button type="button">{2}</button></th>'
    ).format(kind, title, text)


def _row(row: tuple[Any, ...], columns: Sequence[_Column]) -> Markup:
    cells = (_cell(value, column) for value, column in zip(row, columns, strict=True))
    return Markup("<tr>{}</tr>").format(Markup("").join(cells))


def _cell(value: Any, column: _Column) -> Markup:
    if is_missing(value):
        return Markup('<td class="{} missing" data-sort="">{}</td>').format(column.kind, MISSING)
    key = _sort_key(value) if column.kind == "number" else visible(str(value), spaces=False)
    text = visible(column.show(value), spaces=False)
    return Markup('<td class="{}" data-sort="{}"><bdi>{}</bdi></td>').format(column.kind, key, text)


def _cap_note(shown: int, total: int) -> str:
    return "" if shown == total else f" Shown: the first {shown:,} of {total:,} rows."


def _sort_key(value: Any) -> str:
    number = float(value)
    return repr(number) if math.isfinite(number) else f"{math.copysign(1e308, number):g}"


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    if float(text) == 0:
        return f"{value:.1g}" if value else f"{0:.{decimals}f}"
    return text


def _plain(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _csv_cell(value: Any) -> str:
    if is_missing(value):
        return "NaN"
    if isinstance(value, float | np.floating):
        return FLOAT_FORMAT % (float(value) + 0.0)
    return str(value)


def _jsonable_container(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, set | frozenset):
        return [jsonable(item) for item in sorted(value, key=str)]
    return value.isoformat() if isinstance(value, date) else str(value)
