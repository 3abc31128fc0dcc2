"""The check of `queuectl doctor`: endpoints that get no events, or refuse some."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pgmta.command import age
from pgmta.store.admin.examination import Examination
from pgmta.store.queries import feature_queries
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, warning

_MIN_FAILING_S, _MIN_FAILURES = 60.0, 3  # fewer and shorter failures pass by themselves
_MIN_LAG_S = 600.0
_REMEDY = "`queuectl webhook test {name}` shows what it answers; see docs/programs/webhooks.md"


async def checks(examination: Examination) -> dict[str, Check]:
    """Return the check by its name."""

    async def webhooks() -> AsyncIterator[Diagnosis]:
        for row in await examination.run(feature_queries("webhooks")["unwell"]):
            name, reason = row["name"], row["reason"]
            if row["state"] == "suspended":
                yield error(
                    "webhooks",
                    f"webhook {name} is suspended: {reason}",
                    f"mend the endpoint, and `queuectl webhook enable {name}` posts all since then",
                )
            elif row["unsubscribed"]:
                yield error(
                    "webhooks",
                    f"webhook {name} gets no events: its subscription is missing",
                    "as an operator: `SELECT pgmta.events_subscribe('webhooks', 'webhook')`",
                )
            elif row["unposted"]:
                yield warning(
                    "webhooks",
                    f"no queued posts for webhook {name}",
                    "start queued: it posts the events",
                )
            elif row["failures"] >= _MIN_FAILURES or (row["seconds"] or 0) >= _MIN_FAILING_S:
                yield warning(
                    "webhooks",
                    f"webhook {name} has failed for {age(row['seconds'] or 0)}: {reason}",
                    _REMEDY.format(name=name),
                )
            elif row["lag"] and row["lag"] >= _MIN_LAG_S:
                yield warning(
                    "webhooks",
                    f"webhook {name} is {age(row['lag'])} behind",
                    "raise its batch by `queuectl webhook set`, or make its answers faster",
                )
            if row["set_aside"]:
                yield warning(
                    "webhooks",
                    f"webhook {name} has refused {row['set_aside']:,} events, which were set aside",
                    f"`queuectl webhook show {name}` has the reasons, and `queuectl webhook replay "
                    f"{name} --set-aside` posts them again",
                )

    return {"webhooks": webhooks}
