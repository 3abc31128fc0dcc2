"""Doctor names who keeps vacuum from dead rows, nobody else, and the statement that ends it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.postgres.link import Link
from pgmta.store.admin.queue_counts import SETTINGS, QueueCounts
from queued.cli.doctor import server_checks
from tests.queued.cli.doctor.conftest import Doctor
from tests.support.rows import message
from tests.support.standby import Pair, replicated
from tests.support.waiting import until

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pgmta.queue"
DEAD = """
SELECT sum(pg_stat_get_dead_tuples(relid)) FROM pg_partition_tree('pgmta.queue') WHERE isleaf
"""
ROWS = """
INSERT INTO pgmta.queue (message_id, sender, recipient, domain)
SELECT 1, '', 'r@d.example', 'd.example' FROM generate_series(1, 300)
"""
STATEMENT = re.compile(r"SELECT pg_\w+\(.*?\)|ROLLBACK PREPARED '.*?'(?=;)")
FEEDBACK = "SELECT backend_xmin FROM pg_stat_replication WHERE backend_xmin IS NOT NULL"


@pytest.fixture(scope="module")
def pair(server: str) -> Iterator[Pair]:
    with replicated(server) as made:
        made.db.execute("ALTER SYSTEM RESET synchronous_standby_names")
        made.db.execute("ALTER SYSTEM SET autovacuum = off")
        made.db.execute("SELECT pg_reload_conf()")
        made.db.execute("SET search_path = pgmta")
        yield made


@contextmanager
def session(pair: Pair, statement: str, **options: str) -> Iterator[psycopg.Connection]:
    uri = make_conninfo(pair.uri, application_name="forgotten", **options)
    with closing(psycopg.connect(uri, autocommit=True)) as db:
        db.execute(statement.encode())
        yield db


@contextmanager
def reading(pair: Pair) -> Iterator[str]:
    with session(pair, READ) as db:
        yield rf"pid {db.info.backend_pid} \(forgotten, login postgres, idle in transaction "


@contextmanager
def writing(pair: Pair) -> Iterator[str]:
    with session(pair, "BEGIN; DELETE FROM pgmta.workers; INSERT INTO pgmta.messages (id, size, "
                 "trace, body) VALUES (99, 1, '', '')") as db:  # fmt: skip
        yield rf"pid {db.info.backend_pid} \(forgotten, login postgres, idle in transaction "


@contextmanager
def running(pair: Pair) -> Iterator[str]:
    """A statement that runs for long, such as COPY of pg_dump."""
    with session(pair, "") as db:
        db.execute("BEGIN")
        db.pgconn.send_query(b"SELECT pg_sleep(600)")
        pid = db.info.backend_pid
        asked = f"SELECT FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"
        until(lambda: pair.db.execute(asked.encode()).fetchall())
        yield rf"pid {pid} \(forgotten, login postgres, active "


@contextmanager
def prepared(pair: Pair) -> Iterator[str]:
    statement = "BEGIN; DELETE FROM pgmta.workers; SELECT pg_current_xact_id(); "
    with session(pair, f"{statement} PREPARE TRANSACTION 'it''s mine'"):
        pass
    yield r"the prepared transaction it's mine \(of postgres, open for \w+, \d+ transactions old\)"


@contextmanager
def standby_reads(pair: Pair, slot: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(pair.standby.uri, autocommit=True)) as there:
        for setting in ("hot_standby_feedback = on", f"primary_slot_name = '{slot}'"):
            there.execute(f"ALTER SYSTEM SET {setting}".encode())
        there.execute("SELECT pg_reload_conf()")
        there.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_wal_receiver")
        there.execute(READ)
        asked = "SELECT xmin FROM pg_replication_slots WHERE xmin IS NOT NULL" if slot else FEEDBACK
        until(lambda: pair.db.execute(asked.encode()).fetchall())
        yield there


@contextmanager
def feedback(pair: Pair) -> Iterator[str]:
    with standby_reads(pair, ""):
        yield r"the standby walreceiver \(hot_standby_feedback, pid \d+, \d+ transactions old\)"


@contextmanager
def active_slot(pair: Pair) -> Iterator[str]:
    pair.db.execute("SELECT pg_create_physical_replication_slot('s1')")
    with standby_reads(pair, "s1"):
        yield r"the replication slot s1 \(for the standby walreceiver, active, \d+ transactions"


@contextmanager
def inactive_slot(pair: Pair) -> Iterator[str]:
    """The standby is gone, and what it wanted to see is kept for it."""
    with active_slot(pair):
        pair.standby.crash()
    until(lambda: pair.db.execute("SELECT FROM pg_replication_slots WHERE NOT active").fetchall())
    yield r"the replication slot s1 \(inactive"


@contextmanager
def harmless(pair: Pair) -> Iterator[str]:
    """Nobody: another database, a transaction between two statements, a logical slot."""
    pair.db.execute("SELECT pg_create_logical_replication_slot('l1', 'pgoutput')")
    elsewhere = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class"
    with (
        session(pair, elsewhere, dbname="postgres"),
        session(pair, "BEGIN; SELECT FROM pgmta.queue"),
    ):
        yield ""
    pair.db.execute("SELECT pg_drop_replication_slot('l1')")


STAGES = (reading, writing, running, prepared, feedback, active_slot, inactive_slot, harmless)

KINDS = {
    "prepared": "prepared", "feedback": "standby", "active_slot": "slot", "inactive_slot": "slot"
}  # fmt: skip


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_checks, "_HELD_S", 0.0)
    monkeypatch.setattr(server_checks, "_HELD_TRANSACTIONS", 2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: str(stage.__name__))
async def test_the_holder_is_named_while_it_holds(
    pair: Pair, tmp_path: Path, stage: Callable[[Pair], AbstractContextManager[str]]
) -> None:
    patient = Doctor(tmp_path, pair.uri)

    def dead() -> int:
        pair.db.execute("SELECT pg_stat_force_next_flush()")
        pair.db.execute("VACUUM pgmta.queue")
        return int(pair.db.execute(DEAD.encode()).fetchall()[0][0])

    assert dead() == 0
    with stage(pair) as words:
        message(pair.db, 1)
        pair.db.execute(ROWS.encode())
        pair.db.execute("DELETE FROM pgmta.queue")
        found = await patient.look()
        holders = found.get("xmin horizon", [])
        kept = dead()
        if not words:
            assert (holders, kept) == ([], 0)
            return
        assert kept == 300
        (first, *_) = holders
        assert re.match(words, first["finding"]), (words, first)
        link = Link(pair.uri, "test", SETTINGS)
        pair.db.execute("UPDATE queue_counted SET at = '-infinity'")
        await QueueCounts(link).count((), by_mail=False)
        count = await QueueCounts(link).read_counts()
        await link.close()
        assert count
        assert count.dead_rows == 300
        assert count.horizon_holder == KINDS.get(stage.__name__, "session")
        if statement := STATEMENT.search(first["remedy"]):
            pair.db.execute(statement[0].encode())
            until(lambda: dead() == 0)
        else:
            assert "hot_standby_feedback" in first["remedy"]
    if stage is active_slot:
        until(lambda: dead() == 0)
        pair.standby.crash()
        until(lambda: not pair.db.execute("SELECT pid FROM pg_stat_replication").fetchall())
        pair.db.execute("SELECT pg_drop_replication_slot('s1')")
    if stage in (active_slot, inactive_slot):
        pair.standby.start()
    until(lambda: dead() == 0)
