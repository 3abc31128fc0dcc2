"""The content of one message on its way in: checked, in bounded memory, then committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from queued.errors import StoreUnavailable
from queued.logs import get
from queued.model import CHUNK_SIZE, NewMessage
from smtpd import replies
from smtpd.content import Inspector
from smtpd.front import Front

log = get("intake")


class Intake:
    """Keeps at most one chunk; what is larger goes to the store piece by piece.

    The pieces come before their message: one that is never acknowledged leaves pieces without a
    message, which are removed at once where possible.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._inspector = Inspector(front.config.content.bare_newlines)
        self._buffer = bytearray()
        self._id = 0
        self._chunks = 0
        self._size = 0
        self._unavailable = False
        self._committed = False

    async def take(self, piece: bytes) -> None:
        """Take the next piece; after a refusal is certain, only count."""
        self._size += len(piece)
        if self._refused():
            self._buffer.clear()
            return
        self._inspector.see(piece)
        self._buffer += piece
        while len(self._buffer) > CHUNK_SIZE and not self._unavailable:
            await self._store(bytes(self._buffer[:CHUNK_SIZE]))
            del self._buffer[:CHUNK_SIZE]

    def _refused(self) -> bool:
        return (
            self._unavailable
            or self._size > self._front.config.limits.message_size
            or bool(self._inspector.problem)
        )

    async def _store(self, chunk: bytes) -> None:
        committer = self._front.committer
        try:
            async with asyncio.timeout(self._front.config.ingest.wait):
                self._id = self._id or await committer.ids.take()
                await committer.store.chunk(self._id, self._chunks, chunk)
            self._chunks += 1
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            log.warning("can't store a piece of a message", reason=str(error))
            self._unavailable = True

    async def finish(
        self,
        sender: str,
        recipients: list[tuple[str, str]],
        utf8: bool,
        trace: Callable[[int], str],
        metadata: Callable[[bytes], list[str]],
    ) -> str:
        """Return the reply to the end of data: 250 only when the message is durable."""
        self._inspector.end()
        limits = self._front.config.limits
        if self._size > limits.message_size:
            return replies.TOO_LARGE.format(limits.message_size)
        if self._inspector.problem:
            return replies.BARE_NEWLINE.format(self._inspector.problem)
        if self._inspector.hops > limits.hops:
            return replies.TOO_MANY_HOPS
        if self._chunks and self._buffer:
            await self._store(bytes(self._buffer))
            self._buffer.clear()
        if self._unavailable:
            return replies.UNAVAILABLE
        committer = self._front.committer
        try:
            async with asyncio.timeout(self._front.config.ingest.wait):
                self._id = self._id or await committer.ids.take()
            message = NewMessage(
                id=self._id,
                sender=sender,
                recipients=recipients,
                size=self._size,
                trace=trace(self._id),
                body=bytes(self._buffer),
                chunks=self._chunks,
                utf8=utf8,
                metadata=metadata(self._inspector.header),
            )
            await committer.commit(message)
        except (StoreUnavailable, psycopg.Error, TimeoutError):
            return replies.UNAVAILABLE
        self._committed = True
        return replies.queued(self._id)

    def forget(self) -> None:
        """The transaction is over: remove the pieces of a message that was not accepted.

        A commit whose end we did not see may yet succeed; the statement looks for it.
        """
        if self._chunks and not self._committed:
            self._front.later(self._drop())

    async def _drop(self) -> None:
        await asyncio.sleep(1.0)  # let a commit that was cut off from its session end first
        try:
            await self._front.committer.store.drop_chunks(self._id)
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("pieces of a message stay behind", id=self._id, reason=str(error))
