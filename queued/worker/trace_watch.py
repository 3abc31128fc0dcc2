"""The traces of operators, read with each heartbeat."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.store.traces import Traces
from queued.worker.observer import Observer

log = get("traces")


class TraceWatch:
    """Has the observer of the workers use the traces that last."""

    def __init__(self, traces: Traces, observer: Observer) -> None:
        self._traces = traces
        self._observer = observer
        self._known: set[int] = set()

    async def look(self) -> None:
        """Read the traces. Raises StoreUnavailable, psycopg.Error."""
        traces = await self._traces.active()
        self._observer.learn(traces)
        known = {trace.id for trace in traces}
        if begun := known - self._known:
            log.info("traces begin", traces=sorted(begun))
        if ended := self._known - known:
            log.info("traces end", traces=sorted(ended))
        self._known = known
