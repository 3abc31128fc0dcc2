"""Rules for text in header fields, and for fields that a program adds to composed mail (pure).

The functions header_reserved() and header_structured() of the database have the same names.
"""

from __future__ import annotations

import re

RESERVED_NAMES = frozenset(
    (
        "apparently-to",
        "authentication-results",
        "bcc",
        "cc",
        "date",
        "delivered-to",
        "dkim-signature",
        "domainkey-signature",
        "from",
        "message-id",
        "mime-version",
        "original-recipient",
        "received",
        "received-spf",
        "reply-to",
        "return-path",
        "sender",
        "subject",
        "to",
    )
)
"""Names of fields, in lower case, that pgmta or another mail system writes."""

RESERVED_PREFIXES = ("arc-", "content-", "resent-")
"""Beginnings of further such names."""

STRUCTURED_NAMES = frozenset(
    (
        "auto-submitted",
        "autocrypt",
        "disposition-notification-to",
        "feedback-id",
        "importance",
        "in-reply-to",
        "precedence",
        "priority",
        "references",
        "tls-required",
    )
)
"""Names of fields, in lower case, whose values readers parse.

Their values are ASCII, and no encoded word may be in them (RFC 2047, section 5).
"""

STRUCTURED_PREFIXES = ("list-",)
"""Beginnings of further such names."""

MAX_NAME_CHARACTERS = 70

MAX_WORD_OCTETS = 997
"""Between two spaces of a structured value: a line has 998 octets (RFC 5322, section 2.1.1)."""

_NAME = re.compile(rf"[A-Za-z0-9-]{{1,{MAX_NAME_CHARACTERS}}}")
_REFUSED_CHARACTER = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_LONG_WORD = re.compile(rf"[^ ]{{{MAX_WORD_OCTETS + 1}}}")


def text_problem(text: str) -> str:
    """Return why a text can't be in a header field, '' if it can.

    Refused are control characters (U+0000 to U+001F, U+007F) and lone surrogates. The reason has no
    part of the text but that character.
    """
    if text.isprintable():
        return ""
    match = _REFUSED_CHARACTER.search(text)
    if not match:
        return ""
    if match[0] in "\r\n":
        return "has a line end"
    kind = "lone surrogate" if ord(match[0]) > 0x7F else "control character"
    return f"has the {kind} U+{ord(match[0]):04X}"


def is_structured(name: str) -> bool:
    """Return whether readers parse the field's value; the name is in any case."""
    name = name.lower()
    return name in STRUCTURED_NAMES or name.startswith(STRUCTURED_PREFIXES)


def is_reserved(name: str) -> bool:
    """Return whether programs may not add a field of this name, in any case."""
    name = name.lower()
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES)


def name_problem(name: str) -> str:
    """Return why a program may not add a field of this name, '' if it may."""
    if not _NAME.fullmatch(name):
        return f"a field has no name of letters, digits and '-', at most {MAX_NAME_CHARACTERS}"
    return (
        f"{name} is reserved: pgmta or another mail system writes it" if is_reserved(name) else ""
    )


def value_problem(name: str, value: str) -> str:
    """Return why a field of this good name can't have the value, '' if it can."""
    if not is_structured(name):
        problem = text_problem(value)
        return f"{name} {problem}" if problem else ""
    if not (value.isascii() and value.isprintable()):
        return f"{name} has to be printable ASCII"
    if not value.strip(" "):
        return f"{name} is empty"
    if len(value) > MAX_WORD_OCTETS and _LONG_WORD.search(value):
        return f"{name} has a word of over {MAX_WORD_OCTETS} characters, which fits into no line"
    return ""
