"""The server of all listeners for HTTP, on an Application of aiohttp. TLS is left to a proxy."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, cast
from weakref import WeakKeyDictionary

from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage

from pgmta.config.types import Network
from pgmta.http.answers import HttpError
from pgmta.http.route import Route
from pgmta.http.server_connection import NO_HTTP, ServerConnection, connection_of
from pgmta.http.site import HttpSite
from pgmta.logs import get

_BACKLOG = 512  # connections that the kernel keeps until they are accepted
# Octets of a connection that the kernel keeps until they are read: a transport reads all of them at
# once. It takes twice as much. A window below a packet of the loopback, 65,483 octets, would have a
# client send one each 200 ms, and later after a pause of ours.
_RECEIVED_OCTETS = 64 << 10
_SWEEP_INTERVAL_S = 1.0  # looks for connections that take too long
_REQUEST_LINE = re.compile(rb"([A-Z]+) (?:https?://[^/ ]*)?(/[^ ?]*)", re.IGNORECASE)
_MAX_PATH_CHARACTERS = 100  # that are compared with the known ones
_PATTERN = re.compile(r":[^{}]*\}")  # of a variable part of a path
_PROBLEMS_BY_STATUS = {404: "There is no such path.", 405: "The path has other methods"}
_MIN_LIKENESS = 0.75  # of a path that an unknown one may be meant for


class HttpServer(web.Server):
    """All connections of the listeners that serve one site. `serve` comes first, then `listen`.

    `part` is the part of the program that lines of the log name. `unit_of` returns the address that
    a peer is counted by; None if it is not bounded.
    """

    site: HttpSite
    """What is served."""

    def __init__(
        self, part: str, unit_of: Callable[[str], Network | None] = lambda _: None
    ) -> None:
        super().__init__(self._dispatch, request_factory=self._read)
        self.log = get(part)
        self.now = asyncio.get_running_loop().time
        self._unit_of = unit_of
        self._open: dict[ServerConnection, None] = {}  # the oldest first
        self._counts: Counter[Network] = Counter()
        # with routes of an earlier site, while its requests are under way
        self._routes: WeakKeyDictionary[web.AbstractRoute, Route] = WeakKeyDictionary()
        self._listening: list[asyncio.Server] = []
        self._sweeping: asyncio.TimerHandle | None = None

    async def serve(self, site: HttpSite) -> None:
        """Serve a site from now on, also over connections that are open."""
        app = web.Application()
        large = []
        # aiohttp tries those below /v1/messages in this order for it: the path itself comes first
        routes = sorted(site.routes, key=lambda each: "{" in each.path)
        for path, route in [(base + route.path, route) for base in dict.fromkeys(("", site.base))
                            for route in routes]:  # fmt: skip
            resource = app.router.add_resource(path)
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                added = resource.add_route(method, route.handler, expect_handler=_expect)
                self._routes[added] = route
            if route.max_body > site.limits.max_body:
                info = resource.get_info()
                pattern = info.get("pattern") or re.compile(re.escape(info["path"]))
                large.append((route, pattern))
        runner = web.AppRunner(app)
        await runner.setup()
        assert runner.server  # noqa: S101 - for the type checker
        self.site, self._large, self._app = site, large, runner.server

    async def listen(self, bound: socket.socket) -> None:
        """Answer the clients of a socket, which is bound."""
        loop = asyncio.get_running_loop()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_OCTETS)
        self._listening.append(await loop.create_server(self, sock=bound, backlog=_BACKLOG))

    async def stop(self, seconds: float) -> None:
        """Finish the requests that are there within some seconds, and close all connections."""
        for each in self._listening:
            each.close()
        self.pre_shutdown()
        await self.shutdown(seconds)

    # -- requests --

    def _read(self, message: RawRequestMessage, *of_connection: Any) -> web.BaseRequest:
        """Return the request without the host of its target (RFC 9112, section 3.2.2).

        aiohttp raises ValueError for the host of `GET http://xn--a/ HTTP/1.1`. The client would get
        no answer, and stderr would get octets of the request.
        """
        if message.url.absolute:
            message = message._replace(url=message.url.relative())
        return self._app.request_factory(message, *of_connection)

    async def _dispatch(self, plain: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, by its route if it has one."""
        request = cast(web.Request, plain)  # the factory of our Application makes such requests
        began, site, answer = time.monotonic(), self.site, None
        connection_of(request).begin()
        routed = False
        try:
            if request.version < HttpVersion10:  # a request line without a version
                raise HttpError(400, NO_HTTP)
            _check_coding(request)
            if site.check:
                site.check(request)
            routed = True
            answer = await self._app.request_handler(request)
        except HttpError as error:
            answer = self._refuse(request, error, self.route_of(request) if routed else None)
        except web.HTTPException as error:  # raised by aiohttp for an unknown path or method
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            detail = _PROBLEMS_BY_STATUS.get(error.status, error.reason)
            if allowed := headers.get("Allow"):
                detail = f"{detail}: {allowed.replace(',', ', ')}."
            if error.status == 404 and (near := self._nearest(request.path)):
                detail = f"{detail} Did you mean {near}?"
            answer = self._refuse(request, HttpError(error.status, detail, headers), None)
        finally:
            if site.count:
                route = self.route_of(request) if routed else None
                label, status = route.label if route else "other", answer.status if answer else 500
                site.count(label, status, time.monotonic() - began)
        # whoever still sends a body reads the answer first, or finds the connection closed
        unread = not request.content.is_eof() or answer.headers.get("Connection") == "close"
        if unread or not site.limits.idle_s:
            answer.force_close()
        return answer

    def _nearest(self, path: str) -> str:
        """Return the path of a program that an unknown one may be meant for; '' if none is near."""
        known = [route.path for route in self.site.routes if not route.page]
        near = get_close_matches(path[:_MAX_PATH_CHARACTERS], known, 1, _MIN_LIKENESS)
        return _PATTERN.sub("}", near[0]) if near else ""

    def route_of(self, request: web.Request) -> Route | None:
        """Return the route of a request; None if there is none."""
        return self._routes.get(request.match_info.route)

    def _refuse(
        self, request: web.Request, error: HttpError, route: Route | None
    ) -> web.StreamResponse:
        page = route.page if route else "text/html" in request.headers.get("Accept", "")
        if page and self.site.error_page:
            return self.site.error_page(request, error)
        return self.site.answers.problem(error)

    # -- connections --

    def __call__(self) -> ServerConnection:
        """Return the protocol of a new connection."""
        return ServerConnection(self, self)

    @property
    def number(self) -> int:
        """Connections that are open."""
        return len(self._open)

    def admit(self, connection: ServerConnection) -> bool:
        """Count a connection; return False if there are too many, and none that ends for it."""
        limits = self.site.limits
        unit = self._unit_of(connection.peer) if limits.address_connections else None
        if unit and self._counts[unit] >= limits.address_connections:
            return False
        if len(self._open) >= limits.connections:
            if limits.idle_s:
                return False
            oldest = next(iter(self._open))
            self.release(oldest)
            oldest.give_up()
        if unit:
            self._counts[unit] += 1
        self._open[connection] = None
        connection.unit = unit
        if not self._sweeping:
            self._sweep_later()
        return True

    def release(self, connection: ServerConnection) -> None:
        """Forget a connection, if it was not forgotten."""
        if connection not in self._open:
            return
        del self._open[connection]
        if unit := connection.unit:
            self._counts[unit] -= 1
            if self._counts[unit] <= 0:
                del self._counts[unit]

    def max_body_of(self, line: bytes) -> int:
        """Return the octets of a body that the route of a request line allows; 0 for the usual."""
        found = self._large and _REQUEST_LINE.match(line)
        if found:
            path = found[2].decode("latin-1")
            for route, pattern in self._large:
                if found[1] == route.method.encode() and pattern.fullmatch(path):
                    return route.max_body
        return 0

    def _sweep_later(self, *, patient: bool = True) -> None:
        due = self.now() + _SWEEP_INTERVAL_S
        loop = asyncio.get_running_loop()
        self._sweeping = loop.call_at(due, self._sweep, due, patient)

    def _sweep(self, due: float, patient: bool) -> None:
        """Close the connections whose requests take too long, while there are connections."""
        now = self.now()
        # the loop has stalled: what came meanwhile is read first, and gives its connection time
        stalled = now > due + _SWEEP_INTERVAL_S
        if not (stalled and patient):
            for connection in [each for each in self._open if each.late(now)]:
                connection.give_up()
        if self._open:
            self._sweep_later(patient=not stalled)
        else:
            self._sweeping = None


def _check_coding(request: web.BaseRequest) -> None:
    """Raise HttpError for a body that is more than chunked (RFC 9112, section 6.1)."""
    codings = ", ".join(request.headers.getall("Transfer-Encoding", ())).lower()
    if codings and request.version < HttpVersion11:
        raise HttpError(400, NO_HTTP, {"Connection": "close"})
    if codings not in ("", "chunked"):
        raise HttpError(
            501, "The only Transfer-Encoding that is known is chunked.", {"Connection": "close"}
        )


async def _expect(request: web.Request) -> None:
    """Leave a 100 to who reads the body: before that, most requests can be refused."""
    if ", ".join(request.headers.getall("Expect")).lower() != "100-continue":
        raise HttpError(417, "Expect: 100-continue is the only one that is known.")


def bind(address: str, port: int) -> socket.socket:
    """Return a socket that is bound; `::` is IPv4 too. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
        found.setblocking(False)
    except OSError:
        found.close()
        raise
    return found
