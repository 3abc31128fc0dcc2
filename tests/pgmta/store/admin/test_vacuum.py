"""Room of delivered content is used again."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import sql

from pgmta.model import CHUNK_OCTETS
from pgmta.postgres.link import Link
from pgmta.store.admin.vacuum import NotAllowed, Space
from pgmta.store.queue.enqueue import Enqueue
from queued.process.delivery_figures import DeliveryFigures
from queued.process.vacuum import Reclaimer, RowVacuum
from tests.support.waiting import eventually, let_others_run, until

CHUNKS = 500


def size(db: psycopg.Connection) -> int:
    """Octets of the table's file."""
    row = db.execute("SELECT pg_relation_size('message_chunks')").fetchone()
    assert row
    return int(row[0])


def vacuums(db: psycopg.Connection) -> int:
    """How often message_chunks was vacuumed by hand."""
    row = db.execute(
        "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'message_chunks'"
    ).fetchone()
    assert row
    return int(row[0])


async def test_new_content_takes_the_place_of_the_old(
    database: str, db: psycopg.Connection
) -> None:
    db.execute("ALTER TABLE message_chunks SET (autovacuum_enabled = off)")
    link = Link(database, "test")
    other = Link(database, "test vacuum")
    calls = 0

    class Counted(Space):
        async def reclaim(self, *, shorten: bool = False) -> int | None:
            nonlocal calls
            calls += 1
            return await super().reclaim(shorten=shorten)

    reclaimer = Reclaimer(Counted(other), step=CHUNKS * CHUNK_OCTETS, quiet=3600)
    work = asyncio.create_task(reclaimer.run())
    store = Enqueue(link)
    sizes = []
    for message_id in range(1, 6):
        await store.chunks([(message_id, 0, bytes(CHUNKS * CHUNK_OCTETS))])
        sizes.append(size(db))
        await store.drop_chunks([message_id])
        reclaimer.freed(10 * message_id, CHUNKS * CHUNK_OCTETS - 1)
        reclaimer.freed(10 * message_id, CHUNKS * CHUNK_OCTETS)  # the same, to another next hop
        await let_others_run(5)
        assert calls == message_id - 1
        reclaimer.freed(10 * message_id + 1, 1)
        await eventually(lambda: vacuums(db) == message_id)  # noqa: B023
    # at most twice: the snapshot of another session may spoil one of the vacuums
    assert 0 < sizes[0] <= size(db) <= max(sizes) <= sizes[0] * 2.1
    work.cancel()
    await other.close()

    reclaimer = Reclaimer(Space(other), quiet=0.1)
    work = asyncio.create_task(reclaimer.run())
    await eventually(lambda: not size(db))
    work.cancel()
    await other.close()
    await link.close()


async def test_a_role_without_the_right_leaves_it_to_autovacuum(
    database: str, db: psycopg.Connection
) -> None:
    link, other = Link(database, "test"), Link(database, "test")
    assert await Space(link).reclaim() == 0
    role = "test_space_" + str(db.info.dbname)[-12:]
    name = sql.Identifier(role)
    db.execute(sql.SQL("CREATE ROLE {}").format(name))
    db.execute(sql.SQL("GRANT USAGE ON SCHEMA pgmta TO {}").format(name))
    try:
        await link.run(f"SET ROLE {role}")
        with pytest.raises(NotAllowed):
            await Space(link).reclaim()
        if db.info.server_version >= 170000:
            db.execute(sql.SQL("GRANT MAINTAIN ON message_chunks TO {}").format(name))
            assert await Space(link).reclaim() == 0
            assert await Space(other).reclaim() == 0  # the lock is free again
            assert vacuums(db) == 3
            with db.transaction():  # as VACUUM does
                db.execute("LOCK TABLE message_chunks IN SHARE UPDATE EXCLUSIVE MODE")
                assert await Space(link).reclaim() is None
            assert await Space(link).reclaim() == 0
    finally:
        await link.close()
        await other.close()
        db.execute(sql.SQL("DROP OWNED BY {}").format(name))
        db.execute(sql.SQL("DROP ROLE {}").format(name))


async def test_tables_with_many_dead_rows_are_vacuumed_without_autovacuum(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ("messages", "queue_def_def")
    for table in tables:
        db.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
    link = Link(database, "test")
    figures = DeliveryFigures()
    vacuum = RowVacuum(Space(link), figures)
    db.execute(
        "INSERT INTO messages (id, size, trace, body)"
        " SELECT n, 4, 'T: t', 'body' FROM generate_series(1, 2100) AS n"
    )
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain)"
        " SELECT n, 's@a.example', 'r@b.example', 'b.example' FROM generate_series(1, 2100) AS n"
    )
    holder = psycopg.connect(database)
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM queue")
    db.execute("DELETE FROM queue")  # and the messages with it
    db.execute("SELECT pg_stat_force_next_flush()")

    def counts() -> list[int]:
        found = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = ANY (%s)"
        return [number for (number,) in db.execute(found, [list(tables)])]

    monkeypatch.setattr("pgmta.store.admin.vacuum.rest_after", lambda *_: 1e6)
    await vacuum.look()
    assert counts() == [0, 0]  # too few rows to look at all
    figures.claimed = 500
    await vacuum.look()
    assert counts() == [1, 1]
    figures.claimed = 1000
    await vacuum.look()
    assert counts() == [1, 1]  # in vain while the snapshot is held, so it rests
    pid = holder.info.backend_pid
    holder.close()  # its snapshot goes with its backend, a moment later
    gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
    until(lambda: db.execute(gone, [pid]).fetchall() == [(True,)])
    for _ in range(2):  # the second one finds nothing
        await RowVacuum(Space(link), figures).look()
    assert counts() == [2, 2]
    await link.close()
