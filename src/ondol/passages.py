"""Which parts does a document have that can be found by themselves?

A passage is some paragraphs that stand together, with the line it begins at (of a PDF: the page), so that whoever is
shown it can go there.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from typing import NamedTuple

VERSION = 2  # of these rules: what was read by others is read again
LENGTH = 1_200  # characters of a passage; a paragraph that is longer is cut at the ends of its sentences
_BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "br", "button", "caption", "center", "dd", "details", "dialog",
    "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6",
    "header", "hgroup", "hr", "legend", "li", "main", "menu", "nav", "ol", "optgroup", "option", "p", "pre", "search",
    "section", "select", "summary", "table", "tbody", "td", "textarea", "tfoot", "th", "thead", "title", "tr", "ul",
))  # fmt: skip
_HIDDEN = frozenset(("script", "style", "template", "noscript"))
_SENTENCE = re.compile(r"(?<=[.!?。！？\n])\s*")


class Passage(NamedTuple):
    """``place`` is its line or its page, from 1."""

    place: int
    text: str


def of_text(text: str) -> list[Passage]:
    """The passages of plain text or Markdown."""
    return list(_joined(_paragraphs(io.StringIO(text, None))))  # lines as editors count them: a form feed begins none


def of_html(text: str) -> list[Passage]:
    """The passages of what a reader of the page sees."""
    page = _Page()
    page.feed(text.replace("<![", "<! ["))  # no page has such sections, and the parser gives up at one it does not know
    page.close()
    pieces = (piece for block in page.blocks for piece in _pieces(*block))
    return list(_joined((line, " ".join(said.split())) for line, said in pieces if said.strip()))


def of_pages(pages: Iterable[str]) -> list[Passage]:
    """The passages of a document that has pages; none reaches over two."""
    return [Passage(n, p.text) for n, page in enumerate(pages, start=1) for p in of_text(page)]


def _paragraphs(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    begun, held = 1, list[str]()
    for n, line in enumerate(lines, start=1):
        if line.strip():
            begun = begun if held else n
            held.append(line.rstrip())
        elif held:
            yield begun, "\n".join(held)
            held = []
    if held:
        yield begun, "\n".join(held)


def _joined(paragraphs: Iterable[tuple[int, str]]) -> Iterator[Passage]:
    place, text = 0, ""
    for begun, paragraph in paragraphs:
        for line, piece in _pieces(begun, paragraph):
            if text and len(text) + len(piece) > LENGTH:
                yield Passage(place, text)
                text = ""
            place, text = (place, f"{text}\n{piece}") if text else (line, piece)
    if text:
        yield Passage(place, text)


def _pieces(line: int, paragraph: str) -> Iterator[tuple[int, str]]:
    """What is not too long of a paragraph that begins at this line, each with its own line."""
    if len(paragraph) <= LENGTH:
        yield line, paragraph
        return
    held, begun = "", line
    for at, sentence in _sentences(line, paragraph):
        for start in range(0, len(sentence), LENGTH):
            part = sentence[start : start + LENGTH]
            if held and len(held) + len(part) > LENGTH:
                yield begun, held
                held = ""
            held, begun = (f"{held} {part}", begun) if held else (part, at)
    if held:
        yield begun, held


def _sentences(line: int, paragraph: str) -> Iterator[tuple[int, str]]:
    start = 0
    for end in _SENTENCE.finditer(paragraph):
        yield line, paragraph[start : end.start()]
        line += paragraph.count("\n", start, end.end())
        start = end.end()
    yield line, paragraph[start:]


class _Page(HTMLParser):
    """Collects the texts between tags that begin a new block, each with its line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[tuple[int, str]] = [(1, "")]
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.blocks.append((self.getpos()[0], ""))

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        if tag in _BLOCKS:
            self.blocks.append((self.getpos()[0], ""))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            line, said = self.blocks[-1]
            self.blocks[-1] = line, said + data
