"""The duty that puts suspended mail off and gives it back, with many domains and a long log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest

from pgmta.errors import DeliveryError
from pgmta.postgres.database_time import DatabaseTime
from pgmta.postgres.link import Link
from pgmta_features.suspensions import duty as suspending
from pgmta_features.suspensions.duty import RowTimes, SuspensionDuty
from pgmta_features.suspensions.store import LOG_SETTINGS, SUSPENDING_SETTINGS, SuspensionTable
from queued.config import QueuedConfig
from queued.process.queued_process import QueuedProcess
from tests.support.rows import column, fetch, message
from tests.support.waiting import SLACK, eventually

FILL = """
INSERT INTO queue (message_id, sender, recipient, domain, sender_domain, suspension, next_attempt)
SELECT 1, 's@a.example', 'r', %s || n %% %s || '.example', 'a.example', %s, now() + %s::interval
FROM generate_series(1, %s) AS n
"""
LEARN = """
INSERT INTO suspension_domains (suspension_id, domain)
SELECT 1, name || n || '.example'
FROM unnest('{bad,none}'::text[]) AS name, generate_series(0, 99) AS n
"""


class Duty:
    """The duty on a database with a suspension of an MX host."""

    def __init__(self, uri: str) -> None:
        self.link = Link(uri, "test", SUSPENDING_SETTINGS)
        self.logged = Link(uri, "test log", LOG_SETTINGS)
        tables = SuspensionTable(self.link), SuspensionTable(self.logged)
        times = RowTimes(
            cast(QueuedProcess, SimpleNamespace(config=QueuedConfig(), clock=DatabaseTime()))
        )
        duty = SuspensionDuty(tables[0], times, "test", tables[1], self._best_hosts)
        self.do_round = duty.do_round
        self.hosts: dict[str, list[str]] = {}
        """The best MX hosts of domains; name servers do not answer for others."""

    async def _best_hosts(self, domain: str) -> list[str]:
        if domain in self.hosts:
            return self.hosts[domain]
        raise DeliveryError("4.4.3 no answer")


@pytest.fixture
async def duty(database: str, db: psycopg.Connection) -> AsyncIterator[Duty]:
    message(db, 1)
    db.execute("SELECT queue_suspend('mx', 'mx.bad.example', 'down')")
    made = Duty(database)
    yield made
    await made.link.close()
    await made.logged.close()


async def test_many_domains_of_a_host_read_only_their_own_rows(
    duty: Duty, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspending, "PAGE_IDS", 70)  # a page ends within a domain
    db.execute(LEARN.encode())
    db.execute(FILL.encode(), ("bad", 100, None, "-1 s", 1000))
    db.execute(FILL.encode(), ("good", 100, None, "-1 s", 20_000))
    db.execute("SELECT pg_stat_reset()")
    await duty.do_round()
    assert column(db, "SELECT count(*) FROM queue WHERE suspension = 1") == [1000]
    assert column(db, "SELECT count(*) FROM suspension_domains WHERE applied_at IS NULL") == [0]
    await duty.link.run("SELECT pg_stat_force_next_flush()")
    read = fetch(
        db,
        "SELECT sum(seq_tup_read)::int, sum(idx_tup_fetch)::int FROM pg_stat_user_tables"
        " WHERE relname LIKE 'queue%'",
    )
    assert read[0] < 3000  # by the test itself
    assert read[1] < 20_000


async def test_a_domain_whose_backup_is_suspended_goes_on(
    duty: Duty, db: psycopg.Connection
) -> None:
    """The log says that the last mail of each went to the host; DNS knows who has a better one."""
    for name in ("first", "backup", "unknown"):
        db.execute(
            "INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code,"
            " event, sender, recipient, domain, worker, host, command, enhanced, reply) VALUES"
            " (now(), 1, 1, 1, 1, 250, 'delivered', '', 'r', %s, '', 'mx.bad.example:25', '', '',"
            " '')", (f"{name}.example",),
        )  # fmt: skip
    duty.hosts = {
        "first.example": ["other.example", "mx.bad.example"],
        "backup.example": ["mx.good.example"],
    }
    await duty.do_round()
    assert column(db, "SELECT domain FROM suspension_domains") == ["first.example"]


@pytest.mark.slow
async def test_rows_come_back_while_the_log_is_read(duty: Duty, db: psycopg.Connection) -> None:
    """Also if it takes too long; then the task is done, and workers learn the domains."""
    db.execute(FILL.encode(), ("bad", 1, 7, "1 day", 10))  # of a suspension that has ended
    with psycopg.connect(duty.link._uri) as other:
        other.execute("LOCK TABLE attempts")
        doing = asyncio.create_task(duty.do_round())
        await eventually(lambda: duty.logged.busy)
        assert column(db, "SELECT count(*) FROM queue WHERE suspension = 7") == [0]
        db.execute(FILL.encode(), ("bad", 1, 8, "1 day", 10))
        back = "SELECT count(*) FROM queue WHERE suspension IS NULL AND next_attempt <= now()"
        await eventually(lambda: column(db, back) == [20], timeout=2 * suspending.EVERY_S + SLACK)
        assert not doing.done()
        db.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                   " WHERE application_name = 'pgmta test log'")  # fmt: skip
        await doing
    assert column(db, "SELECT count(*) FROM suspensions WHERE applied_at IS NULL") == [0]


async def test_tasks_of_an_ended_suspension_stop(
    duty: Duty, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that wait for it come back, though many of its domains are still to be done."""
    db.execute(LEARN.encode())
    db.execute(FILL.encode(), ("bad", 100, None, "-1 s", 1000))
    monkeypatch.setattr(suspending, "PUT_OFF_ROWS", 50)
    real = SuspensionTable.put_off
    calls: list[int] = []

    async def put_off(table: SuspensionTable, *args: object) -> int:
        rows = await real(table, *args)  # type: ignore[arg-type]
        calls.append(rows)
        if len(calls) == 2:
            db.execute("SELECT queue_resume(1)")
        return rows

    monkeypatch.setattr(SuspensionTable, "put_off", put_off)
    await duty.do_round()
    assert calls == [50, 50, 0]
    await duty.do_round()
    assert column(db, "SELECT count(*) FROM queue WHERE suspension IS NOT NULL") == [0]
    assert column(db, "SELECT count(*) FROM queue WHERE next_attempt > now()") == [0]


def test_audit_names_the_role_that_was_set(db: psycopg.Connection) -> None:
    db.execute("SET ROLE pgmta_operator")
    db.execute("SELECT queue_resume(queue_suspend('domain', 'b.example', 'down'))")
    db.execute("RESET ROLE")
    assert column(db, "SELECT DISTINCT who FROM audit") == ["pgmta_operator"]
