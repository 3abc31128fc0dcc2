"""The commands of a transaction, with the parameters that the server knows (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgmta.errors import AddressError, DeliveryError, Stage
from pgmta.mail.address import in_a_labels, normalise_domain, parse_mailbox
from pgmta.mail.text import printable
from pgmta.model import Item
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.transport import UNLIMITED

NO_EIGHTBIT = "5.6.3 the next hop does not know 8BITMIME"
"""The reason for content beyond ASCII that is not sent."""

PLAIN_ARGUMENT = re.compile(r"[!#-;=?-\[\]-~]{1,254}")
"""One argument of one command, whatever its syntax is.

It is printable ASCII in which no character quotes, and not too long for a command line (RFC 5321,
section 4.5.3.1.3). Two addresses together mostly fit too.
"""

_SHOWN_CHARACTERS = 200  # of an address, in a reason
_MAX_SIZE_DIGITS = 20  # RFC 1870, section 4
_LIMIT = re.compile(r"[1-9]\d{0,5}", re.ASCII)  # RFC 9422, section 4

# RFC 3461, section 4. The values may come by SQL, and no other text is an argument of a command.
_XTEXT = r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})"
_ENVID = re.compile(rf"{_XTEXT}{{1,100}}")
_ORCPT = re.compile(rf"[A-Za-z0-9-]{{1,64}};{_XTEXT}{{1,500}}")
_RET = ("FULL", "HDRS")
_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}")


def mail_command(
    envelope: Envelope,
    extensions: Mapping[str, str],
    limit: int,
    *,
    dsn: bool = False,
    ascii_only: bool = False,
) -> str:
    """Return the command MAIL; `limit` is the server's in octets, 0 if it has none.

    With `dsn` it has the parameters of RFC 3461 that the message has.
    With `ascii_only` other content is refused (RFC 6152, section 3), unless it streams. Raises
    DeliveryError if the server can't take the message.
    """
    size = len(envelope.trace) + envelope.size
    command = f"MAIL FROM:<{in_a_labels(envelope.sender)}>"
    if "SIZE" in extensions:
        if 0 < limit < size:
            raise _unfit(f"5.3.4 message of {size} octets is over the next hop's limit of {limit}")
        command += f" SIZE={size}"
    message, content = envelope.message, envelope.content
    if "8BITMIME" not in extensions:
        if ascii_only and not (
            envelope.trace.isascii() and (not isinstance(content, bytes) or content.isascii())
        ):
            raise _unfit(NO_EIGHTBIT)
    elif not (isinstance(content, bytes) and content.isascii()):
        command += " BODY=8BITMIME"
    if envelope.utf8:
        if "SMTPUTF8" not in extensions:
            raise _unfit("5.6.7 the next hop does not know SMTPUTF8")
        command += " SMTPUTF8"
    if dsn:
        if message.ret in _RET:
            command += f" RET={message.ret}"
        if message.envid and _ENVID.fullmatch(message.envid):
            command += f" ENVID={message.envid}"
    if message.requiretls and "REQUIRETLS" in extensions:
        command += " REQUIRETLS"  # only mail with the null reverse-path goes to hosts without it
    return command


def rcpt_command(item: Item, *, dsn: bool) -> str:
    """Return the command RCPT. With `dsn` it has the parameters of RFC 3461 that the row has."""
    command = f"RCPT TO:<{in_a_labels(item.recipient)}>"
    if not dsn:
        return command
    if item.notify and _NOTIFY.fullmatch(item.notify):
        command += f" NOTIFY={item.notify}"
    if item.orcpt and _ORCPT.fullmatch(item.orcpt):
        command += f" ORCPT={item.orcpt}"
    return command


def _unfit(reason: str) -> DeliveryError:
    """Return the error for a message that this host can't take; another one may."""
    return DeliveryError(reason, Stage.EHLO, permanent=True)


def address_problem(item: Item) -> str:
    """Return why the sender or the recipient can't be an argument of MAIL or RCPT; '' if they can.

    smtpd checks the mail that it takes, but rows may come by SQL as well, and an address that
    contains CR LF would be further commands. A domain beyond ASCII has to be well formed, because
    the DNS is asked for its A-labels. The text begins with an enhanced status code (RFC 3463). An
    empty sender is the null reverse-path.
    """
    if (
        item.sender
        and not PLAIN_ARGUMENT.fullmatch(item.sender)
        and (why := _malformed(item.sender))
    ):
        return f"5.1.7 sender address is malformed: {why}"
    if not PLAIN_ARGUMENT.fullmatch(item.recipient) and (why := _malformed(item.recipient)):
        return f"5.1.3 recipient address is malformed: {why}"
    if not item.domain.isascii():
        try:
            normalise_domain(item.domain)
        except AddressError as error:
            return f"5.1.2 domain is malformed: {printable(str(error))[:_SHOWN_CHARACTERS]}"
    return ""


def _malformed(address: str) -> str:
    try:
        parse_mailbox(address, utf8=True)
    except AddressError as error:
        return printable(str(error))[:_SHOWN_CHARACTERS]
    return ""


def size_limit(value: str) -> int:
    """Return the SIZE that a server announces; 0, which means none, for any other text."""
    value = value.strip()
    return (
        int(value) if value.isascii() and value.isdigit() and len(value) <= _MAX_SIZE_DIGITS else 0
    )


def limit(limits: str, name: str) -> int:
    """Return the limit of this name in the value of LIMITS (RFC 9422); UNLIMITED without it."""
    for word in limits.split():
        key, _, value = word.partition("=")
        if key.upper() == name and _LIMIT.fullmatch(value):
            return int(value)
    return UNLIMITED
