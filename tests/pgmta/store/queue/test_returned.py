"""Returned mail in the log: noted once, by queued alone, and found by its day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import errors as pg_errors

from pgmta.store.queue.returned import LoggedAttempt, ReturnedLog, ReturnedRow
from tests.sql.test_surface import linked
from tests.support.rows import fetch

TODAY = datetime.now(UTC).date()


def attempt(db: psycopg.Connection, token: int, event: str, days: int = 0, row: int = 7) -> None:
    db.execute(
        "INSERT INTO attempts (ended_at, started_at, row_id, message_id, lease_token, attempt,"
        " code, event, sender, recipient, domain, worker, host, command, enhanced, reply)"
        " VALUES (now() - make_interval(days => %s), now(), %s, 5, %s, 1, 250, %s, 's@a.example',"
        " 'r@b.example', 'b.example', 'w', 'h', 'DATA', '', 'taken')",
        (days, row, token, event),
    )


async def test_the_attempt_is_noted_once(database: str, db: psycopg.Connection) -> None:
    for token, event in enumerate(["deferred", "unknown", "delivered"]):
        attempt(db, token, event)
    attempt(db, 9, "delivered", row=8)
    attempt(db, 10, "failed", row=9)
    attempt(db, 11, "delivered", days=9, row=10)
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


@pytest.mark.parametrize("role", ["pgmta_smtpd", "pgmta_operator", "pgmta_reader", "pgmta_submit"])
def test_only_queued_may_note(role: str, db: psycopg.Connection) -> None:
    db.execute(f"SET ROLE {role}".encode())
    with pytest.raises(pg_errors.InsufficientPrivilege):
        fetch(db, "SELECT attempt_returned(1, 2, current_date, '', '')")
