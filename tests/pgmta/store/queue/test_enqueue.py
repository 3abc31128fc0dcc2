"""The way in: one commit a group, and never the same group twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgmta.errors import StoreUnavailable
from pgmta.model import CHUNK_OCTETS, NewMessage, Options, Outcome, Reply
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.admin.migrate import migrate
from pgmta.store.admin.upkeep import Upkeep
from pgmta.store.queries import Statement
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.enqueue import Companion, Enqueue
from pgmta.store.queue.settle import Settlements
from tests.support.database import PrivateServer, fresh_database
from tests.support.rows import column, fetch
from tests.support.waiting import until


@pytest.fixture
async def link(database: str) -> AsyncIterator[Link]:
    link = Link(database, "test")
    yield link
    await link.close()


def group(first: int, count: int = 3) -> list[NewMessage]:
    return [
        NewMessage(
            id=number,
            sender="" if number % 2 else "s@a.example",
            recipients=[(f"r{n}@B.example", "b.example") for n in range(number % 3 + 1)],
            size=3,
            trace="Received: é\r\n",
            body=b"\0\xff\n",
            utf8=bool(number % 2),
            metadata=['{"_partid": "1", "x": "é"}'] * (number % 3 + 1) if number % 2 else [],
            priority=number % 10,
        )
        for number in range(first, first + count)
    ]


class Unlucky(Link):
    """Loses the connection after (or before) the first insert, as `then` arranges it."""

    def __init__(self, uri: str, db: psycopg.Connection, *, committed: bool) -> None:
        super().__init__(uri, "unlucky")
        self.db = db
        self.committed = committed
        self.lost = False

    async def run(
        self, query: str | bytes, params: dict[str, object] | None = None, *, tries: int = 10
    ) -> list[tuple[object, ...]]:
        if not self.lost and isinstance(query, bytes) and b"queue_put" in query:
            self.lost = True
            if self.committed:
                await super().run(query, params)
            async with self.use() as connection:
                self.db.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
                raise psycopg.OperationalError("connection reset")
        return await super().run(query, params)


async def settle(database: str, db: psycopg.Connection) -> None:
    """Have a worker deliver all that waits."""
    (now,) = fetch(db, "SELECT now()")
    worker = Link(database, "worker")
    items = (await Claims(worker, "w", 60, None).claim(100, [])).items
    await Settlements(worker, "w").settle(
        [Outcome(item, Event.DELIVERED, Reply(250, "Ok"), started=now, ended=now) for item in items]
    )
    await worker.close()


async def test_a_group_is_stored_as_it_is(db: psycopg.Connection, link: Link) -> None:
    await Enqueue(link).commit(group(300))
    assert db.execute("SELECT id, size, utf8, trace, body, chunks FROM messages").fetchall() == [
        (m.id, 3, m.utf8, m.trace, m.body, 0) for m in group(300)
    ]
    rows = db.execute(
        "SELECT message_id, sender, recipient, domain, priority, metadata, status, attempts, "
        "next_attempt <= now() FROM queue ORDER BY id"
    ).fetchall()
    assert rows == [
        (
            m.id,
            m.sender,
            address,
            domain,
            m.priority,
            json.loads(m.metadata[0]) if m.metadata else {},
            "QUEUED",
            0,
            True,
        )
        for m in group(300)
        for address, domain in m.recipients
    ]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_connection_lost_in_the_commit_never_doubles_nor_loses_a_group(
    database: str, db: psycopg.Connection, committed: bool
) -> None:
    link = Unlucky(database, db, committed=committed)
    await Enqueue(link).commit(group(300))
    await link.close()
    assert link.lost
    assert column(db, "SELECT id FROM messages ORDER BY id") == [300, 301, 302]
    assert fetch(db, "SELECT count(*) FROM queue") == (6,)


async def test_a_group_delivered_before_its_repetition_is_not_stored_again(
    database: str, db: psycopg.Connection
) -> None:
    """The connection broke after the commit, and a worker was faster than the new connection."""

    class Delivered(Unlucky):
        async def run(
            self, query: str | bytes, params: dict[str, object] | None = None, *, tries: int = 10
        ) -> list[tuple[object, ...]]:
            if self.lost and not self.db.execute("SELECT FROM attempts").rowcount:
                await settle(database, db)
            return await super().run(query, params)

    link = Delivered(database, db, committed=True)
    await Enqueue(link).commit(group(300))
    await link.close()
    assert fetch(db, "SELECT count(*) FROM attempts") == (6,)
    assert column(db, "SELECT id FROM messages") == []
    assert column(db, "SELECT id FROM queue") == []


async def test_a_repetition_waits_for_a_first_try_that_is_still_committing(
    database: str, db: psycopg.Connection
) -> None:
    first = psycopg.connect(database)
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid)) "
        "AND query LIKE '%%queue_put%%'"
    )

    def finish() -> None:
        until(lambda: column(db, waiting, first.info.backend_pid))
        first.commit()

    for new in group(300):
        first.execute(
            "INSERT INTO messages (id, size, trace, body) VALUES (%s, %s, %s, '')",
            (new.id, new.size, new.trace),
        )
    link = Unlucky(database, db, committed=False)
    await asyncio.gather(Enqueue(link).commit(group(300)), asyncio.to_thread(finish))
    await link.close()
    first.close()
    assert column(db, "SELECT id FROM queue") == []


async def test_ids_that_somebody_else_used_are_no_success(
    db: psycopg.Connection, link: Link
) -> None:
    """After a restore from a backup, say: 250 for them would lose the mail."""
    await Enqueue(link).commit(group(300, 1))
    with pytest.raises(psycopg.errors.UniqueViolation):
        await Enqueue(link).commit(group(298))
    assert column(db, "SELECT id FROM messages") == [300]


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("change", [{"size": 4}, {"trace": "T: t\r\n"}, {"sender": "x@a.example"}])
async def test_a_look_takes_no_other_mail_for_a_group(
    database: str, db: psycopg.Connection, link: Link, delivered: bool, change: dict[str, Any]
) -> None:
    """One of its messages has the id of another one; of one that is done the log has the sender."""
    other = replace(group(301, 1)[0], **({"sender": "x@a.example"} if delivered else change))
    await Enqueue(link).commit([other])
    if delivered:
        await settle(database, db)
    unlucky = Unlucky(database, db, committed=False)
    with pytest.raises(psycopg.errors.UniqueViolation):
        await Enqueue(unlucky).commit(group(300))
    await unlucky.close()
    assert column(db, "SELECT id FROM messages") == ([] if delivered else [301])


async def test_a_message_that_is_there_already_is_stored_once_and_counts_for_itself_alone(
    db: psycopg.Connection, link: Link
) -> None:
    """A former call could not see that it is there, because its server was a primary no more."""
    first, second = group(300, 2)
    await Enqueue(link).commit([first])
    with pytest.raises(psycopg.errors.UniqueViolation):
        await Enqueue(link).commit([first, second])
    assert not await Enqueue(link).commit([first])
    assert column(db, "SELECT id FROM messages") == [300]


@pytest.mark.slow
async def test_reserved_ids_are_nobody_elses_after_a_crash(private_server: PrivateServer) -> None:
    """Whoever has them goes on after it, and would take the mail of another one for its own."""
    link = Link(private_server.uri, "before")
    before = await Enqueue(link).reserve(100)
    private_server.crash()
    await link.close()
    private_server.start()
    link = Link(private_server.uri, "after")
    after = await Enqueue(link).reserve(100)
    await link.close()
    assert not {*before} & {*after}


async def test_chunks_of_large_messages(db: psycopg.Connection, link: Link) -> None:
    store, contents = Enqueue(link), Contents(link)
    first, second = b"a\0" * (CHUNK_OCTETS // 2), b"\xff" * 10
    content = first + second
    await store.chunks([(1, 0, content), (2, 0, content)])
    await store.chunks([(1, 2, second)])
    (new,) = group(1, 1)
    new.chunks, new.body, new.size = 3, b"", len(content) + 10
    await store.commit([new])
    await store.drop_chunks([1])  # it was accepted after all
    await store.drop_chunks([2])
    assert column(db, "SELECT DISTINCT message_id FROM message_chunks") == [1]
    assert [await contents.chunks(1, n, 1) for n in range(4)] == [first, second, second, None]
    assert await contents.chunks(1, 0, 3) == content + second
    assert await contents.chunks(1, 1, 3) is None
    assert (await contents.body(1), await contents.body(9)) == (b"", None)
    known = (await Claims(link, "w", 60, None).claim(9, [], 1000, 1000)).messages
    assert (known[1].chunks, known[1].body, list(known)) == (3, None, [1])
    db.execute("UPDATE queue SET status = 'QUEUED', lease_until = NULL, lease_token = NULL")
    known = (await Claims(link, "w", 60, None).claim(9, [], 1 << 20, 1 << 20)).messages
    assert known[1].body == content + second


async def test_a_message_whose_chunks_are_missing_is_refused(
    db: psycopg.Connection, link: Link
) -> None:
    """A crash after the write took the chunks, because the write needed no sync."""
    store = Enqueue(link)
    content = b"x" * (3 * CHUNK_OCTETS)
    await store.chunks([(1, 0, content), (2, 0, content[: 2 * CHUNK_OCTETS])])
    new = group(1, 2)
    for message in new:
        message.chunks, message.body = 3, b""
    with pytest.raises(psycopg.errors.NotNullViolation):
        await store.commit(new)
    assert column(db, "SELECT id FROM messages") == []
    await store.commit(new[:1])
    assert column(db, "SELECT id FROM messages") == [1]


async def test_orphaned_chunks_go_with_their_time(db: psycopg.Connection, link: Link) -> None:
    store = Enqueue(link)
    await store.chunks([(number, 0, b"x" * (2 * CHUNK_OCTETS)) for number in range(1, 6)])
    (kept,) = group(3, 1)
    kept.chunks, kept.body = 2, b""
    await store.commit([kept])
    assert await Upkeep(link).orphans(3600, 10) == 0
    db.execute("UPDATE message_chunks SET stored_at = now() - interval '1 day'")
    await store.chunks([(5, 2, b"x")])  # still coming in
    assert await Upkeep(link).orphans(3600, 2) == 4
    assert await Upkeep(link).orphans(3600, 2) == 2
    assert await Upkeep(link).orphans(3600, 2) == 0
    assert column(db, "SELECT DISTINCT message_id FROM message_chunks ORDER BY 1") == [3, 5]


COMPANION = Statement(b"INSERT INTO notes VALUES (%(note)s)")


@pytest.fixture
def notes(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE notes (note integer PRIMARY KEY)")


@pytest.mark.usefixtures("notes")
async def test_a_companion_is_done_with_its_group_or_not_at_all(
    db: psycopg.Connection, link: Link
) -> None:
    store = Enqueue(link)
    await store.commit(group(300), beside=Companion(COMPANION, {"note": 1}))
    with pytest.raises(psycopg.errors.UniqueViolation, match="notes"):
        await store.commit(group(400), beside=Companion(COMPANION, {"note": 1}))
    with pytest.raises(psycopg.errors.UniqueViolation, match="messages"):
        await store.commit(group(302), beside=Companion(COMPANION, {"note": 2}))
    await store.commit(group(500, 1), beside=Companion(COMPANION, {"note": 3}))
    assert column(db, "SELECT note FROM notes ORDER BY note") == [1, 3]
    assert column(db, "SELECT id FROM messages ORDER BY id") == [300, 301, 302, 500]
    same = (
        "SELECT count(DISTINCT x.xmin::text) FROM (SELECT xmin FROM notes WHERE note = 3 UNION ALL "
    )
    assert fetch(db, same + "SELECT xmin FROM messages WHERE id = 500) AS x") == (1,)


@pytest.mark.usefixtures("notes")
async def test_a_companion_comes_after_its_group(db: psycopg.Connection, link: Link) -> None:
    """Else its locks would wait for the octets of the group."""
    counting = Statement(b"INSERT INTO notes SELECT count(*) FROM messages")
    await Enqueue(link).commit(group(300), beside=Companion(counting, {}))
    assert column(db, "SELECT note FROM notes") == [3]


@pytest.mark.usefixtures("notes")
async def test_a_companion_is_done_once_if_the_connection_is_lost(
    database: str, db: psycopg.Connection, link: Link
) -> None:
    """A trigger ends the connection in the first commit: nothing is stored, and it is repeated."""
    db.execute("CREATE SEQUENCE tries")
    db.execute(
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('tries') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
        " RETURN NULL; END $$"
    )
    db.execute("CREATE TRIGGER lose AFTER INSERT ON messages EXECUTE FUNCTION lose()")
    await Enqueue(link).commit(group(300), beside=Companion(COMPANION, {"note": 1}))
    assert column(db, "SELECT note FROM notes") == [1]
    assert column(db, "SELECT id FROM messages ORDER BY id") == [300, 301, 302]


async def test_options_reach_their_columns(db: psycopg.Connection, link: Link) -> None:
    plain, rich = group(300, 2)
    plain.message_id_header = "<a@b>"
    rich.options = Options(
        "acme", True, "shop", "env", "HDRS", True, ["NEVER", None], ["rfc822;x", None]
    )
    rich.on_failed = "remove"
    rich.holds = [None, "why"]
    await Enqueue(link).commit([plain, rich])
    assert db.execute(
        "SELECT id, tenant, submitted_by, envid, ret, requiretls, message_id_header FROM messages"
    ).fetchall() == [
        (300, "", None, None, None, False, "<a@b>"),
        (301, "acme", "shop", "env", "HDRS", True, None),
    ]
    assert db.execute(
        "SELECT message_id, tenant, on_failed, once, notify, orcpt, status, hold_reason"
        " FROM queue ORDER BY id"
    ).fetchall() == [
        (300, "", "hold", False, None, None, "QUEUED", None),
        (301, "acme", "remove", True, "NEVER", "rfc822;x", "QUEUED", None),
        (301, "acme", "remove", True, None, None, "HOLD", "why"),
    ]


async def test_types_of_another_schema_are_learned_again(server: str) -> None:
    """A link connects before there is a schema, and the schema is restored: its oids are others."""
    with fresh_database(server) as uri, psycopg.connect(uri, autocommit=True) as db:
        link = Link(uri, "test")
        await link.run("SELECT")
        migrate(uri)
        await Enqueue(link).commit(group(300))
        db.execute("DROP SCHEMA pgmta CASCADE")
        migrate(uri)
        with pytest.raises(StoreUnavailable):  # smtpd tries again
            await Enqueue(link).commit(group(300))
        await Enqueue(link).commit(group(300))
        db.execute("DROP SCHEMA pgmta CASCADE")
        migrate(uri)
        await Enqueue(link).commit(group(300), wake=True)  # prepared for the new types
        await link.close()
        assert column(db, "SELECT id FROM pgmta.messages ORDER BY id") == [300, 301, 302]
