"""One message on its way in: checked, in bounded memory, then handed to the group commit."""

from __future__ import annotations

import asyncio

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.intake.committer import Committer
from pgmta.intake.content import Content, State
from pgmta.logs import get
from pgmta.message_id_header import NAME, message_id_header
from pgmta.model import CHUNK_SIZE, PART_SIZE
from smtpd import replies
from smtpd.config import SmtpdConfig
from smtpd.end_of_data import EndOfData
from smtpd.header import LIMIT, header_block, hops

_EXCESS = 2  # times the largest message
# Seconds that content waits for the store. In the middle of it a client waits three minutes until
# it can send on (RFC 5321, section 4.5.3.2.5); after its end this is a part of ten minutes.
_PATIENCE = 120.0
_SMALL = 512  # octets of a buffer that is joined with others: an object each would cost more

log = get("intake")


class IncomingMessage:
    """Collects one message; it keeps at most one part, half a MB, in memory.

    The parts of a larger message go to the database before their message. If the message is not
    accepted, its chunks are removed. A message of one part or less waits only for its commit.
    """

    def __init__(self, config: SmtpdConfig, committer: Committer, *, whole: bool = False) -> None:
        self.whole = whole
        """Whether all of it stays in memory until its end, because a hook is asked then."""
        self._limits = config.limits
        self._wait = config.ingest.wait
        self._committer = committer
        self._end = EndOfData(config.content.bare_newlines)
        self._head = b""  # the first octets of a message that is not in memory as a whole
        self.content = Content(committer.chunks)
        """The owner of the octets."""
        self.size = 0
        """Octets of content so far."""
        self.large = False
        """Whether more than a little content has been in memory."""
        self.message_id_header: str | None = None
        """The Message-ID of its header, once `finish` was called."""
        self.ready = False
        """Whether the message can be committed at once; otherwise `prepare` it."""

    def feed(self, data: bytes) -> bytes | None:
        """Take octets off the wire; return those after the end of data, None before it."""
        end, content = self._end, self.content
        octets = end.feed(data)
        self.size += len(octets)
        if (
            end.guard.problem
            or self.size > self._limits.message_size
            or content.state is State.FAILED
        ):
            content.buffers.clear()  # refused: the rest is only counted
            content.collected = 0
        elif octets:
            content.collected += len(octets)
            if content.collected > CHUNK_SIZE:
                self.large = True
            if len(octets) > _SMALL:
                content.buffers.append(octets)
            elif content.buffers and isinstance(content.buffers[-1], bytearray):
                content.buffers[-1] += octets
            else:
                content.buffers.append(bytearray(octets))
        return end.rest if end.done else None

    def finish(self) -> str:
        """Judge the complete content: return the reply of a refusal, or nothing.

        If nothing has to be waited for, the message is `ready` and has its id.
        """
        content, problem = self.content, self._end.guard.problem
        if self.size > self._limits.message_size:
            return replies.TOO_LARGE.format(self._limits.message_size)
        if problem:
            return replies.BARE_NEWLINE.format(problem)
        if content.state is State.FAILED:
            return replies.UNAVAILABLE
        limit = self._limits.hops
        if len(content.buffers) != 1:
            content.buffers = [b"".join(content.buffers)]
        if self._head:
            self._head += content.buffers[0][: LIMIT - len(self._head)]
        head = self._head or content.buffers[0][:LIMIT]
        # header fields are looked for only if the words are there
        end = head.find(b"\r\n\r\n")
        words = head.lower() if end < 0 else head[:end].lower()
        if words.count(b"received:") > limit and hops(self.header()) > limit:
            return replies.TOO_MANY_HOPS
        if (place := words.find(NAME)) >= 0:
            self.message_id_header = message_id_header(head, place)
        if not content.chunks and content.collected <= PART_SIZE:
            available = self._committer.ids.available
            if not content.id and available:
                content.id = available.popleft()
            self.ready = bool(content.id)
        return ""

    def header(self) -> bytes:
        """Return the header block, once `finish` was called and before the commit."""
        return header_block(bytes(self._head or self.content.buffers[0]))

    @property
    def octets(self) -> int:
        """Octets in memory."""
        return self.content.octets + len(self._head)

    @property
    def excessive(self) -> bool:
        """Whether the client has sent so much that its end need not be waited for."""
        return self.size > _EXCESS * self._limits.message_size

    @property
    def full(self) -> bool:
        """Whether `store` has to be called before more content is taken."""
        content = self.content
        return (
            content.collected > PART_SIZE and not self.whole and content.state is not State.FAILED
        )

    @property
    def refused(self) -> bool:
        """Whether the message can't be accepted any more: the rest is only counted."""
        return (
            self.content.state is State.FAILED
            or self.size > self._limits.message_size
            or bool(self._end.guard.problem)
        )

    def give_up(self) -> None:
        """Refuse the message at its end: there is no room for it."""
        self.content.state = State.FAILED
        self.content.buffers.clear()
        self.content.collected = 0

    def take(self, octets: bytes) -> None:
        """Take the whole content, without transparency dots."""
        stuffed = octets.replace(b"\r\n.", b"\r\n..")
        stuffed = b"." + stuffed if stuffed.startswith(b".") else stuffed
        if stuffed and not stuffed.endswith(b"\r\n"):
            stuffed += b"\r\n"
        self.feed(stuffed + b".\r\n")

    def body(self) -> bytes:
        """Return the content of a `whole` message, once `finish` was called."""
        return bytes(self.content.buffers[0]) if self.content.buffers else b""

    async def store(self, unit: int = PART_SIZE) -> None:
        """Write whole units ahead of the message: parts, or chunks of a part."""
        octets = self.content.join()
        whole = len(octets) // unit * unit
        self._head += octets[: min(whole, LIMIT - len(self._head))]
        for start in range(0, whole, PART_SIZE):
            await self._store(octets[start : min(start + PART_SIZE, whole)])
        self.content.buffers.append(octets[whole:])
        self.content.collected -= whole

    async def _store(self, part: bytes) -> None:
        content = self.content
        if content.state is State.FAILED:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                content.id = content.id or await self._committer.ids.take()
                await self._committer.chunks.write(content, part)
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            log.warning("can't store a part of a message", reason=str(error))
            content.state = State.FAILED

    async def prepare(self) -> str:
        """Get an id, write the last part; return the reply of a refusal, or nothing."""
        content = self.content
        try:
            async with asyncio.timeout(_PATIENCE):
                if content.collected > PART_SIZE:
                    await self.store()
                if content.chunks and content.collected:
                    await self._store(content.join())
                    content.collected = 0
                async with asyncio.timeout(self._wait):
                    content.id = content.id or await self._committer.ids.take()
        except (StoreUnavailable, psycopg.Error, TimeoutError):
            content.state = State.FAILED
        return replies.UNAVAILABLE if content.state is State.FAILED else ""
