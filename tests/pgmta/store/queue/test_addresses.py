"""Rows whose addresses would end a command: none comes in, and old ones stop no other row."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pgmta.action import Action
from pgmta.postgres.link import Link
from pgmta.store.admin.migrate import migrate
from pgmta.store.admin.upkeep import Upkeep
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.partitions import opened
from pgmta.store.queue.repartition import Repartition
from queued.upkeep.requests import answer_requests
from tests.support.database import fresh_database
from tests.support.rows import column, fetch, message, operate, row
from tests.support.waiting import PATIENCE

BAD = "\x01\t\n\r\x1b\x7f\x80\x85\x9b\x9f\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
HARMLESS = "\xa0é\u200c\u200d\u061d\u200a\u202f\u2065\u206a用"


def bad(db: psycopg.Connection, number: int, **columns: object) -> list[int]:
    """Rows on hold that must not be delivered, and one that may."""
    message(db, number)
    return [
        row(db, number, status="HOLD", recipient=f"{who}@b.example", **columns)
        for who in ("a\r\nDATA", "b\x9b2J", "good")
    ]


def test_addresses_with_control_characters_are_refused(db: psycopg.Connection) -> None:
    message(db, 1)
    for char in BAD:
        for name in ("sender", "recipient", "domain"):
            with pytest.raises(psycopg.errors.CheckViolation, match="queue_addresses"):
                row(db, 1, **{name: f"x{char}y@b.example"})
            row(db, 1, status="HOLD", **{name: f"x{char}y@b.example"})
    for char in HARMLESS:
        row(db, 1, sender=f"x{char}y@b.example", recipient=f"x{char}y@b.example")
    row(db, 1, sender="")


def test_a_release_leaves_them_on_hold_and_says_why(db: psycopg.Connection) -> None:
    ids = bad(db, 1, hold_reason="ticket")
    db.execute("UPDATE queue SET status = 'DELETE' WHERE id = %s", (ids[1],))
    db.execute("UPDATE queue SET status = 'QUEUED' WHERE status IN ('HOLD', 'DELETE')")
    states = "SELECT status FROM queue ORDER BY id"
    assert column(db, states) == ["HOLD", "HOLD", "QUEUED"]
    reasons = column(db, "SELECT hold_reason FROM queue_hold")
    assert len(reasons) == 2
    assert all("only be deleted" in reason for reason in reasons)
    db.execute("UPDATE queue_hold SET status = 'QUEUED'")  # in the leaf
    db.execute("UPDATE queue SET status = 'DELETE'")
    assert column(db, states) == ["DELETE"] * 3


async def test_every_bulk_release_ends_and_counts_what_is_released(
    database: str, db: psycopg.Connection
) -> None:
    bad(db, 1)
    assert fetch(db, "SELECT queue_release('true')") == (1,)
    bad(db, 2)
    change = RowChange(Action.RELEASE, "status = 'HOLD'", "me")
    assert await operate(database, change, 2) == 1
    assert fetch(db, "SELECT count(*) FROM queue_hold") == (4,)


async def test_changes_that_release_end_and_starve_no_row(
    database: str, db: psycopg.Connection
) -> None:
    for number in range(1, 8):
        bad(db, number)
    link = Link(database, "test")
    changes, upkeep = WorkerChanges(link), Upkeep(link)
    async with asyncio.timeout(PATIENCE):
        assert await changes.run(RowChange(Action.RELEASE, "true", "w"), 2) == 7
        assert await changes.run(RowChange(Action.RELEASE, "true", "w"), 2) == 0
        db.execute("UPDATE queue SET hold_until = now() - interval '1 s' WHERE status = 'HOLD'")
        bad(db, 9, hold_until="2020-01-01")
        for _ in range(20):
            await changes.run(RowChange(Action.RELEASE, "hold_until <= now()", "w"), 2)
        assert not (await upkeep.asked()).release
        await answer_requests(upkeep, changes, "w")
    await link.close()
    assert fetch(db, "SELECT count(*), count(hold_until) FROM queue_hold") == (16, 0)


async def test_partitions_are_made_and_dropped_as_ever(
    database: str, db: psycopg.Connection
) -> None:
    message(db, 1)
    row(db, 1, metadata={"_partid": "7"})
    async with opened(database) as connection:
        assert (await Repartition(connection, 10).add_partition("queue_seven", ["7"])).rows == 1
    with pytest.raises(psycopg.errors.CheckViolation):
        row(db, 1, recipient="x\n@b.example", metadata={"_partid": "7"})
    async with opened(database) as connection:
        assert (await Repartition(connection, 10).drop("queue_seven")).rows == 1


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_other_encodings_refuse_what_ends_a_command(server: str, encoding: str) -> None:
    options = f"ENCODING {encoding} LOCALE 'C' TEMPLATE template0"
    with fresh_database(server, options=options) as uri:
        migrate(uri)
        with psycopg.connect(uri, autocommit=True, client_encoding="UTF8") as db:
            message(db, 1)
            row(db, 1, recipient="Àé@b.example")
            for char in "\x01\r\n\x1b\x7f":
                with pytest.raises(psycopg.errors.CheckViolation, match="queue_addresses"):
                    row(db, 1, recipient=f"x{char}@b.example")
