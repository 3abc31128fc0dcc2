"""Reads mail to a VERP address: a DSN (RFC 3464, 6533), another bounce, a complaint, or neither.

A DSN is found wherever its part is in the message, because lists and scanners put DSNs into other
messages. A complaint is a feedback report (ARF, RFC 5965). Only the first octets are read, without
any recursion. Pure.
"""

from __future__ import annotations

import binascii
import quopri
import re
from dataclasses import dataclass
from typing import Literal

MAX_READ_OCTETS = 1 << 17
"""The rest of the content is not read."""

type Kind = Literal["failed", "delayed", "delivered", "complaint", "answer"]
"""`answer` is all that reports nothing of a delivery: out of office, and answers of people."""

_STATUS_PART = re.compile(
    rb"^Content-Type[ \t]*:[ \t\r\n]*message/(?:global-)?delivery-status\b",
    re.IGNORECASE | re.MULTILINE,
)
_FEEDBACK_PART = re.compile(
    rb"^Content-Type[ \t]*:[ \t\r\n]*message/feedback-report\b", re.IGNORECASE | re.MULTILINE
)
# not-spam is no complaint (RFC 5965, section 7.3)
_COMPLAINT_TYPES = (b"abuse", b"fraud", b"opt-out")
_EMPTY_LINE = re.compile(rb"\r?\n\r?\n")
_BOUNDARY = re.compile(rb"^--\S", re.MULTILINE)
_ENCODING = re.compile(rb"^Content-Transfer-Encoding[ \t]*:\s*([A-Za-z0-9-]+)", re.I | re.MULTILINE)
_FIELD = re.compile(rb"^([!-9;-~]++)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)", re.MULTILINE)
_ENHANCED = re.compile(rb"(?<![\d.])[245]\.\d{1,3}\.\d{1,3}(?![\d.])")
_MAX_GROUPS = 200  # of recipients that are read
_REPLY = re.compile(rb"(?<![\d.,:-])[45]\d\d[ -](?:\(?#?[45]\.\d{1,3}\.\d{1,3})?[^\r\n]{3,}")
_QMAIL_CODE = re.compile(rb"\(#[45]\.\d{1,3}\.\d{1,3}\)")  # qmail
_DAEMON_ADDRESS = re.compile(
    rb"<?\b(?:mailer-daemon|postmaster|mail-daemon|mailerdaemon)@", re.IGNORECASE
)
_DELAY_TEXT = re.compile(rb"\b(?:delay|warning|still being retried|not yet)", re.IGNORECASE)
_MAX_REPLY_OCTETS = 1000  # of a text that is taken for a reply


@dataclass(frozen=True, slots=True)
class Returned:
    """The report on a recipient.

    `status` is an enhanced status code or empty. `words` are the reply of a host, or a text. `host`
    is the host that gave the reply, if it is known.
    """

    kind: Kind
    status: str = ""
    words: str = ""
    host: str = ""


def read(content: bytes, sender: str) -> Returned:
    """Return what content with this reverse-path reports; never raises for any content."""
    content = content[:MAX_READ_OCTETS]
    if match := _FEEDBACK_PART.search(content):
        fields = dict(_fields(_part(content, match) or b""))
        if fields.get(b"feedback-type", b"").lower() in _COMPLAINT_TYPES:
            return Returned("complaint")
        return Returned("answer")
    if match := _STATUS_PART.search(content):
        found = _by_dsn(content, match)
        if found:
            return found
    head = _EMPTY_LINE.search(content)
    header = content[: head.start()] if head else content
    body = content[head.end() :] if head else b""
    return _by_text(dict(_fields(header)), body, sender)


def _by_dsn(content: bytes, match: re.Match[bytes]) -> Returned | None:
    """Return what the status part of a DSN reports; None if it has no recipient."""
    part = _part(content, match)
    if part is None:
        return None
    groups = [dict(_fields(group)) for group in _EMPTY_LINE.split(part, _MAX_GROUPS)]
    reporting = groups[0].get(b"reporting-mta", b"")
    recipients = [each for group in groups if (each := _recipient(group, reporting))]
    order = ("failed", "delayed", "delivered", "answer")
    return min(recipients, key=lambda each: order.index(each.kind), default=None)


def _part(content: bytes, match: re.Match[bytes]) -> bytes | None:
    """Return the decoded octets of the part with that field; None if it has none."""
    head = _EMPTY_LINE.search(content, match.end())
    if not head:
        return None
    end = _BOUNDARY.search(content, head.end())
    part = content[head.end() : end.start() if end else None]
    before = [each.end() for each in _BOUNDARY.finditer(content, 0, match.start())]
    encoding = _ENCODING.search(content, before[-1] if before else 0, head.start())
    if encoding and encoding[1].lower() == b"base64":
        try:
            return binascii.a2b_base64(part)
        except binascii.Error:
            return None
    if encoding and encoding[1].lower() == b"quoted-printable":
        return quopri.decodestring(part)
    return part


def _recipient(fields: dict[bytes, bytes], reporting: bytes) -> Returned | None:
    """Return what the fields of one recipient say (RFC 3464, section 2.3).

    `reporting` is the host of the DSN, which gave the reply unless another one is named.
    """
    action = fields.get(b"action", b"").split()[:1]
    status = _ENHANCED.search(fields.get(b"status", b""))
    if not (action or (status and b"final-recipient" in fields)):
        return None
    number = status[0].decode() if status else ""
    word = action[0].lower() if action else {"5": b"failed", "4": b"delayed"}.get(number[:1], b"")
    kinds: dict[bytes, Kind] = {b"failed": "failed", b"delayed": "delayed"}
    words = fields.get(b"diagnostic-code", b"").partition(b";")[2]
    host = fields.get(b"remote-mta", reporting).partition(b";")[2].split()[:1]
    return Returned(kinds.get(word, "delivered"), number, _text(words), _text(b"".join(host)))


def _by_text(header: dict[bytes, bytes], body: bytes, sender: str) -> Returned:
    """Return what a message without a status part reports, as hosts before RFC 3464 wrote it."""
    named = b"x-failed-recipients" in header  # Exim
    automatic = header.get(b"auto-submitted", b"no").split(b";")[0].strip().lower() != b"no"
    daemon = not sender and _DAEMON_ADDRESS.search(header.get(b"from", b""))
    if not named and (automatic or not daemon):
        return Returned("answer")
    if _DELAY_TEXT.search(header.get(b"subject", b"")):
        return Returned("delayed")
    if match := _REPLY.search(body):
        words = match[0]
    elif match := _QMAIL_CODE.search(body):
        words = body[
            max(
                body.rfind(b"\n", 0, match.start()), match.start() - _MAX_REPLY_OCTETS
            ) : match.end()
        ]
    else:
        words = b" ".join(body[: 4 * _MAX_REPLY_OCTETS].split())
    status = _ENHANCED.search(words)
    return Returned("failed", status[0].decode() if status else "", _text(words))


def _fields(header: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields by their names in lower case, unfolded; of several the first one counts."""
    found = [(name.lower(), b" ".join(value.split())) for name, value in _FIELD.findall(header)]
    return found[::-1]


def _text(octets: bytes) -> str:
    return " ".join(octets[:_MAX_REPLY_OCTETS].decode("utf-8", "replace").split())
