"""What a listener serves, as data: aiohttp, which takes 16 MB, is imported only by the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Answers a request. Raises HttpError."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path, and who answers them.

    A part of the path may be `{name}` or `{name:pattern}`, as aiohttp has them. GET has HEAD with
    it. A body has at most `max_body` octets; 0 stands for the limit of the listener. Errors are
    pages of the listener with `page`, and problems (RFC 9457) without.
    """

    method: str
    path: str
    handler: Handler
    max_body: int = 0
    page: bool = False

    @property
    def label(self) -> str:
        """The path without its variable parts, for figures."""
        return self.path.partition("/{")[0]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds on the clients of a listener.

    With `idle_s` a connection may have many requests, and be silent so long between them. Each
    header with its body has to be there in `request_s`. Connections above the limits get 503.

    Without it, a connection has one request, and `request_s` for all of it. If there are too many,
    the oldest ends. So no client keeps a place: a probe of health always gets in, and is answered
    before as many others come after it.
    """

    connections: int
    request_s: float
    idle_s: float = 0.0
    max_body: int = 8 << 10
    """Octets of a body, unless its route allows more."""
    address_connections: int = 0
    """Connections of an address (IPv6: /64); 0 for no such limit."""
