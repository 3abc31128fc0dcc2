"""Returned mail in the log: noted once, by queued alone, and found by its day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg

from pgmta.store.queue.returned import LoggedAttempt, ReturnedLog, ReturnedRow
from tests.sql.test_surface import linked
from tests.support.rows import attempt

TODAY = datetime.now(UTC).date()


async def test_the_attempt_is_noted_once(database: str, db: psycopg.Connection) -> None:
    taken = {"code": 250, "reply": "taken"}
    for token, event in enumerate(["deferred", "unknown", "delivered"]):
        attempt(db, 7, 5, lease_token=token, event=event, **taken)
    attempt(db, 8, 5, lease_token=9, event="delivered", **taken)
    attempt(db, 9, 5, lease_token=10, event="failed", **taken)
    before = datetime.now(UTC) - timedelta(days=9)
    attempt(db, 10, 5, lease_token=11, event="delivered", ended_at=before, **taken)
    good = ReturnedRow(5, 7, TODAY, "unknown_user", "550 5.1.1 who")
    rows = [
        good,
        ReturnedRow(5, 8, TODAY, "", ""),
        ReturnedRow(5, 9, TODAY, "spam", "550 no"),
        ReturnedRow(5, 10, TODAY, "spam", "550 no"),
        ReturnedRow(6, 7, TODAY, "spam", "550 no"),
        ReturnedRow(5, 7, TODAY, "spam", "550 no"),
    ]
    found = LoggedAttempt("s@a.example", "r@b.example")
    async with linked(database, role="pgmta_queued") as link:
        log = ReturnedLog(link)
        assert await log.record(rows) == [found, found, None, None, None, found]
        assert await log.record([]) == []
        old = ReturnedRow(5, 10, TODAY - timedelta(days=9), "policy", "x" * 2000)
        assert await log.record([old]) == [found]
    noted = db.execute(
        "SELECT lease_token, class, returned, code, reply FROM attempt_history JOIN attempts"
        " USING (row_id, message_id, ended_at, class, returned, returned_at, code, reply)"
        " WHERE returned_at IS NOT NULL ORDER BY 1"
    ).fetchall()
    assert noted == [
        (2, "unknown_user", "550 5.1.1 who", 250, "taken"),
        (11, "policy", "x" * 1020, 250, "taken"),
    ]
    query = "SELECT state, code, returned FROM status(ARRAY[5] || %s::bigint[]) ORDER BY returned"
    for more in (list[int](), list(range(100, 300))):  # few ids and many
        assert db.execute(query, (more,)).fetchall() == [
            ("delivered", 250, "550 5.1.1 who"), ("delivered", 250, "x" * 1020),
            ("delivered", 250, None), ("failed", 250, None),
        ]  # fmt: skip
