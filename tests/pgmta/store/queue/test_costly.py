"""Conditions that take too long: mail goes on, and the condition is named."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
from structlog.testing import capture_logs

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.store.admin.workers import Registry
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.costly import CostlyConditions
from queued.upkeep.requests import apply_rules
from tests.pgmta.store.queue.test_faults import rule
from tests.support.queuectl import Command
from tests.support.rows import column, message, row

COSTLY = "factorial(20000 + attempts) > id"
"""Takes about 0.6 s a row."""


WAITING = """
CREATE FUNCTION public.ceil(integer) RETURNS double precision STABLE LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(0.03); RETURN 0; END $$
"""
"""It fits better than that of PostgreSQL, as the owner's functions may."""


def mail(db: psycopg.Connection) -> list[int]:
    """Rows that are due, the last of which a good condition takes."""
    message(db, 1)
    return [row(db, 1, domain=f"{name}.example", due=-60) for name in ("free",) * 9 + ("held",)]


@pytest.fixture
async def costly(database: str) -> AsyncIterator[CostlyConditions]:
    """Shorter limits than those of queued."""
    link = Link(database, "test", SESSION | {"statement_timeout": "1s", "lock_timeout": "500ms"})
    yield CostlyConditions(link)
    await link.close()


@pytest.mark.slow
async def test_a_rule_that_takes_too_long_is_set_aside(
    db: psycopg.Connection, costly: CostlyConditions, command: Command
) -> None:
    *free, _ = mail(db)
    rule(db, "slow", COSTLY)
    rule(db, "good", "domain = 'held.example'")
    claims = Claims(costly.link, "w@h", 60, costly=costly)
    with capture_logs() as logs:
        claimed = [item.id for item in (await claims.claim(100, [])).items]
    assert sorted(claimed) == free
    assert [(log["event"], log["condition"]) for log in logs] == [
        ("a standing rule is set aside: its condition takes too long", "rule slow")
    ]
    aside = "SELECT name FROM rules WHERE slow_at IS NOT NULL"
    assert column(db, aside) == ["slow"]
    assert "rule slow is set aside" in command("rule", "list").stderr
    assert command("workers").exit_code == 0
    db.execute("UPDATE rules SET condition = 'false' WHERE name = 'slow'")
    assert column(db, aside) == []


@pytest.mark.slow
async def test_the_others_are_applied_when_a_rule_takes_too_long(
    db: psycopg.Connection, costly: CostlyConditions
) -> None:
    *_, held = mail(db)
    rule(db, "a slow one", COSTLY)
    rule(db, "good", "domain = 'held.example'")
    changes, registry = WorkerChanges(costly.link), Registry(costly.link, "h:1", costly.link)
    await apply_rules(changes, registry, costly)
    assert column(db, "SELECT id FROM queue WHERE status = 'HOLD'") == [held]
    assert column(db, "SELECT name FROM rules WHERE slow_at IS NOT NULL") == ["a slow one"]


@pytest.mark.slow
async def test_conditions_that_take_too_long_together_are_set_aside(
    db: psycopg.Connection, database: str
) -> None:
    """No one of them does, with 0.3 s each. Those that cost the most go."""
    *free, _ = mail(db)
    db.execute(WAITING)
    link = Link(database, "conditions", SESSION | {"statement_timeout": "1500ms"})
    costly = CostlyConditions(link)
    for number in range(9):
        condition = f"ceil(attempts) > {number}" + " OR ceil(attempts + 1) > 4" * (number == 4)
        rule(db, f"mid {number}", condition)
    rule(db, "good", "domain = 'held.example'")
    claiming = Link(database, "claims", SESSION | {"statement_timeout": "2s"})
    found = (await Claims(claiming, "w@h", 60, costly=costly).claim(100, [])).items
    assert sorted(item.id for item in found) == free
    counting = column(db, "SELECT count(*) FILTER (WHERE slow_at IS NULL) FROM rules")
    assert counting[0] < 5  # what is left takes 1 s at most
    assert column(db, "SELECT slow_at FROM rules WHERE name = 'mid 4'") != [None]
    assert column(db, "SELECT slow_at FROM rules WHERE name = 'good'") == [None]
    await claiming.close()
    await link.close()


@pytest.mark.slow
async def test_a_claim_that_may_take_any_time_is_only_one(
    db: psycopg.Connection, costly: CostlyConditions
) -> None:
    rows = mail(db)
    claims = Claims(costly.link, "w@h", 60, costly=costly)
    await claims.claim(0, [])  # learns that there are no rules
    limit = "SELECT current_setting('statement_timeout')"
    # what makes the claim slow is no condition
    db.execute("""
        CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE UPDATE ON queue FOR EACH ROW EXECUTE FUNCTION public.slow();
    """)
    with pytest.raises(StoreUnavailable):
        await claims.claim(100, [])
    assert len((await claims.claim(100, [])).items) == len(rows)
    assert await costly.link.run(limit.encode()) == [("1s",)]
    db.execute("DROP TRIGGER slow ON queue")
    new = [row(db, 1, due=-60) for _ in rows]
    rule(db, "worst", COSTLY)
    assert sorted(item.id for item in (await claims.claim(100, [])).items) == new
    assert column(db, "SELECT name FROM rules WHERE slow_at IS NOT NULL") == ["worst"]


async def test_nothing_is_set_aside_while_the_server_does_not_answer(
    db: psycopg.Connection, costly: CostlyConditions, database: str
) -> None:
    mail(db)
    rule(db, "good", "domain = 'held.example'")
    claims = Claims(costly.link, "w@h", 60, costly=costly)
    await claims.claim(0, [])
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE queue IN ACCESS EXCLUSIVE MODE")
        with pytest.raises((StoreUnavailable, psycopg.errors.LockNotAvailable)):
            await claims.claim(100, [])
        other.rollback()
    assert column(db, "SELECT count(*) FROM rules WHERE slow_at IS NOT NULL") == [0]
