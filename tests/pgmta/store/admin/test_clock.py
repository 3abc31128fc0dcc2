"""The clock of the database is set back: waits of rows, leases and reports are shortened."""

from __future__ import annotations

import psycopg
from structlog.testing import capture_logs

from pgmta.postgres.link import Link
from pgmta.store.admin.upkeep import ClockLook, DatabaseClock
from queued.upkeep.clock import MIN_STEP_S, ClockDuty
from tests.support.rows import fetch, message, row

HOUR = 3600.0


async def test_a_step_back_shortens_waits_once(database: str, db: psycopg.Connection) -> None:
    """The stored instants are an hour late: PostgreSQL sees the same after a step back."""
    message(db, 1)
    ids = {
        "fresh": row(db, 1, due=HOUR),
        "due": row(db, 1, due=-5),
        "deferred": row(db, 1, due=HOUR + 300, status="DEFERRED"),
        "dead": row(db, 1, due=HOUR - 9, status="SENDING", lease=HOUR + 40),
        "renewed": row(db, 1, due=-9, status="SENDING", lease=50),
        "long": row(db, 1, due=-9, status="SENDING", lease=HOUR + 600),
        "held": row(db, 1, due=HOUR, status="HOLD"),
        "report": row(db, 1, status="REPORT"),
        "never": row(db, 1, next_attempt="infinity"),
    }
    db.execute("UPDATE queue SET held_at = now() + interval '1 h' WHERE status = 'REPORT'")
    db.execute("UPDATE database_clock SET seen_at = now() + interval '1 h'")
    link = Link(database, "test")
    clock = DatabaseClock(link, MIN_STEP_S, 60.0)
    found = await clock.look()
    assert found.back is not None
    assert HOUR - 10 < found.back <= HOUR
    assert found.rows == 4

    def left(name: str, column: str) -> float:
        wait = f"extract(epoch FROM {column}) - extract(epoch FROM now())"
        text = f"SELECT ({wait})::float8 FROM queue WHERE id = %s"
        (seconds,) = fetch(db, text, ids[name])
        return round(float(seconds), -1)

    def check() -> None:
        waits = {name: left(name, "next_attempt") for name in ids}
        assert waits == {"fresh": 0, "due": -10, "deferred": 300, "dead": 0, "renewed": -10,
                         "long": -10, "held": HOUR, "report": 0, "never": float("inf")}  # fmt: skip
        leases = {name: left(name, "lease_until") for name in ("dead", "renewed", "long")}
        assert leases == {"dead": 60, "renewed": 50, "long": 600}
        assert left("report", "held_at") == 0

    check()
    assert (await clock.look())[1:] == (None, None)
    check()
    with psycopg.connect(database) as other:  # another process shortens them
        other.execute("UPDATE database_clock SET seen_at = now() + interval '1 h'")
        assert (await clock.look())[1:] == (None, None)
    await link.close()


async def test_each_step_is_named() -> None:
    steps = iter(
        [(0, None), (5, None), (10 + HOUR, None), (15 + HOUR, None), (20, HOUR), (25, None)]
    )
    times = iter(range(0, 30, 5))
    now = 0.0
    woken: list[None] = []

    async def look() -> ClockLook:
        seen, back = next(steps)
        return ClockLook(1e9 + seen, back, 3 if back else None)

    async def wake() -> None:
        woken.append(None)

    duty = ClockDuty(look, wake, lambda: now)
    with capture_logs() as logs:
        for each in times:
            now = float(each)
            await duty.do()
    assert [(entry["event"].partition(":")[0], entry["seconds"]) for entry in logs] == [
        ("the clock of the database was set forward", HOUR),
        ("the clock of the database was set back", HOUR),
    ]
    assert len(woken) == 1
