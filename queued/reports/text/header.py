"""The header of a DSN (RFC 5322, RFC 2045; pure)."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import datetime
from functools import lru_cache

from queued.config import split_named
from queued.reports.text.fields import date, folded, text_of, whole
from queued.reports.text.values import Report

_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,900}>")
_PHRASE = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_WORD = 39  # octets of an encoded word before base64: a line has at most 76 (RFC 2047, section 2)
_SUBJECT = 500  # characters
_ADDRESS = 900  # octets of an address, which may come by SQL


def header(
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
        _subject_field(subject[:_SUBJECT]),
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


def encoded(text: str) -> str:
    """Return an unstructured text for a header: as it is, or in encoded words (RFC 2047)."""
    text = text_of(text, utf8=True)
    if text.isascii():
        return text.replace("=?", "= ?")  # the reader would decode it
    words, rest = [], text
    while rest:
        chars = rest.encode()[:_WORD].decode("utf-8", "ignore")
        words.append(f"=?utf-8?B?{b64encode(chars.encode()).decode()}?=")
        rest = rest[len(chars) :]
    return " ".join(words)


@lru_cache(maxsize=256)
def _subject_field(subject: str) -> str:
    return folded("Subject", encoded(subject))


@lru_cache(maxsize=16)
def _from_field(origin: str) -> str:
    return folded("From", _from(origin))


def _from(origin: str) -> str:
    """Return the field From of a configured `Name <address>`."""
    name, address = split_named(origin)
    if not name:
        return text_of(origin, utf8=False)
    name, address = name.strip('"'), text_of(address, utf8=False)
    if not name.isascii():
        name = encoded(name)
    elif not _PHRASE.fullmatch(name):
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        name = f'"{escaped}"'
    return f"{name} <{address}>"


def _address(address: str) -> str:
    """Return an address that can't end its brackets."""
    address = text_of(address, utf8=not address.isascii())
    if "<" in address or ">" in address:
        address = address.replace("<", "").replace(">", "")
    return address.encode()[:_ADDRESS].decode("utf-8", "ignore") if len(address) > 200 else address
