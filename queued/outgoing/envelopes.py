"""Content with a rewritten header, while it streams."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pgmta.logs import get
from pgmta.mail.header import header_known
from pgmta.model import Item, Message
from pgmta.store.queue.contents import Contents
from queued.config import Delivery
from queued.delivery.smtp.wire import header_needs_utf8
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope, LeaseGuard
from queued.outgoing.content import StoredContent
from queued.rewriting.rewrite import BCC_ONLY, BCC_OR_END, BEGINS_WITH_BCC, Rewriting


class RewrittenStream:
    """Iterates over the parts of content, of which the first has the rewritten header.

    At most the first MB is kept until the end of the header is seen. `warn` gets the problems of
    the first iteration.
    """

    def __init__(
        self,
        content: AsyncIterable[bytes],
        rewriting: Rewriting,
        warn: Callable[[Sequence[str]], None],
    ) -> None:
        self.same = getattr(content, "same", content), id(rewriting)
        """Equal for the content of the same message with the same rewriting."""
        self._content = content
        self._rewriting = rewriting
        self._warn: Callable[[Sequence[str]], None] | None = warn

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError, as the content does."""
        first: bytes | None = b""
        async for part in self._content:
            if first is None:
                yield part
                continue
            first += part
            if header_known(first):
                yield self._rewritten(first)
                first = None
        if first:
            yield self._rewritten(first)

    def _rewritten(self, content: bytes) -> bytes:
        found = self._rewriting.content(content)
        if self._warn:
            self._warn(found.problems)
        self._warn = None
        return found.content


log = get("worker")


class Envelopes:
    """Makes envelopes of at most `delivery.recipients` rows each."""

    def __init__(self, delivery: Delivery, contents: Contents, guard: LeaseGuard) -> None:
        self._most = delivery.recipients
        self._mode = delivery.bare_newlines
        self._contents = contents
        self._guard = guard
        self._last: tuple[Message, Rewriting, Message] | None = None

    def of(
        self,
        group: list[Item],
        message: Message,
        labels: set[str] | None = None,
        destination: Destination | None = None,
        rewriting: Rewriting = BCC_ONLY,
        *,
        utf8: bool,
    ) -> list[Envelope]:
        """Return the envelopes; `utf8` says whether an address needs SMTPUTF8.

        `labels` are those of the group, if any mail has labels. Bcc fields go in any case. Without
        a destination the message is rewritten already, or its content is while it streams.
        """
        body = message.body
        if "bcc" in message.trace.lower() or (
            body is not None
            and (BEGINS_WITH_BCC(body) or ((found := BCC_OR_END(body)) and found.lastindex))
        ):
            self._remove_bcc(message)
        if destination and destination.rewriting:
            return self._rewritten(group, message, labels, destination.rewriting)
        most = 1 if rewriting.verp else self._most
        utf8 = utf8 or (message.utf8 and header_needs_utf8(message))
        body, now = message.body, datetime.now(UTC)
        dsn = bool(message.envid or message.ret or any(i.notify or i.orcpt for i in group))
        urgent = any(item.urgent for item in group)
        return [
            Envelope(
                items=items,
                sender=items[0].sender,
                trace=message.trace.encode(),
                size=message.size,
                utf8=utf8,
                content=self._stream(message, items, rewriting) if body is None else body,
                guard=self._guard,
                started=now,
                urgent=urgent,
                room=len(body) if body else 0,
                dsn=dsn,
                envid=message.envid,
                ret=message.ret,
                requiretls=message.requiretls,
                labels=labels,
            )
            for start in range(0, len(group), most)
            for items in (group[start : start + most],)
        ]

    def _stream(self, message: Message, items: list[Item], rewriting: Rewriting) -> RewrittenStream:
        urgent = any(item.urgent for item in items)
        stored = StoredContent(self._contents, message, len(items), urgent=urgent, mode=self._mode)
        return RewrittenStream(
            stored, rewriting, lambda problems: _warn(message.id, rewriting, problems)
        )

    def _remove_bcc(self, message: Message) -> None:
        """Remove the Bcc fields of a message for all of its rows."""
        if message.body is not None:
            body = BCC_ONLY.content(message.body).content
            message.size += len(body) - len(message.body)
            message.body = body
        message.trace = BCC_ONLY.content(message.trace.encode()).content.decode()

    def _rewritten(
        self, group: list[Item], message: Message, labels: set[str] | None, rewriting: Rewriting
    ) -> list[Envelope]:
        """Return envelopes as the route rewrites them; with VERP each row has its own."""
        changed = self._message(message, rewriting)
        utf8 = not all(item.recipient.isascii() for item in group)
        envelopes = self.of(group, changed, labels, rewriting=rewriting, utf8=utf8)
        for envelope in envelopes:
            envelope.sender = rewriting.sender(envelope.items[0], envelope.started)
            envelope.utf8 = envelope.utf8 or not envelope.sender.isascii()
        return envelopes

    def _message(self, message: Message, rewriting: Rewriting) -> Message:
        """Return a message with a rewritten header; one for all groups that follow each other."""
        if not rewriting.in_header:
            return message
        if self._last and self._last[0] is message and self._last[1] is rewriting:
            return self._last[2]
        trace = rewriting.content(message.trace.encode()).content.decode()
        changed = replace(message, trace=trace, utf8=message.utf8 or rewriting.adds_utf8)
        if message.body is not None:
            found = rewriting.content(message.body)
            changed.body = found.content
            changed.size += len(found.content) - len(message.body)
            _warn(message.id, rewriting, found.problems)
        self._last = message, rewriting, changed
        return changed


def _warn(message_id: int, rewriting: Rewriting, problems: Sequence[str]) -> None:
    """Log what could not be rewritten; one line for a message and route."""
    if problems:
        log.warning("not rewritten", message=message_id, route=rewriting.name or None,
                    fields=problems[:5])  # fmt: skip
