"""Text of header fields and bodies, whatever charset they say or have (standard library only)."""

from __future__ import annotations

import re
from email.errors import MessageError
from email.header import decode_header

_FOLD = re.compile(r"\r?\n(?=[ \t])|[\r\n]")


def decode_text(data: bytes, charset: str | None = None) -> str:
    """Return octets as text: by the charset if it fits, else as UTF-8, else as Windows-1252."""
    for each in (charset, "utf-8"):
        try:
            if each:
                return data.decode(each)
        except (LookupError, ValueError):
            continue
    return data.decode("cp1252", "replace")


def decode_words(value: str) -> str:
    """Return the value of a field in one line, with its encoded words decoded (RFC 2047)."""
    value = _FOLD.sub("", value).strip()
    if "=?" not in value:
        return value
    try:
        found = decode_header(value)
    except (MessageError, ValueError):
        return value
    return "".join(
        text if isinstance(text, str)
        else decode_text(text, charset) if charset
        # decode_header encodes the text that it leaves in this way
        else text.decode("raw-unicode-escape", "replace")
        for text, charset in found
    )  # fmt: skip
