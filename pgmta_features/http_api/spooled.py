"""A body that is a list of any length: it waits in a temporary file, and no transaction for it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import BinaryIO

from pydantic import BaseModel

from pgmta.http.server_connection import connection_of, too_long
from pgmta_features.http_api.operation import Call
from pgmta_features.http_api.problem import Problem

CSV_TYPE = "text/csv"
MAX_LIST_OCTETS = 256 << 20
"""For a list that a client sends."""
WORK_TIMEOUT_S = 600.0
"""For the work on a list, once all of it is there."""
MAX_LINES_LEFT_OUT = 20
"""So many lines an answer names, of those that were left out."""

PIECE_OCTETS = 1 << 20
"""A client has a time for so many: a slower one would keep its place for days."""
MAX_LISTS_OF_OWNER = 2
"""That come or go at the same time, of a tenant or of a key without one."""

_MAX_LISTS = 6  # each may have one of the 8 connections for work of operators, and a file
_MEMORY_OCTETS = 1 << 20  # a longer list goes to a file
_RETRY_S = "30"


class LineLeftOut(BaseModel):
    """A line that was left out."""

    line: int
    detail: str


class ListPlaces:
    """Bounds the lists that are under way at the same time, and with them files and connections."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @contextmanager
    def file(self, call: Call) -> Iterator[BinaryIO]:
        """Lend a temporary file. Raises Problem if there are too many."""
        whose = call.caller.owner
        if self._taken.total() >= _MAX_LISTS or self._taken[whose] >= MAX_LISTS_OF_OWNER:
            raise Problem(503, "busy", "Too many lists are under way.",
                          headers={"Retry-After": _RETRY_S, "Connection": "close"})  # fmt: skip
        self._taken[whose] += 1
        try:
            call.take_octets(_MEMORY_OCTETS)
            with tempfile.SpooledTemporaryFile(_MEMORY_OCTETS) as file:
                yield file  # type: ignore[misc]
        finally:
            self._taken[whose] -= 1
            self._taken += Counter()  # keeps none with 0


@asynccontextmanager
async def spooled(call: Call, piece_s: float, places: ListPlaces) -> AsyncIterator[BinaryIO]:
    """Lend a file with the body, at its beginning; each MB of it has `piece_s` seconds to come.

    Raises HttpError for a body that is too long, and Problem if too many are under way.
    """
    connection = connection_of(call.request)
    with places.file(call) as file:
        most = connection.begin_body(call.request)
        number, timed = 0, 0
        while octets := await call.request.content.readany():
            number += len(octets)
            if number - timed >= PIECE_OCTETS:
                connection.allow_time(piece_s)
                timed = number
            if number > most:
                raise too_long(most)
            file.write(octets)
        connection.body_is_read()
        await call.renew()
        connection.allow_time(WORK_TIMEOUT_S)
        file.seek(0)
        yield file
