"""A TCP connection to a next hop, with TLS or without: its transport, and its end."""

from __future__ import annotations

import asyncio
import ssl
import sys
from contextlib import suppress
from fcntl import ioctl
from typing import cast

from pgmta.errors import DeliveryError, Stage
from queued.config import Timeouts

_GOODBYE = 2.0  # seconds for the server's close_notify (RFC 8446, section 6.1)
_MARGIN = 0.1  # seconds for the end of a transport after the timer that closes it


class Connection(asyncio.Protocol):
    """Writes, starts TLS, says QUIT. Subclasses read what comes."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self._transport: asyncio.Transport | None = None
        self.descriptor = -1
        self.tls: ssl.SSLObject | None = None
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.reason = ""
        """Why the connection has ended."""
        self.closed = False
        """Whether no command may be sent and no reply counts."""
        self._ended = asyncio.Event()  # the transport is closed too
        self._leaving: asyncio.TimerHandle | None = None  # until the reply to QUIT

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sys.platform == "linux":
            self.descriptor = sock.fileno()

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end."""
        self.closed = True
        self._ended.set()
        if self._leaving:
            self._leaving.cancel()
        self.reason = self.reason or (str(error) if error else "connection closed by peer")
        self.can_write.set()

    def eof_received(self) -> bool:
        """Close: a server that sends no more is of no use."""
        return False

    def pause_writing(self) -> None:
        """Make writers wait, because the socket is full."""
        self.can_write.clear()

    def resume_writing(self) -> None:
        """Let writers go on, because the socket has room."""
        self.can_write.set()

    def abort(self) -> None:
        """Drop the connection at once, without QUIT."""
        self.closed = True
        if self._transport:
            self._transport.abort()

    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> ssl.SSLObject:
        """Do the TLS handshake, and return the TLS session.

        Raises DeliveryError if the connection has ended; OSError, of which SSLError is one, and
        ValueError for a failed handshake.
        """
        if self.closed or self._transport is None:
            raise DeliveryError(self.reason, Stage.TLS)
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._transport,
                self,
                context,
                server_hostname=hostname,
                ssl_handshake_timeout=self.timeouts.tls,
                ssl_shutdown_timeout=_GOODBYE,
            )
        except BaseException:
            self.abort()
            raise
        if transport is None or self.closed:
            raise ConnectionResetError(self.reason or "connection closed by peer")
        self._transport = transport
        self.tls = cast(ssl.SSLObject, transport.get_extra_info("ssl_object"))
        return self.tls

    def quit(self) -> None:
        """Say QUIT, and close when the answer comes or after `timeouts.quit` seconds."""
        if self._transport and not self.closed:
            self._transport.write(b"QUIT\r\n")
            loop = asyncio.get_running_loop()
            self._leaving = loop.call_later(self.timeouts.quit, self._transport.abort)
        self.closed = True

    async def wait_closed(self) -> None:
        """Wait for the end of a connection after `quit`, for about `timeouts.quit` seconds."""
        if self._transport and not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timeouts.quit + _MARGIN):
                    await self._ended.wait()


_answer = bytearray(4)


def waiting(descriptor: int, question: int) -> bool:
    """Return whether octets wait in a socket, by the ioctl FIONREAD or TIOCOUTQ (tcp(7)).

    Without a descriptor (-1) the answer is no.
    """
    if descriptor < 0:
        return False
    try:
        ioctl(descriptor, question, _answer)
    except OSError:
        return False
    return any(_answer)
