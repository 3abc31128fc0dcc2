"""Events that a table of an application did not take with their outcome are inserted later."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.metrics.series import MoreFigures, Series, Values
from pgmta.store.admin.upkeep import Look
from pgmta.store.queries import feature_queries
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty, Work

log = get("events")

_INTERVAL_S = 1.0
# of its own: a slow table must keep no heartbeat waiting
_SETTINGS = {"statement_timeout": "5s"}
_SQL = feature_queries("events")

RETRIES = Look(_SQL["retries"])
"""Whether events wait for a table."""
_ROWS = "pgmta_queued_event_late_rows_total"
_SERIES = (
    Series(_ROWS, "counter", "Events that a table of an application got after their outcome.",
           ("table",)),
)  # fmt: skip


def _make(process: QueuedProcess) -> Work:
    link = process.resources.link("late event rows", _SETTINGS)
    numbers: dict[tuple[str, ...], float] = {}
    reasons: dict[str, str] = {}

    async def insert() -> None:
        names = [name for (name,) in await link.run(_SQL["late_tables"])]
        while names:
            names = [name for name in names if await insert_some(name)]

    async def insert_some(name: str) -> bool:
        """Return whether there may be more that the table takes at once."""
        process.schema.require()
        ((events, reason, fast),) = await link.run(_SQL["later"], {"name": name})
        numbers[(name,)] = numbers.get((name,), 0.0) + events
        if reason and reasons.get(name) != reason:
            reasons[name] = reason
            log.warning("events are inserted later", table=name, reason=reason)
        return bool(events and fast)

    def values() -> Values:
        return {_ROWS: dict(numbers)}

    process.more_figures.append(MoreFigures(_SERIES, values))
    return insert


DUTY = Duty("late event rows", _INTERVAL_S, _make, in_turn=True, look=RETRIES)
