"""The span of a call that submits mail; without OpenTelemetry it does nothing."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from pgmta.tracing import traceparent, tracing


class SubmitSpan:
    """The span of one call, for a `with` statement; its parent is the program's current span.

    `context` is the trace context for the mails of the call, '' if its trace is not recorded.
    """

    __slots__ = ("_span", "_tracing", "_values", "context")

    def __init__(self) -> None:
        self._tracing = found = tracing()
        self._span = found.submit() if found else None
        self.context = traceparent(self._span) if self._span else ""
        self._values: dict[str, str | int] = {}

    def note_one(self, message_id: int, octets: int) -> None:
        """Note the id of the only mail, and the octets of its values."""
        if self._span:
            self._values = {
                "messaging.message.id": str(message_id),
                "messaging.message.body.size": octets,
            }

    def note_many(self, ids: Iterable[int | None]) -> None:
        """Note how many mails the call had, and how many of them have no id: they are refused."""
        if self._span:
            found = list(ids)
            self._values = {
                "messaging.batch.message_count": len(found), "pgmta.refused": found.count(None)
            }  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tracing and self._span:
            self._tracing.end(self._span, self._values, error=kind.__name__ if kind else "")
