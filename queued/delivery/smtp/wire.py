"""The form in which a message goes over the wire to a next hop, and checks of it (pure).

smtpd checks the mail that it takes. Rows may come by SQL as well. An address that contains CR LF
would be further commands.
"""

from __future__ import annotations

import re

from stringzilla import find

from pgmta.errors import AddressError
from pgmta.mail.address import normalise_domain, parse_mailbox
from pgmta.mail.octets import replace
from pgmta.mail.text import printable
from pgmta.model import Item

PLAIN = re.compile(r"[!#-;=?-\[\]-~]{1,254}")
"""One argument of one command, whatever its syntax is.

It is printable ASCII in which no character quotes, and not too long for a command line (RFC 5321,
section 4.5.3.1.3). Two addresses together mostly fit too.
"""

_CRLF = b"\r\n"
_DOTTED = b"\r\n."
_SHOWN = 200  # characters of an address in a reason


def address_problem(item: Item) -> str:
    """Return why the sender or the recipient can't be an argument of MAIL or RCPT; '' if they can.

    A domain beyond ASCII has to be well formed, because the DNS is asked for its A-labels.
    The text begins with an enhanced status code (RFC 3463). An empty sender is the null
    reverse-path.
    """
    if item.sender and not PLAIN.fullmatch(item.sender) and (why := _malformed(item.sender)):
        return f"5.1.7 sender address is malformed: {why}"
    if not PLAIN.fullmatch(item.recipient) and (why := _malformed(item.recipient)):
        return f"5.1.3 recipient address is malformed: {why}"
    if not item.domain.isascii():
        try:
            normalise_domain(item.domain)
        except AddressError as error:
            return f"5.1.2 domain is malformed: {printable(str(error))[:_SHOWN]}"
    return ""


def _malformed(address: str) -> str:
    try:
        parse_mailbox(address, utf8=True)
    except AddressError as error:
        return printable(str(error))[:_SHOWN]
    return ""


def stuffed(content: bytes) -> bytes:
    """Return whole content with its transparency dots (RFC 5321, section 4.5.2) and end of data."""
    if content[:1] == b".":
        content = b"." + content
    if find(content, _DOTTED) >= 0:
        content = replace(content, _DOTTED, b"\r\n..")
    return content + (b".\r\n" if content.endswith(_CRLF) or not content else b"\r\n.\r\n")


class DotStuffer:
    """Adds the transparency dots of RFC 5321, section 4.5.2, part by part.

    Only a dot after CRLF is doubled: a bare CR or LF ends no line.
    """

    def __init__(self) -> None:
        self._tail = _CRLF

    def feed(self, part: bytes) -> bytes:
        """Return the part as it goes over the wire."""
        stuffed = replace(part, _DOTTED, b"\r\n..")
        if self._tail == _CRLF and part[:1] == b".":
            stuffed = b"." + stuffed
        elif self._tail[-1:] == b"\r" and part[:2] == b"\n.":
            stuffed = b"\n." + stuffed[1:]
        self._tail = part[-2:] if len(part) > 1 else (self._tail + part)[-2:]
        return stuffed

    def end(self) -> bytes:
        """Return the end of data, with the CRLF that the content may lack."""
        return b".\r\n" if self._tail == _CRLF else b"\r\n.\r\n"
