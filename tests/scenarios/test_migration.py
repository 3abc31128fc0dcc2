"""A migration while daemons run: refused; where it is forced, they stop instead of guessing."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest

from pgmta.errors import MigrationError
from pgmta.store.admin import migrate as migrate_module
from pgmta.store.schema import migrations, program_version
from tests.scenarios.conftest import installation
from tests.support.database import fresh_database
from tests.support.nexthop import as_usual, holding_at
from tests.support.system import System
from tests.support.waiting import until

MAIL = b"Subject: x\r\n\r\nx\r\n"
NEXT = "0002_next.sql"
MISMATCH = "the schema is of another version, no mail is taken"
KEPT = "outcome is kept until the database takes it"
REFUSED = "451 4.3.0 Queue is unavailable, try again later"


@pytest.fixture
def migrate_to(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Migrate as the next version would, whose migration has that text."""

    def run(uri: str, text: str, *, while_daemons_run: bool = False) -> list[str]:
        with_next = {**migrations(), NEXT: text}
        monkeypatch.setattr(migrate_module, "migrations", lambda: with_next)
        return migrate_module.migrate(uri, while_daemons_run=while_daemons_run)

    return run


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends everything that a test puts on it."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("ALTER TABLE attempts ADD COLUMN more integer", "ALTER TABLE attempts DROP COLUMN more"),
        (
            "ALTER TABLE attempts RENAME COLUMN reply TO answer",
            "ALTER TABLE attempts RENAME COLUMN answer TO reply",
        ),
    ],
    ids=["expands", "contracts"],
)
def test_nobody_works_on_a_schema_he_does_not_know(
    system: System, stack: ExitStack, migrate_to: Callable[..., list[str]], change: str, back: str
) -> None:
    hop = system.hop(holding_at("end of data"))
    smtpd = system.smtpd()
    queued = system.queued(hop, process={"poll": "100ms", "lease": "20s"})
    people = [f"x{n}@hop.example" for n in range(5)]
    for person in people:
        system.enqueue(person)
    hop.wait_kept(5)
    (child,) = smtpd.children()
    until(lambda: len(system.ask("SELECT pid FROM daemons")) == 2)
    with pytest.raises(MigrationError) as refused:
        migrate_to(system.uri, change)
    for program, pid in (("queued", queued.pid), ("smtpd", child.pid)):
        assert f"{program} on relay.example, pid {pid}, version {program_version()} (" in str(
            refused.value
        )
    client = stack.enter_context(smtpd.connect())
    assert client.send("a@b.example", ["y@hop.example"], MAIL).code == 250
    hop.wait_kept(6)

    assert migrate_to(system.uri, change, while_daemons_run=True) == [NEXT]
    system.expected.add(MISMATCH)
    queued.wait_log(MISMATCH)
    system.enqueue("later@hop.example")
    smtpd.wait_log(MISMATCH)
    assert client.send("a@b.example", ["z@hop.example"], MAIL) == REFUSED
    hop.script = as_usual
    hop.release()  # queued has the outcome now, whether or not it can write it
    if "ADD" in change:
        system.wait_queue(lambda rows: [r["recipient"] for r in rows] == ["later@hop.example"])
    else:
        queued.wait_log(KEPT)
        system.expected.add(KEPT)
    assert [(r["status"], r["attempts"]) for r in system.queue()][-1] == ("QUEUED", 0)

    system.ask(back)
    system.ask("DELETE FROM schema_migrations WHERE name = %s", NEXT)
    system.wait_empty()
    assert hop.deliveries() == dict.fromkeys([*people, "y@hop.example", "later@hop.example"], 1)
    assert {event["event"] for event in system.attempts()} == {"delivered"}
    until(lambda: client.send("a@b.example", ["v@hop.example"], MAIL).code == 250)
    hop.wait_kept(8)
    system.wait_empty()
    for daemon in (smtpd, queued):  # said once, not again and again
        assert len(daemon.events(MISMATCH)) == 1
        assert len(daemon.log) < 200


