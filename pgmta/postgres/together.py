"""Several statements in one transaction and one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.postgres import faults
from pgmta.postgres.link import Link


async def run_together(
    link: Link, statements: Sequence[tuple[bytes, dict[str, Any]]], *, tries: int = 10
) -> list[list[tuple[Any, ...]]]:
    """Run the statements in order, all or none, and return the rows of each.

    All of them go out before the first answer is read. Without BEGIN they are one transaction,
    which ends with the last one, so it waits for no network. A transaction that lost a race runs
    again, up to `tries` times in all. Raises as `Link.run` does.
    """
    for chance in range(tries):
        try:
            async with link.use() as connection:
                cursors = [connection.cursor(binary=True) for _ in statements]
                async with connection.pipeline():
                    for cursor, (query, params) in zip(cursors, statements, strict=True):
                        await cursor.execute(query, params, prepare=True)
                return [await c.fetchall() if c.description else [] for c in cursors]
        except psycopg.Error as error:
            if not (faults.lost_race(error) or (faults.stale(error) and not chance)):
                raise
            await asyncio.sleep(0.005 * chance)
    raise StoreUnavailable(f"a transaction lost {tries} races in a row")
