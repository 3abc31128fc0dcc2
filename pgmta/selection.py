"""The mail that a filter, a route, a rule of signing or a trace is for: one value for all of them.

PostgreSQL and `takes` agree on it, except that lists and objects in metadata fit nothing in memory.
Only letters of ASCII have a case, whatever the locale of the database: in a Turkish one `I` would
be another letter than `i`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from psycopg.sql import Literal

from pgmta.errors import AddressError
from pgmta.mail.address import domain_of, domains_above, lower_ascii, normalise_domain
from pgmta.mail.metadata import values_of

_ADDRESS_FIELDS = ("sender", "recipient")
_DOMAIN_FIELDS = ("domain", "sender_domain", "from_domain")  # their values are in lower case
_METADATA_PREFIX = "metadata."
_SUBDOMAINS = re.compile(r"\*\.[^*]+")
_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", re.ASCII)
_COMPARISON = re.compile(r"\s*(<=|>=|<|>|=)?\s*(\d+)\s*", re.ASCII)
_AFTER_ALL_INTEGERS = 1 << 31  # of PostgreSQL's type integer
_COLLATE_C = ' COLLATE "C"'  # in which only letters of ASCII have a case

_values = lru_cache(maxsize=16)(values_of)  # because several terms may ask for those of a row


class Term:
    """A field of mail, and what it may be: one of some words, or like one of some patterns.

    The field is a column of queue, or `metadata.KEY`. In patterns `*` stands for any text. Patterns
    ignore case, as words do with `fold`; domains are given in lower case. `absent` is for rows
    without the key.
    """

    __slots__ = ("_absent", "_below", "_fold", "_key", "_like", "_patterns", "_words", "field")

    def __init__(
        self,
        field: str,
        words: Iterable[str | int] = (),
        patterns: Iterable[str] = (),
        *,
        fold: bool = False,
        absent: bool = False,
    ) -> None:
        self.field = field
        """Its name."""
        self._key = (
            field.removeprefix(_METADATA_PREFIX) if field.startswith(_METADATA_PREFIX) else None
        )
        self._fold = fold
        self._words = (
            frozenset(lower_ascii(str(word)) for word in words) if fold else frozenset(words)
        )
        self._patterns = frozenset(patterns)
        self._absent = absent
        below = filter(_SUBDOMAINS.fullmatch, self._patterns if field in _DOMAIN_FIELDS else ())
        self._below = frozenset(below)  # a set, so that many of them cost no more than one
        like = "|".join(map(_expression, self._patterns - self._below))
        self._like = re.compile(like, re.DOTALL | re.IGNORECASE | re.ASCII) if like else None

    @classmethod
    def of(cls, field: str, texts: Sequence[str]) -> Term:
        """Return the term of texts, of which those with `*` are patterns."""
        words = [text for text in texts if "*" not in text]
        patterns = [text for text in texts if "*" in text]
        return cls(field, words, patterns, fold=field in _ADDRESS_FIELDS)

    def takes(self, mail: Any) -> bool:
        """Return whether mail fits; it has the fields as attributes, as `Item` has them.

        Raises ValueError, RecursionError if its metadata can't be read.
        """
        if self._key is not None:
            value = _values(mail.metadata or "{}").get(self._key)
            return self.fits(str(value).lower() if isinstance(value, bool) else value)
        if self.field == "sender_domain":
            return self.fits(domain_of(mail.sender))
        return self.fits(getattr(mail, self.field))

    def fits(self, value: object) -> bool:
        """Return whether the field may have this value; None: there is none."""
        if not isinstance(value, str):
            return self._absent if value is None else type(value) is int and value in self._words
        return (
            (lower_ascii(value) if self._fold else value) in self._words
            or (bool(self._below) and any(f"*.{n}" in self._below for n in domains_above(value)))
            or (self._like is not None and self._like.fullmatch(value) is not None)
        )

    def condition(self, prefix: str = "") -> str:
        """Return the SQL condition on rows; `prefix` is of its columns. Raises ValueError."""
        column = f"{prefix}{self.field}"
        if self._key is not None:
            column = f"({prefix}metadata ->> {quoted(self._key)})"
        words = [str(w) if isinstance(w, int) else quoted(w) for w in sorted(self._words, key=str)]
        found = []
        if words:
            listed = f"= {words[0]}" if len(words) == 1 else f"IN ({', '.join(words)})"
            found.append(
                f"lower({column}{_COLLATE_C}) {listed}" if self._fold else f"{column} {listed}"
            )
        like = " LIKE" if self.field in _DOMAIN_FIELDS else f"{_COLLATE_C} ILIKE"
        for text in sorted(self._patterns):
            pattern = re.sub(r"([\\%_])", r"\\\1", text).replace("*", "%")
            found.append(f"{column}{like} {quoted(pattern)}")
        if self._absent:
            found.append(f"{column} IS NULL")
        return " OR ".join(found) or "false"


@dataclass(frozen=True, slots=True)
class Selection:
    """Some mail: in each group one of the terms has to hold. Without groups it is all mail."""

    groups: tuple[tuple[Term, ...], ...] = ()

    @classmethod
    def every(cls, *terms: Term | None) -> Selection:
        """Return the mail that all of the terms hold for; None is no condition."""
        return cls(tuple((term,) for term in terms if term))

    def __and__(self, other: Selection) -> Selection:
        """Return the mail that both have."""
        return Selection(self.groups + other.groups)

    def takes(self, mail: Any) -> bool:
        """Return whether it has some mail. Raises as `Term.takes` does."""
        for group in self.groups:
            for term in group:
                if term.takes(mail):
                    break
            else:
                return False
        return True

    def condition(self, prefix: str = "") -> str:
        """Return the SQL condition, as text without parameters: rules keep it. Raises ValueError.

        `prefix` is of the columns: `q.` for those of `q`.
        """
        groups = (" OR ".join(term.condition(prefix) for term in group) for group in self.groups)
        return " AND ".join(f"({group})" for group in groups) or "true"


def parse(**texts: Sequence[str]) -> Selection:
    """Return the selection of an operator's texts by field.

    Texts of one field are alternatives, and different fields must all hold. The fields are columns
    of queue. Those of `metadata` are `key=value`, with `key=` for rows without the key. Raises
    ValueError, which names the flag.
    """
    groups = ((field, each) for field, each in texts.items() if each)
    return Selection(tuple(tuple(_terms(field, each)) for field, each in groups))


def _terms(field: str, texts: Sequence[str]) -> Iterator[Term]:
    if field == "metadata":
        yield from map(_metadata, texts)
    elif field == "priority":
        yield Term(field, (p for text in texts for p in priorities(text, "--priority ")))
    elif field == "domain":
        yield Term.of(field, list(map(domain_as_stored, texts)))
    elif field == "sender":
        whole = [text for text in texts if text[:2] == "*@" and text[2:] and "*" not in text[1:]]
        if whole:  # whole domains are found in each spelling
            yield Term("sender_domain", (domain_as_stored(text[2:]) for text in whole))
        if others := [text for text in texts if text not in whole]:
            yield Term.of(field, others)
    else:
        yield Term.of(field, texts)


def _metadata(text: str) -> Term:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ValueError(f"--metadata {text!r}: expected key=value, or key= for an absent one")
    field = f"{_METADATA_PREFIX}{key}"
    return Term.of(field, [value]) if value else Term(field, absent=True)


def domain_as_stored(text: str) -> str:
    """Return a domain or pattern as rows have it: in lower case, A-labels."""
    try:
        return normalise_domain(text)
    except AddressError:  # it may be a pattern
        return text.lower()


def numbers(text: str, flag: str) -> range:
    """Return the numbers of `3`, `>3`, `<=3` or `2..5`.

    Raises ValueError, which begins with `flag`.
    """
    if match := _RANGE.fullmatch(text):
        return range(int(match[1]), int(match[2]) + 1)
    if match := _COMPARISON.fullmatch(text):
        number = int(match[2])
        least = {"<": 0, "<=": 0, ">": number + 1}.get(match[1], number)
        end = {"<": number, ">": _AFTER_ALL_INTEGERS, ">=": _AFTER_ALL_INTEGERS}.get(
            match[1], number + 1
        )
        return range(least, end)
    raise ValueError(f"{flag}{text!r}: expected a number, >3, <=3 or 2..5")


def priorities(text: str, flag: str = "") -> list[int]:
    """Return the priorities of such a text. Raises ValueError likewise."""
    wanted = numbers(text, flag)
    if not (found := [priority for priority in range(10) if priority in wanted]):
        raise ValueError(f"{flag}{text!r}: priorities are 0 to 9")
    return found


def quoted(text: str) -> str:
    """Return a text as an SQL literal. Raises ValueError."""
    if "\0" in text:
        raise ValueError("a value can't contain NUL")
    return Literal(text).as_string(None)


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern, which takes time in proportion to the text."""
    first, *between = map(re.escape, pattern.split("*"))
    if not between:
        return first
    *between, last = between
    return f"{first}{''.join(f'(?>.*?{part})' for part in between)}.*{last}"
