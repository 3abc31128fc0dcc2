"""Suspensions by conditions that take too long: mail goes on, and the suspension is named."""

from __future__ import annotations

import psycopg
import pytest
from structlog.testing import capture_logs

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.store.queue.claim import SESSION
from pgmta.store.queue.costly import CostlyConditions
from pgmta_features.suspensions.store import SuspensionTable
from tests.pgmta.store.queue.test_costly import COSTLY, WAITING, costly, mail
from tests.support.queuectl import Command
from tests.support.rows import column, fetch

__all__ = ["costly"]


@pytest.mark.slow
async def test_a_suspension_that_takes_too_long_is_set_aside(
    db: psycopg.Connection, costly: CostlyConditions, database: str, command: Command
) -> None:
    rows = mail(db)
    (slow,) = fetch(db, "SELECT queue_suspend('condition', %s, 'r')", COSTLY)
    (good,) = fetch(db, "SELECT queue_suspend('condition', 'domain = ''held.example''', 'r')")
    db.execute("UPDATE queue SET suspension = %s WHERE id = %s", [slow, rows[0]])
    link = Link(database, "test")
    table = SuspensionTable(link, costly=costly)
    version = await table.version()
    with capture_logs() as logs:
        assert await table.under(rows) == {rows[-1]: good}
    assert [log["suspension"] for log in logs] == [slow]
    assert await table.version() > version  # each process reads them again
    assert [each.id for each in await table.active()] == [good]
    assert (await table.look()).ended == [slow]  # what it has put off comes back
    assert f"suspension {slow} is set aside" in command("suspend", "--list").stderr
    await link.close()


@pytest.mark.slow
async def test_conditions_of_suspensions_that_take_too_long_together_are_set_aside(
    db: psycopg.Connection, database: str
) -> None:
    """No one of them does, with 0.3 s each. Those that cost the most go."""
    *free, held = mail(db)
    db.execute(WAITING)
    link = Link(database, "conditions", SESSION | {"statement_timeout": "1500ms"})
    costly = CostlyConditions(link)
    table = SuspensionTable(link, costly=costly)
    for number in range(9):
        condition = f"ceil(attempts) > {number}" + " OR ceil(attempts + 1) > 4" * (number == 4)
        fetch(db, "SELECT queue_suspend('condition', %s, 'r')", condition)
    fetch(db, "SELECT queue_suspend('condition', %s, 'r')", "domain = 'held.example'")
    assert list(await table.under([*free, held])) == [held]
    counting = column(db, "SELECT count(*) FILTER (WHERE slow_at IS NULL) FROM suspensions")
    assert counting[0] < 5  # what is left takes 1 s at most
    await link.close()


async def test_nothing_is_set_aside_while_the_server_does_not_answer(
    db: psycopg.Connection, costly: CostlyConditions, database: str
) -> None:
    rows = mail(db)
    fetch(db, "SELECT queue_suspend('condition', 'domain = ''held.example''', 'r')")
    table = SuspensionTable(costly.link, costly=costly)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE queue IN ACCESS EXCLUSIVE MODE")
        with pytest.raises((StoreUnavailable, psycopg.errors.LockNotAvailable)):
            await table.under(rows)
        other.rollback()
    assert column(db, "SELECT count(*) FROM suspensions WHERE slow_at IS NOT NULL") == [0]
