"""Spans of OpenTelemetry on the way of a mail; docs/programs/traces.md has their attributes.

pgmta uses the API of OpenTelemetry, and only if the program has set a tracer provider. Otherwise
`tracing` returns None, and pgmta imports nothing of OpenTelemetry.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import time_ns
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

TRACE_KEY = "_trace"
"""The key in the metadata of a row: its trace context, in the form of a `traceparent`."""

type Attributes = Mapping[str, str | int]

# W3C Trace Context, section 3.2; the last group has the flags
_TRACEPARENT = re.compile(
    r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII
)
_SAMPLED_FLAG = 1
# operation type and span kind, by the semantic conventions of OpenTelemetry for messaging
_OPERATIONS = {
    "submit": ("send", "PRODUCER"),
    "accept": ("send", "SERVER"),
    "claim": ("receive", "CLIENT"),
    "deliver": ("process", "CONSUMER"),
    "settle": ("settle", "CLIENT"),
}

_NO_ATTRIBUTES: Attributes = MappingProxyType({})

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RowSpans:
    """The values that spans of a leased row need, if the trace of its mail is recorded.

    `mail` is the trace context that came with the mail. `claim` is that of the claim, None if the
    claim is not recorded. `last` is that of the last span. `size` are the octets of the message.
    """

    mail: SpanContext
    claim: SpanContext | None
    last: SpanContext
    size: int


def recorded(value: object) -> bool | None:
    """Return whether the trace of a trace context is recorded, None for another value."""
    match = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    return bool(int(match[3], 16) & _SAMPLED_FLAG) if match else None


class Tracing:
    """Makes spans. No method raises an error of OpenTelemetry, because the mail counts more.

    A span that is not recorded is None.
    """

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import context, trace

        self._tracer = tracer
        self._trace = trace
        self._root = context.Context()

    def context(self, value: object) -> SpanContext | None:
        """Return a trace context that is recorded; None for another value."""
        if not (isinstance(value, str) and recorded(value)):
            return None
        _, trace, span, flags = value.split("-")
        found = self._trace.TraceFlags(int(flags, 16))
        return self._trace.SpanContext(int(trace, 16), int(span, 16), True, found)

    def submit(self) -> Span | None:
        """Begin the span of a call that submits mail. Its parent is the program's current span."""
        return self._begin("submit", _NO_ATTRIBUTES)

    def begin(
        self,
        name: str,
        attributes: Attributes,
        parent: SpanContext | None = None,
        links: Iterable[SpanContext] = (),
        age: float = 0.0,
    ) -> Span | None:
        """Begin a span that began `age` seconds ago. Without a parent it begins a trace."""
        return self._begin(name, attributes, parent, links, age, self._root)

    def _begin(
        self,
        name: str,
        attributes: Attributes,
        parent: SpanContext | None = None,
        links: Iterable[SpanContext] = (),
        age: float = 0.0,
        context: Context | None = None,
    ) -> Span | None:
        kind, trace = _OPERATIONS[name], self._trace
        fixed = {
            "messaging.system": "pgmta",
            "messaging.operation.name": name,
            "messaging.operation.type": kind[0],
        }
        try:
            if parent:
                above = trace.NonRecordingSpan(parent)
                context = trace.set_span_in_context(above, context)
            span = self._tracer.start_span(
                name,
                context,
                trace.SpanKind[kind[1]],
                {**fixed, **attributes},
                [trace.Link(each) for each in links],
                time_ns() - int(age * 1e9),
            )
            return span if span.is_recording() else None
        except Exception:
            log.exception("no span")
            return None

    def end(self, span: Span, attributes: Attributes = _NO_ATTRIBUTES, *, error: str = "") -> None:
        """End a span, of something that failed if there is an error: a class or type of errors."""
        try:
            for name, value in attributes.items():
                span.set_attribute(name, value)
            if error:
                span.set_attribute("error.type", error)
                span.set_status(self._trace.StatusCode.ERROR)
            span.end()
        except Exception:
            log.exception("no span")


def traceparent(span: Span | None) -> str:
    """Return the trace context that goes on with a mail, '' if its trace is not recorded."""
    context = span.get_span_context() if span else None
    if not context or not context.trace_flags & _SAMPLED_FLAG:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


_known: list[Tracing | None] = []  # filled when a provider is set, which happens once


def tracing() -> Tracing | None:
    """Return the part that makes spans; None as long as the program has no tracer provider."""
    if _known:
        return _known[0]
    # a program that has set a provider has imported it
    trace = sys.modules.get("opentelemetry.trace")
    if not trace:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    from importlib.metadata import version  # here, because it takes longer to import than all else

    tracer = provider.get_tracer("pgmta", version("pgmta"))
    off = isinstance(tracer, trace.NoOpTracer)  # for example with OTEL_SDK_DISABLED
    _known.append(None if off else Tracing(tracer))
    return _known[0]


class SubmitSpan:
    """The span of one call that submits mail, from its beginning to the end of a `with`.

    Without `tracing` there is none.
    """

    __slots__ = ("_open", "_span", "_tracing", "_values", "traceparent")

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing
        self._span = tracing.submit() if tracing else None
        self.traceparent = traceparent(self._span)
        """The trace context for the mail, or ''."""
        self._values: dict[str, str | int] = {}
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave, self._open = self._open and not kind, False
        if self._span and self._tracing and not leave:
            failed = kind.__name__ if kind else str(self._values.pop("error.type", ""))
            self._tracing.end(self._span, self._values, error=failed)

    def leave_open(self) -> Self:
        """Let the end of this `with` pass: another one follows."""
        self._open = True
        return self

    def sent(self, number: int) -> int:
        """Note the message id of the mail, and return it."""
        if self._span:
            self._values["messaging.message.id"] = str(number)
        return number

    def sent_many(self, errors: Iterable[Exception | None]) -> None:
        """Note the error of each mail, None if it was stored."""
        if self._span:
            kinds = [type(error).__name__ if error else "" for error in errors]
            self._values["messaging.batch.message_count"] = len(kinds)
            if refused := [kind for kind in kinds if kind]:
                self._values |= {"pgmta.refused": len(refused), "error.type": refused[0]}


_OFF = SubmitSpan(None)


def submit_span() -> SubmitSpan:
    """Begin the span of a call that submits mail, if OpenTelemetry is on."""
    found = tracing()
    return SubmitSpan(found) if found else _OFF
