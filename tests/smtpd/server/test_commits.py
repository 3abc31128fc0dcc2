"""The answer to the final dot agrees with the database, whatever happens to the commit."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

import pgmta.intake.committer
from pgmta.store.queue.enqueue import Enqueue
from tests.support.database import PrivateServer
from tests.support.serving import Client, serving
from tests.support.waiting import take_time_async, until

CLIENTS = 9
SMALL = b"x\r\n"
LARGE = (b"x" * 998 + b"\r\n") * 1500  # several parts, written ahead
WORKS = """SELECT pid FROM pg_stat_activity WHERE application_name = 'pgmta smtpd messages 0'
    AND state = 'active' AND wait_event_type = '{}'"""
WAITS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def send(client: Client, content: bytes) -> None:
    """A message up to its final dot."""
    assert client.reply()[:3] == "220"
    for command in ("EHLO c", "MAIL FROM:<a@b>", "RCPT TO:<r@b>", "DATA"):
        assert client.say(command)[0] in "23"
    client.send(content + b".\r\n")


def ids(db: psycopg.Connection) -> list[int]:
    """Of the messages in the queue."""
    return [row[0] for row in db.execute("SELECT id FROM messages ORDER BY id")]


def answers(clients: list[Client]) -> tuple[list[str], list[int]]:
    """The codes, and the message ids that clients got."""
    replies = [client.reply() for client in clients]
    given = sorted(int(reply.split()[2]) for reply in replies if reply[:3] == "250")
    return [reply[:3] for reply in replies], given


@contextmanager
def clients_of(port: int, number: int) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Client(port)) for _ in range(number)]


@pytest.mark.slow
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_a_lock_longer_than_the_wait_is_a_refusal(
    database: str, db: psycopg.Connection, content: bytes
) -> None:
    with serving(database, ingest={"wait": "1s"}) as port, clients_of(port, 2) as clients:
        with psycopg.connect(database) as blocker:
            blocker.execute("LOCK TABLE queue IN EXCLUSIVE MODE")
            for client in clients:
                send(client, content)
            assert answers(clients) == (["451"] * 2, [])
        with clients_of(port, 1) as (late,):
            send(late, content)
            codes, told = answers([late])
        assert (codes, told) == (["250"], ids(db))
        kept = "SELECT sum(length(data)) FROM message_chunks"
        until(lambda: db.execute(kept).fetchone() == (len(LARGE) if content is LARGE else None,))


def test_what_the_client_could_not_wait_for_stays_with_its_chunks(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgmta.intake.committer, "_MAX_COMMIT_S", 1.0)
    logged: list[tuple[str, int]] = []

    def warning(event: str, **facts: object) -> None:
        logged.append((event, int(str(facts["id"]))))

    monkeypatch.setattr(pgmta.intake.committer.log, "warning", warning)
    with serving(database, ingest={"wait": "60s"}) as port, clients_of(port, 1) as (client,):
        with psycopg.connect(database) as blocker:
            blocker.execute("LOCK TABLE queue IN EXCLUSIVE MODE")
            send(client, LARGE)
            assert client.reply()[:3] == "451"
            ((opened, number),) = logged
            assert opened == "message may be in the queue, and its client got no 250"
        until(lambda: ids(db))
        assert ids(db) == [number]
        until(lambda: len(logged) == 2)
        assert logged[1] == ("message is in the queue, and its client got 451", number)
        kept = db.execute("SELECT sum(length(data)) FROM message_chunks").fetchone()
        assert kept == (len(LARGE),)


@pytest.mark.slow
def test_large_messages_at_once_all_get_in(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the database is: they are stored one after the other, and their clients wait."""
    real = Enqueue.chunks
    order: list[int] = []

    async def chunks(self: Enqueue, parts: Iterable[tuple[int, int, bytes]]) -> None:
        parts = list(parts)
        await take_time_async(0.05)
        await real(self, parts)
        order.extend(message_id for message_id, _, _ in parts)

    monkeypatch.setattr(Enqueue, "chunks", chunks)
    with serving(database, ingest={"wait": "1s"}) as port, clients_of(port, 12) as clients:
        threads = [threading.Thread(target=send, args=(c, LARGE * 2)) for c in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        codes, told = answers(clients)
    assert codes == ["250"] * len(clients)
    assert told == ids(db)
    ends = [len(order) - order[::-1].index(number) for number in told]
    assert ends[0] < ends[len(ends) // 2] < ends[-1]
    assert ends[0] < len(order) / 2


@pytest.fixture
def replicated_server(private_server: PrivateServer) -> PrivateServer:
    """Where commits could wait for a standby; see `no_standby`."""
    with psycopg.connect(private_server.uri, autocommit=True) as db:
        db.execute("ALTER SYSTEM SET wal_level = replica")
        db.execute("ALTER SYSTEM SET max_wal_senders = 2")
    private_server.crash()
    private_server.start()
    return private_server


def no_standby(server: PrivateServer, db: psycopg.Connection) -> None:
    """From now on every commit waits for a standby that there is not."""
    over = threading.Event()

    def commit() -> None:
        with suppress(psycopg.Error), psycopg.connect(server.uri, autocommit=True) as waits:
            while not over.is_set():
                waits.execute("SELECT pg_logical_emit_message(true, '', '')")

    db.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
    db.execute("SELECT pg_reload_conf()")
    threading.Thread(target=commit, daemon=True).start()
    until(lambda: db.execute(WAITS).fetchall())
    over.set()


@pytest.mark.slow
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("fault", ["backend", "server"])
def test_a_commit_whose_connection_breaks_is_looked_up(
    replicated_server: PrivateServer, fault: str, committed: bool
) -> None:
    """Also where the first connects after it fail."""
    server = replicated_server
    # our own commits wait for no standby
    options = "-c synchronous_commit=local"
    inside = psycopg.conninfo.make_conninfo(server.uri, options=options)
    outside = psycopg.conninfo.make_conninfo(inside, dbname="postgres")
    with psycopg.connect(inside, autocommit=True) as db, ExitStack() as stack:
        port = stack.enter_context(serving(server.uri, ingest={"wait": "60s"}))
        clients = stack.enter_context(clients_of(port, CLIENTS))
        with clients_of(port, 1) as (first,):  # so that smtpd has ids, and a heartbeat
            send(first, SMALL)
            assert first.reply()[:3] == "250"
        no_standby(server, db)
        blocker = psycopg.connect(inside)
        stack.callback(blocker.close)
        if not committed:
            blocker.execute("LOCK TABLE queue IN EXCLUSIVE MODE")
        threads = [threading.Thread(target=send, args=(c, SMALL)) for c in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        works = WORKS.format("IPC" if committed else "Lock").encode()
        ((backend,),) = until(lambda: db.execute(works).fetchall())
        with psycopg.connect(outside, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            if fault == "backend":
                admin.execute("ALTER DATABASE pgmta ALLOW_CONNECTIONS false")
                admin.execute("SELECT pg_terminate_backend(%s)", (backend,))
        if fault == "server":
            server.crash()
        # others get their reply at once
        with clients_of(port, 1) as (other,):
            other.hello()
            assert refused(other) == "451"
            assert refused(other) == "451"
        if fault == "server":
            server.start()
        else:
            with psycopg.connect(outside, autocommit=True) as admin:
                admin.execute("SELECT pg_reload_conf()")
                admin.execute("ALTER DATABASE pgmta ALLOW_CONNECTIONS true")
            blocker.rollback()
        codes, told = answers(clients)
        assert set(codes) <= {"250", "451"}  # what had not been sent is refused
        assert told
        with psycopg.connect(inside, autocommit=True) as look:
            assert len(ids(look)) == len(told) + 1
            assert set(told) < set(ids(look))
            assert look.execute("SELECT count(*) FROM queue").fetchone() == (len(told) + 1,)


def refused(client: Client) -> str:
    """The code of the refusal of a message, at MAIL if smtpd knows of the outage."""
    for command in ("RSET", "MAIL FROM:<a@b>", "RCPT TO:<r@b>", "DATA"):
        reply = client.say(command)
        if reply[0] not in "23":
            return reply[:3]
    client.send(SMALL + b".\r\n")
    return client.reply()[:3]
