"""The fields of a header as they are in content (RFC 5322, section 2.2; pure)."""

from __future__ import annotations

import re

LIMIT = 1 << 20
"""Octets in which the header is looked for. Fields behind them are not seen."""

PART = re.compile(
    rb"(?P<name>[!-9;-~]++)[ \t]*+:(?P<value>[^\n]*+(?:\n[ \t][^\n]*+)*+)(?:\n|\Z)"
    rb"|>*+From [^\n]*+(?:\n|\Z)"
)
"""A field with its continuations, or the line that a mailbox file puts before a message.

Such a line may be between fields too. Lines end with LF, with or without CR before it.
"""

_HEADER = re.compile(
    rb"(?:>*+From [^\n]*+(?:\n|\Z)|[!-9;-~]++[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|\Z))*+"
)


def header_known(content: bytes) -> bool:
    """Return whether all of the header is in these octets of a message, whatever follows them.

    The header ends before the first line that is neither a field nor the continuation of one.
    """
    match = _HEADER.match(content, 0, LIMIT)
    return len(content) > LIMIT or content.find(b"\n", match.end() if match else 0) >= 0
