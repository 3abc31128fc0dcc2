"""The header block of a message that comes in (RFC 5322, section 2.2; pure)."""

from __future__ import annotations

import re

LIMIT = 1 << 16
"""Octets of a message in which its header is looked for."""

# Fields with their continuations (RFC 5322, section 2.2; a space before the colon is section 4.5),
# after the line that a mailbox file puts before a message. Any other line is the body's.
_HEADER = re.compile(
    rb"(?:>*+From [^\n]*+(?:\n|\Z))?+"
    rb"(?:[!-9;-~]++[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|\Z))*+"
)
_FIELD = re.compile(rb"^([!-9;-~]+)[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.MULTILINE)
_FOLD = re.compile(rb"\r?\n(?=[ \t])")  # section 2.2.3
_RECEIVED = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)


def header_block(content: bytes, limit: int = LIMIT) -> bytes:
    """Return the header of a message, as far as its first octets go, 64 KiB by default.

    It ends before the first line that is neither a field nor the continuation of one. So content
    that begins with an empty line or with a space has an empty header.
    """
    match = _HEADER.match(content[:limit])
    return match[0] if match else b""


def hops(header: bytes) -> int:
    """Return the number of Received fields, one for each relay so far (RFC 5321, section 6.3)."""
    return len(_RECEIVED.findall(header))


def fields(header: bytes) -> list[tuple[str, str]]:
    """Return name and unfolded value of each field of a header block, in order.

    Octets that are no UTF-8 become lone surrogates.
    """
    return [
        (
            name.decode("ascii"),
            _FOLD.sub(b"", value).strip().decode("utf-8", "surrogateescape"),
        )
        for name, value in _FIELD.findall(header)
    ]
