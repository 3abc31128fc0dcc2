"""Text from peers, made fit for a terminal and for the database."""

from __future__ import annotations

import unicodedata

_UNFIT = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    """Return the text with U+FFFD for each character that could steer a terminal.

    These are control characters (C1 too), format characters such as bidi marks, surrogates, and
    separators of lines and paragraphs: the categories Cc, Cf, Cs, Zl and Zp of Unicode.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(c) in _UNFIT else c for c in text)
