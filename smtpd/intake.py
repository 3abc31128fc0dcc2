"""The content of one message on its way in: checked, in bounded memory, then committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.intake.committer import Waiting
from pgmta.logs import get
from pgmta.model import CHUNK_SIZE, PART_SIZE, NewMessage
from pgmta.store.enqueue import pieces
from smtpd import replies
from smtpd.content import Collector, Inspector
from smtpd.front import Front

_EXCESS = 2  # times the largest message
# Seconds that content waits for the store. In the middle of it a client waits three minutes until
# it can send on (RFC 5321, section 4.5.3.2.5); after its end this is a part of ten minutes.
_PATIENCE = 120.0
_SMALL = 512  # octets of a piece that is collected with others: an object each would cost more

log = get("intake")


class Intake:
    """Keeps at most one part, half a MB; what is larger goes to the store part by part.

    The parts come before their message: one that is never acknowledged leaves pieces without a
    message, which are removed at once where possible. A message of one part or less is taken
    without waiting for anything but its commit.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._collector = Collector()
        self._inspector = Inspector(front.config.content.bare_newlines)
        self._pieces: list[bytes | bytearray] = []
        self.collected = 0
        """Octets of content in them, or on their way into the store."""
        self.large = False
        """Whether there has been more than a little content in memory."""
        self._chunks = 0
        self._begun = False  # some may be in the store that belong to no message yet
        self._size = 0
        self._unavailable = False
        self._waiting: Waiting | None = None
        self.id = 0

    def header(self) -> bytes:
        """The header block, once `end` was called."""
        return self._inspector.header

    @property
    def octets(self) -> int:
        """Content in memory: collected, on its way into the store, or waiting for its commit."""
        waiting = self._waiting
        body = len(waiting.message.body) if waiting else 0
        return self.collected + body + self._inspector.octets

    @property
    def excessive(self) -> bool:
        """Whether the client has sent so much that its end need not be waited for."""
        return self._size > _EXCESS * self._front.config.limits.message_size

    @property
    def full(self) -> bool:
        """Whether `store` has to be called before more content is taken."""
        return self.collected > PART_SIZE and not self._unavailable

    def feed(self, data: bytes) -> bytes | None:
        """Take what came over the wire; return what follows the end of data, None before it."""
        piece = self._collector.feed(data)
        self._size += len(piece)
        if self.refused:  # only count
            self._pieces.clear()
            self.collected = 0
        elif piece:
            self._inspector.see(piece, self._collector.dotted)
            self._keep(piece)
        return self._collector.rest if self._collector.done else None

    def _keep(self, piece: bytes) -> None:
        self.collected += len(piece)
        if self.collected > CHUNK_SIZE:
            self.large = True
        if len(piece) > _SMALL:
            self._pieces.append(piece)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    @property
    def refused(self) -> bool:
        """Whether the message can't be accepted any more: the rest is only counted."""
        return (
            self._unavailable
            or self._size > self._front.config.limits.message_size
            or bool(self._inspector.problem)
        )

    def _content(self) -> bytes:
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content

    async def store(self, unit: int = PART_SIZE) -> None:
        """Write ahead of the message what makes whole units: parts, or pieces of a part."""
        content = self._content()
        whole = len(content) // unit * unit
        for start in range(0, whole, PART_SIZE):
            await self._store(content[start : min(start + PART_SIZE, whole)])
        self._pieces.append(content[whole:])
        self.collected -= whole

    async def _store(self, part: bytes) -> None:
        committer = self._front.committer
        if self._unavailable:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                self.id = self.id or await committer.ids.take()
                self._begun = True
                await committer.pieces.write(self.id, self._chunks, part)
            self._chunks += pieces(len(part))
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            log.warning("can't store a piece of a message", reason=str(error))
            self._unavailable = True

    def end(self) -> str:
        """The content is complete: return the reply of a refusal, or nothing."""
        self._inspector.end()
        limits = self._front.config.limits
        if self._size > limits.message_size:
            return replies.TOO_LARGE.format(limits.message_size)
        if self._inspector.problem:
            return replies.BARE_NEWLINE.format(self._inspector.problem)
        if self._inspector.loops(limits.hops):
            return replies.TOO_MANY_HOPS
        return replies.UNAVAILABLE if self._unavailable else ""

    @property
    def ready(self) -> bool:
        """Whether the message can be committed at once; otherwise `prepare` it."""
        if not self.id and not self._chunks:
            self.id = self._front.committer.ids.ready()
        return bool(self.id) and not self._chunks and self.collected <= PART_SIZE

    async def prepare(self) -> str:
        """Get an id, write the last part; return the reply of a refusal, or nothing."""
        try:
            async with asyncio.timeout(_PATIENCE):
                if self.collected > PART_SIZE:
                    await self.store()
                if self._chunks and self.collected:
                    await self._store(self._content())
                    self.collected = 0
                async with asyncio.timeout(self._front.config.ingest.wait):
                    self.id = self.id or await self._front.committer.ids.take()
        except (StoreUnavailable, psycopg.Error, TimeoutError):
            self._unavailable = True
        return replies.UNAVAILABLE if self._unavailable else ""

    def commit(
        self,
        sender: str,
        recipients: list[tuple[str, str]],
        utf8: bool,
        trace: str,
        metadata: list[str],
        holds: list[str | None] | None,
        answer: Callable[[str], None],
    ) -> None:
        """Have the message written; `answer` gets the reply, 250 only when it is durable."""
        message = NewMessage(
            id=self.id,
            sender=sender,
            recipients=recipients,
            size=self._size,
            trace=trace,
            body=self._content(),
            chunks=self._chunks,
            utf8=utf8,
            metadata=metadata,
            holds=holds,
        )
        self.collected = 0  # it is in the message

        def done(error: Exception | None) -> None:
            if not error:
                self._begun = False  # they belong to a message now
            answer(replies.UNAVAILABLE if error else replies.queued(self.id))

        self._waiting = self._front.committer.commit(message, done)

    def forget(self) -> None:
        """The transaction is over: remove the pieces of a message that was not accepted.

        Once the message went to be committed, the committer removes them if it is refused. Those of
        a commit whose end nobody has seen stay: they may be content. Else they go as orphans.
        """
        if self._waiting:
            self._waiting.over = True
            self._waiting = None  # it knows us: a circle would keep the content for long
        elif self._begun:
            self._front.committer.pieces.drop(self.id)
