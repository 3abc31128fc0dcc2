"""The header block of a message, and its fields (RFC 5322, section 2.2)."""

from __future__ import annotations

import re
import secrets
import time
from datetime import UTC, datetime
from email.utils import format_datetime

MAX_HEADER_OCTETS = 1 << 16
"""The first octets of an incoming message, in which its header is looked for."""

MAX_STORED_HEADER_OCTETS = 1 << 20
"""The same for a stored message; fields behind this limit are sent as they are."""

# Lines end with LF, with or without CR before it. RFC 5322, section 4.5, permits a space before the
# colon.
_COLON = rb"[ \t]*+:"
_VALUE = rb"[^\n]*+(?:\n[ \t][^\n]*+)*+"
_END = rb"(?:\n|\Z)"
_FIELD = rb"[!-9;-~]++" + _COLON + _VALUE + _END
_MAILBOX_LINE = rb">*+From [^\n]*+" + _END  # a mailbox file puts it before a message
_HEADER = re.compile(rb"(?:%b)?+(?:%b)*+" % (_MAILBOX_LINE, _FIELD))
_STORED_HEADER = re.compile(rb"(?:%b|%b)*+" % (_MAILBOX_LINE, _FIELD))

PART = re.compile(
    rb"(?P<name>[!-9;-~]++)%b(?P<value>%b)%b|%b" % (_COLON, _VALUE, _END, _MAILBOX_LINE)
)
"""A field with its continuations, or the line that a mailbox file puts before a message.

An earlier hop may have put fields before such a line.
"""


def find_fields(name: bytes) -> re.Pattern[bytes]:
    """Return the expression for the whole fields of a name; its group is their value."""
    return re.compile(rb"^%b%b(%b)%b" % (name, _COLON, _VALUE, _END), re.IGNORECASE | re.MULTILINE)


def _find_value(name: bytes) -> re.Pattern[bytes]:
    """Return the expression for the value of a field, which a bare CR ends."""
    return re.compile(
        rb"^%b[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)" % name, re.IGNORECASE | re.MULTILINE
    )


def _unfolded(match: re.Match[bytes] | None) -> bytes:
    return _FOLD_LINE.sub(b" ", match[1]).strip() if match else b""


_FOLD_LINE = re.compile(rb"\r?\n[ \t]+")
_TLS_REQUIRED = _find_value(b"tls-required")
_ID_FIELD = _find_value(b"message-id")
_TRACEPARENT = _find_value(b"traceparent")
_BCC = find_fields(rb"(?:resent-)?bcc")
_FOLD = re.compile(rb"\r?\n(?=[ \t])")  # section 2.2.3
_DATE = re.compile(rb"^date[ \t]*+:", re.IGNORECASE | re.MULTILINE)
_MESSAGE_ID = re.compile(rb"^message-id[ \t]*+:", re.IGNORECASE | re.MULTILINE)
_RECEIVED = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)


def header_block(content: bytes, limit: int = MAX_HEADER_OCTETS) -> bytes:
    """Return the header of a message, as far as its first octets go, 64 KiB by default.

    It ends before the first line that is neither a field nor the continuation of one. So content
    that begins with an empty line or with a space has an empty header.
    """
    match = _HEADER.match(content[:limit])
    return match[0] if match else b""


def header_known(content: bytes) -> bool:
    """Return whether all of the header is in these octets of a stored message.

    It is if whatever follows them belongs to the body, or is behind the limit.
    """
    match = _STORED_HEADER.match(content, 0, MAX_STORED_HEADER_OCTETS)
    return (
        len(content) > MAX_STORED_HEADER_OCTETS
        or content.find(b"\n", match.end() if match else 0) >= 0
    )


def without_bcc(header: bytes) -> bytes:
    """Return a header block without the fields Bcc and Resent-Bcc."""
    return _BCC.sub(b"", header)


def hops(header: bytes) -> int:
    """Return the number of Received fields, one for each relay so far (RFC 5321, section 6.3)."""
    return len(_RECEIVED.findall(header))


def tls_optional(header: bytes) -> bool:
    """Return whether the sender asks for delivery even if TLS fails (RFC 8689, section 3).

    Its field TLS-Required has to be the only one. Its value may be in folding white space. The
    function submit_tls_optional() of the database finds the same.
    """
    if b"tls-required" not in header.lower():
        return False
    values = _TLS_REQUIRED.findall(header)
    return [_FOLD_LINE.sub(b" ", value).strip(b" \t").lower() for value in values] == [b"no"]


def traceparent_field(header: bytes) -> str:
    """Return the value of the field Traceparent, '' without the field or with several of them."""
    values = _TRACEPARENT.findall(header)
    if len(values) != 1:
        return ""
    return _FOLD_LINE.sub(b" ", values[0]).strip(b" \t").decode("ascii", "replace")


def fields(header: bytes) -> list[tuple[str, str]]:
    """Return name and unfolded value of each field of a header block, in order.

    Octets that are no UTF-8 become lone surrogates.
    """
    return [
        (
            name.decode("ascii"),
            _FOLD.sub(b"", value).strip().decode("utf-8", "surrogateescape"),
        )
        for name, value in PART.findall(header)
        if name
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


MESSAGE_ID_NAME = b"message-id"
"""The name of the field Message-ID, in lower case."""

_PRINTABLE = re.compile(rb"[ -~]{1,998}")


def message_id_header(content: bytes | bytearray, first: int | None = None) -> str | None:
    """Return the Message-ID of a message, unfolded, with its brackets.

    It is None if the header has no such field. A value that is not printable ASCII, or over 998
    characters, counts as none. `first` is the index of the field's name in lower case, if the
    caller knows it.
    """
    end = content.find(b"\r\n\r\n", 0, MAX_HEADER_OCTETS)
    end = MAX_HEADER_OCTETS if end < 0 else end
    if first is None:  # much quicker than the expression alone, which ignores case
        first = content[:end].lower().find(MESSAGE_ID_NAME)
    value = _unfolded(_ID_FIELD.search(content, first, end)) if first >= 0 else b""
    return value.decode() if _PRINTABLE.fullmatch(value) else None


def header_value(header: bytes, name: str) -> str:
    """Return the unfolded value of the first field of that name, '' if there is none."""
    match = _find_value(re.escape(name.encode())).search(header)
    return _unfolded(match).decode("utf-8", "replace")