@pytest.mark.slow
def test_a_migration_wins_against_statements_that_lock_in_another_order(
    system: System, migrate_to: Callable[..., list[str]]
) -> None:
    """There is always a transaction that has one table, and wants the one of the migration."""
    done = threading.Event()
    count, ended = itertools.count(), []
    ended_by = (psycopg.errors.DeadlockDetected, psycopg.errors.QueryCanceled)

    def work() -> None:
        with psycopg.connect(system.uri, autocommit=True) as db:
            while not done.is_set():
                with suppress(*ended_by), db.transaction():
                    db.execute("LOCK TABLE queue IN ROW EXCLUSIVE MODE")
                    db.execute("SELECT pg_sleep(0.2)")
                    db.execute("LOCK TABLE attempts IN ROW EXCLUSIVE MODE")
                ended.append(next(count))

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(work) for _ in range(8)]
        try:
            until(lambda: len(ended) > 8)
            text = "LOCK TABLE attempts; ALTER TABLE queue ADD COLUMN more integer"
            assert migrate_to(system.uri, text) == [NEXT]
            after = len(ended)
            until(lambda: len(ended) > after + 8)
        finally:
            done.set()
    for worker in workers:
        worker.result()


@pytest.mark.slow
def test_daemons_that_start_on_another_schema_wait(
    system: System, migrate_to: Callable[..., list[str]]
) -> None:
    hop = system.hop()
    migrate_to(system.uri, "CREATE TABLE newer ()")
    system.expected.add(MISMATCH)
    system.enqueue("x@hop.example")
    smtpd = system.smtpd()
    queued = system.queued(hop, ready=False)
    reason = queued.wait_log("waiting for the database")["reason"]
    assert NEXT in reason
    with smtpd.connect() as client:
        assert client.send("a@b.example", ["z@hop.example"], MAIL) == REFUSED
        assert not hop.connections
        system.ask("DELETE FROM schema_migrations WHERE name = %s", NEXT)
        hop.wait_kept(1)
        until(lambda: client.send("a@b.example", ["y@hop.example"], MAIL).code == 250)
    hop.wait_kept(2)
    system.wait_empty()


@pytest.fixture
def unmade(server: str, tmp_path: Path) -> Iterator[System]:
    """An installation on a database without any table."""
    with fresh_database(server) as uri:
        yield from installation(tmp_path, uri)


@pytest.mark.slow
@pytest.mark.parametrize("where", [None, "sender_domain = 'b.example'"])
def test_daemons_that_start_on_a_new_database_wait(unmade: System, where: str | None) -> None:
    hop = unmade.hop()
    unmade.expected.add(MISMATCH)
    smtpd = unmade.smtpd()
    queued = unmade.queued(hop, ready=False, workers=[{"name": "w", "where": where}])
    waiting = queued.wait_log("waiting for the database")
    assert "run `queuectl database migrate`" in waiting["reason"]
    with smtpd.connect() as client:
        assert client.send("a@b.example", ["z@hop.example"], MAIL) == REFUSED
        migrate_module.migrate(unmade.uri)
        queued.ready()
        until(lambda: client.send("a@b.example", ["y@hop.example"], MAIL).code == 250)
    hop.wait_kept(1)
    unmade.wait_empty()
    # one line, and perhaps some about migrations that were under way
    reasons = [event["reason"] for event in queued.events("waiting for the database")]
    assert len(reasons) == len(set(reasons))


def test_a_condition_may_name_what_the_next_migration_brings(system: System) -> None:
    hop = system.hop()
    system.enqueue("x@hop.example")
    last = max(migrations())
    system.ask("DELETE FROM schema_migrations WHERE name = %s", last)
    system.ask("ALTER TABLE queue RENAME COLUMN sender_domain TO later")
    system.expected.add(MISMATCH)
    worker = {"name": "w", "where": "sender_domain <> 'b.example'"}
    queued = system.queued(hop, ready=False, workers=[worker])
    assert last in queued.wait_log("waiting for the database")["reason"]
    system.ask("ALTER TABLE queue RENAME COLUMN later TO sender_domain")
    checksum = hashlib.sha256(migrations()[last].encode()).hexdigest()
    system.ask("INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)", last, checksum)
    hop.wait_kept(1)
    system.wait_empty()
