"""A pattern of answers.yaml: a regular expression that can't take long, over text in lower case.

Python's `re` backtracks: a pattern such as `(a+)+` takes years over 40 characters. This module
counts the ways in which a pattern can match at one place, when the file is read. The reasons are
in docs/decisions/0042-answers.md.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from typing import Any

from stringzilla import find

LONGEST = 1024
"""Characters of a reply in which patterns are searched."""

_PATTERN = 500  # characters of a pattern
_WAYS = 2048  # at one place of the text: `.*` once has 1,024 of them, and twice a million
_NEEDLE = 3  # characters of a text that is worth a search before the pattern's
_TRIES = 8  # places of needles at which a pattern is tried, before it is tried everywhere
_KEPT = re.compile(r"\\.|\(\?P|[A-Z]", re.DOTALL)

# The parser of `re`, which the documentation does not have; checked with Python 3.12 to 3.14.
_parser: Any = importlib.import_module("re._parser")
_code: Any = importlib.import_module("re._constants")

type Parsed = list[tuple[Any, Any]]


type Needles = tuple[tuple[bytes, int | None], ...]
"""Texts of which a match contains at least one; and how far behind its start, if that is known."""


@dataclass(frozen=True, slots=True)
class TextPattern:
    """A compiled pattern with needles, of which each match contains one from each group."""

    source: str
    words: tuple[bytes, ...] = field(compare=False)
    """Those of the first group, or none if there is no group."""
    needles: tuple[Needles, ...] = field(compare=False)
    regex: re.Pattern[str] = field(compare=False)

    def within(self, text: str, octets: bytes) -> bool:
        """Return whether the pattern matches in a text in lower case; `octets` are its UTF-8."""
        for group in self.needles:  # a tenth of the time of the pattern
            for needle, _ in group:
                if find(octets, needle) >= 0:
                    break
            else:
                return False
        if self.needles and len(octets) == len(text):
            return self._at_needles(text, octets)
        return self.regex.search(text) is not None

    def _at_needles(self, text: str, octets: bytes) -> bool:
        """Return whether the pattern matches where a needle is, in a text of ASCII.

        A pattern that begins with `\\b` is tried at each place otherwise.
        """
        tries = 0
        for needle, behind in self.needles[0]:
            place = -1
            while (place := find(octets, needle, place + 1)) >= 0:
                tries += 1
                if behind is None or tries > _TRIES:
                    return self.regex.search(text) is not None
                if place >= behind and self.regex.match(text, place - behind):
                    return True
        return False


def parse_text_pattern(source: str) -> TextPattern:
    """Return the pattern; upper case in it counts as lower case.

    Raises ValueError for a pattern that is malformed, that might take too long, or that matches
    every text or none.
    """
    if len(source) > _PATTERN:
        raise ValueError(f"the pattern has more than {_PATTERN} characters")
    lower = _KEPT.sub(lambda m: m[0] if m[0][0] in "\\(" else m[0].lower(), source)
    try:
        parsed = _parser.parse(lower, 0)
        regex = re.compile(lower)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    items = list(parsed)
    _refuse(items)
    least, _ = parsed.getwidth()
    if least == 0 or regex.search("") is not None:
        raise ValueError("the pattern matches the empty text, so it matches every reply")
    if least > LONGEST:
        raise ValueError(f"the pattern needs more than the first {LONGEST} characters of a reply")
    if (ways := _ways(items)) > _WAYS:
        raise ValueError(
            f"the pattern might take too long, because it can match in {_shown(ways)} ways at one "
            f"place; at most {_WAYS} are allowed: write .{{0,40}} for .*, and do not nest repeats"
        )
    groups = sorted(_needles(items, parsed.state), key=_worth, reverse=True)
    needles = tuple(map(_encoded, groups))
    return TextPattern(lower, tuple(n for n, _ in needles[0]) if needles else (), needles, regex)


def _refuse(items: Parsed) -> None:
    """Raise ValueError for parts that can't be counted, or that never match."""
    for code, value in items:
        if code in (_code.ASSERT, _code.ASSERT_NOT):
            raise ValueError("a look ahead or behind, (?=...) and its like, is not allowed")
        if code in (_code.GROUPREF, _code.GROUPREF_EXISTS):
            raise ValueError("a reference to a group is not allowed")
        if code is _code.LITERAL and chr(value) != chr(value).lower():
            raise ValueError(f"{chr(value)!r} never matches, because text is in lower case")
        for inner in _inside(code, value):
            _refuse(inner)


