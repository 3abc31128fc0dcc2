"""The original of a DSN: its header, its language, and the part that returns it (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from queued.reports.text.dsn import Original

MAX_HEADER_OCTETS = 1 << 16
"""A DSN returns so much of a header at most, up to the end of a field."""

_LANGUAGE = re.compile(
    rb"^(accept|content)-language[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)",
    re.IGNORECASE | re.MULTILINE,
)
_TAG = re.compile(r"([a-z]{1,8}(?:-[a-z0-9]{1,8})*)[ \t]*(?:;[ \t]*q=([01](?:\.\d{0,3})?))?", re.I)
_MAX_TAGS = 8  # of one field
_MAX_TAG_CHARACTERS = 35  # RFC 5646, section 4.4.1


def header_of(octets: bytes, most: int = MAX_HEADER_OCTETS) -> bytes:
    """Return the header of a message, given its first `most` octets or more.

    The empty line is not in it, the CRLF before it is.
    """
    if octets.startswith((b"\r\n", b"\n")):
        return b""
    ends = [
        place + len(end) // 2
        for end in (b"\r\n\r\n", b"\n\n")
        if (place := octets.find(end, 0, most + len(end))) >= 0
    ]
    if ends:
        return octets[: min(ends)]
    if len(octets) <= most:
        return octets
    end = octets.rfind(b"\n", 0, most) + 1
    while end > 0 and octets[end : end + 1] in b" \t":
        end = octets.rfind(b"\n", 0, end - 1) + 1
    return octets[:end] if end > 0 else octets[:most]


def languages_of(header: bytes) -> Iterator[str]:
    """Yield the languages that a sender asks for, then those of the mail (RFC 3282)."""
    if b"-language" not in header.lower():
        return
    fields = _LANGUAGE.findall(header)
    for name in (b"accept", b"content"):
        for found, value in fields:
            if found.lower() == name:
                yield from _tags(value.decode("ascii", "replace"))


def _tags(value: str) -> list[str]:
    """Return the language tags of a field, those with the highest quality first."""
    tags = []
    for part in value.split(",")[:_MAX_TAGS]:
        match = _TAG.fullmatch(part.strip())
        if match and len(match[1]) <= _MAX_TAG_CHARACTERS and (quality := float(match[2] or 1)) > 0:
            tags.append((-quality, match[1]))
    return [tag for _, tag in sorted(tags, key=lambda each: each[0])]


def returned_type(original: Original, *, utf8: bool, content: bool) -> tuple[str, bool]:
    """Return the media type of the returned original, and whether it has octets beyond ASCII.

    Content that streams counts as such (RFC 6532, section 3.7; RFC 6533, section 5).
    """
    if not content:
        wide = not original.header.isascii()
        return "message/global-headers" if utf8 and wide else "text/rfc822-headers", wide
    wide = not (isinstance(original.content, bytes) and original.content.isascii())
    return "message/global" if utf8 and wide else "message/rfc822", wide
