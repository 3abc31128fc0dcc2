"""The check of `queuectl doctor`: events without a number, and subscriptions that nobody reads."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pgmta.command import age
from pgmta.store.admin.examination import Examination
from pgmta.store.queries import feature_queries
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, warning

_MAX_UNNUMBERED_S = 10.0
_MAX_UNREAD_S = 3 * 86400.0  # less than events are kept

_SQL = feature_queries("events")


async def checks(examination: Examination) -> dict[str, Check]:
    """Return the check by its name."""

    async def events() -> AsyncIterator[Diagnosis]:
        for row in await examination.run(_SQL["late"], age=_MAX_UNNUMBERED_S):
            yield error(
                "events",
                f"{row['events']:,} events wait for their number, for up to {age(row['seconds'])}: "
                "no reader sees them",
                "start queued, or read its log if it runs",
            )
        for row in await examination.run(_SQL["unread"], age=_MAX_UNREAD_S):
            yield warning(
                "events",
                f"subscription {row['name']} was last read {age(row['seconds'])} ago",
                f"have its program read on before its events expire, or end it: "
                f"`queuectl events unsubscribe {row['name']}`",
            )
        for row in await examination.run(_SQL["failing"], age=_MAX_UNNUMBERED_S):
            number = "its events" if row["events"] is None else f"{row['events']:,} events"
            yield warning(
                "events",
                f"the {row['kind']} {row['name']} fails with {number}, for "
                f"{age(row['seconds'])}: {row['error']}",
                "mend it: `queuectl events list` has the reason, and `queuectl events replay` "
                "repeats what was set aside"
                if row["kind"] == "function"
                else "mend it, and queued inserts them",
            )
        for row in await examination.run(_SQL["missing_days"]):
            yield warning(
                "events",
                f"{row['log']} has no partition for tomorrow",
                "start queued, which makes them ahead, or read its log if it runs",
            )

    return {"events": events}
