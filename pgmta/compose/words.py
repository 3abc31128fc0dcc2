"""The words `{{name}}` of a text, and the values that each place of a word takes (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import partial
from html import escape
from typing import NamedTuple
from urllib.parse import quote

from pgmta.compose.own_fields import text_problem
from pgmta.errors import AddressError, TemplateError
from pgmta.mail.address import parse_mailbox
from pgmta.mail.text import UNSTORABLE

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""The name of a word."""

MAX_FIELD_CHARACTERS = 998
"""For a value in a header field, and for a field without its words."""

MAX_NAME_CHARACTERS = 255
"""For a value in a display name."""

MAX_ATOM_CHARACTERS = 255
"""For a value in a field that programs parse."""

_BRACES = re.compile(r"\{\{\{\{|\{\{([^{}\r\n]*)\}\}|\{\{")
_URL = re.compile(r"[Hh][Tt][Tt][Pp][Ss]?://[A-Za-z0-9\[][A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")
_ATOM = re.compile(rf"[A-Za-z0-9._~-]{{1,{MAX_ATOM_CHARACTERS}}}")
_PATH_STEPS = (".", "..")  # RFC 3986, section 5.2.4; browsers take %2e for a dot too


class WordPlace(StrEnum):
    """The kind of text around a word. It says which values the word takes, and how they go in."""

    TEXT = "text"  # plain text, text of HTML, an attribute
    FIELD = "field"  # Subject, or another field of the template without a grammar
    NAME = "name"  # a display name in From or Reply-To
    ADDRESS = "address"  # the mailbox in From or Reply-To
    URL = "url"  # the beginning of a URL
    URL_PART = "url_part"  # further on in a URL
    ATOM = "atom"  # a field of the template that programs parse


type Encode = Callable[[str], str]


def encode_part(value: str) -> str:
    """Return a value percent-encoded: only the unreserved characters stay (RFC 3986)."""
    return quote(value, safe="")


class Filling(NamedTuple):
    """A word and how its value goes into the text; `encode` is None if it goes in unchanged."""

    word: str
    encode: Encode | None


class Word(NamedTuple):
    """A word of a text: its name and its line, from 1 on."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Split:
    """A text without its words: the literal before each word, and the one behind the last."""

    literals: tuple[str, ...]
    words: tuple[Word, ...]


def split(part: str, text: str) -> Split:
    """Return the literals and words of a text; `{{{{` is `{{` in a literal.

    Raises TemplateError for braces that are no word. `part` is the name of the text for it.
    """
    literals, words, parts = list[str](), list[Word](), list[str]()
    done, line = 0, 1
    for match in _BRACES.finditer(text):
        parts.append(text[done : match.start()])
        line += parts[-1].count("\n")
        done = match.end()
        if match[0] == "{{{{":
            parts.append("{{")
            continue
        if match[1] is None:
            raise TemplateError(
                part, line, "{{ begins a word, and no }} ends it in this line",
                "write {{name}} for a word, and {{{{ for {{ itself",
            )  # fmt: skip
        name = match[1].strip(" \t")
        if not NAME.fullmatch(name):
            raise TemplateError(
                part, line, f"{match[0][:80]!r} is no word",
                "a word has a lower-case letter, then at most 62 of a-z, 0-9 and _; there are no "
                "conditions, loops or filters: the program gives the finished text as a word",
            )  # fmt: skip
        words.append(Word(name, line))
        literals.append("".join(parts))
        parts.clear()
    literals.append("".join(parts) + text[done:])
    return Split(tuple(literals), tuple(words))


def line_at(split_text: Split, index: int, offset: int = 0) -> int:
    """Return the line of an offset in the literal `index`; words and `{{{{` have no line ends."""
    before = sum(literal.count("\n") for literal in split_text.literals[:index])
    return before + split_text.literals[index].count("\n", 0, offset) + 1


def value_text(value: object) -> str:
    """Return a value as text: `true`, `false`, a number as it is written. Raises ValueError."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    kind = "null" if value is None else _KIND_NAMES.get(type(value), type(value).__name__)
    raise ValueError(f"is {kind}; give a text, a number, true or false")


