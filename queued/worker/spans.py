"""The spans of a delivery worker: claim, deliver and settle, for mail whose trace is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgmta.config.types import without_port
from pgmta.mail.metadata import values_of
from pgmta.model import Outcome
from pgmta.states import NOT_BEGUN_EVENTS, Event
from pgmta.store.queue.claim import Claim
from pgmta.tracing import TRACE_KEY, Attributes, RowSpans, Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext


class Spans:
    """Makes the spans of one worker. They are made when their work has ended.

    A batch of mail has one span for its claim and one for its settling, with links to the mail.
    """

    def __init__(self, tracing: Tracing, worker: str) -> None:
        self._tracing = tracing
        self._worker = worker

    def claimed(self, claim: Claim, age: float) -> None:
        """Take a claim that began `age` seconds ago: note at its rows what their spans need."""
        # contexts by their metadata, which many rows share
        contexts: dict[str, SpanContext | None] = {}
        for item in claim.items:
            if not item.metadata or TRACE_KEY not in item.metadata:
                continue
            if item.metadata not in contexts:
                contexts[item.metadata] = self._context(item.metadata)
            if found := contexts[item.metadata]:
                message = claim.messages.get(item.message_id)
                item.spans = RowSpans(found, None, found, message.size if message else 0)
        traced = [item.spans for item in claim.items if item.spans]
        if not traced:
            return
        links = [context for context in contexts.values() if context]
        span = self._batch("claim", len(claim.items), links, age)
        for spans in traced:
            spans.claim = span

    def _context(self, metadata: str) -> SpanContext | None:
        try:
            return self._tracing.context(values_of(metadata).get(TRACE_KEY))
        except (ValueError, RecursionError):  # raised for metadata that can't be read
            return None

    def _batch(
        self, name: str, number: int, links: Sequence[SpanContext], age: float, error: str = ""
    ) -> SpanContext | None:
        """Make the span of a batch; return its context."""
        values: Attributes = {
            "messaging.consumer.group.name": self._worker,
            "messaging.batch.message_count": number,
        }
        span = self._tracing.begin(name, values, links=links, age=age)
        if not span:
            return None
        self._tracing.end(span, error=error)
        return span.get_span_context()

    def concluded(self, outcome: Outcome, spans: RowSpans) -> None:
        """Make the span of an attempt. One that never began has none."""
        if outcome.event in NOT_BEGUN_EVENTS:
            return
        error = ""
        if outcome.event is not Event.DELIVERED:
            error = outcome.answer_class or outcome.event.value
        span = self._tracing.begin(
            "deliver",
            _attributes(outcome, spans.size),
            spans.mail,
            [spans.claim] if spans.claim else [],
            (outcome.ended - outcome.started).total_seconds(),
        )
        if span:
            spans.last = span.get_span_context()
            self._tracing.end(span, error=error)

    def settled(self, batch: Sequence[Outcome], age: float, error: Exception | None = None) -> None:
        """Make the span of a batch of outcomes that PostgreSQL has, or has refused."""
        if links := [outcome.item.spans.last for outcome in batch if outcome.item.spans]:
            self._batch("settle", len(batch), links, age, type(error).__name__ if error else "")


def _attributes(outcome: Outcome, size: int) -> Attributes:
    """Return the attributes of an attempt: no address of a mailbox, and no text of a reply."""
    item, reply, host = outcome.item, outcome.reply, outcome.host
    found: dict[str, str | int] = {
        "messaging.message.id": str(item.message_id),
        "messaging.message.body.size": size,
        "messaging.destination.name": item.domain,
        "pgmta.row.id": item.id,
        "pgmta.attempt": item.attempts,
        "pgmta.outcome": outcome.event.value,
    }
    if host:
        name = without_port(host)
        port = host[len(name) + 1 :]
        found["server.address"] = name.strip("[]")
        if port.isdecimal():
            found["server.port"] = int(port)
    if reply.code:
        found["pgmta.reply.code"] = reply.code
    if reply.enhanced:
        found["pgmta.reply.enhanced"] = reply.enhanced
    if outcome.answer_class:
        found["pgmta.answer.class"] = outcome.answer_class
    return found
