"""The one door through which mail gets into the queue."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from psycopg import errors as pg_errors

from queued.arrays import Bigints, Bytes, Texts
from queued.db import Link
from queued.errors import StoreUnavailable
from queued.model import CHUNK_SIZE, NewMessage
from queued.store.queries import queries

BLOCK = 100
"""Ids that one value of the sequence message_ids stands for."""

_SQL = queries("enqueue")
_ENQUEUE = _SQL["enqueue"].replace("{messages}", _SQL["messages"])
_HELD = _SQL["enqueue_held"].replace("{messages}", _SQL["messages"])
# COPY in binary form: a header, for each row the number of fields and each with its length, an end
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_ROW = struct.Struct("!hiqiii")
_COPY_END = struct.pack("!h", -1)


class Enqueue:
    """Writes groups of accepted messages, each group in one commit."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def block(self) -> range:
        """Reserve the next ids. Raises StoreUnavailable."""
        ((first,),) = await self._link.run(_SQL["block"])
        return range(first, first + BLOCK)

    async def commit(self, group: list[NewMessage]) -> None:
        """Store the group; on return it is durable.

        If the connection breaks before the answer, the outcome is looked up on a new one: ids are
        ours from before, so a group that did commit is never written twice. Raises
        StoreUnavailable only where PostgreSQL stays away, psycopg.Error for what it refuses.
        """
        try:
            await self._insert(group)
        except StoreUnavailable:
            if await self._link.run(_SQL["known"], {"ids": [m.id for m in group]}):
                return
            # or the first try is still committing, and then its ids are refused here
            with suppress(pg_errors.UniqueViolation):
                await self._insert(group)

    async def _insert(self, group: list[NewMessage]) -> None:
        rows = [(m, address, domain) for m in group for address, domain in m.recipients]
        values: dict[str, object] = {
            "ids": Bigints(m.id for m in group),
            "sizes": Bigints(m.size for m in group),
            "utf8": [m.utf8 for m in group],
            "chunks": [m.chunks for m in group],
            "traces": Texts(m.trace for m in group),
            "bodies": Bytes(m.body for m in group),
            "message_ids": Bigints(m.id for m, _, _ in rows),
            "senders": Texts(m.sender for m, _, _ in rows),
            "recipients": Texts(address for _, address, _ in rows),
            "domains": Texts(domain for _, _, domain in rows),
            "priorities": [m.priority for m, _, _ in rows],
            "metadata": Texts(
                text for m in group for text in m.metadata or ["{}"] * len(m.recipients)
            ),
        }
        statement = _ENQUEUE
        if any(m.holds for m in group):
            statement = _HELD
            values["holds"] = [h for m in group for h in m.holds or [None] * len(m.recipients)]
        await self._link.run(statement, values)

    async def chunks(self, parts: Iterable[tuple[int, int, bytes]]) -> None:
        """Store content in pieces, ahead of its messages, in one commit.

        Each part is the id of a message, the position of the first piece and the content.
        Raises StoreUnavailable; what has become of the pieces is not known then.
        """
        rows = b"".join((_COPY_HEADER, *_rows(parts), _COPY_END))
        async with (
            self._link.use() as connection,
            connection.cursor().copy(_SQL["chunks"].encode()) as copy,
        ):
            await copy.write(rows)

    async def drop_chunks(self, ids: list[int]) -> None:
        """Remove the pieces of messages that were not accepted. Raises StoreUnavailable."""
        await self._link.run(_SQL["drop_chunks"], {"ids": Bigints(ids)})


def _rows(parts: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes | memoryview]:
    for message_id, first, content in parts:
        view = memoryview(content)
        for position, start in enumerate(range(0, len(content), CHUNK_SIZE), first):
            piece = view[start : start + CHUNK_SIZE]
            yield _COPY_ROW.pack(3, 8, message_id, 4, position, len(piece))
            yield piece


def pieces(octets: int) -> int:
    """Number of the pieces that content of so many octets makes."""
    return -(-octets // CHUNK_SIZE)
