"""Connections of clients: how many there may be, and how long a request may take."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web

from pgmta.accounts.networks import address_of
from pgmta.config.types import Network
from pgmta.http.origin_request import origin_request
from pgmta.http.served_connection import ServedConnection
from queued.web.clients import Clients
from queued.web.http_answers import HttpError
from queued.web.web_config import WebLimits

_HEADER = 32 << 10  # octets of a header
_LINE = 4096  # octets of a request line: a link has less than 200
_FIELDS = 64  # of a header
_ANSWER = 10.0  # seconds; above the patience of a statement, whose answer is never cut off
_SWEEP = 1.0  # seconds
_END = 5.0  # seconds for answers that are due when the process ends
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n"
    b"Cache-Control: no-store\r\nConnection: close\r\n\r\n"
)

_EMPTY_LINE = b"\r\n\r\n"
_CALLBACK = re.compile(rb"POST [^ \r\n]*/callbacks/")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?:\r\n|$)", re.IGNORECASE)


class Door(ServedConnection):
    """A connection. Its time runs from the first octet of a request to the end of its body."""

    def __init__(self, doors: Doors, **options: Any) -> None:
        super().__init__(doors, "web", loop=asyncio.get_running_loop(), **options)
        self._doors = doors
        self._octets = 0
        self._head: bytearray | None = None  # of a request, until its empty line has come
        self._most = 0  # octets of a body
        self._until = 0.0
        self._serving = False
        self._admitted = False
        self._wire: asyncio.Transport | None = None  # aiohttp forgets its own before it is closed
        self.peer = ""
        self.unit: Network | None = None
        """The address whose connections count this one; None if it is not bounded."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it with 503."""
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._admitted = self._doors.admit(self)
        if not self._admitted:
            cast(asyncio.Transport, transport).write(_FULL)
            cast(asyncio.Transport, transport).close()
            return
        self._wire = cast(asyncio.Transport, transport)
        self._until = self._doors.now() + self._doors.limits.request
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Make room for another connection."""
        if self._admitted:
            self._doors.release(self)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the octets since the last answer, and begin the time of a header."""
        if not self._admitted:
            return
        if not self._serving and not self._until:
            self._until = self._doors.now() + self._doors.limits.request
        if not (self._octets or self._serving):
            self._head = bytearray()
            self.allow(0)
        self._octets += len(data)
        self._look_ahead(data)
        if self._octets > _HEADER + self._most:  # also of requests that wait
            self.force_close()
            return
        super().data_received(data)

    def _look_ahead(self, data: bytes) -> None:
        """Let a callback have its body, which may come before its header is served."""
        if self._head is None:
            return
        seen = max(0, len(self._head) - len(_EMPTY_LINE))
        self._head += data
        if self._head.find(_EMPTY_LINE, seen) >= 0:
            self.allow(announced(bytes(self._head)))
            self._head = None

    def allow(self, octets: int) -> None:
        """Let a request have a body of that size, within the limits: callbacks may have more."""
        limits = self._doors.limits
        self._most = max(limits.body, min(octets, limits.callback))

    def serve(self) -> None:
        """Note that a header is there. It may have come with the request before it."""
        self._serving = True
        if not self._until:
            self._until = self._doors.now() + self._doors.limits.request

    def read(self) -> None:
        """Note that the body is there, so that the time of the answer begins."""
        self._until = self._doors.now() + _ANSWER

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer, which the client has to take in time: then the connection is idle."""
        self._until = self._doors.now() + _ANSWER
        found = await super().finish_response(request, resp, start_time)
        self._serving = False
        self._octets, self._until = 0, 0.0
        return found

    def late(self, now: float) -> bool:
        """Return whether a request takes too long, or the client does not take its last answer."""
        if not self._until and self._wire and self._wire.is_closing():
            self._until = now + _ANSWER
        return 0.0 < self._until < now

    def give_up(self) -> None:
        """Close the connection, whatever the client has not taken yet."""
        self.force_close()
        if self._wire:
            self._wire.abort()

    def refuse(self, status: int, reason: str) -> web.StreamResponse:
        """Return the answer to a request that failed, as the site has errors."""
        return self._doors.answer(HttpError(status, reason))


def announced(begin: bytes) -> int:
    """Return the length of the body of a callback, if the begin of a request has it; else 0.

    A body may come before its header was served. Other requests wait behind it in its place.
    """
    header = begin.partition(_EMPTY_LINE)[0]
    found = _LENGTH.search(header) if _CALLBACK.match(header) else None
    return int(found[1]) if found else 0


class Doors(web.Server):
    """All connections of a process."""

    def __init__(
        self,
        handler: Any,
        answer: Callable[[HttpError], web.Response],
        clients: Clients,
        limits: WebLimits,
    ) -> None:
        super().__init__(handler, request_factory=origin_request)
        self.answer = answer
        self.clients = clients
        self.limits = limits
        self.now = asyncio.get_running_loop().time
        self._open: set[Door] = set()
        self._counts: Counter[Network] = Counter()

    def __call__(self) -> Door:
        """Return the protocol of a new connection."""
        return Door(
            self,
            keepalive_timeout=self.limits.idle,
            lingering_time=1.0,
            max_line_size=_LINE,
            max_headers=_FIELDS,
            auto_decompress=False,
        )

    @property
    def number(self) -> int:
        """Connections that are open."""
        return len(self._open)

    def admit(self, door: Door) -> bool:
        """Count a connection; return False if there are too many."""
        unit = address_of(door.peer) if self.clients.is_bounded(door.peer) else None
        if len(self._open) >= self.limits.connections:
            return False
        if unit:
            if self._counts[unit] >= self.limits.address_connections:
                return False
            self._counts[unit] += 1
        self._open.add(door)
        door.unit = unit
        return True

    def release(self, door: Door) -> None:
        """Forget a connection that was counted."""
        self._open.discard(door)
        if door.unit:
            self._counts[door.unit] -= 1
            if self._counts[door.unit] <= 0:
                del self._counts[door.unit]

    async def sweep(self) -> None:
        """Close the connections whose requests take too long, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP)
            now = self.now()
            for door in [door for door in self._open if door.late(now)]:
                door.give_up()

    async def end(self) -> None:
        """Finish the requests that are there, and close all connections."""
        self.pre_shutdown()
        await self.shutdown(_END)
