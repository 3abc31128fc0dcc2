"""Bodies of requests, read within the bounds of their routes."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from pgmta.http.answers import HttpError
from pgmta.http.server_connection import connection_of, too_long


async def read_body(request: web.Request, kinds: str) -> bytes:
    """Return the body. `kinds` are content types, with `, ` between them.

    Raises HttpError for another type, and for a body that is too long.
    """
    if request.content_type not in kinds.split(", "):
        raise HttpError(415, f"The body has to be {kinds}.", {"Accept": kinds})
    return await read_octets(request)


async def read_octets(
    request: web.Request, count: Callable[[int], None] = lambda octets: None, most: int = 0
) -> bytes:
    """Return the body, of whatever type. Raises HttpError if it is too long.

    `count` gets the octets of each part as it comes, and may raise. `most` are octets that the body
    may have, if its route allows more for others.
    """
    connection = connection_of(request)
    bound = connection.begin_body(request, most)
    parts: list[bytes] = []
    octets = 0
    while not request.content.at_eof():
        parts.append(part := await request.content.readany())
        octets += len(part)
        count(len(part))
        if octets > bound:
            raise too_long(bound)
    connection.body_is_read()
    return b"".join(parts)  # of one part, itself
