"""The TLS handshake with a client."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any, cast

from pgmta.mail.text import printable
from smtpd.tls.read_buffer import ReadBuffer

_HANDSHAKE_TIMEOUT_S = 30.0
_SHUTDOWN_TIMEOUT_S = 5.0  # for a client to confirm the end of TLS
# Octets that wait in the connection: above `high` reading pauses, below `low` it goes on. Both are
# more than one TLS record (RFC 8446, section 5.2), or half a record could stop reading for ever.
_READ_AHEAD_OCTETS = {"high": 64 << 10, "low": 32 << 10}
_UNSENT_OCTETS = {"high": 64 << 10}
_SHOWN_CHARACTERS = 200  # of the reason why a handshake failed


async def shake_hands(
    loop: AbstractEventLoop,
    transport: asyncio.Transport,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext,
    begun: Callable[[], bytes],
) -> asyncio.Transport:
    """Return the transport of a TLS session over a connection, for the same protocol.

    `begun` gives the octets of the handshake that the protocol has got. Raises OSError. The
    connection is closed then, and the protocol may know nothing about it.
    """
    handshake = loop.create_task(
        loop.start_tls(
            transport,
            protocol,
            context,
            server_side=True,
            ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )
    )
    try:
        await asyncio.sleep(0)  # lets start_tls begin, which then takes the octets that follow
        loop.call_soon(_feed, transport, begun)
        secured = cast(asyncio.Transport, await handshake)
    except BaseException:
        handshake.cancel()
        raise
    if secured.is_closing():
        raise ConnectionResetError("connection lost")
    transport.set_protocol(ReadBuffer(cast(asyncio.BufferedProtocol, transport.get_protocol())))
    secured.set_write_buffer_limits(**_UNSENT_OCTETS)
    cast(Any, secured).set_read_buffer_limits(**_READ_AHEAD_OCTETS)
    return secured


def _feed(transport: asyncio.Transport, begun: Callable[[], bytes]) -> None:
    """Give the first octets to TLS, before the next ones are read."""
    data = begun()
    inner = cast(asyncio.BufferedProtocol, transport.get_protocol())
    while data:
        space = cast(memoryview, inner.get_buffer(len(data)))
        count = min(len(space), len(data))
        space[:count] = data[:count]
        inner.buffer_updated(count)
        data = data[count:]


def reason(error: BaseException) -> str:
    """Return why a handshake failed, as one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
    elif isinstance(error, ssl.SSLError):
        why = (error.reason or str(error)).lower().replace("_", " ")
    else:
        why = getattr(error, "strerror", None) or str(error)
    return printable(why or "connection lost")[:_SHOWN_CHARACTERS]
