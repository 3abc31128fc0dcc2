"""The check of `queuectl doctor`: events without a number, and subscriptions that nobody reads."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pgmta.command import age, ago
from pgmta.store.admin.examination import Examination
from pgmta.store.queries import feature_queries
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, warning

_MAX_UNNUMBERED_S = 10.0
_MAX_UNTAKEN_S = 60.0  # by a function, whose calls take 10 s at most
_MIN_QUIET_S = 600.0  # without trouble, after which a table is sound
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
                f"subscription {row['name']} was last read {ago(row['seconds'])}",
                f"have its program read on before its events expire, or end it: "
                f"`queuectl events unsubscribe {row['name']}`",
            )
        failing = set()
        for row in await examination.run(_SQL["failing"], age=_MAX_UNNUMBERED_S):
            number = row["events"]
            many = "an event waits" if number == 1 else f"{number or 0:,} events wait"
            waits = f", and {many} for it" if number else ""
            what = f"event {row['first']}" if row["first"] else "its events"
            yield warning(
                "events",
                f"the {row['kind']} {row['name']} has failed with {what} for "
                f"{age(row['seconds'])}{waits}: {row['error']}",
                "mend it, and queued tries again, at once after "
                f"`queuectl events {row['kind']} {row['name']}`",
            )
            failing.add(row["name"])
        for row in await examination.run(_SQL["standing"], age=_MAX_UNTAKEN_S):
            if row["name"] not in failing:
                yield warning(
                    "events",
                    f"the function {row['name']} has not taken an event of {ago(row['seconds'])}",
                    "if queued runs, the function is too slow, or its call does not end: "
                    "pg_stat_activity has it as `pgmta queued event function`",
                )
        for row in await examination.run(_SQL["refusing"], age=_MIN_QUIET_S):
            if row["name"] not in failing:
                yield warning(
                    "events",
                    f"the table {row['name']} got events later than their outcome, the last "
                    f"{ago(row['seconds'])}: {row['error']}",
                    "mend that, if it is not mended yet: who locks it, what makes it slow, or what "
                    "was changed; this warning ends 10 minutes after the last late event",
                )
        for row in await examination.run(_SQL["missing_days"]):
            yield warning(
                "events",
                f"{row['log']} has no partition for tomorrow",
                "start queued, which makes them ahead, or read its log if it runs",
            )

    return {"events": events}
