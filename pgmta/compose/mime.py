"""Composes the content of a message from its parts (RFC 5322, RFC 2045, RFC 2046; pure).

The same parts and the same identity give the same octets. By hand, because Python's `email` takes
a hundred times as long (docs/decisions/templates.md).
"""

from __future__ import annotations

import re
from binascii import b2a_base64, b2a_qp
from dataclasses import dataclass
from datetime import datetime

from stringzilla import find, find_first_of

from pgmta.compose.header_fields import address_field, date, own_field, text_field
from pgmta.compose.parts import Parts

_MAX_LINE_OCTETS = 998  # without CRLF (RFC 5322, section 2.1.1)
_ENCODED_LINE_OCTETS = 76  # of quoted-printable or base64 (RFC 2045, section 6)
_CONTROLS = bytes([*range(9), *range(11, 32), 127])  # without tab and line feed
_MESSAGE_ID = re.compile(r"<([A-Za-z0-9._+-]{1,60})@[A-Za-z0-9._:\[\]-]{1,255}>")
_BLANK_END = re.compile(rb"^(.{74,})(=(?:20|09))\r$", re.MULTILINE)
_FROM_LINE = re.compile(rb"^From ", re.MULTILINE)
_DOT_LINE = re.compile(rb"^\.\r$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MessageIdentity:
    """The Message-ID of a message, with brackets, and the time of its Date."""

    message_id: str
    date: datetime


def boundary(message_id: str, letter: str) -> str:
    """Return the boundary of a multipart: m is mixed, a is alternative, r is related.

    It has `=_`, which neither quoted-printable nor base64 can have (RFC 2045, section 6.7). Raises
    ValueError for a Message-ID that pgmta did not draw.
    """
    match = _MESSAGE_ID.fullmatch(message_id)
    if not match:
        raise ValueError("the Message-ID is not one that pgmta draws")
    return f"=_{match[1]}{letter}"


def compose_head(parts: Parts, identity: MessageIdentity) -> bytes:
    """Return the content of a message up to its tail; without a tail it is all of the content.

    It ends with CRLF. It is ASCII but for addresses, whose local parts may have other characters.
    Readers get a text back with each CRLF, CR and LF as CRLF. A text that ends without one gets
    one, unless it is empty. All other characters stay, controls too. Raises ValueError for parts
    that `parts_of` would refuse.
    """
    head, body = _structure(parts, identity)
    return b"".join((_fields(parts, identity), head, b"\r\n", body))


def compose_header(parts: Parts, identity: MessageIdentity) -> bytes:
    """Return the header of the message, without the empty line behind it."""
    return _fields(parts, identity) + _structure(parts, identity)[0]


def tail_end(parts: Parts, identity: MessageIdentity) -> bytes:
    """Return the last octets that the tail has, b'' if there is none. Raises as `boundary`."""
    if not parts.tail:
        return b""
    alternative = parts.body is not None and parts.html is not None
    letter = "m" if parts.tail != "related" else "a" if alternative else "r"
    return f"\r\n--{boundary(identity.message_id, letter)}--\r\n".encode()


def _fields(parts: Parts, identity: MessageIdentity) -> bytes:
    """Return the fields before those of the content."""
    fields = [f"Date: {date(identity.date)}\r\n", address_field("From", (parts.from_,))]
    if parts.reply_to:
        fields.append(address_field("Reply-To", parts.reply_to))
    if parts.to or not parts.cc:
        fields.append(address_field("To", parts.to))
    if parts.cc:
        fields.append(address_field("Cc", parts.cc))
    if parts.subject.strip(" "):
        fields.append(text_field("Subject", parts.subject))
    fields.append(f"Message-ID: {identity.message_id}\r\n")
    fields += [own_field(name, value) for name, value in parts.headers]
    fields.append("MIME-Version: 1.0\r\n")
    return "".join(fields).encode()


def _structure(parts: Parts, identity: MessageIdentity) -> tuple[bytes, bytes]:
    """Return the fields of the content, and its octets up to the tail."""
    text, html = parts.body, parts.html
    tail, _, bits = parts.tail.partition(" ")
    delimiter = f"--{boundary(identity.message_id, '')}".encode()
    if html is None:
        head, body = _text_part(b"plain", text or "", delimiter)
    else:
        head, body = _text_part(b"html", html, delimiter)
    if tail in ("related", "both"):
        body = b"%br\r\n%b\r\n%b" % (delimiter, head, body)
        head = _multipart(b'related; type="text/html"', delimiter, b"r")
    if html is not None and text is not None:
        first, octets = _text_part(b"plain", text, delimiter)
        body = b"%ba\r\n%b\r\n%b\r\n%ba\r\n%b\r\n%b" % (
            delimiter, first, octets, delimiter, head, body
        )  # fmt: skip
        if not tail:
            body = b"%b\r\n%ba--\r\n" % (body, delimiter)
        head = _multipart(b"alternative", delimiter, b"a")
    if tail in ("mixed", "both"):
        body = b"%bm\r\n%b\r\n%b" % (delimiter, head, body)
        head = _multipart(b"mixed", delimiter, b"m")
        if bits:  # a multipart has the encoding of its parts (RFC 2045, section 6.4)
            head += b"Content-Transfer-Encoding: 8bit\r\n"
    return head, body


def _multipart(subtype: bytes, delimiter: bytes, letter: bytes) -> bytes:
    return b'Content-Type: multipart/%b;\r\n boundary="%b%b"\r\n' % (
        subtype, delimiter[2:], letter
    )  # fmt: skip


def _text_part(subtype: bytes, text: str, marker: bytes) -> tuple[bytes, bytes]:
    """Return the fields and the octets of a text."""
    encoding, octets = encode_text(text, marker)
    return _TEXT_HEADER % (subtype, encoding), octets


_TEXT_HEADER = b"Content-Type: text/%b; charset=utf-8\r\nContent-Transfer-Encoding: %b\r\n"


def encode_text(text: str, marker: bytes) -> tuple[bytes, bytes]:
    """Return the transfer encoding and the octets of a text; `marker` begins each delimiter.

    A text of ASCII is 7bit if all of these are so. No line is over 998 octets, and none begins
    with `From `. There is no control character, and no marker. Else it is quoted-printable or
    base64, the shorter one.
    """
    octets = text.encode()
    if find(octets, b"\r") >= 0:
        octets = octets.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if octets and not octets.endswith(b"\n"):
        octets += b"\n"
    plain = octets.isascii() and _goes_plain(octets) and find(octets, marker) < 0
    octets = octets.replace(b"\n", b"\r\n")
    if plain:
        return b"7bit", octets
    quoted = _quoted_printable(octets)
    size = (len(octets) + 2) // 3 * 4
    lines = -(-size // _ENCODED_LINE_OCTETS)
    if len(quoted) <= size + 2 * lines:
        return b"quoted-printable", quoted
    base64 = b2a_base64(octets, newline=False)
    cuts = range(0, size, _ENCODED_LINE_OCTETS)
    return b"base64", b"\r\n".join(
        [*(base64[cut : cut + _ENCODED_LINE_OCTETS] for cut in cuts), b""]
    )


def _goes_plain(octets: bytes) -> bool:
    """Return whether lines of ASCII are short enough, and no server or reader changes one."""
    if octets.startswith(b"From ") or find(octets, b"\nFrom ") >= 0:
        return False  # a mailbox file would have >From
    if find_first_of(octets, _CONTROLS) >= 0:
        return False
    start, last = 0, len(octets) - _MAX_LINE_OCTETS
    while start < last:
        end = octets.rfind(b"\n", start, start + _MAX_LINE_OCTETS + 1)
        if end < 0:
            return False
        start = end + 1
    return True


def _quoted_printable(octets: bytes) -> bytes:
    """Return octets whose lines end with CRLF, in quoted-printable."""
    quoted = b2a_qp(octets)
    # b2a_qp encodes the blank at the end of a line after it has measured the line
    if find(quoted, b"=20\r\n") >= 0 or find(quoted, b"=09\r\n") >= 0:
        quoted = _BLANK_END.sub(rb"\1=\r\n\2\r", quoted)
    if find(quoted, b"From ") >= 0:
        quoted = _FROM_LINE.sub(b"=46=\r\nrom ", quoted)
    if find(quoted, b"\n.\r\n") >= 0:
        quoted = _DOT_LINE.sub(b"=2E\r", quoted)
    return quoted
