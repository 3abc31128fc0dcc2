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
_RECEIVED = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)


def header_block(content: bytes) -> bytes:
    """Return the header of a message, as far as its first 64 KiB go.

    It ends before the first line that is neither a field nor the continuation of one. So content
    that begins with an empty line or with a space has an empty header.
    """
    match = _HEADER.match(content[:LIMIT])
    return match[0] if match else b""


def hops(header: bytes) -> int:
    """Return the number of Received fields, one for each relay so far (RFC 5321, section 6.3)."""
    return len(_RECEIVED.findall(header))