_KIND_NAMES = {list: "a list", tuple: "a list", dict: "an object", float: "no finite number"}


def fault(place: WordPlace, value: str) -> str:
    """Return why a value is refused at a place, '' if it is not. The reason has no value in it."""
    return _FAULTS[place](value)


def _text_fault(value: str) -> str:
    return "has NUL or half of a character" if UNSTORABLE.search(value) else ""


def _field_fault(value: str, limit: int = MAX_FIELD_CHARACTERS) -> str:
    if problem := text_problem(value):
        return problem
    return f"is over {limit} characters" if len(value) > limit else ""


def _address_fault(value: str) -> str:
    try:
        parse_mailbox(value)
    except AddressError:  # the text of the error has the value
        return "is no mailbox such as ann@example.com in ASCII"
    return ""


def _url_fault(value: str) -> str:
    if _URL.fullmatch(value):
        return ""
    return "is no URL of RFC 3986 that begins with http:// or https:// and a host"


def _url_part_fault(value: str) -> str:
    return "is . or .., a step in a path" if value in _PATH_STEPS else _text_fault(value)


def _atom_fault(value: str) -> str:
    if _ATOM.fullmatch(value):
        return ""
    return (
        f"is not 1 to {MAX_ATOM_CHARACTERS} of A-Z, a-z, 0-9 and . _ ~ -, as its header field needs"
    )


_FAULTS: Mapping[WordPlace, Callable[[str], str]] = {
    WordPlace.TEXT: _text_fault,
    WordPlace.FIELD: _field_fault,
    WordPlace.NAME: partial(_field_fault, limit=MAX_NAME_CHARACTERS),
    WordPlace.ADDRESS: _address_fault,
    WordPlace.URL: _url_fault,
    WordPlace.URL_PART: _url_part_fault,
    WordPlace.ATOM: _atom_fault,
}

_HTTP = re.compile(r"https?://", re.ASCII | re.IGNORECASE)
_AFTER_URL = re.compile(r'[\s<>"]')
HOST_ENDS = re.compile(r"[/?#]")
"""The end of the host in a URL."""

HOST = re.compile(r"[^\s/?#\\]+[/?#]")
"""A whole host in a URL. Browsers take `https:///a`, with any more / or blanks, for `https://a`."""

HOST_HINT = "a / ? or # stands behind the host and before a word; or give the whole URL as a word"
"""The hint for a word that could be a part of the host in a URL."""


def places_of(part: str, text: Split) -> Iterator[tuple[WordPlace, Filling]]:
    """Yield the place and filling of each word of plain text.

    A word in a literal URL is percent-encoded. Raises TemplateError for a word in the host of one.
    """
    url: str | None = None  # literals so far of a URL that has not ended, without its scheme
    for literal, word in zip(text.literals, text.words, strict=False):
        url = _url_at_end(url, literal)
        if url is None:
            yield WordPlace.TEXT, Filling(word.name, None)
        elif not HOST.match(url):
            raise TemplateError(
                part, word.line, f"{{{{{word.name}}}}} is in the host of a URL", HOST_HINT
            )
        else:
            yield WordPlace.URL_PART, Filling(word.name, encode_part)


def _url_at_end(url: str | None, literal: str) -> str | None:
    """Return the URL in which a literal ends, without its scheme; None if it ends in none."""
    starts = [match.end() for match in _HTTP.finditer(literal)]
    last = literal[starts[-1] :] if starts else literal
    if (url is None and not starts) or _AFTER_URL.search(last):
        return None
    if starts or not url:
        return last
    return url if HOST.match(url) else f"{url}{last}"


HTML: Encode = escape
"""Escapes & < > and both quotes, for text of HTML and for attributes in quotes."""
