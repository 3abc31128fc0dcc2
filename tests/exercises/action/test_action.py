"""A worker of queued does an action that is in the table, by a statement of its own."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.action import ROW_ACTIONS, RowAction
from pgmta.service import Signals
from queued.config import whole_model
from queued.daemon.daemon import Daemon
from tests.support.rows import column, message, row
from tests.support.waiting import eventually

EXPEDITE = RowAction(
    takes="",
    waiting="status IN ('QUEUED', 'DEFERRED')",
    repeated="priority > 0",
    statement="""
{found}, changed AS (
    UPDATE queue SET priority = 0 WHERE id = ANY (ARRAY(SELECT id FROM found)) RETURNING id
)
SELECT (SELECT count(*) FROM found), count(*) FROM changed
""",
)
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
    monkeypatch.setitem(ROW_ACTIONS, "expedite", EXPEDITE)
    worker = {"name": "x", "action": "expedite", "where": "domain = 'b.example'", "every": "50ms"}
    config = whole_model().model_validate({"workers": [worker]})
    signals = Signals()
    uri = make_conninfo(database, options="-c role=pgmta_queued")
    running = asyncio.create_task(Daemon(config, uri, lambda: config, signals).run())
    first = "SELECT domain FROM queue WHERE priority = 0"
    await eventually(lambda: column(db, first) == ["b.example"])
    signals.stop.set()
    await running
