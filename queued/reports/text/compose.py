"""Composes the message of a DSN (RFC 3461, section 6; RFC 3464; RFC 6522; RFC 6533; pure)."""

from __future__ import annotations

from binascii import b2a_qp
from datetime import datetime

from queued.config import BounceTexts
from queued.reports.text.header import header
from queued.reports.text.human import human_texts
from queued.reports.text.machine import delivery_status
from queued.reports.text.original import languages_of, returned_type
from queued.reports.text.values import Dsn, Report

_LONGEST = 990  # octets of a line of text that goes as it is


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
    addresses = (report.sent_to, *(each.address for each in report.recipients))
    utf8 = not all(map(str.isascii, addresses))
    language = texts.choose(languages_of(original.header))
    subject, text = human_texts(report, language)
    status = delivery_status(report, utf8=utf8).encode()
    returned = original.header if content is None else content
    media, wide = returned_type(original, utf8=report.utf8 or utf8, content=content is not None)
    text_head, body = _text_part(text, language.written[report.kind])
    while any(
        isinstance(part, bytes) and b"--" + boundary.encode() in part
        for part in (body, status, returned)
    ):
        boundary += "="
    delimiter = f"--{boundary}\r\n"
    status_wide = utf8 and not status.isascii()
    head = header(
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


def _text_part(text: str, tag: str) -> tuple[str, bytes]:
    """Return the header and the octets of the text, which ends with CRLF."""
    octets = text.replace("\n", "\r\n").encode()
    if octets.isascii() and max(map(len, octets.split(b"\n"))) < _LONGEST:
        return f"{_TEXT}us-ascii\r\nContent-Language: {tag}\r\n", octets
    encoding = "Content-Transfer-Encoding: quoted-printable\r\n"
    # b2a_qp takes the first line end as that of the whole text
    return f"{_TEXT}utf-8\r\nContent-Language: {tag}\r\n{encoding}", b2a_qp(octets)


_TEXT = "Content-Description: Notification\r\nContent-Type: text/plain; charset="


def _status_head(*, utf8: bool, wide: bool) -> str:
    media = "message/global-delivery-status" if utf8 else "message/delivery-status"
    encoding = "Content-Transfer-Encoding: 8bit\r\n" if wide else ""
    return f"Content-Description: Delivery report\r\nContent-Type: {media}\r\n{encoding}"


def _part_head(media: str, *, wide: bool) -> str:
    """Return the header of the part that returns the original."""
    name = "header" if media.endswith("headers") else "message"
    encoding = "Content-Transfer-Encoding: 8bit\r\n" if wide else ""
    return f"Content-Description: Original {name}\r\nContent-Type: {media}\r\n{encoding}"
