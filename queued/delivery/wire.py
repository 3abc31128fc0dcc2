"""What may go over the wire to a next hop, whoever has put it into the queue (pure).

smtpd checks what it takes. Rows and messages may come by SQL as well: an address with a CR LF in it
would be further commands, and content may hold what a server takes for the end of data.
"""

from __future__ import annotations

import re

from pgmta.address import normalise_domain, parse_mailbox
from pgmta.errors import AddressError
from pgmta.model import Item, Message
from pgmta.newlines import Mode, check
from pgmta.text import printable

# One argument of one command, whatever its syntax is: printable ASCII in which nothing quotes,
# and not too long for a command line (RFC 5321, section 4.5.3.1.3).
_PLAIN = re.compile(r"[!#-;=?-\[\]-~]{1,254}")
# Whole fields (RFC 5322, section 2.2), no empty line, no bare CR or LF, no NUL.
_FIELDS = re.compile(
    rb"(?:[!-9;-~]++[ \t]*+:[^\r\n\0]*+\r\n(?:[ \t]++[^ \t\r\n\0][^\r\n\0]*+\r\n)*+)*+"
)
_SHOWN = 200  # characters of an address in a reason


def plain(item: Item) -> bool:
    """Whether there is nothing to look at in the addresses of a row, as there mostly is not."""
    both = item.sender + item.recipient  # mostly not longer than one may be
    return item.recipient != "" and _PLAIN.fullmatch(both) is not None and item.domain.isascii()


def address_problem(item: Item) -> str:
    """Say why the sender or the recipient can't be an argument of MAIL or RCPT, or nothing.

    A domain beyond ASCII has to be one, as its A-labels are asked for.
    The text begins with an enhanced status code (RFC 3463). An empty sender is the null
    reverse-path.
    """
    if item.sender and not _PLAIN.fullmatch(item.sender) and (why := _malformed(item.sender)):
        return f"5.1.7 sender address is malformed: {why}"
    if not _PLAIN.fullmatch(item.recipient) and (why := _malformed(item.recipient)):
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


def needs_utf8(item: Item) -> bool:
    """Whether an address of the row can go only to a next hop that knows SMTPUTF8 (RFC 6531)."""
    return not (item.recipient.isascii() and item.sender.isascii())


def message_problem(message: Message, mode: Mode) -> str:
    """Say why the message can't be sent as it is stored, or nothing.

    Content that is not there yet is looked at when it is read. The text begins with an enhanced
    status code.
    """
    if not _FIELDS.fullmatch(message.trace.encode()):
        return "5.6.0 trace is not whole header fields with CRLF at their ends"
    if message.body is not None and (problem := check(message.body, mode)):
        return content_problem(problem)
    return ""


def content_problem(problem: str) -> str:
    """The reason for content that a NewlineGuard does not let pass."""
    return f"5.6.0 content can't be sent: {problem}"