def _inside(code: Any, value: Any) -> list[Parsed]:
    """Return the patterns within a part of a pattern."""
    if code is _code.BRANCH:
        return [list(branch) for branch in value[1]]
    if code is _code.SUBPATTERN:
        return [list(value[-1])]
    if code in _REPEATS:
        return [list(value[2])]
    return [list(value)] if code is _code.ATOMIC_GROUP else []


_REPEATS = (_code.MAX_REPEAT, _code.MIN_REPEAT, _code.POSSESSIVE_REPEAT)


def _ways(items: Parsed) -> int:
    """Return in how many ways a pattern can match at one place, at most.

    Backtracking tries each of them, if the text is made for it.
    """
    product = 1
    for code, value in items:
        inner = [_ways(each) for each in _inside(code, value)]
        if code in _REPEATS:
            product *= _repeated(inner[0], min(value[0], LONGEST), min(value[1], LONGEST))
        elif code is _code.BRANCH and _apart(_inside(code, value)):
            product *= max(inner)
        elif inner:
            product *= sum(inner)
        if product > _WAYS**2:
            return product
    return product


def _apart(branches: list[Parsed]) -> bool:
    """Return whether at most one of the alternatives can match, because they begin differently."""
    firsts = {branch[0][1] for branch in branches if branch and branch[0][0] is _code.LITERAL}
    return len(firsts) == len(branches)


def _repeated(ways: int, least: int, most: int) -> int:
    if ways == 1:
        return most - least + 1
    total, power = 0, ways ** min(least, 64)
    for _ in range(least, most + 1):
        total += power
        power *= ways
        if total > _WAYS**2:
            break
    return total


def _shown(ways: int) -> str:
    return f"{ways:,}" if ways < _WAYS**2 else "millions of"


def _needles(items: Parsed, state: Any) -> list[dict[str, int | None]]:
    """Return groups of texts: of each, every match contains a text, so far behind its start."""
    found: list[dict[str, int | None]] = []
    run = ""
    begin: int | None = 0
    behind: int | None = 0
    for code, value in [*items, (None, None)]:
        if code is _code.LITERAL:
            begin = behind if not run else begin
            run += chr(value)
            behind = None if behind is None else behind + 1
            continue
        if len(run) >= _NEEDLE:
            found.append({run: begin})
        run = ""
        if code is None:
            break
        if not (code in _REPEATS and value[0] == 0):
            inner = [
                max(_needles(each, state), key=_worth, default={}) for each in _inside(code, value)
            ]
            if inner and all(inner):
                found.append(_merged(inner, behind))
        least, most = _parser.SubPattern(state, [(code, value)]).getwidth()
        behind = behind + least if behind is not None and least == most else None
    return found


def _merged(branches: list[dict[str, int | None]], behind: int | None) -> dict[str, int | None]:
    """Return the texts of branches, which begin so far behind the start of a match."""
    merged: dict[str, int | None] = {}
    for branch in branches:
        for text, place in branch.items():
            whole = None if behind is None or place is None else behind + place
            merged[text] = whole if merged.get(text, whole) == whole else None
    return merged


def _worth(group: dict[str, int | None]) -> tuple[bool, int, int]:
    """Return the worth of a group for the search: known places, then long texts, then few."""
    known = None not in group.values()
    return known, min(map(len, group), default=0), -len(group)


def _encoded(group: dict[str, int | None]) -> Needles:
    return tuple((text.encode(), behind) for text, behind in sorted(group.items()))
