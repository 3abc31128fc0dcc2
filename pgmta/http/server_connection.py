"""A connection to one of our HTTP servers: how large a request may be, and how long it may take."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.web_protocol import RequestHandler
from structlog.typing import FilteringBoundLogger

from pgmta.config.types import Network
from pgmta.http.answers import HttpError
from pgmta.http.route import Route
from pgmta.http.site import HttpSite

NO_HTTP = "The request is no HTTP/1.1 within the limits of this server."
"""What a client is told whose octets are none."""

_MAX_HEADER_OCTETS = 32 << 10
_MAX_REQUEST_LINE_OCTETS = 4096  # a link of ours has less than 200
_MAX_HEADER_FIELDS = 64
_BODY_BUFFER_OCTETS = 16 << 10  # above twice as many that wait, a connection is not read
_READ_OCTETS = 256 << 10  # that a transport reads at once
_ANSWER_TIMEOUT_S = 10.0  # above the limit of a statement, so that its answer is never cut off
_LINGER_S = 1.0  # in which the rest of a body that nobody wants is read
_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n"
    b"Cache-Control: no-store\r\nConnection: close\r\n\r\n"
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_EMPTY_LINE = b"\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r\n", re.IGNORECASE)

# aiohttp logs octets of requests, which no log is to have
_silent = logging.Logger("aiohttp", logging.CRITICAL + 1)


class ConnectionOwner(Protocol):
    """What a connection asks of its server."""

    site: HttpSite
    log: FilteringBoundLogger
    now: Callable[[], float]

    def admit(self, connection: ServerConnection) -> bool:
        """Return whether there is room for one more connection, and count it."""

    def release(self, connection: ServerConnection) -> None:
        """Forget a connection."""

    def max_body_of(self, line: bytes) -> int:
        """Return the octets of a body that the route of a request line allows."""

    def route_of(self, request: web.Request) -> Route | None:
        """Return the route of a request."""


class ServerConnection(RequestHandler):
    """Its time runs from the first octet of a request to the end of its body.

    It logs and answers faults itself, because aiohttp would write tracebacks with octets of them.
    """

    def __init__(self, server: web.Server, owner: ConnectionOwner) -> None:
        limits = owner.site.limits
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=_silent,
            logger=_silent,
            keepalive_timeout=limits.idle_s or limits.request_s,
            lingering_time=_LINGER_S,
            read_bufsize=_BODY_BUFFER_OCTETS,
            max_line_size=_MAX_REQUEST_LINE_OCTETS,
            max_headers=_MAX_HEADER_FIELDS,
            auto_decompress=False,
        )
        self._owner = owner
        self._kept = limits.idle_s > 0
        self._octets = 0  # read since the last answer
        self._head: bytearray | None = None  # the header so far, until its empty line has come
        self._until = 0.0
        self._serving = False
        self._ignores = False  # drop input: the rest of a body whose final answer is sent
        self._admitted = False
        # kept, because aiohttp forgets the transport before it is closed
        self._wire: asyncio.Transport | None = None
        self.peer = ""
        """The address of the other side."""
        self.unit: Network | None = None
        """The address whose connections count this one; None if it is not bounded."""
        self._allowed = 0  # octets that the body of this request may have
        self.ending = False
        """Whether the server stops: an answer without an end has to end now."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it with 503."""
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._admitted = self._owner.admit(self)
        if not self._admitted:
            cast(asyncio.Transport, transport).write(_TOO_MANY_CONNECTIONS)
            cast(asyncio.Transport, transport).close()
            return
        self._wire = cast(asyncio.Transport, transport)
        self._until = self._owner.now() + self._owner.site.limits.request_s
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Make room for another connection."""
        if self._admitted:
            self._owner.release(self)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the octets since the last answer, and begin the time of a header."""
        if not self._admitted:
            return
        # aiohttp ends a connection that is ignored after _LINGER_S, and resumes its parser by b""
        if self._ignores or not data:
            super().data_received(data)
            return
        if not self._serving and not self._until:
            self._until = self._owner.now() + self._owner.site.limits.request_s
        if not (self._octets or self._serving):
            self._head = bytearray()
            self._allowed = self._owner.site.limits.max_body
        self._octets += len(data)
        self._look_ahead(data)
        # the octets include requests that wait for their turn
        if self._octets > _MAX_HEADER_OCTETS + self._allowed:
            self.force_close()
            return
        super().data_received(data)

    def _look_ahead(self, data: bytes) -> None:
        """Let a request have the body of its route, which may come before its header is served.

        Other requests may wait behind it in its place. So it has no more than what it announces. In
        place of a body without a length few of them wait: aiohttp bounds their number.
        """
        if self._head is None:
            return
        seen = max(0, len(self._head) - len(_EMPTY_LINE))
        self._head += data
        end = self._head.find(_EMPTY_LINE, seen)
        if end >= 0:
            head = bytes(self._head[: end + 2])
            self._head = None
            max_body = self._owner.max_body_of(head.partition(b"\r\n")[0])
            found = _CONTENT_LENGTH.search(head)
            self._allow(max_body, int(found[1]) if found else None)

    def _allow(self, max_body: int, length: int | None) -> None:
        """Let a request have a body of its length, or without one as much as its route allows.

        More than that may have come before the route sees that it is too long.
        """
        more = max_body + _READ_OCTETS if length is None else min(max_body, length)
        if max_body > self._allowed:
            self._allowed = max(self._allowed, more)

    def begin(self) -> None:
        """Note that a header is served, which may have come with the request before it."""
        self._serving = True
        if not self._until:
            self._until = self._owner.now() + self._owner.site.limits.request_s

    def begin_body(self, request: web.Request, most: int = 0) -> int:
        """Let a request have its body; return how many octets it may have by its route.

        `most` are fewer. Raises HttpError at once if the request announces more, and else asks a
        client for it that waits for that (Expect: 100-continue).
        """
        usual = self._owner.site.limits.max_body
        route = self._owner.route_of(request)
        max_body = (route and route.max_body) or usual
        bound = min(most or max_body, max_body)
        if (request.content_length or 0) > bound:
            raise too_long(bound)
        self._allowed = usual
        self._allow(max_body, request.content_length)
        if self._wire and "Expect" in request.headers and request.version >= HttpVersion11:
            self._wire.write(_CONTINUE)
        return bound

    def body_is_read(self) -> None:
        """Begin the time of the answer, if the connection has times for each request."""
        if self._kept:
            self._until = self._owner.now() + _ANSWER_TIMEOUT_S

    def allow_time(self, seconds: float) -> None:
        """Give the request and its answer so much time from now on.

        Who takes a long body or gives a long answer calls it as that goes on.
        """
        self._until = self._owner.now() + seconds

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer, which the client has to take in time: then the connection is idle."""
        self.body_is_read()
        found = await super().finish_response(request, resp, start_time)
        # a client that still sends its body would not read the answer if the connection were reset
        self._ignores = not (resp.keep_alive or request.content.is_eof())
        if self._kept:
            self._serving = False
            self._octets, self._until = 0, 0.0
        return found

    def late(self, now: float) -> bool:
        """Return whether a request takes too long, or the client does not take its last answer."""
        if not self._until and self._wire and self._wire.is_closing():
            self._until = now + _ANSWER_TIMEOUT_S
        return 0.0 < self._until < now

    def close(self) -> None:
        """Take no further request."""
        self.ending = True
        super().close()

    def give_up(self) -> None:
        """Close the connection, whatever the client has not taken yet."""
        self.force_close()
        if self._wire:
            self._wire.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that is not HTTP (400), or that met a defect of ours (500).

        The log gets no octet of the request. Raises ConnectionError if the client has gone.
        """
        if isinstance(exc, ConnectionError):
            raise exc
        if isinstance(exc, RuntimeError) and not self.connected:  # aiohttp, of a body that was read
            raise ConnectionResetError(str(exc)) from exc
        log, reason = self._owner.log, type(exc).__name__
        if status < 500 or isinstance(exc, web.RequestPayloadError):
            # not at info: anyone can send such requests, and no operator has to act
            log.debug("a request was refused", client=request.remote, reason=reason)
            error = HttpError(400, NO_HTTP)
        else:
            log.error("a request failed", reason=reason, place=_place(exc))
            error = HttpError(500, "The server has a defect.")
        answer = self._owner.site.answers.problem(error)
        answer.force_close()
        return answer


def too_long(most: int) -> HttpError:
    """Return the error of a body that is longer than it may be."""
    return HttpError(413, f"The body has more than {most} octets.", {"Connection": "close"})


def connection_of(request: web.BaseRequest) -> ServerConnection:
    """Return the connection of a request to one of our servers."""
    connection = request.protocol
    assert isinstance(connection, ServerConnection)  # noqa: S101 - for the type checker
    return connection


def _place(error: BaseException | None) -> str:
    """Return where an error was raised, without any value."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    return " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-3:])
