"""Composes the message of a DSN (RFC 3461, section 6; RFC 3464; RFC 6522; RFC 6533; pure)."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache

from pgmta.compose.header_fields import address_field, date, text_field
from pgmta.compose.mime import encode_text
from queued.config import BounceTexts, split_named
from queued.reports.text.dsn import Dsn, Report
from queued.reports.text.fields import text_of, whole
from queued.reports.text.human import human_texts
from queued.reports.text.machine import delivery_status
from queued.reports.text.original import languages_of, returned_type

_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,900}>")
_MAX_SUBJECT_CHARACTERS = 500
_MAX_ADDRESS_OCTETS = 900  # in a field; by SQL an address may be longer


def compose(
    report: Report, texts: BounceTexts, *, boundary: str, message_id_header: str, now: datetime
) -> Dsn:
    """Return the DSN of a report; the same arguments give the same octets.

    Only a failure returns content, and not with RET=HDRS (RFC 3461, section 6.2). `boundary` has to
    be one that no sender can guess: content that streams is not searched for it.
    """
    original = report.original
    content = original.content if report.kind == "failed" and report.ret != "HDRS" else None
    # message/global-delivery-status is for addresses only; other texts fit into ASCII
    addresses = (report.sent_to, *(row.recipient for row in report.recipients))
    utf8 = not all(map(str.isascii, addresses))
    language = texts.choose(languages_of(original.header))
    subject, text = human_texts(report, language)
    status = delivery_status(report, utf8=utf8).encode()
    returned = original.header if content is None else content
    media, wide = returned_type(original, utf8=report.utf8 or utf8, content=content is not None)
    text_head, body = _text_part(text, language.written[report.kind], boundary)
    while any(
        isinstance(part, bytes) and b"--" + boundary.encode() in part
        for part in (body, status, returned)
    ):
        boundary += "="
    delimiter = f"--{boundary}\r\n"
    status_wide = utf8 and not status.isascii()
    head = _header(
        report,
        subject,
        boundary=boundary,
        message_id_header=message_id_header,
        now=now,
        wide=wide or status_wide,
    ).encode()
    head += b"".join(
        (
            f"{delimiter}{text_head}\r\n".encode(),
            body,
            f"\r\n{delimiter}{_status_head(utf8=utf8, wide=status_wide)}\r\n".encode(),
            status,
            f"\r\n{delimiter}{_part_head(media, wide=wide)}\r\n".encode(),
        )
    )
    tail = f"\r\n--{boundary}--\r\n".encode()
    size = len(returned) if isinstance(returned, bytes) else original.size
    return Dsn(head, returned, tail, len(head) + size + len(tail), not report.sent_to.isascii())


def _text_part(text: str, tag: str, boundary: str) -> tuple[str, bytes]:
    """Return the header and the octets of the text, which ends with CRLF."""
    encoding, octets = encode_text(text, b"--" + boundary.encode())
    if encoding == b"7bit":
        return f"{_TEXT_HEADER}us-ascii\r\nContent-Language: {tag}\r\n", octets
    field = f"Content-Transfer-Encoding: {encoding.decode()}\r\n"
    return f"{_TEXT_HEADER}utf-8\r\nContent-Language: {tag}\r\n{field}", octets


_TEXT_HEADER = "Content-Description: Notification\r\nContent-Type: text/plain; charset="


def _status_head(*, utf8: bool, wide: bool) -> str:
    media = "message/global-delivery-status" if utf8 else "message/delivery-status"
    encoding = "Content-Transfer-Encoding: 8bit\r\n" if wide else ""
    return f"Content-Description: Delivery report\r\nContent-Type: {media}\r\n{encoding}"


def _part_head(media: str, *, wide: bool) -> str:
    """Return the header of the part that returns the original."""
    name = "header" if media.endswith("headers") else "message"
    encoding = "Content-Transfer-Encoding: 8bit\r\n" if wide else ""
    return f"Content-Description: Original {name}\r\nContent-Type: {media}\r\n{encoding}"


def _header(
    report: Report,
    subject: str,
    *,
    boundary: str,
    message_id_header: str,
    now: datetime,
    wide: bool,
) -> str:
    """Return the header with the empty line; `wide` says that a part of the body has 8-bit octets.

    It is ASCII, but for an address in To (RFC 6532).
    """
    fields = [
        _from_field(report.origin),
        whole("To", f"<{_address(report.sent_to)}>"),
        _subject_field(subject[:_MAX_SUBJECT_CHARACTERS]),
        f"Date: {date(now)}\r\n",
        f"Message-ID: {message_id_header}\r\n",
    ]
    if report.message_id and _MESSAGE_ID.fullmatch(report.message_id):
        fields.append(f"In-Reply-To: {report.message_id}\r\nReferences: {report.message_id}\r\n")
    fields.append(
        "Auto-Submitted: auto-replied\r\nMIME-Version: 1.0\r\n"
        "Content-Type: multipart/report; report-type=delivery-status;\r\n"
        f' boundary="{boundary}"\r\n'
    )
    if wide:
        fields.append("Content-Transfer-Encoding: 8bit\r\n")
    fields.append("\r\n")
    return "".join(fields)


@lru_cache(maxsize=256)
def _subject_field(subject: str) -> str:
    return text_field("Subject", text_of(subject, utf8=True))


@lru_cache(maxsize=16)
def _from_field(origin: str) -> str:
    """Return the field From of a configured `Name <address>`."""
    name, address = split_named(origin)
    return address_field("From", [(name.strip('"'), text_of(address, utf8=False))])


def _address(address: str) -> str:
    """Return an address that can't end its brackets."""
    address = text_of(address, utf8=not address.isascii())
    if "<" in address or ">" in address:
        address = address.replace("<", "").replace(">", "")
    return (
        address.encode()[:_MAX_ADDRESS_OCTETS].decode("utf-8", "ignore")
        if len(address) > 200
        else address
    )
