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
_KEPT = re.compile(r"\\.|\(\?P|[A-Z]", re.DOTALL)

# The parser of `re`, which the documentation does not have; checked with Python 3.12 to 3.14.
_parser: Any = importlib.import_module("re._parser")
_code: Any = importlib.import_module("re._constants")

type Parsed = list[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class TextPattern:
    """A compiled pattern with texts of which a match contains at least one; none: unknown."""

    source: str
    needles: tuple[bytes, ...] = field(compare=False)
    regex: re.Pattern[str] = field(compare=False)

    def within(self, text: str, octets: bytes) -> bool:
        """Return whether the pattern matches in a text in lower case; `octets` are its UTF-8."""
        if self.needles:
            for needle in self.needles:  # a tenth of the time of the pattern
                if find(octets, needle) >= 0:
                    break
            else:
                return False
        return self.regex.search(text) is not None


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
    found = _needles(items) or set()
    return TextPattern(lower, tuple(text.encode() for text in sorted(found)), regex)


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


def _needles(items: Parsed) -> set[str] | None:
    """Return texts of which every match contains at least one; None if there are none."""
    found: list[set[str]] = []
    run = ""
    for code, value in [*items, (None, None)]:
        if code is _code.LITERAL:
            run += chr(value)
            continue
        if len(run) >= _NEEDLE:
            found.append({run})
        run = ""
        if code in _REPEATS and value[0] == 0:
            continue
        inner = [_needles(each) for each in _inside(code, value)]
        if inner and all(inner):
            found.append({text for each in inner if each for text in each})
    return max(found, key=lambda texts: (min(map(len, texts)), -len(texts)), default=None)
