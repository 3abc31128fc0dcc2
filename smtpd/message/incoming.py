"""One message on its way in: checked, in bounded memory, then handed to the group commit."""

from __future__ import annotations

import asyncio

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.intake.committer import Committer
from pgmta.intake.content import Content, State
from pgmta.intake.header_completion import HeaderCompletion, HeaderRefusal
from pgmta.logs import get
from pgmta.mail.header import (
    MAX_HEADER_OCTETS,
    MESSAGE_ID_NAME,
    header_block,
    hops,
    message_id_header,
    tls_optional,
)
from pgmta.model import CHUNK_OCTETS, PART_OCTETS
from smtpd.config import SmtpdConfig
from smtpd.message.bdat import Chunks
from smtpd.message.content_file import ContentFile, Spool
from smtpd.message.end_of_data import EndOfData
from smtpd.protocol import replies

_EXCESS_FACTOR = 2  # so many times the largest message is read before smtpd hangs up
# For content that waits for the store. A client waits three minutes until it can go on to send, and
# ten minutes after the end of the content (RFC 5321, sections 4.5.3.2.5 and 4.5.3.2.6).
_STORE_TIMEOUT_S = 120.0
_MAX_JOINED_OCTETS = 512  # small buffers are joined, because an object for each would cost more
_HEADER_REFUSALS = {
    HeaderRefusal.TOO_LARGE: replies.HEADER_TOO_LARGE,
    HeaderRefusal.AUTHOR_DENIED: replies.AUTHOR_DENIED,
}

log = get("intake")


