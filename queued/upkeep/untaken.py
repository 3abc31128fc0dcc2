"""Warns of rows that wait for a worker which does not run."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.store.workers import Registry

EVERY = 60.0  # seconds
FIRST = 5.0  # seconds after the start: workers are often started together

log = get("upkeep")


async def warn_of_untaken(registry: Registry) -> None:
    """Say that rows have been due for a minute and no worker takes them."""
    rows = await registry.untaken()
    if rows:
        (message, priority), number = rows[0], len(rows)
        log.warning(
            "no worker takes rows that are due: see queuectl workers",
            rows_at_least=number,
            message=message,
            priority=priority,
        )
