r"""Text of models and users, made fit to be drawn or shown.

A label must be seen as what it is: ``"the"`` and ``" the"`` look different, a
newline never breaks a label, a bidirectional override never reverses its
neighbours, and a character that the font lacks is written as its code.
Nothing here knows of mathtext: the drawing style switches that off
(`reports.style`), so ``$``, ``_``, ``^`` and ``\`` stay themselves.

Escapes are for the eye. They cannot be undone where a text already holds
something that looks like one (``\n`` as two characters). Matplotlib is
imported when a font is asked for: tables and pages do without it.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

FONT = "DejaVu Sans"
SPACE = "␣"
NOTICE = "Characters the font lacks are written as codes: \\uXXXX."

_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_LONE_BYTES = range(0xDC80, 0xDD00)


@dataclass(frozen=True)
class Labels:
    """Labels ready to be drawn, and what has to be said about them.

    Attributes:
        texts: One label per input, in the same order, repeats included.
        notice: One sentence if any character had to be written as a code.
    """

    texts: tuple[str, ...]
    notice: str | None


def visible(text: str | bytes, *, spaces: bool = True) -> str:
    r"""Return the text with everything invisible made visible.

    Control, format (bidirectional marks included), private and unassigned
    characters, unusual spaces and a leading combining mark are escaped. Lone
    bytes, also in the surrogate form of ``surrogateescape``, become ``\xf0``.

    Args:
        text: A token or a name.
        spaces: Write ordinary spaces as ``␣``; ``False`` for running text.

    >>> visible(" the\n")
    '␣the\\n'
    >>> visible(b"\xf0\x9f")
    '\\xf0\\x9f'
    """
    text = _decoded(text)
    shown = "".join(_visible_character(character, spaces) for character in text)
    if text and unicodedata.category(text[0]).startswith("M"):
        return escape(text[0]) + shown[1:]
    return shown


def prose(text: str) -> str:
    """Return running text for a page: its line ends are spaces, all else is `visible`."""
    return "\n".join(visible(line, spaces=False) for line in text.split("\n"))


def printable(text: str | bytes, *, spaces: bool = True) -> str:
    r"""Return the text as a label for a plot: `visible`, in glyphs of the font.

    >>> printable("日 $5")
    '\\u65e5␣$5'
    """
    glyphs = _glyphs()
    return "".join(
        character if ord(character) in glyphs else escape(character)
        for character in visible(text, spaces=spaces)
    )


def labels(texts: Iterable[str | bytes]) -> Labels:
    """Return one printable label per text, and at most one notice for all."""
    texts = tuple(texts)
    drawn = tuple(printable(text) for text in texts)
    lacking = any(label != visible(text) for label, text in zip(drawn, texts, strict=True))
    return Labels(drawn, NOTICE if lacking else None)


def shorten(label: str, length: int) -> str:
    """Return at most ``length`` characters; a cut ends in an ellipsis."""
    return label if len(label) <= length else label[: length - 1] + "…"


def shorten_to(label: str, inches: float, *, size: float = 8) -> str:
    """Return the label, cut until it is no wider than so many inches."""
    length = len(label)
    while length > 1 and text_width(shorten(label, length), size=size) > inches:
        length -= 1
    return shorten(label, length)


@lru_cache(maxsize=4096)
def text_width(text: str, *, size: float = 8) -> float:
    """Return how wide a printable text is, in inches, at a size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) / 72


def escape(character: str) -> str:
    r"""Return the code of one character: ``\n``, ``\x1b``, ``\u202e``, ``\U0001f916``."""
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if code in _LONE_BYTES:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _decoded(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")


def _visible_character(character: str, spaces: bool) -> str:
    if character == " ":
        return SPACE if spaces else character
    hidden = unicodedata.category(character) in _HIDDEN
    return escape(character) if hidden else character


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(FONT)).get_charmap())
