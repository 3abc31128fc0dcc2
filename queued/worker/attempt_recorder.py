"""Records beside the outcome of an attempt: its transcript, and its line in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pgmta.logs import get
from pgmta.model import Outcome
from pgmta.states import NOT_BEGUN_EVENTS, Event
from pgmta.store.records.traces import Trace, Traces
from queued.delivery.transport.result import Result
from queued.delivery.transport.transcript import Said, transcript

log = get("attempt")

_FAILURES = (Event.DEFER, Event.FAIL, Event.UNKNOWN)
# the first of codes (RFC 3463); other events have 4
_CLASS_DIGITS = {Event.DELIVERED: 2, Event.FAIL: 5}


class AttemptRecorder:
    """Keeps the transcript of an attempt that failed or that a trace asks for.

    With `lines` each attempt has a line in the log. The recorder sees failures; while it is `on`,
    it sees all attempts.
    """

    def __init__(self, *, lines: bool = False) -> None:
        self.on = lines
        """Whether it has to see deliveries too."""
        self._lines = lines
        self._traces: Sequence[Trace] = ()
        self._said: Said | None = None  # the last dialogue, which further rows may share
        self._text = ""

    def set_traces(self, traces: Sequence[Trace]) -> None:
        """Use these traces from now on."""
        self._traces = traces
        self.on = self._lines or bool(traces)

    def see(self, outcome: Outcome, result: Result) -> None:
        """Give the outcome its transcript, and log the attempt. One that never began is none.

        But the log has a row that ends for a suppressed recipient.

        It raises nothing: the outcome counts more.
        """
        item = outcome.item
        if outcome.event is Event.SUPPRESS and self._lines:
            why = outcome.reply.text
            log.info("suppressed", message=item.message_id, row=item.id, to=item.recipient, why=why)
        if outcome.event in NOT_BEGUN_EVENTS:
            return
        try:
            if self._traces:
                outcome.traces = tuple(trace.id for trace in self._traces if trace.matches(item))
            if result.said and (outcome.traces or outcome.event in _FAILURES):
                if result.said is not self._said:
                    self._said, self._text = result.said, transcript(result.said)
                outcome.dialogue = self._text
            if self._lines:
                log.info("attempt", **_line(outcome))
        except Exception as error:
            log.error("no transcript", row=item.id, exc_info=error)


def _line(outcome: Outcome) -> dict[str, Any]:
    """Return what the log has about an attempt. All delays are in seconds."""
    item, reply, facts = outcome.item, outcome.reply, outcome.facts
    fields: dict[str, Any] = {
        "message": item.message_id,
        "row": item.id,
        "from": item.sender,
        "to": item.recipient,
        "relay": outcome.host,
        "delay": round((outcome.ended - item.ts).total_seconds(), 3),
        "delay_queue": round((outcome.started - item.ts).total_seconds(), 3),
    }
    if facts:
        fields |= {
            "address": facts.address,
            "delay_dns": round(facts.dns_seconds, 3),
            "delay_connect": round(facts.connect_seconds + facts.greeting_seconds, 3),
            "delay_tls": round(facts.tls_seconds, 3),
        }
        if facts.tls_version:
            fields["tls"] = f"{facts.tls_version} {facts.tls_cipher} {facts.tls_verified}"
    if outcome.answer_class:
        fields["class"] = outcome.answer_class
    return fields | {
        "delay_transaction": round(outcome.seconds, 3),
        "dsn": reply.enhanced or f"{_CLASS_DIGITS.get(outcome.event, 4)}.0.0",
        "status": outcome.event.value,
        "reply": str(reply),
    }


trace_log = get("traces")


class TraceWatch:
    """Has the workers use the traces that last: `learn` gets them."""

    def __init__(self, traces: Traces, learn: Sequence[Callable[[Sequence[Trace]], None]]) -> None:
        self._traces = traces
        self._learn = learn
        self._known: set[int] = set()

    async def read_traces(self) -> None:
        """Read the traces. Raises StoreUnavailable, psycopg.Error."""
        traces = await self._traces.active()
        for learn in self._learn:
            learn(traces)
        known = {trace.id for trace in traces}
        if begun := known - self._known:
            trace_log.info("traces begin", traces=sorted(begun))
        if ended := self._known - known:
            trace_log.info("traces end", traces=sorted(ended))
        self._known = known
