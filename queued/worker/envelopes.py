"""Makes the envelopes of rows that may share a transaction."""

from __future__ import annotations

from datetime import UTC, datetime

from pgmta.model import Item, Message
from pgmta.store.contents import Contents
from queued.config import Delivery
from queued.delivery.envelope import Envelope, LeaseGuard
from queued.delivery.wire import header_needs_utf8
from queued.worker.content import StoredContent


class Envelopes:
    """Makes envelopes of at most `delivery.recipients` rows each."""

    def __init__(self, delivery: Delivery, contents: Contents, guard: LeaseGuard) -> None:
        self._most = delivery.recipients
        self._mode = delivery.bare_newlines
        self._contents = contents
        self._guard = guard

    def of(
        self, group: list[Item], message: Message, labels: set[str] | None = None, *, utf8: bool
    ) -> list[Envelope]:
        """Return the envelopes; `utf8` says whether an address needs SMTPUTF8.

        `labels` are those of the group, if any mail has labels.
        """
        utf8 = utf8 or (message.utf8 and header_needs_utf8(message))
        most = self._most
        if len(group) <= most:
            return [self._envelope(group, message, labels, utf8)]
        starts = range(0, len(group), most)
        return [
            self._envelope(group[start : start + most], message, labels, utf8) for start in starts
        ]

    def _envelope(
        self, items: list[Item], message: Message, labels: set[str] | None, utf8: bool
    ) -> Envelope:
        body = message.body
        urgent = any(item.urgent for item in items)
        content = (
            StoredContent(self._contents, message, len(items), urgent=urgent, mode=self._mode)
            if body is None
            else body
        )
        return Envelope(
            items=items,
            sender=items[0].sender,
            trace=message.trace.encode(),
            size=message.size,
            utf8=utf8,
            content=content,
            guard=self._guard,
            started=datetime.now(UTC),
            urgent=urgent,
            room=len(body) if body else 0,
            dsn=bool(message.envid or message.ret or any(i.notify or i.orcpt for i in items)),
            envid=message.envid,
            ret=message.ret,
            requiretls=message.requiretls,
            labels=labels,
        )
