"""The Message-ID of a header (RFC 5322, section 3.6.4; pure).

The function submit_content() of the database finds the same.
"""

from __future__ import annotations

import re

HEADER = 1 << 16
"""Octets of a message in which its header is looked for."""

NAME = b"message-id"
"""Name of the field, in lower case."""

_FIELD = re.compile(
    rb"^message-id[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.IGNORECASE | re.MULTILINE
)
_FOLD = re.compile(rb"\r?\n[ \t]+")
_PRINTABLE = re.compile(rb"[ -~]{1,998}")


def message_id_header(content: bytes | bytearray, first: int | None = None) -> str | None:
    """Return the Message-ID of a message, unfolded, with its brackets.

    It is None if the header has no such field. A value that is not printable ASCII, or over 998
    characters, counts as none. `first` is the first place of the field's name in lower case, if the
    caller knows it.
    """
    end = content.find(b"\r\n\r\n", 0, HEADER)
    end = HEADER if end < 0 else end
    if first is None:  # the expression alone, which ignores case, would try each place
        first = content[:end].lower().find(NAME)
    match = _FIELD.search(content, first, end) if first >= 0 else None
    value = _FOLD.sub(b" ", match[1]).strip() if match else b""
    return value.decode() if _PRINTABLE.fullmatch(value) else None
