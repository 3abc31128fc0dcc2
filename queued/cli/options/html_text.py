"""The text of HTML, as it is read without a browser (pure)."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_HIDDEN = frozenset(("script", "style", "template", "title"))
_LINES = frozenset(("address", "blockquote", "br", "caption", "dd", "div", "dt", "footer", "form",
                    "header", "li", "main", "nav", "section", "table", "tr"))  # fmt: skip
_PARAGRAPHS = frozenset(("article", "dl", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "ol", "p",
                         "pre", "ul"))  # fmt: skip
_CELLS = frozenset(("td", "th"))
_BLANKS = re.compile(r"[ \t\r\n\f]+")
_EMPTY_LINES = re.compile(r"\n{3,}")


def html_text(html: str) -> str:
    """Return the text of HTML: a line for each block, and the URL behind the text of a link."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = (line.rstrip() for line in "".join(reader.parts).split("\n"))
    return _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip("\n")


class _Reader(HTMLParser):
    """Collects the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden: list[str] = []
        self._links: list[tuple[str, int]] = []  # the URL, and where its text begins
        self._as_it_is = 0  # elements `pre` that are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in _HIDDEN:
            self._hidden.append(tag)
        if self._hidden:
            return
        self._break(tag)
        if tag == "li":
            self.parts.append("- ")
        elif tag == "hr":
            self.parts.append("-----\n\n")
        elif tag == "img" and given.get("alt"):
            self.parts.append(f"[{given['alt']}]")
        elif tag == "a" and given.get("href"):
            self._links.append((given["href"] or "", len(self.parts)))
        elif tag == "pre":
            self._as_it_is += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:  # also those within it that have no end
            del self._hidden[self._hidden.index(tag) :]
            return
        if self._hidden:
            return
        if tag == "a" and self._links:
            url, begin = self._links.pop()
            if url != "".join(self.parts[begin:]).strip():
                self.parts.append(f" <{url}>")
        elif tag == "pre":
            self._as_it_is = max(0, self._as_it_is - 1)
        elif tag in _CELLS:
            self.parts.append("  ")
        if tag != "br":
            self._break(tag)

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if not self._as_it_is:
            data = _BLANKS.sub(" ", data)
            data = data.lstrip() if self._at_line_start() else data
        if data:
            self.parts.append(data)

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self.parts.append("\n\n")
        elif tag == "br" or (tag in _LINES and not self._at_line_start()):
            self.parts.append("\n")

    def _at_line_start(self) -> bool:
        return not self.parts or self.parts[-1].endswith("\n")
