"""The header block of a message that comes in (RFC 5322, section 2.2)."""

from __future__ import annotations

import re
import secrets
import time
from datetime import UTC, datetime
from email.utils import format_datetime

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
_DATE = re.compile(rb"^date[ \t]*+:", re.IGNORECASE | re.MULTILINE)
_MESSAGE_ID = re.compile(rb"^message-id[ \t]*+:", re.IGNORECASE | re.MULTILINE)
_TLS_REQUIRED = re.compile(
    rb"^tls-required[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.IGNORECASE | re.MULTILINE
)
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


def tls_optional(header: bytes) -> bool:
    """Return whether the sender asks for delivery even if TLS fails (RFC 8689, section 3).

    Its field TLS-Required has to be the only one. The function submit_tls_optional() of the
    database finds the same.
    """
    if b"tls-required" not in header.lower():
        return False
    return [value.strip().lower() for value in _TLS_REQUIRED.findall(header)] == [b"no"]


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


def completed(header: bytes, body: bytes, hostname: str) -> bytes:
    """Return a message with Date and Message-ID in its header (RFC 5322, section 3.6).

    It is unchanged if it has both. The function submit_missing() of the database adds the same.
    """
    added = ""
    if not _DATE.search(header):
        added = f"Date: {format_datetime(datetime.now(UTC))}\r\n"
    if not _MESSAGE_ID.search(header):
        unique = f"{time.time_ns() // 1000:x}.{secrets.token_hex(8)}"
        added += f"Message-ID: <{unique}@{hostname}>\r\n"
    if not header and body[:1] not in (b"", b"\r", b"\n"):
        added += "\r\n"  # the body has no empty line before it
    if added and header and not header.endswith(b"\n"):
        header += b"\r\n"
    return header + added.encode() + body
