"""Make text from peers and from the database fit for a terminal, a log or a table (pure)."""

from __future__ import annotations

import json
import re
import unicodedata

REPLACEMENT = "\ufffd"
UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
"""A character that no text of PostgreSQL has: NUL, or a lone surrogate."""

_LINE_END = re.compile(r"[ \t\r]*\n\s*")
_UNSAFE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def unsafe(char: str) -> bool:
    """Return whether a terminal may obey the character, or show text in another order for it.

    These are control characters, format characters such as bidi marks, surrogates, and the line
    and paragraph separators (Unicode categories Cc, Cf, Cs, Zl, Zp).
    """
    return unicodedata.category(char) in _UNSAFE_CATEGORIES


def printable(text: str) -> str:
    """Return the text with U+FFFD in place of every unsafe character, line ends included."""
    if text.isprintable():  # every unsafe character is unprintable
        return text
    return "".join(REPLACEMENT if unsafe(char) else char for char in text)


def escaped(text: str) -> str:
    r"""Return the text with escapes such as \x1b in place of every unsafe character."""
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unsafe(char) else char for char in text
    )


def printable_lines(text: str) -> str:
    """Return the text with every line printable; only LF ends a line."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def one_line(text: str) -> str:
    """Return the text printable and in one line; a space replaces LF and the blanks around it."""
    return printable(text if text.isprintable() else _LINE_END.sub(" ", text.strip()))


def json_escaped(document: str) -> str:
    r"""Return a JSON document with \u escapes for unsafe characters; it means the same.

    Such characters are in strings only. The LF between the lines stays.
    """
    if document.isprintable():
        return document
    return "".join(
        json.dumps(char)[1:-1] if char != "\n" and unsafe(char) else char for char in document
    )
