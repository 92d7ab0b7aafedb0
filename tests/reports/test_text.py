"""Labels show what is there: whitespace, control and bidirectional characters, lone bytes."""

import warnings

import pytest
from matplotlib.figure import Figure

from reports.text import NOTICE, labels, printable, prose, shorten, shorten_to, text_width, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the", "the"),
        (" the", "␣the"),
        ("a  b", "a␣␣b"),
        ("\n\n", "\\n\\n"),
        ("\t\r", "\\t\\r"),
        ("\x1b[0m", "\\x1b[0m"),
        ("a\u202eabc", "a\\u202eabc"),
        ("\u200b", "\\u200b"),
        ("\xa0", "\\xa0"),
        ("\u2028", "\\u2028"),
        ("\u0301a", "\\u0301a"),
        ("x_1^2 $5 \\badcmd", "x_1^2␣$5␣\\badcmd"),
        ("<b>&lt;", "<b>&lt;"),
        ("", ""),
    ],
)
def test_invisible_characters_become_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_running_text_keeps_its_spaces() -> None:
    assert visible("outputs only", spaces=False) == "outputs only"
    assert prose("two\nlines \u202e") == "two\nlines \\u202e"


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (b"\xf0\x9f", "\\xf0\\x9f"),
        (b"\xa4", "\\xa4"),
        ("é".encode(), "é"),
        (b"\xf0".decode("utf-8", "surrogateescape"), "\\xf0"),
    ],
)
def test_lone_bytes_are_told_apart(piece: str | bytes, shown: str) -> None:
    assert printable(piece) == shown


def test_characters_that_the_font_lacks_are_written_as_codes() -> None:
    assert printable("日本") == "\\u65e5\\u672c"
    assert printable("🤖") == "\\U0001f916"
    assert printable("שלום") == "שלום"


def test_labels_explain_codes_once_and_only_when_there_are_any() -> None:
    drawn = labels(["日", "本", "a", "a"])
    assert drawn.texts == ("\\u65e5", "\\u672c", "a", "a")
    assert drawn.notice == NOTICE
    assert labels(["the", " the", "\n"]).notice is None


def test_every_printable_text_is_drawn_without_a_warning() -> None:
    figure = Figure()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for code in [*range(0x600), *range(0x2000, 0x3100, 3), 0xD800, 0xE000, 0xFFFE, 0x1F916]:
            text_width(printable(chr(code)))
        figure.text(0, 0, printable("日\u202e\x00\n$"), parse_math=False)
        figure.draw_without_rendering()


def test_long_labels_are_cut_with_an_ellipsis() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"
    cut = shorten_to("internationalisation", 0.5)
    assert cut.endswith("…")
    assert text_width(cut) <= 0.5
