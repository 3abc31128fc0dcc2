"""The watch of a process learns domains in one statement, and looks again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest

from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.postgres.notify import listen
from pgmta.postgres.resources import Resources
from pgmta.store.records.suspensions import SuspensionTable
from pgmta.store.schema import Schema
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.transport.destination import Destination
from queued.process import suspension_watch
from queued.process.suspended_mail import reason_of
from queued.process.suspension_watch import SuspensionWatch
from tests.support.rows import column, message, row
from tests.support.waiting import eventually

VERSION = "SELECT version FROM suspensions_version"


def mx(domain: str) -> Destination:
    """The destination of the mail of a domain."""
    return Destination("smtp", SmtpParameters(), domain)


@pytest.fixture
async def watch(database: str) -> AsyncIterator[SuspensionWatch]:
    link = Link(database, "test")
    schema = cast(Schema, SimpleNamespace(require=lambda: None))
    yield SuspensionWatch(SuspensionTable(link), schema)
    await link.close()


async def test_learnt_domains_are_one_change_after_the_look(
    watch: SuspensionWatch, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("SELECT queue_suspend('mx', 'mx.bad.example', 'down')")
    (before,) = column(db, VERSION)
    for number in range(50):
        watch.was_closed(mx(f"d{number}.example"), reason_of(1))
    watch.was_closed(mx("gone.example"), reason_of(9))  # its suspension has ended

    async def learn(*_: object) -> None:
        raise psycopg.errors.InsufficientPrivilege

    with monkeypatch.context() as patch:
        patch.setattr(SuspensionTable, "learn", learn)
        with pytest.raises(psycopg.Error):
            await watch.get_ready()
    assert watch.version == before  # the suspensions are known nevertheless
    assert watch.mail.active
    for _ in range(3):
        await watch._look()
    assert column(db, "SELECT count(*) FROM suspension_domains") == [50]
    assert column(db, VERSION) == [before + 1]
    assert watch.version == before + 1


async def test_a_condition_that_could_not_be_looked_at_is_looked_at_again(
    watch: SuspensionWatch, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = row(db, message(db, 1), tenant="bad")
    db.execute("SELECT queue_suspend('condition', 'tenant = ''bad''', 'down')")
    item = Item(number, 1, "", "", "", 0, datetime.now(UTC), 0)
    watch.leased.append({number: item})

    async def under(*_: object) -> None:
        raise psycopg.errors.ProgramLimitExceeded

    with monkeypatch.context() as patch:
        patch.setattr(SuspensionTable, "under", under)
        await watch._look()
        assert [item.reason_to_wait] == [None]
    await watch._look()
    assert item.reason_to_wait == reason_of(1)
    with monkeypatch.context() as patch:
        patch.setattr(SuspensionTable, "under", under)
        await watch.look_at([fresh := replace(item, reason_to_wait=None)])
    watch.leased.append({number: fresh})
    await watch._look()
    assert fresh.reason_to_wait == reason_of(1)


async def test_notifications_tell_of_changes_and_a_lost_connection_costs_none(
    watch: SuspensionWatch,
    database: str,
    db: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suspension_watch, "_SELDOM", 3600.0)
    watch.leased.append({})
    db.autocommit = True
    work = [
        asyncio.create_task(watch.run()),
        asyncio.create_task(listen(Resources(database, "queued"), [lambda: 3600.0], watch.news)),
    ]
    await eventually(lambda: watch.version and watch.news.heard)
    db.execute("SELECT queue_suspend('domain', 'one.example', 'down')")
    await eventually(lambda: "one.example" in watch.mail._by.get("domain", {}))

    # the worker has no turn, so the connection waits without LISTEN for mail; and it ends
    with db.transaction():
        db.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE application_name = 'pgmta queued listen' AND datname = current_database()"
        )
        db.execute("SELECT queue_suspend('domain', 'two.example', 'down')")
    await eventually(lambda: "two.example" in watch.mail._by.get("domain", {}))
    for task in work:
        task.cancel()
    await asyncio.wait(work)
