"""A worker of queued does an action that is in the table."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

from pgmta.action import ROW_ACTIONS
from pgmta.service import Signals
from queued.config import whole_model
from queued.daemon.daemon import Daemon
from tests.exercises.action.expedite import NAME, ROWS
from tests.support.rows import fetch, message, row
from tests.support.waiting import eventually

RIGHTS = (
    "INSERT INTO pgmta.rights (object, role, privileges)"
    " VALUES ('queue', 'pgmta_queued', 'UPDATE (priority)'); SELECT pgmta.grants()"
)


async def test_a_worker_does_an_action_that_is_listed(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.autocommit = True
    db.execute(RIGHTS)
    message(db, 1)
    for domain in ("a.example", "b.example"):
        row(db, 1, recipient=f"r@{domain}", domain=domain)
    monkeypatch.setitem(ROW_ACTIONS, NAME, ROWS)
    worker = {"name": "first", "action": NAME, "where": "domain = 'b.example'", "every": "50ms"}
    config = whole_model().model_validate({"workers": [worker]})
    signals = Signals()
    uri = make_conninfo(database, options="-c role=pgmta_queued")
    with capture_logs() as logs:
        running = asyncio.create_task(Daemon(config, uri, lambda: config, signals).run())
        await eventually(lambda: any(log["event"] == NAME for log in logs))
        signals.stop.set()
        await running
    assert fetch(db, "SELECT array_agg(domain) FROM queue WHERE priority = 0") == (["b.example"],)
    assert [log["rows"] for log in logs if log["event"] == NAME] == [1]
