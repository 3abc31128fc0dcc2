"""A bound of the octets that TLS takes from a client's connection in one read."""

from __future__ import annotations

import asyncio
from typing import cast

from pgmta.service import release_memory

_BUFFER_OCTETS = 16 << 10  # about a TLS record (RFC 8446, section 5.2)


class ReadBuffer(asyncio.BufferedProtocol):
    """Stands between a connection and the protocol of TLS, and shortens the buffer for its reads.

    uvloop's buffer for a TLS session has 256 KB, and OpenSSL's grows to a third more than a read.
    Both keep that memory for the rest of the session. Memory that no read uses goes back here.
    """

    def __init__(self, tls: asyncio.BufferedProtocol) -> None:
        release_memory(cast(memoryview, tls.get_buffer(_BUFFER_OCTETS))[_BUFFER_OCTETS:])
        self._tls = tls
        self._get = tls.get_buffer
        self.buffer_updated = tls.buffer_updated  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next octets go."""
        return cast(memoryview, self._get(sizehint))[:_BUFFER_OCTETS]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a transport."""
        self._tls.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the end of the connection."""
        self._tls.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """Take the end of what the client sends."""
        return self._tls.eof_received()

    def pause_writing(self) -> None:
        """Stop: too much waits for the client."""
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        """Go on."""
        self._tls.resume_writing()
