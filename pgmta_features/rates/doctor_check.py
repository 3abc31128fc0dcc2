"""The check of `queuectl doctor`: rates that lose many of their times."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pgmta.store.admin.examination import Examination
from pgmta.store.queries import feature_queries
from queued.cli.doctor.diagnosis import Check, Diagnosis, warning

from .rate import LOST

_MIN_LOST_SHARE = 0.1  # of the times of a rate
_REMEDIES = {
    "database": "bring workers nearer to PostgreSQL, give it a faster disk; see docs/mail/rates.md",
    "host": "give the hosts of queued more processors, or run fewer programs beside it",
    "next hop": "raise delivery.connections or lower the rate, if the next hop agrees",
}


async def checks(examination: Examination) -> dict[str, Check]:
    """Return the check by its name."""

    async def rates() -> AsyncIterator[Diagnosis]:
        statement = feature_queries("rates")["lost_times"]
        for row in await examination.run(statement, least=_MIN_LOST_SHARE):
            yield warning(
                "rates",
                f"{row['key']} loses {row['share']:.0%} of its times: {LOST[row['why']]}",
                _REMEDIES[row["why"]],
            )

    return {"rates": rates}
