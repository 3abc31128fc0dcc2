"""The places of words in HTML: a tokenizer after WHATWG HTML, section 13.2.5 (pure).

A word has a place if no value of it can end a token or begin one. HTML that readers split into
different tokens is refused, such as `noscript`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple, NoReturn

from pgmta.compose.words import (
    HOST,
    HOST_ENDS,
    HOST_HINT,
    HTML,
    Filling,
    Split,
    WordPlace,
    encode_part,
    line_at,
)
from pgmta.errors import TemplateError

_WORD_MARK = "\0"  # stands for a word in the joined text, which has no other NUL
_SPACE_CHARACTERS = r"\t\n\f\r "
_TAG = re.compile(rf"</?[A-Za-z][^{_SPACE_CHARACTERS}/>\0]*")
_GAP = re.compile(rf"[{_SPACE_CHARACTERS}/]*")
_ATTRIBUTE = re.compile(rf"[^{_SPACE_CHARACTERS}/>=]+")
_EQUALS = re.compile(rf"[{_SPACE_CHARACTERS}]*=[{_SPACE_CHARACTERS}]*")
_UNQUOTED_VALUE = re.compile(rf"[^{_SPACE_CHARACTERS}>]*")
_ODD_IN_UNQUOTED = re.compile(r"[\"'<]")
_COMMENT_END = re.compile(r"--!?>")
_REFERENCE = re.compile(r"&[#0-9A-Za-z]*\Z")
_UNFINISHED_TAG = re.compile(r"</?[A-Za-z]*\Z")
_HTTP = re.compile(r"\s*https?://", re.ASCII | re.IGNORECASE)

_RAW_TEXT_ELEMENTS = frozenset(("script", "style", "xmp", "iframe", "noembed", "noframes"))
_TEXT_ONLY_ELEMENTS = frozenset(("title", "textarea"))
_REFUSED_ELEMENTS = frozenset(("svg", "math", "select", "frameset", "noscript", "plaintext"))
_LOADING_ELEMENTS = frozenset(
    ("applet", "base", "embed", "frame", "iframe", "link", "meta", "object", "param", "script",
     "style")
)  # fmt: skip
_URL_ATTRIBUTES = frozenset(
    ("action", "background", "cite", "classid", "codebase", "data", "dynsrc", "formaction", "href",
     "icon", "longdesc", "lowsrc", "manifest", "poster", "profile", "src", "usemap")
)  # fmt: skip
_CODE_ATTRIBUTES = frozenset(("style", "srcdoc", "srcset", "imagesrcset", "ping", "archive"))


class PlacedWord(NamedTuple):
    """A word of the text by its number, its place, and how its value goes in."""

    number: int
    place: WordPlace
    filling: Filling


class HtmlPlaces:
    """Finds the place of each word of one text. `part` is its name for errors."""

    def __init__(self, part: str, text: Split) -> None:
        self._part = part
        self._words = text.words
        self._text = _WORD_MARK.join(text.literals)
        self._split = text
        self._next = 0  # index of the next word
        self._at = 0

    def find(self) -> list[PlacedWord]:
        """Return the words in their order. Raises TemplateError for a word that has no place."""
        return list(self._tokens())

    def _tokens(self) -> Iterator[PlacedWord]:
        while self._at < len(self._text):
            end = self._text.find("<", self._at)
            end = len(self._text) if end < 0 else end
            yield from self._character_data(end)
            if end == len(self._text):
                return
            rest = self._text[end : end + 9]
            if _TAG.match(rest):
                yield from self._tag()
            elif rest.startswith("<!--"):
                self._comment()
            elif rest.startswith(("<!", "<?", "</")):
                if rest == "<![CDATA[":
                    self._refuse(end, "a CDATA section", "HTML has none: escape the text")
                if not rest.startswith("</>"):
                    self._no_words(self._end_of(">", end, "a comment or declaration"), "a comment")
                self._at = self._text.index(">", end) + 1
            elif rest[1:2] == _WORD_MARK:
                self._refuse_word("would be a tag", "write &lt; for < in a text")
            else:
                self._at = end
                yield from self._character_data(end + 1)

    def _character_data(self, end: int) -> Iterator[PlacedWord]:
        """Yield the words of a text up to `end`, which the values can't leave."""
        while (word := self._text.find(_WORD_MARK, self._at, end)) >= 0:
            before = self._text[max(self._at, word - 40) : word]
            if _UNFINISHED_TAG.search(before):
                self._refuse_word("may become a tag", "write &lt; for < in a text")
            self._check_reference(before)
            yield self._placed(WordPlace.TEXT, Filling(self._words[self._next].name, HTML))
            self._at = word + 1
        self._at = end

    def _comment(self) -> None:
        start = self._at
        if self._text.startswith(("<!-->", "<!--->"), start):
            self._refuse(start, "a comment that ends as it begins", "write <!-- -->")
        end = _COMMENT_END.search(self._text, start + 4)
        if not end:
            self._refuse(start, "a comment without an end", "end it by -->")
        self._no_words(end.end(), "a comment")
        self._at = end.end()

    def _tag(self) -> Iterator[PlacedWord]:
        start = self._at
        match = _TAG.match(self._text, start)
        name = match[0].lstrip("</").lower() if match else ""
        self._at = match.end() if match else start
        if self._text.startswith(_WORD_MARK, self._at):
            self._refuse_word("is in the name of a tag", "a word can't be a tag")
        if name in _REFUSED_ELEMENTS:
            self._refuse(start, f"an element {name}",
                         "programs disagree about the text in it: leave it out")  # fmt: skip
        while True:
            self._skip(_GAP)
            if self._at >= len(self._text):
                self._refuse(start, f"a tag <{name} without an end", "end it by >")
            if self._text[self._at] == ">":
                break
            yield from self._attribute(name)
        self._at += 1
        if (
            self._text.startswith("</", start)
            or name not in _RAW_TEXT_ELEMENTS | _TEXT_ONLY_ELEMENTS
        ):
            return
        end = re.compile(rf"</{name}(?=[{_SPACE_CHARACTERS}/>])", re.ASCII | re.IGNORECASE).search(
            self._text, self._at
        )
        if not end:
            self._refuse(start, f"an element {name} without an end", f"end it by </{name}>")
        if name in _RAW_TEXT_ELEMENTS:
            self._no_words(end.start(), f"an element {name}")
            if name == "script" and "<!--" in self._text[self._at : end.start()]:
                self._refuse(start, "a script with <!--", "programs disagree about its end")
            self._at = end.start()
        yield from self._character_data(end.start())

    def _attribute(self, tag: str) -> Iterator[PlacedWord]:
        start = self._at
        match = _ATTRIBUTE.match(self._text, start)
        name = match[0].lower() if match else ""
        if _WORD_MARK in name:
            self._refuse_word("is in the name of an attribute", 'write ATTRIBUTE="{{word}}"')
        if not match or _ODD_IN_UNQUOTED.search(name):
            shown = self._text[start : start + 20].replace(_WORD_MARK, "{{…}}")
            self._refuse(start, f"a tag <{tag} has {shown!r} where an attribute begins",
                         "a quote is missing before it, or is one too many")  # fmt: skip
        self._at = match.end()
        if not self._skip(_EQUALS):
            return
        quote = self._text[self._at : self._at + 1]
        if quote in ('"', "'"):
            self._at += 1
            end = self._end_of(quote, start, f"the value of the attribute {name}") - 1
            yield from self._value(tag, name, end)
            self._at = end + 1
        elif quote != ">":
            bare = _UNQUOTED_VALUE.match(self._text, self._at)
            self._no_words(bare.end() if bare else self._at, "a value without quotes")
            self._skip(_UNQUOTED_VALUE)

    def _value(self, tag: str, name: str, end: int) -> Iterator[PlacedWord]:
        """Yield the words of a value in quotes."""
        value = self._text[self._at : end]
        if _WORD_MARK not in value:
            return
        if tag in _LOADING_ELEMENTS:
            self._refuse_word(f"is in a tag <{tag}", "such a tag loads or changes other content")
        if name.startswith("on") or name in _CODE_ATTRIBUTES:
            self._refuse_word(f"is in the attribute {name}",
                              "no escaping is safe in code, styles and lists")  # fmt: skip
        url = name in _URL_ATTRIBUTES or name.endswith(("href", "src"))
        before: str | None = "" if url else None  # the URL so far, while a word may be in its host
        for literal in value.split(_WORD_MARK)[:-1]:
            self._check_reference(literal)
            word = self._words[self._next].name
            if before is not None:
                before += literal
                placed = self._in_url(name, before)
                # words behind a part of the URL are parts of it too
                before = f"{before}{_WORD_MARK}" if placed.place is WordPlace.URL else None
            elif url:
                placed = self._placed(WordPlace.URL_PART, Filling(word, encode_part))
            else:
                placed = self._placed(WordPlace.TEXT, Filling(word, HTML))
            yield placed

    def _in_url(self, name: str, before: str) -> PlacedWord:
        """Return the place of the next word behind the beginning of a URL."""
        word = self._words[self._next].name
        literal = unescape(before)
        if not literal.strip():
            return self._placed(WordPlace.URL, Filling(word, HTML))
        scheme = _HTTP.match(literal)
        whole = literal.lstrip().startswith(_WORD_MARK)
        if not (scheme or whole):
            self._refuse_word(f"is in the URL of the attribute {name}",
                              "the URL has to begin with http:// or https://, or with a word "
                              "that is a URL")  # fmt: skip
        hosted = (
            HOST.match(literal, scheme.end())
            if scheme
            else HOST_ENDS.search(literal.partition(_WORD_MARK)[2])  # the URL begins with a word
        )
        if not hosted:
            self._refuse_word("may be in the host of a URL", HOST_HINT)
        return self._placed(WordPlace.URL_PART, Filling(word, encode_part))

    def _placed(self, place: WordPlace, filling: Filling) -> PlacedWord:
        self._next += 1
        return PlacedWord(self._next - 1, place, filling)

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match is not None

    def _end_of(self, mark: str, start: int, what: str) -> int:
        end = self._text.find(mark, self._at)
        if end < 0:
            self._refuse(start, f"{what} without an end", f"end it by {mark}")
        return end + 1

    def _check_reference(self, before: str) -> None:
        if _REFERENCE.search(before):
            self._refuse_word("could become a character reference", "write &amp; for & before it")

    def _no_words(self, end: int, what: str) -> None:
        """Refuse a word between here and `end`."""
        if self._text.find(_WORD_MARK, self._at, end) >= 0:
            self._refuse_word(f"is in {what}", "no escaping is safe there")

    def _refuse_word(self, reason: str, hint: str) -> NoReturn:
        word = self._words[self._next]
        raise TemplateError(self._part, word.line, f"{{{{{word.name}}}}} {reason}", hint)

    def _refuse(self, at: int, what: str, hint: str) -> NoReturn:
        index = self._text.count(_WORD_MARK, 0, at)
        offset = at - self._text.rfind(_WORD_MARK, 0, at) - 1
        line = line_at(self._split, index, offset)
        raise TemplateError(self._part, line, what, hint)
