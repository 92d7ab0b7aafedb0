"""Tables keep undefined values undefined, and escape what they show."""

import json
import math
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from models.errors import InputError
from reports.tables import html_table, jsonable, number_format, records, write_csv


class Cells(HTMLParser):
    """Reads headings, cells and attributes back, and checks that tags balance."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[str, dict[str, str | None]]] = []
        self.caption = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "td":
            self.cells.append(("", dict(attrs)))
        if tag == "th":
            self.headings.append(("", dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for name, found in (("td", self.cells), ("th", self.headings)):
            if name in self.open:
                found[-1] = (found[-1][0] + data, found[-1][1])
        if "caption" in self.open:
            self.caption += data


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "name": ["b", None, "<script>alert(1)</script>"],
            "score": [0.98765, np.nan, 0.0004],
            "n": [7, 11, 13],
            "holds": [True, False, True],
        }
    )


def test_csv_has_fixed_digits_and_names_what_is_undefined(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    path = write_csv(frame.assign(third=[1 / 3, -0.0, 1e-9]), tmp_path / "t.csv")
    assert path.read_bytes().decode() == (
        "name,score,n,holds,third\n"
        "b,0.98765,7,True,0.333333\n"
        "NaN,NaN,11,False,0\n"
        "<script>alert(1)</script>,0.0004,13,True,1e-09\n"
    )


def test_csv_of_equal_frames_is_equal_byte_for_byte(frame: pd.DataFrame, tmp_path: Path) -> None:
    first, second = (write_csv(frame.copy(), tmp_path / name).read_bytes() for name in "ab")
    assert first == second


def test_csv_round_trips_awkward_text(tmp_path: Path) -> None:
    texts = ["a,b", 'say "x"', "two\nlines", " the", "日本"]
    path = write_csv(pd.DataFrame({"token": texts}), tmp_path / "t.csv")
    assert pd.read_csv(path, keep_default_na=False)["token"].tolist() == texts


def test_csv_keeps_columns_of_equal_name_apart(tmp_path: Path) -> None:
    tokens = ["the", " cat", " and", " the", " cat", " and", " the", " cat"]
    wide = pd.DataFrame(np.arange(64.0).reshape(8, 8), columns=tokens)
    rows = write_csv(wide, tmp_path / "wide.csv").read_text().splitlines()
    assert rows[0].split(",") == tokens
    assert [len(row.split(",")) for row in rows] == [8] * 9
    assert rows[1].split(",") == [str(n) for n in range(8)]


def test_records_are_strict_json(frame: pd.DataFrame) -> None:
    made = records(frame)
    assert made[1] == {"name": None, "score": None, "n": 11, "holds": False}
    assert [type(value) for value in made[0].values()] == [str, float, int, bool]
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_records_refuse_columns_that_would_swallow_each_other() -> None:
    with pytest.raises(InputError, match=r"names must differ.*the.*rename"):
        records(pd.DataFrame([[1, 2]], columns=["the", "the"]))


def test_jsonable_turns_every_container_into_plain_values() -> None:
    @dataclass
    class Point:
        x: np.float32
        y: float

    value = {
        "a": np.array([[1, 2], [3, 4]]),
        "b": (Point(np.float32(0.5), math.inf),),
        "c": Path("out"),
        "d": {3, 1},
        5: np.bool_(True),
    }
    assert jsonable(value) == {
        "a": [[1, 2], [3, 4]],
        "b": [{"x": 0.5, "y": None}],
        "c": "out",
        "d": [1, 3],
        "5": True,
    }


def test_undefined_cells_say_so_and_have_no_value_to_sort_by(frame: pd.DataFrame) -> None:
    cells = Cells(str(html_table(frame, caption="c"))).cells
    assert [cells[4][0], cells[5][0]] == ["n/a", "n/a"]
    assert [cells[4][1]["data-sort"], cells[5][1]["data-sort"]] == ["", ""]
    assert all(
        cell[1]["data-sort"] != "" for place, cell in enumerate(cells) if place not in (4, 5)
    )


def test_numbers_sort_by_their_full_value_and_are_right_aligned(frame: pd.DataFrame) -> None:
    parsed = Cells(str(html_table(frame, caption="c")))
    text, attributes = parsed.cells[1]
    assert (text, attributes["data-sort"], attributes["class"]) == ("0.988", "0.98765", "number")
    assert [heading[1]["data-type"] for heading in parsed.headings] == [
        "text",
        "number",
        "number",
        "text",
    ]


def test_infinite_numbers_sort_as_numbers() -> None:
    frame = pd.DataFrame({"x": [math.inf, -math.inf, 2.0]})
    keys = [cell[1]["data-sort"] for cell in Cells(str(html_table(frame, caption="c"))).cells]
    assert [float(key or "nan") for key in keys] == [1e308, -1e308, 2.0]


def test_all_text_of_a_table_is_escaped(frame: pd.DataFrame) -> None:
    evil = '"><img src=x onerror=alert(1)>'
    html = str(
        html_table(
            frame.rename(columns={"n": evil}),
            caption=evil,
            tooltips={evil: evil},
            labels={"score": evil},
            formats={"name": lambda value: evil},
        )
    )
    assert "<img" not in html
    parsed = Cells(html)
    assert parsed.caption == evil
    assert parsed.headings[1][0] == parsed.headings[2][0] == evil
    assert parsed.headings[2][1]["title"] == evil
    assert "<script" not in html


def test_cells_show_bidirectional_characters_instead_of_obeying_them() -> None:
    html = str(html_table(pd.DataFrame({"t": ["a\u202eabc", "x\ny"]}), caption="c"))
    assert [cell[0] for cell in Cells(html).cells] == ["a\\u202eabc", "x\\ny"]
    assert "\u202e" not in html


def test_a_capped_table_says_how_many_rows_it_leaves_out() -> None:
    frame = pd.DataFrame({"x": range(1201)})
    parsed = Cells(str(html_table(frame, caption="Heads.", max_rows=50)))
    assert len(parsed.cells) == 50
    assert parsed.caption == "Heads. Shown: the first 50 of 1,201 rows."
    assert Cells(str(html_table(frame.head(50), caption="Heads.", max_rows=50))).caption == "Heads."


def test_formats_override_the_digits() -> None:
    frame = pd.DataFrame({"p": [0.5], "k": [2.0]})
    table = html_table(frame, caption="c", formats={"p": ".1%", "k": lambda value: f"{value} of 5"})
    assert [cell[0] for cell in Cells(str(table)).cells] == ["50.0%", "2.0 of 5"]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.98765, 0.0424, 0.0], ["0.988", "0.042", "0.000"]),
        ([3.14159, 0.0001], ["3.14", "0.0001"]),
        ([123.456, -0.5], ["123", "-0.5"]),
        ([1.0, 0.0], ["1", "0"]),
        ([2e7, 0.5], ["2e+07", "0.5"]),
        ([0.00001234], ["1.23e-05"]),
        ([math.nan], []),
    ],
)
def test_columns_show_about_three_digits_and_never_round_to_zero(
    values: list[float], shown: list[str]
) -> None:
    show = number_format(values)
    assert [show(value) for value in values if not math.isnan(value)] == shown
