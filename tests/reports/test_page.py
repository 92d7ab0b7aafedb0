"""The page: one file, no network, everything escaped, every sentence with its criterion."""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from models.errors import InputError
from reports.figures import FigureFiles
from reports.page import Criterion, Figure, Page, Section, Sentence, Table, render_page

EVIL = "</script><script>alert('x')</script>\"' onload=x <b>&lt;"
VOID = {"meta", "img", "br", "link"}
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'


class Document(HTMLParser):
    """Reads a page back; fails on tags that do not balance."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def attributes(self, tag: str, name: str) -> list[str]:
        return [value for found, attrs in self.tags if found == tag and (value := attrs.get(name))]


@pytest.fixture
def files(tmp_path: Path) -> FigureFiles:
    (tmp_path / "f.svg").write_bytes(SVG)
    (tmp_path / "f.png").write_bytes(b"png")
    return FigureFiles("f", tmp_path / "f.png", tmp_path / "f.svg", alt="all heads")


@pytest.fixture
def page(files: FigureFiles) -> Page:
    return Page(
        title="Reversal",
        lead="What was run.",
        summary=[
            Sentence("In 5 of 5 seeds it holds.", "finds the letter", True),
            Sentence("In 2 of 5 seeds it does not.", "finds the letter", False),
            Sentence("Too few heads to say.", "is a backup", None),
        ],
        sections=[
            Section("Heads", "Each head.", [Figure(files, "Caption."), "A paragraph."]),
            Section("Heads", "", [Table("heads", pd.DataFrame({"x": [1.5]}), "One row per head.")]),
        ],
        criteria=[
            Criterion("finds the letter", "best score", 0.95, "Predicting alignment."),
            Criterion("is a backup", "joint effect", "more than 2 standard errors"),
        ],
        footer="Run it again.",
    )


def test_the_page_is_one_balanced_utf8_document_without_the_network(page: Page) -> None:
    html = render_page(page)
    document = Document(html)
    assert html.startswith("<!DOCTYPE html>")
    assert ("meta", {"charset": "utf-8"}) in document.tags
    assert "http://" not in html
    assert "https://" not in html
    loaded = [*document.attributes("img", "src"), *document.attributes("link", "href")]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in loaded)
    assert len(loaded) == 1
    assert not document.attributes("script", "src")


def test_equal_pages_are_equal_byte_for_byte_and_undated(page: Page) -> None:
    html = render_page(page)
    assert render_page(replace(page)) == html
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", html)


def test_figures_are_embedded_with_alternative_text_and_caption(page: Page) -> None:
    document = Document(render_page(page))
    (source,) = document.attributes("img", "src")
    assert base64.b64decode(source.split(",", 1)[1]) == SVG
    assert document.attributes("img", "alt") == ["all heads"]
    assert "Caption." in document.text


def test_sentences_link_to_their_criterion_with_its_threshold(page: Page) -> None:
    document = Document(render_page(page))
    ids = [attrs["id"] for _, attrs in document.tags if "id" in attrs]
    links = [link for link in document.attributes("a", "href") if "criterion" in link]
    assert len(ids) == len(set(ids))
    assert len(links) == 3
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert "finds the letter, threshold 0.95" in document.text
    assert "is a backup, threshold more than 2 standard errors" in document.text


def test_sentences_say_whether_their_criterion_is_met(page: Page) -> None:
    document = Document(render_page(page))
    classes = [attrs.get("class") for tag, attrs in document.tags if tag == "li"]
    assert [name for name in classes if name] == ["met", "unmet", "untested"]
    for verdict in ("criterion met", "criterion not met", "not testable here"):
        assert verdict in document.text


def test_every_entry_of_the_contents_leads_somewhere(page: Page) -> None:
    document = Document(render_page(page))
    ids = {attrs["id"] for _, attrs in document.tags if "id" in attrs}
    targets = [link[1:] for link in document.attributes("a", "href") if link.startswith("#")]
    assert set(targets) <= ids
    assert {"summary", "heads", "heads-2", "criteria"} <= set(targets)


def everywhere(page: Page, text: str) -> Page:
    (figure, _), (table,) = (section.items for section in page.sections)
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    frame = pd.DataFrame({text: [text]})
    return Page(
        title=text,
        lead=text,
        summary=[Sentence(text, text, True)],
        sections=[
            Section(
                text,
                text,
                [
                    replace(figure, caption=text, alt=text),
                    replace(table, frame=frame, caption=text, tooltips={text: text}),
                    text,
                ],
            )
        ],
        criteria=[Criterion(text, text, text, text)],
        footer=text,
    )


def test_hostile_text_is_escaped_wherever_it_lands(page: Page) -> None:
    document = Document(render_page(everywhere(page, EVIL)))
    assert len([tag for tag, _ in document.tags if tag == "script"]) == 1
    assert not [tag for tag, attrs in document.tags if tag == "b" or "onload" in attrs]
    assert document.text.count(EVIL) >= 12
    assert document.attributes("img", "alt") == [EVIL]


def test_direction_marks_and_control_characters_are_shown_not_obeyed(page: Page) -> None:
    html = render_page(everywhere(page, "a\u202ebc\x1b\x00"))
    assert not set("\u202e\x1b\x00") & set(html)
    assert "a\\u202ebc\\x1b\\x00" in html


def test_only_the_pages_own_script_may_run(page: Page) -> None:
    html = render_page(page)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_tables_can_be_sorted_from_the_keyboard(page: Page) -> None:
    html = render_page(page)
    assert '<th scope="col" class="number" data-type="number" aria-sort="none"><button' in html
    assert 'href="tables/heads.csv"' in html


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda page: replace(page, criteria=page.criteria[:1]), "missing: is a backup"),
        (lambda page: replace(page, criteria=[page.criteria[0]] * 2), "finds the letter"),
    ],
)
def test_a_sentence_without_its_criterion_is_refused(
    page: Page, change: Callable[[Page], Page], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        render_page(change(page))


def test_a_page_without_findings_still_renders() -> None:
    document = Document(render_page(Page("t", "l", [], [], [])))
    assert "Summary" not in document.text
