"""The check of `queuectl doctor`: keys that expire soon, and an API that nobody can use."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pgmta.command import instant
from pgmta.store.admin.examination import Examination
from pgmta.store.queries import feature_queries
from queued.cli.doctor.diagnosis import Check, Diagnosis, warning

_NOTICE_DAYS = 14

_SQL = feature_queries("http_api")


async def checks(examination: Examination) -> dict[str, Check]:
    """Return the check by its name."""

    async def keys() -> AsyncIterator[Diagnosis]:
        for row in await examination.run(_SQL["expiring"], days=_NOTICE_DAYS):
            yield warning(
                "API keys",
                f"the key {row['name']} of the HTTP API expires at {instant(row['expires_at'])}",
                f"`queuectl apikey set {row['name']} --expires TIME` gives it more time",
            )
        for row in await examination.run(_SQL["unused_api"]):
            if row["unused"]:
                yield warning(
                    "API keys",
                    "the HTTP API runs, and there is no key that holds",
                    "`queuectl apikey new` makes one, or stop the API",
                )

    return {"API keys": keys}
