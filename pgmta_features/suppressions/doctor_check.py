"""The check of `queuectl doctor`: suppressions that jump."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pgmta.store.admin.examination import Examination
from pgmta.store.queries import feature_queries
from queued.cli.doctor.diagnosis import Check, Diagnosis, warning

_MIN_ADDED = 100  # within the last hour
_MIN_RATIO = 10  # to the usual hour


async def checks(examination: Examination) -> dict[str, Check]:
    """Return the check by its name."""

    async def suppressions() -> AsyncIterator[Diagnosis]:
        statement = feature_queries("suppressions")["jumps"]
        for row in await examination.run(statement, least=_MIN_ADDED, ratio=_MIN_RATIO):
            tenant = f"tenant {row['tenant']}" if row["tenant"] else "mail without a tenant"
            yield warning(
                "suppressions",
                f"{row['added']:,} addresses were suppressed as {row['reason']} within the last "
                f"hour, and {row['usual']:,.0f} in a usual one; most for {tenant}",
                "`queuectl suppression list --reason "
                f"{row['reason']}` has the mail that they are about: see "
                "docs/programs/suppressions.md",
            )

    return {"suppressions": suppressions}
