"""A server of pages for few clients: for figures and health, and for the reader of the sink."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from pgmta.http.origin_request import origin_request
from pgmta.http.served_connection import ServedConnection

MAX_CONNECTIONS = 32
"""Each takes a descriptor, which deliveries need."""

type PageHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _PageConnection(ServedConnection):
    """A connection with one request."""

    def __init__(self, server: PageServer, part: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, part, loop=loop, keepalive_timeout=seconds, lingering_time=1.0)
        self._server = server
        self._seconds = seconds
        self._wire: asyncio.Transport | None = None  # aiohttp forgets its own before it is closed
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the time of the connection."""
        self._wire = cast(asyncio.Transport, transport)
        self._end = asyncio.get_running_loop().call_later(self._seconds, self.abort)
        self._server.admit(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Make room for another connection."""
        if self._end:
            self._end.cancel()
        self._server.release(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """End the connection, whatever the client has not taken yet."""
        self.force_close()
        if self._wire:
            self._wire.abort()


class PageServer(web.Server):
    """Answers one request for each connection, which has `seconds` for all of it.

    So no client keeps a place. If there are too many connections, the oldest ends: a probe of
    health always gets in, and is answered before as many others come after it.
    """

    def __init__(self, handler: PageHandler, part: str, seconds: float) -> None:
        super().__init__(self._answer, request_factory=origin_request)
        self._handler = handler
        self._part = part
        self._seconds = seconds
        self._open: dict[_PageConnection, None] = {}  # the oldest first

    def __call__(self) -> _PageConnection:
        """Return the protocol of a new connection."""
        return _PageConnection(self, self._part, self._seconds)

    def admit(self, connection: _PageConnection) -> None:
        """Count a connection; end the oldest if there are too many."""
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            self.release(oldest)
            oldest.abort()
        self._open[connection] = None

    def release(self, connection: _PageConnection) -> None:
        """Forget a connection."""
        self._open.pop(connection, None)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await self._handler(request)
        answer.force_close()
        return answer
