"""Notifications, which wake no backend of a worker whose turn it is not."""

from __future__ import annotations

import asyncio
import os
import signal

import psycopg
import pytest

from pgmta.postgres import link_connection
from pgmta.postgres import notify as listening
from pgmta.postgres.notify import CHANNEL, Notifier, listen
from pgmta.postgres.resources import Resources
from tests.support.waiting import PATIENCE, eventually


async def last(db: psycopg.Connection, statement: str) -> None:
    """Wait until that is the listener's last statement."""
    query = (
        "SELECT query FROM pg_stat_activity WHERE application_name = 'pgmta smtpd listen'"
        " AND datname = current_database()"
    )
    await eventually(lambda: db.execute(query).fetchall() == [(f"{statement} {CHANNEL}",)])


async def test_it_listens_but_in_others_turns(database: str, db: psycopg.Connection) -> None:
    db.autocommit = True
    woken = asyncio.Queue[float]()
    pause = 0.0

    def note() -> float:
        woken.put_nowait(pause)
        return pause

    task = asyncio.create_task(listen(Resources(database, "smtpd"), [note]))

    async def wake() -> None:
        async with asyncio.timeout(PATIENCE):
            await woken.get()

    await wake()  # it has connected: there may be mail
    await last(db, "LISTEN")
    for _ in range(3):  # our turn
        db.execute(f"NOTIFY {CHANNEL}".encode())
        await wake()
    pause = 0.05
    db.execute(f"NOTIFY {CHANNEL}".encode())
    await wake()
    await wake()  # the pause is over, and its notifications are not known
    await last(db, "LISTEN")
    assert woken.empty()
    pause = 3600.0
    db.execute(f"NOTIFY {CHANNEL}".encode())
    await wake()
    await last(db, "UNLISTEN")
    task.cancel()
    await asyncio.wait([task])


async def test_a_postgresql_that_hangs_does_not_keep_it_from_stopping(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_LAST_NOTIFY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(link_connection, "CANCEL_TIMEOUT_S", 0.1)
    resources = Resources(database, "smtpd")
    notifier = Notifier(resources)
    notifier.start()
    notifier.due.set()
    async with asyncio.timeout(PATIENCE):
        query = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgmta smtpd notify'"
            " AND datname = current_database() AND state = 'idle'"
            " AND query LIKE '%notify_channel(%'"
        )
        ((backend,),) = await eventually(lambda: db.execute(query).fetchall())
        await notifier._quiet.wait()
        os.kill(backend, signal.SIGSTOP)
        try:
            notifier.due.set()
            await notifier.close()
            await resources.close()
        finally:
            os.kill(backend, signal.SIGCONT)