class IncomingMessage:
    """Collects one message; it keeps at most one part, half a MB, in memory.

    The parts of a larger message go to the database before their message. If the message is not
    accepted, its chunks are removed. A message of one part or less waits only for its commit.
    """

    spool: Spool | None = None
    """Its octets in a file for a hook, once they are too large for memory."""
    large = False
    """Whether more than a little content has been in memory."""
    refused = False
    """Whether the message can't be accepted any more: the rest is only counted."""
    _refusal = ""
    _head = b""  # the first octets of a message that is not in memory as a whole

    def __init__(
        self,
        config: SmtpdConfig,
        committer: Committer,
        wire_form: EndOfData | Chunks,
        *,
        header_rules: HeaderCompletion | None = None,
        whole: bool = False,
    ) -> None:
        self.whole = whole
        """Whether all of it stays in memory until its end, because a hook is asked then."""
        self._most = config.hook_limits.content if whole else PART_OCTETS
        self._limits = config.limits
        self._committer = committer
        self.wire_form = wire_form
        """Finds the end of the content in the input."""
        self._header_rules = header_rules  # None after the header was completed
        self.content = Content(committer.chunks.drop_chunks)
        """The owner of the octets."""
        self.size = 0
        """Octets of content so far."""
        self.message_id_header: str | None = None
        """The Message-ID of its header, once `finish` was called."""
        self.tls_optional = False
        """Whether its header says TLS-Required: No, once `finish` was called."""
        self.by_user = False
        """Whether From has addresses of the user alone, once `finish` was called."""
        self.ready = False
        """Whether the message can be committed at once; otherwise `prepare` it."""

    def feed_octets(self, data: bytes) -> bytes | None:
        """Take octets off the wire; return those after the end of data, None before it.

        A chunk of BDAT has an end too.
        """
        end, content = self.wire_form, self.content
        octets = end.feed(data)
        self.size += len(octets)
        if self.refused or end.guard.problem or self.size > self._limits.message_size:
            self.refused = True
            content.buffers.clear()
            content.collected = 0
        elif octets:
            content.collected += len(octets)
            if content.collected > CHUNK_OCTETS:
                self.large = True
            if len(octets) > _MAX_JOINED_OCTETS:
                content.buffers.append(octets)
            elif content.buffers and isinstance(content.buffers[-1], bytearray):
                content.buffers[-1] += octets
            else:
                content.buffers.append(bytearray(octets))
        return end.rest

    @property
    def refusal(self) -> str:
        """The reply because of which the message is refused, or nothing."""
        if self._refusal:
            return self._refusal
        if self.size > self._limits.message_size:
            return replies.TOO_LARGE.format(self._limits.message_size)
        if self.wire_form.guard.problem:
            return replies.BARE_NEWLINE.format(self.wire_form.guard.problem)
        return replies.UNAVAILABLE if self.refused else ""

    def finish(self) -> str:
        """Judge the complete content: return the reply of a refusal, or nothing.

        If nothing has to be waited for, the message is `ready` and has its id.
        """
        if self.refused:
            return self.refusal
        content, limit = self.content, self._limits.hops
        if len(content.buffers) != 1:
            content.buffers = [b"".join(content.buffers)]
        if self._header_rules and (refusal := self._apply_rules(whole=True)):
            return refusal
        if self._head:
            self._head += content.buffers[0][: MAX_HEADER_OCTETS - len(self._head)]
        head = self._head or content.buffers[0][:MAX_HEADER_OCTETS]
        # quicker than patterns: most headers have none of these names
        end = head.find(b"\r\n\r\n")
        words = head.lower() if end < 0 else head[:end].lower()
        if words.count(b"received:") > limit and hops(self.header()) > limit:
            return replies.TOO_MANY_HOPS
        if (place := words.find(MESSAGE_ID_NAME)) >= 0:
            self.message_id_header = message_id_header(head, place)
        if b"tls-required" in words:
            self.tls_optional = tls_optional(self.header())
        if not content.chunks and content.collected <= PART_OCTETS:
            available = self._committer.ids.available
            if not content.id and available:
                content.id = available.popleft()
            self.ready = bool(content.id)
        return ""

    def header(self) -> bytes:
        """Return the header block, once `finish` was called and before the commit."""
        return header_block(bytes(self._head or self.content.buffers[0]))

    @property
    def header_ended(self) -> bool:
        """Whether content may be stored: the header is complete if it has to be completed."""
        if not self._header_rules:
            return True
        octets = self.content.join()
        self.content.buffers.append(octets)
        return octets.find(b"\n\r\n") >= 0 or octets.find(b"\n\n") >= 0

    @property
    def octets(self) -> int:
        """Octets in memory."""
        return self.content.octets + len(self._head)

    @property
    def octets_left(self) -> int:
        """The octets that may still come before smtpd hangs up."""
        return _EXCESS_FACTOR * self._limits.message_size - self.size

    @property
    def full(self) -> bool:
        """Whether `store` has to be called before more content is taken."""
        content = self.content
        return content.collected > self._most and content.state is not State.FAILED

    def give_up(self, reply: str = "") -> None:
        """Refuse the message at its end: with a reply, or because there is no room for it."""
        self.refused, self._refusal = True, reply or self._refusal
        if not reply:
            self.content.state = State.FAILED
        self.content.buffers.clear()
        self.content.collected = 0

    def _apply_rules(self, *, whole: bool) -> str:
        """Complete the header in the only buffer; return the reply of a refusal, or nothing."""
        content = self.content
        before = bytes(content.buffers[0])
        assert self._header_rules  # noqa: S101 - the caller has looked
        after, refusal = self._header_rules.apply(before, whole=whole)
        self.by_user = self._header_rules.by_user
        self._header_rules = None
        content.buffers = [after]
        content.collected += len(after) - len(before)
        self.size += len(after) - len(before)
        if refusal:
            self.give_up(_HEADER_REFUSALS[refusal])
        return self._refusal

    def take_content(self, octets: bytes) -> None:
        """Take the whole content, without transparency dots."""
        stuffed = octets.replace(b"\r\n.", b"\r\n..")
        stuffed = b"." + stuffed if stuffed.startswith(b".") else stuffed
        if stuffed and not stuffed.endswith(b"\r\n"):
            stuffed += b"\r\n"
        self.feed_octets(stuffed + b".\r\n")

    def body(self) -> bytes:
        """Return the content of a `whole` message, once `finish` was called."""
        return bytes(self.content.buffers[0]) if self.content.buffers else b""

    async def file(self) -> ContentFile | None:
        """Return the content of a message with a `spool`, once `finish` was called.

        None says that the file could not be written.
        """
        whole = await self._copy(bytes(self.content.buffers[0]))
        return self.spool.open_content() if self.spool and whole else None

    async def store(self, unit: int = PART_OCTETS) -> None:
        """Write whole units ahead of the message: parts, or chunks of a part."""
        octets = self.content.join()
        if self._header_rules:
            self.content.buffers.append(octets)
            self._apply_rules(whole=False)
            octets = self.content.join()
        if self.whole:  # the message is not in memory as a whole any more
            self.whole, self._most, self.spool = False, PART_OCTETS, Spool()
        whole = len(octets) // unit * unit
        self._head += octets[: min(whole, MAX_HEADER_OCTETS - len(self._head))]
        for start in range(0, whole, PART_OCTETS):
            await self._store(octets[start : min(start + PART_OCTETS, whole)])
        if self.spool and not await self._copy(octets[:whole]):
            whole = len(octets)
        self.content.buffers.append(octets[whole:])
        self.content.collected -= whole

    async def _copy(self, octets: bytes) -> bool:
        """Copy octets into the file for the hook; False if that fails."""
        assert self.spool  # noqa: S101 - the caller has looked
        try:
            await self.spool.write(octets)
        except OSError as error:
            log.warning("can't copy a message into a file for a hook", reason=str(error))
            self.give_up()
            return False
        return True

    async def _store(self, part: bytes) -> None:
        content = self.content
        if content.state is State.FAILED:
            return
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                content.id = content.id or await self._committer.take_id()
                await self._committer.chunks.write_part(content, part)
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            log.warning("can't store a part of a message", reason=str(error))
            content.state, self.refused = State.FAILED, True

    async def prepare(self) -> str:
        """Get an id, write the last part; return the reply of a refusal, or nothing."""
        content, self.whole = self.content, False
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                if content.collected > PART_OCTETS:
                    await self.store()
                if content.chunks and content.collected:
                    await self._store(content.join())
                    content.collected = 0
                content.id = content.id or await self._committer.take_id()
        except (StoreUnavailable, psycopg.Error, TimeoutError):
            content.state = State.FAILED
        return replies.UNAVAILABLE if content.state is State.FAILED else ""
