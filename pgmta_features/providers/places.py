"""Texts with words, `Bearer {{secrets.key}}`, and how values are written at their place (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from pgmta.config.types import hint

_WORD = re.compile(r"\{\{([^{}]*)\}\}")
_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[^\s{}.][^\s{}]{0,99})?")
_EACH = {"each", "item"}

type Values = Callable[[str], Any]
"""Returns the value of a word: a text, a list of mappings, or None if there is none."""


class Unplaceable(ValueError):
    """A value can't be at its place, for example a line end in a header field."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text with words: its even parts are as they are, and the odd ones are names of words."""

    parts: tuple[str, ...]
    lone: str = field(init=False, compare=False)
    """The name of the word if the text has nothing else, '' otherwise."""

    def __post_init__(self) -> None:
        """Find the lone word."""
        lone = self.parts[1] if self.parts[::2] == ("", "") else ""
        object.__setattr__(self, "lone", lone)

    @classmethod
    def parse(cls, given: str) -> Text:
        """Read a text. Raises ValueError for braces that have no word in them."""
        parts = _WORD.split(given)
        for plain in parts[::2]:
            if "{{" in plain or "}}" in plain:
                raise ValueError(f"{given[:80]!r}: a brace is not closed, or has no word")
        words = [part.strip() for part in parts[1::2]]
        for word in words:
            if not _NAME.fullmatch(word):
                raise ValueError(f"{word[:80]!r} is no word")
        return cls(tuple(words[n // 2] if n % 2 else part for n, part in enumerate(parts)))

    @property
    def words(self) -> tuple[str, ...]:
        """The names of its words."""
        return self.parts[1::2]

    def fill(self, values: Values, write: Callable[[str], str] = str) -> str:
        """Return the text; `write` encodes each value for its place. Raises Unplaceable."""
        if len(self.parts) == 1:
            return self.parts[0]
        return "".join(
            write(_text(part, values(part))) if n % 2 else part for n, part in enumerate(self.parts)
        )


def _text(word: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # without lone surrogates
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise Unplaceable(f"the word {word} is no text")


def in_url(value: str) -> str:
    """Return a value for a path or query of a URL (RFC 3986, section 2.1)."""
    return quote(value, safe="")


def in_header(value: str) -> str:
    """Return a value for a header field (RFC 9110, section 5.5). Raises Unplaceable."""
    if not value.isascii() or not value.isprintable():
        raise Unplaceable("a value of a header field has a line end, or is not ASCII")
    return value


@dataclass(frozen=True, slots=True)
class Each:
    """A list in JSON: one element for each mapping that is the value of a word."""

    word: str
    item: Any


def parse_json(given: Any) -> Any:
    """Return a document with its texts parsed. Raises ValueError."""
    if isinstance(given, str):
        return Text.parse(given)
    if isinstance(given, list):
        return [parse_json(each) for each in given]
    if isinstance(given, dict):
        if given.keys() == _EACH:
            return Each(str(given["each"]), parse_json(given["item"]))
        return {str(key): parse_json(each) for key, each in given.items()}
    if given is None or isinstance(given, bool | int | float):
        return given
    raise ValueError(f"{given!r} can't be in JSON")


_LEFT_OUT = object()


def write_json(document: Any, values: Values) -> bytes:
    """Return a document as JSON in UTF-8.

    A text that is one word alone has its value, also a number. A key whose word has no value is
    left out. So is a mapping or list that has nothing left.
    """
    return json.dumps(_filled(document, values), ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def _filled(document: Any, values: Values) -> Any:
    if isinstance(document, Text):
        if word := document.lone:
            value = values(word)
            return _LEFT_OUT if value is None else value
        return document.fill(values)
    if isinstance(document, Each):
        rows: Sequence[Mapping[str, Any]] = values(document.word) or ()
        found = [_filled(document.item, within(row, values)) for row in rows]
        return found or _LEFT_OUT
    if isinstance(document, dict):
        made = {key: _filled(each, values) for key, each in document.items()}
        kept = {key: each for key, each in made.items() if each is not _LEFT_OUT}
        return kept if kept or not made else _LEFT_OUT
    if isinstance(document, list):
        each_made = [_filled(each, values) for each in document]
        left = [each for each in each_made if each is not _LEFT_OUT]
        return left if left or not each_made else _LEFT_OUT
    return document


def within(row: Mapping[str, Any], values: Values) -> Values:
    """Return values that are first those of an element of a list."""
    return lambda word: row[word] if word in row else values(word)


class UsedWord(NamedTuple):
    """A word of a request; within an `each`, `within` is the word of its list."""

    name: str
    within: str = ""


def words_of(document: Any) -> Iterator[UsedWord]:
    """Yield the words of a parsed document; an `each` itself has one without a name."""
    if isinstance(document, Text):
        yield from map(UsedWord, document.words)
    elif isinstance(document, Each):
        yield UsedWord("", document.word)
        yield from (UsedWord(word.name, document.word) for word in words_of(document.item))
    elif isinstance(document, dict):
        for each in document.values():
            yield from words_of(each)
    elif isinstance(document, list):
        for each in document:
            yield from words_of(each)


def check_words(
    words: Iterable[UsedWord],
    known: Iterable[str],
    prefixes: Iterable[str],
    lists: Mapping[str, Iterable[str]],
) -> None:
    """Raise ValueError for a word that is neither known nor begins with one of the prefixes.

    `lists` are the words whose value is a list, and the words of its elements.
    """
    known, prefixes = set(known), tuple(prefixes)
    for name, of in words:
        if of and of not in lists:
            raise ValueError(f"each: {of!r} is no list; {hint(of, sorted(lists))}")
        here = known.union(lists[of]) if of else known
        if name and name not in here and not name.startswith(prefixes):
            raise ValueError(f"no word {name!r}; {hint(name, sorted(here))}")
