"""The duty that brings scheduled rows among those that claims look at."""

from __future__ import annotations

import psycopg
import pytest

from pgmta.postgres.link import Link
from pgmta.store.queue.scheduled import ScheduledRows
from queued.upkeep import scheduled
from queued.upkeep.scheduled import ScheduleDuty
from tests.support.rows import column, fetch, message

FILL = """
INSERT INTO queue (id, message_id, sender, recipient, domain, status, send_at, next_attempt, ts)
SELECT nextval('scheduled_ids'), 1, '', 'r', 'd', 'SCHEDULED', due, due, due
FROM generate_series(1, %s) AS n, LATERAL (SELECT now() + n * %s::interval) AS time (due)
"""


async def test_all_rows_that_are_near_move_in_batches(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled, "_ROWS_PER_COMMIT", 10)
    message(db, 1)
    db.execute(FILL.encode(), (25, "-1 s"))  # queued was away
    db.execute(FILL.encode(), (1, "1.5 s"))
    db.execute(FILL.encode(), (100, "1 h"))
    link = Link(database, "test")
    wakes: list[int] = []

    async def wake() -> None:
        wakes.append(1)

    duty = ScheduleDuty(ScheduledRows(link), wake)
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM queue WHERE send_at < now() LIMIT 1 FOR UPDATE")
        await duty.queue_due()
        assert wakes == [1]
        assert column(db, "SELECT count(*) FROM queue WHERE status = 'QUEUED'") == [25]
    await duty.queue_due()
    await duty.queue_due()
    await link.close()
    assert wakes == [1, 1]
    assert fetch(
        db,
        "SELECT count(*), bool_and(next_attempt >= send_at) FROM queue WHERE status = 'QUEUED'",
    ) == (26, True)


async def test_a_round_reads_only_what_is_due(database: str, db: psycopg.Connection) -> None:
    """Also with a plan that was made while there were none."""
    link = Link(database, "test")
    rows = ScheduledRows(link)
    for _ in range(7):
        assert await rows.queue_due(10) == 0
    message(db, 1)
    db.execute(FILL.encode(), (20_000, "1 h"))
    db.execute(FILL.encode(), (3, "-1 s"))
    await link.run("SELECT pg_stat_force_next_flush()")
    db.execute("SELECT pg_stat_reset()")
    assert await rows.queue_due(10) == 3
    for _ in range(7):
        assert await rows.queue_due(10) == 0
    await link.run("SELECT pg_stat_force_next_flush()")
    await link.close()
    read = fetch(
        db,
        "SELECT sum(seq_tup_read)::int, sum(idx_tup_fetch)::int FROM pg_stat_user_tables"
        " WHERE relname LIKE 'queue%'",
    )
    assert read[0] == 0
    assert read[1] < 50
