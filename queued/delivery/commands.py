"""The commands of a transaction, with the parameters that the server knows (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from pgmta.errors import DeliveryError, Stage
from queued.delivery.envelope import Envelope

_DIGITS = 20  # of a SIZE that counts (RFC 1870, section 4)


def mail_command(envelope: Envelope, extensions: Mapping[str, str], limit: int) -> str:
    """Return the command MAIL; `limit` is the server's in octets, 0 if it has none.

    Raises DeliveryError if the server can't take the message.
    """
    size = len(envelope.trace) + envelope.size
    command = f"MAIL FROM:<{envelope.sender}>"
    if "SIZE" in extensions:
        if 0 < limit < size:
            raise DeliveryError(
                f"5.3.4 message of {size} octets is over the next hop's limit of {limit}",
                Stage.EHLO,
                permanent=True,
            )
        command += f" SIZE={size}"
    if "8BITMIME" in extensions and not (
        isinstance(envelope.content, bytes) and envelope.content.isascii()
    ):
        command += " BODY=8BITMIME"
    if envelope.utf8:
        if "SMTPUTF8" not in extensions:
            raise DeliveryError(
                "5.6.7 the next hop does not know SMTPUTF8", Stage.EHLO, permanent=True
            )
        command += " SMTPUTF8"
    if envelope.requiretls:
        command += " REQUIRETLS"  # the session was opened with a host that knows it
    return command


def size_limit(value: str) -> int:
    """Return the SIZE that a server announces; 0, which means none, for any other text."""
    value = value.strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= _DIGITS else 0
