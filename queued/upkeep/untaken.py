"""Warns of due rows that no running worker takes."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from pgmta.store.admin.workers import Registry
from queued.upkeep.duty import Duty

log = get("upkeep")


async def _warn_of_untaken(registry: Registry) -> None:
    """Log rows that have been due for a minute and that no worker takes.

    Raises StoreUnavailable, psycopg.Error.
    """
    rows = await registry.untaken()
    if rows:
        (message, priority), number = rows[0], len(rows)
        log.warning(
            "no worker takes rows that are due: see queuectl workers",
            rows_at_least=number,
            message=message,
            priority=priority,
        )


DUTY = Duty(
    "untaken",
    60.0,
    lambda process: partial(_warn_of_untaken, process.registry),
    first=5.0,  # in which other workers may start, too
)
