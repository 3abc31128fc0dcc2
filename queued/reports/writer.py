"""Writes DSNs as messages for the queue: from planned ones with their originals."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from pgmta.compose.composed_message import composed_header
from pgmta.compose.header_fields import date
from pgmta.compose.mime import MessageIdentity
from pgmta.mail.metadata import EXEMPT_KEY
from pgmta.mail.newlines import Mode, NewlineGuard, check
from pgmta.model import CHUNK_OCTETS, PART_OCTETS, NewMessage, Options
from pgmta.report_row import ReportedMessage
from pgmta.states import Event
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.enqueue import Enqueue, chunk_count
from queued.config import QueuedConfig
from queued.reports.report_policy import Plan
from queued.reports.text.compose import compose
from queued.reports.text.dsn import Dsn, Original, Report
from queued.reports.text.original import header_of
from queued.routing.retry_until import RetryUntil

MAX_IN_MEMORY_OCTETS = 2 * PART_OCTETS
"""A DSN returns content up to this size from memory; larger content streams."""

_CHUNKS_PER_PART = PART_OCTETS // CHUNK_OCTETS


@dataclass(slots=True)
class Letter:
    """A DSN on its way into the queue, with its plan and the message that it is about."""

    plan: Plan
    original: ReportedMessage | None
    message: NewMessage
    dsn: Dsn

    @property
    def streams(self) -> bool:
        """Whether its content is read while it is stored."""
        return not isinstance(self.dsn.content, bytes)


def returns_content(plan: Plan, message: ReportedMessage, config: QueuedConfig) -> bool:
    """Return whether a DSN returns the whole message (RFC 3461, section 4.3).

    Of a message with REQUIRETLS it never does (RFC 8689, section 5), nor of composed mail, which
    may have secrets.
    """
    return (
        plan.kind == "failed"
        and message.ret != "HDRS"
        and not (message.requiretls or message.torn or message.composition)
        and message.size <= config.bounces.content
    )


class ReportWriter:
    """Writes DSNs of one process; `host` is its name."""

    def __init__(self, store: Enqueue, contents: Contents, host: str) -> None:
        self._store = store
        self._contents = contents
        self._host = host
        self._until = RetryUntil()

    def write_reports(
        self,
        plan: Plan,
        original: ReportedMessage | None,
        number: int,
        config: QueuedConfig,
        now: datetime,
    ) -> Letter:
        """Return the DSN for a plan, with the message id `number`.

        Its original may be gone: then the DSN has the recipients and nothing else.
        """
        report = self._report(plan, original, config)
        nonce = secrets.token_hex(12)
        message_id_header = f"<{number}.{nonce[:16]}@{self._host}>"
        dsn = compose(
            report,
            config.texts,
            boundary=f"{number}.{nonce}",
            message_id_header=message_id_header,
            now=now,
        )
        first = plan.rows[0]
        metadata: dict[str, str] = {"_report": plan.kind, EXEMPT_KEY: "report"}
        if first.part is not None:
            metadata["_partid"] = first.part
        message = NewMessage(
            id=number,
            sender="",
            recipients=[(plan.sent_to, plan.domain)],
            size=dsn.size,
            trace=f"Received: by {self._host} (pgmta) id {number};\r\n\t{date(now)}\r\n",
            body=b"",
            utf8=dsn.utf8,
            metadata=[json.dumps(metadata)],
            priority=min(row.priority for row in plan.rows),
            sender_domain="",
            message_id_header=message_id_header,
            options=Options(tenant=first.tenant, requiretls=bool(original and original.requiretls)),
            on_failed="bounce",
            origin="queued",
        )
        if isinstance(dsn.content, bytes):
            message.body = b"".join((dsn.head, dsn.content, dsn.tail))
            message.chunks = (
                chunk_count(len(message.body)) if len(message.body) > CHUNK_OCTETS else 0
            )
        return Letter(plan, original, message, dsn)

    def _report(self, plan: Plan, original: ReportedMessage | None, config: QueuedConfig) -> Report:
        first = plan.rows[0]
        report = Report(
            kind=plan.kind,
            sent_to=plan.sent_to,
            sender=first.sender,
            origin=config.bounces.from_field(self._host),
            reporting_mta=self._host,
            arrival=first.ts,
            original=Original(b"", 0),
            recipients=plan.rows,
        )
        if plan.kind == "delayed":
            for row in plan.rows:
                row.until = self._until.find_end(row, config)
            report.until = max((row.until for row in plan.rows if row.until), default=None)
        if original is None:
            return report
        mode = config.delivery.bare_newlines
        trace = original.trace.encode()
        report.arrival = original.received_at
        report.envid, report.ret, report.utf8 = original.envid, original.ret, original.utf8
        report.message_id = original.message_id_header
        if original.origin == "stranger":  # who must not learn that somebody complained
            report.recipients = [
                replace(row, reply=Event.SUPPRESS.value)
                if row.answer_class == Event.SUPPRESS
                else row
                for row in plan.rows
            ]
        content: bytes | AsyncIterator[bytes] | None = None
        if original.composition:
            identity = MessageIdentity(original.message_id_header or "", first.ts)
            stored = composed_header(original.composition, identity)
        else:
            stored = original.content
        if returns_content(plan, original, config):
            content = trace + stored
            if original.chunks and original.size > MAX_IN_MEMORY_OCTETS:
                content = self._stream(trace, original, mode)
        header = trace + header_of(stored)
        # content that can't be sent as it is would stop the DSN too
        if isinstance(content, bytes) and check(content, mode):
            content = None
        if check(header, mode):
            header = b""
        report.original = Original(header, len(trace) + original.size, content)
        return report

    async def _stream(
        self, trace: bytes, original: ReportedMessage, mode: Mode
    ) -> AsyncIterator[bytes]:
        """Yield a message part by part. Raises LookupError if a part is gone, or can't be sent."""
        yield trace
        guard = NewlineGuard(mode)
        async for part in self._parts(original):
            guard.see(part)
            _refuse(original, guard)
            yield part
        guard.check_end()
        _refuse(original, guard)

    async def _parts(self, original: ReportedMessage) -> AsyncIterator[bytes]:
        for first in range(0, original.chunks, _CHUNKS_PER_PART):
            number = min(_CHUNKS_PER_PART, original.chunks - first)
            part = await self._contents.chunks(original.id, first, number)
            if part is None:
                raise LookupError(f"content of message {original.id} is gone")
            yield part

    async def store(self, letters: list[Letter]) -> None:
        """Store the chunks of large DSNs ahead of their messages: of a stream, or of some others.

        Raises StoreUnavailable, psycopg.Error, LookupError if a content is gone or can't be sent.
        Only a stream may be there in part then.
        """
        large: list[Letter] = []
        for letter in letters:
            content = letter.dsn.content
            if not isinstance(content, bytes):
                await self._store_stream(letter, content)
            elif letter.message.chunks:
                large.append(letter)
        if large:
            await self._store.chunks(
                [(letter.message.id, 0, letter.message.body) for letter in large]
            )
        for letter in large:
            letter.message.body = b""

    async def _store_stream(self, letter: Letter, content: AsyncIterable[bytes]) -> None:
        """Store a DSN whose content streams; its chunks are cut anew."""
        dsn, number = letter.dsn, letter.message.id
        letter.message.chunks = chunk_count(dsn.size)  # dropped if the DSN can't be stored
        pending = bytearray(dsn.head)
        position = 0
        async for part in content:
            pending += part
            if full := len(pending) // PART_OCTETS * PART_OCTETS:
                await self._store.chunks([(number, position, bytes(pending[:full]))])
                position += full // CHUNK_OCTETS
                del pending[:full]
        pending += dsn.tail
        await self._store.chunks([(number, position, bytes(pending))])
        letter.message.size = position * CHUNK_OCTETS + len(pending)
        letter.message.chunks = position + chunk_count(len(pending))


def _refuse(original: ReportedMessage, guard: NewlineGuard) -> None:
    if guard.problem:
        raise LookupError(f"content of message {original.id}: {guard.problem}")


def groups(plans: list[Plan], sizes: dict[int, int], most: int) -> Iterator[list[Plan]]:
    """Yield plans in groups whose originals have at most `most` octets together, or one."""
    group: list[Plan] = []
    octets = 0
    for plan in plans:
        size = sizes.get(plan.message_id, 0)
        if group and octets + size > most:
            yield group
            group, octets = [], 0
        group.append(plan)
        octets += size
    if group:
        yield group
