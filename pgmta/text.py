"""Text from peers and from the database, made fit for a terminal and for a log (pure)."""

from __future__ import annotations

import json
import re
import unicodedata

REPLACEMENT = "\ufffd"
_LINE_END = re.compile(r"[ \t\r]*\n\s*")
_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def unsafe(char: str) -> bool:
    """Whether a terminal may obey the character, or show the text in another order because of it.

    These are control characters, format characters such as bidi marks, surrogates, and the line
    and paragraph separators (Unicode categories Cc, Cf, Cs, Zl, Zp).
    """
    return unicodedata.category(char) in _UNSAFE


def printable(text: str) -> str:
    """Return the text with U+FFFD in place of every unsafe character, line ends included."""
    if text.isprintable():  # all that is unsafe is unprintable
        return text
    return "".join(REPLACEMENT if unsafe(char) else char for char in text)


def printable_lines(text: str) -> str:
    """Return the text with every line printable; only LF ends a line."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def one_line(text: str) -> str:
    """Return the text printable and in one line; a space stands for LF and the blanks around it."""
    return printable(text if text.isprintable() else _LINE_END.sub(" ", text.strip()))


def json_escaped(document: str) -> str:
    r"""Return a JSON document with \u escapes for unsafe characters; it means the same.

    Such characters stand in strings only, but for the LF between the lines, which stays.
    """
    if document.isprintable():
        return document
    return "".join(
        json.dumps(char)[1:-1] if char != "\n" and unsafe(char) else char for char in document
    )
