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
from pgmta.store.schema import Schema
from pgmta_features.suspensions.store import SuspensionTable
from pgmta_features.suspensions.suspended_mail import reason_of
from pgmta_features.suspensions.watch import SuspensionWatch
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.transport.destination import Destination
from queued.process import orders as orders_module
from queued.process.orders import Orders
from tests.support.rows import column, message, row
from tests.support.waiting import eventually

VERSION = "SELECT version FROM suspensions_version"


def mx(domain: str) -> Destination:
    """The destination of the mail of a domain."""
    return Destination("smtp", SmtpParameters(), domain)


class Watched:
    """A watch as a process has it, and the rows that the process has leased."""

    def __init__(self, uri: str) -> None:
        self.link = Link(uri, "test")
        schema = cast(Schema, SimpleNamespace(require=lambda: None))
        self.orders = Orders(self.link, schema)
        self.leased: list[Item] = []
        self.watch = SuspensionWatch(
            SuspensionTable(self.link), schema, lambda: self.leased, self.orders.news.came.set
        )
        self.orders.add_reader("suspensions", self.watch.read)


@pytest.fixture
async def watched(database: str) -> AsyncIterator[Watched]:
    made = Watched(database)
    yield made
    await made.link.close()


@pytest.fixture
def watch(watched: Watched) -> SuspensionWatch:
    return watched.watch


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
        await watch.read()
    assert column(db, "SELECT count(*) FROM suspension_domains") == [50]
    assert column(db, VERSION) == [before + 1]
    assert watch.version == before + 1


async def test_rows_wait_while_a_condition_can_not_be_looked_at(
    watched: Watched, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watched.watch
    number = row(db, message(db, 1), tenant="bad")
    db.execute("SELECT queue_suspend('condition', 'tenant = ''bad''', 'down')")
    item = Item(number, 1, "", "", "", 0, datetime.now(UTC), 0)
    watched.leased.append(item)

    async def under(*_: object) -> None:
        raise psycopg.errors.ProgramLimitExceeded

    with monkeypatch.context() as patch:
        patch.setattr(SuspensionTable, "under", under)
        with pytest.raises(psycopg.Error):
            await watch.read()
        assert not watch.ready
    await watch.read()
    assert item.reason_to_wait == reason_of(1)
    watched.leased.clear()
    with monkeypatch.context() as patch:
        patch.setattr(SuspensionTable, "under", under)
        with pytest.raises(psycopg.Error):
            await watch.look_at([fresh := replace(item, reason_to_wait=None)])
        assert not watch.ready
        with pytest.raises(psycopg.Error):  # also while no row is leased
            await watch.get_ready()
    await watch.get_ready()
    await watch.look_at([fresh])
    assert fresh.reason_to_wait == reason_of(1)


async def test_notifications_tell_of_changes_and_a_lost_connection_costs_none(
    watched: Watched,
    database: str,
    db: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders_module, "HEARD_S", 3600.0)
    watch, news = watched.watch, watched.orders.news
    db.autocommit = True
    work = [
        asyncio.create_task(watched.orders.run()),
        asyncio.create_task(listen(Resources(database, "queued"), [lambda: 3600.0], news)),
    ]
    await eventually(lambda: watch.version and news.heard)
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
