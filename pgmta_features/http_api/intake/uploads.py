"""Files and contents of requests on their way into the database, in pieces."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import psycopg

from pgmta.client.gatherer import pauses
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.link import Link
from pgmta.postgres.resources import Resources
from pgmta.store.queries import Statement, feature_queries
from pgmta_features.http_api.intake.intake import CONNECTIONS
from pgmta_features.http_api.problem import Problem, away

PIECE_OCTETS = 32 << 10
"""A part of a body that is no longer stays in memory; of a longer one, so much does."""

_CONNECTIONS = 4
_MAX_UPLOADS = 500  # under way in a process
_MAX_WHOLE = 8  # bodies that are there and wait for their turn; others are read no further
_TURN_S = 60.0  # in which it comes
_PATIENCE_S = 5.0  # for a database that is away
_RETRY_S = "5"
_SETTINGS = {"statement_timeout": "30s"}

_SQL = feature_queries("http_api")

log = get("api")


@dataclass(slots=True)
class Stored:
    """What came: the octets if they are few, or else an upload, with the SHA-256 of it."""

    octets: bytes
    upload: str
    number: int
    digest: str


class Uploads:
    """Stores what is too large for the memory of a process."""

    def __init__(self, resources: Resources) -> None:
        self._free: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        for number in reversed(range(_CONNECTIONS)):
            self._free.put_nowait(resources.link(f"uploads {number}", _SETTINGS))
        self._under_way = 0
        self._whole = 0
        self._few = asyncio.Event()  # are whole
        self._few.set()
        self._turns = asyncio.Semaphore(CONNECTIONS)

    def begin(self) -> RequestUploads:
        """Return the uploads of a request. Raises Problem if too many are under way."""
        if self._under_way >= _MAX_UPLOADS:
            raise _busy()
        self._under_way += 1
        return RequestUploads(self)

    def end(self) -> None:
        """Count a request whose uploads have ended."""
        self._under_way -= 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn of a body that is whole: PostgreSQL composes few mails at once.

        Raises Problem.
        """
        self._whole += 1
        if self._whole >= _MAX_WHOLE:
            self._few.clear()
        try:
            try:
                async with asyncio.timeout(_TURN_S):
                    await self._turns.acquire()
            except TimeoutError:
                raise _busy() from None
            try:
                yield
            finally:
                self._turns.release()
        finally:
            self._whole -= 1
            if self._whole < _MAX_WHOLE:
                self._few.set()

    async def put(self, upload: UUID, position: int, data: bytearray) -> int:
        """Store a piece; return the octets that a message may have. Raises Problem."""
        until, breaks = math.inf, pauses()
        fields = {"upload": upload, "position": position, "data": data}
        while True:
            try:
                ((most,),) = await self._run(_SQL["upload"], fields, self._few)
                return int(most)
            except StoreUnavailable:
                until = min(until, time.monotonic() + _PATIENCE_S)
                if time.monotonic() >= until:
                    raise away() from None
                await asyncio.sleep(next(breaks))

    async def _run(
        self, statement: Statement, fields: dict[str, Any], begins: asyncio.Event | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a statement in its turn: to wait for others is no outage."""
        link = await self._free.get()
        try:
            if begins:  # here, where four wait, and not all that would go on at once
                await begins.wait()
            return await link.run(statement, fields)
        finally:
            self._free.put_nowait(link)

    async def remove(self, uploads: Sequence[UUID]) -> None:
        """Remove uploads that nobody needs; a duty removes those that stay behind."""
        try:
            await self._run(_SQL["upload_removed"], {"uploads": [*uploads]})
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("uploads stay behind for an hour", number=len(uploads), reason=str(error))


class RequestUploads:
    """The uploads of a request: `close` removes those that no mail has taken."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._stored: list[UUID] = []
        self._octets = 0
        self._announced = 0
        self._most = 0  # octets that a message may have, once a piece is stored

    def announce(self, octets: int) -> None:
        """Note that so many will come, at least."""
        self._announced = octets

    async def store(self, parts: AsyncIterator[bytes]) -> Stored:
        """Store what comes. Raises Problem: 413 if it is longer than a message may be, 503."""
        digest, buffer, upload, position, number = sha256(), bytearray(), None, 0, 0
        async for part in parts:
            digest.update(part)
            buffer += part
            number += len(part)
            self._octets += len(part)
            if len(buffer) > PIECE_OCTETS:
                if upload is None:
                    self._stored.append(upload := uuid4())
                piece, buffer = buffer, bytearray()
                await self._put(upload, position, piece)
                position += 1
        if upload is None:
            return Stored(bytes(buffer), "", number, digest.hexdigest())
        await self._put(upload, position, buffer)
        return Stored(b"", str(upload), number, digest.hexdigest())

    async def _put(self, upload: UUID, position: int, data: bytearray) -> None:
        self._most = await self._uploads.put(upload, position, data)
        if max(self._octets, self._announced) > self._most:
            raise Problem(413, "body-size", f"A message has at most {self._most} octets.",
                          headers={"Connection": "close"})  # fmt: skip

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of the request, if anything of it is stored. Raises Problem."""
        return self._uploads.turn() if self._stored else nullcontext()

    def taken(self) -> None:
        """Note that api_submit() has removed them."""
        self._stored.clear()

    async def close(self) -> None:
        """End the uploads of the request."""
        self._uploads.end()
        if self._stored:
            await self._uploads.remove(self._stored)


def _busy() -> Problem:
    return Problem(503, "busy", "Too many uploads are under way.",
                   headers={"Retry-After": _RETRY_S, "Connection": "close"})  # fmt: skip
