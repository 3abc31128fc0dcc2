"""pgmta.Client: commits that tasks share, results in order, and mail that is not sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import pgmta
from pgmta import Client, Mail, NotBegun, RawMail, SubmissionError, TemplateMail
from pgmta.errors import LoginRefused, SchemaMismatch
from pgmta.model import PART_OCTETS
from tests.sql.test_composed import SOURCE, put_template
from tests.support.bad_mail import GOOD_TEMPLATE
from tests.support.database import fresh_database
from tests.support.rows import column, fetch
from tests.support.waiting import eventually, let_others_run

CALLS = "SELECT count(*) FROM submit_calls"


@pytest.fixture
def uri(database: str) -> str:
    """The database as the role of programs sees it."""
    return make_conninfo(database, options="-c role=pgmta_submit")


@pytest.fixture
async def client(uri: str) -> AsyncIterator[Client]:
    async with Client(uri) as client:
        yield client


def mail(n: object = 0, **changes: Any) -> Mail:
    given = {"sender": "shop@a.example", "to": ["r@b.example"], "body": "x"}
    return Mail(**{**given, "subject": f"Mail {n}", **changes})


def subjects(db: psycopg.Connection) -> list[tuple[int, str]]:
    """The stored mail: ids and subjects, by id."""
    return db.execute("SELECT id, params ->> 'subject' FROM messages ORDER BY id").fetchall()


async def test_tasks_share_commits(client: Client, db: psycopg.Connection) -> None:
    first = await client.send(mail())
    assert fetch(db, "SELECT id, origin, submitted_by FROM messages")[:2] == (first, "sql")
    ids = await asyncio.gather(*(client.send(mail(n)) for n in range(200)))
    assert subjects(db)[1:] == sorted((number, f"Mail {n}") for n, number in enumerate(ids))
    assert column(db, CALLS)[0] <= 4
    # a bad one among them is its caller's affair alone
    calls = [client.send(mail(n, to=["bad"] if n == 7 else ["r@b.example"])) for n in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, each in enumerate(results) if not isinstance(each, int)] == [7]
    error = results[7]
    assert isinstance(error, SubmissionError)
    assert (error.argument, error.reason, error.sqlstate) == (
        "to", "an address has no domain", "22023"
    )  # fmt: skip
    assert '"bad"' in error.detail
    assert error.hint


BAD: dict[int, tuple[dict[str, Any], str]] = {
    0: ({"to": ["r1"]}, "SubmissionError to: an address has no domain"),
    1: ({"subject": 7}, "TypeError subject: "),
    500: ({"body": "a\0"}, "SubmissionError body: it has NUL"),
    4999: ({"send_at": datetime(2030, 1, 1)}, "ValueError send_at: it has no time zone"),
    5000: ({"headers": {"Date": "x"}}, "SubmissionError headers: a field is reserved"),
    9998: ({"to": []}, "SubmissionError to: there is no recipient"),
    9999: ({"metadata": {"a": float("nan")}}, "SubmissionError metadata: "),
}


@pytest.mark.slow
async def test_seven_bad_ones_of_10000(client: Client, db: psycopg.Connection) -> None:
    found = await client.send_many(mail(n, **BAD.get(n, ({}, ""))[0]) for n in range(10_000))
    assert len(found) == 10_000
    ids = [each.id for each in found if each.id is not None]
    assert len(ids) == 9_993
    good = [n for n in range(10_000) if n not in BAD]
    assert subjects(db) == sorted((i, f"Mail {n}") for i, n in zip(ids, good, strict=True))
    errors = {n: each.error for n, each in enumerate(found) if each.error}
    assert errors.keys() == BAD.keys()
    for n, error in errors.items():
        assert f"{type(error).__name__} {error}".startswith(BAD[n][1])
    assert column(db, CALLS)[0] <= 20


async def test_each_kind_of_mail_in_one_call(client: Client, db: psycopg.Connection) -> None:
    put_template(db, "receipt", SOURCE)
    large = b"Subject: large\r\n\r\n" + b"x\r\n" * PART_OCTETS
    files = [pgmta.Attachment("ä.txt", b"one"), pgmta.Attachment("b.bin", b"\0two", "a/b")]
    send_at = datetime.now(UTC) + timedelta(days=1)
    mails = [
        RawMail("s@a.example", ["r@b.example"], b"Subject: x\r\n\r\nx\r\n", key="k", priority=0),
        mail("ü€😀", attachments=files, tenant="t", once=True),
        TemplateMail(**GOOD_TEMPLATE, attachments=files[1:]),
        RawMail("", ["r@b.example", "q@b.example"], large, on_failed="hold", send_at=send_at),
        mail(metadata={"a": "b"}, deadline=send_at),
        RawMail("s@a.example", ["r@b.example"], b"Subject: x\r\n\r\nx\r\n", key="k", priority=0),
    ]
    ids = [each.id for each in await client.send_many(mails)]
    assert ids[5] == ids[0]
    rows = {
        number: (size, params, chunks, body)
        for number, size, params, chunks, body in db.execute(
            "SELECT id, size, params, chunks, body FROM messages"
        )
    }
    assert list(rows) == ids[:5]
    assert b"Subject: x\r\n\r\nx\r\n" in rows[ids[0]][3]
    assert rows[ids[1]][1]["subject"] == "Mail ü€😀"
    assert b"AHR3bw==" in rows[ids[1]][3]
    assert b"AHR3bw==" in rows[ids[2]][3]
    assert rows[ids[3]][0] > 3 * PART_OCTETS
    assert rows[ids[3]][2] > 64
    options = "SELECT priority, tenant, once, on_failed, status, metadata - '_deadline' FROM queue"
    assert db.execute(f"{options} ORDER BY message_id").fetchall() == [
        (0, "", False, "remove", "QUEUED", {}),
        (5, "t", True, "remove", "QUEUED", {}),
        (5, "", False, "remove", "QUEUED", {}),
        *[(5, "", False, "hold", "SCHEDULED", {})] * 2,
        (5, "", False, "remove", "QUEUED", {"a": "b"}),
    ]


async def test_an_iterator_is_read_as_its_mail_is_stored(
    client: Client, db: psycopg.Connection
) -> None:
    stored = []

    def mails() -> Iterator[Mail]:
        for n in range(6_000):
            if n % 1000 == 999:
                stored.append(column(db, "SELECT count(*) FROM messages")[0])
            yield mail(n)
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="gone") as ended:
        await client.send_many(mails())
    assert ended.value.__notes__ == ["pgmta: 6000 mails that came before this are in the queue"]
    assert stored[-1] >= 3_000
    assert column(db, "SELECT count(*) FROM messages") == [6_000]


async def test_values_that_are_no_mail_or_no_client(client: Client, uri: str) -> None:
    with pytest.raises(TypeError, match="give a pgmta.Mail, .*, and not str"):
        await client.send("mail")  # type: ignore[arg-type]
    assert [each.error for each in await client.send_many([])] == []
    for call, kind, words in (
        (client.send_many(mail()), TypeError, "^mails: "),  # type: ignore[arg-type]
        (client.status(["1"]), TypeError, "^ids: "),  # type: ignore[list-item]
        (client.status(1), TypeError, "^ids: "),  # type: ignore[arg-type]
        (client.status([True]), TypeError, "^ids: "),
        (client.status([1.0]), TypeError, "^ids: "),  # type: ignore[list-item]
        (client.status([2**63]), ValueError, "^ids: "),
        (client.wait([-(2**63) - 1]), ValueError, "^ids: "),
        (client.wait([1], "1"), TypeError, "^timeout: "),  # type: ignore[arg-type]
        (client.wait([1], float("nan")), ValueError, "^timeout: "),
        (client.cancel("1"), TypeError, "^id: "),  # type: ignore[arg-type]
        (client.cancel(1, 5), TypeError, "^reason: "),  # type: ignore[arg-type]
        (client.cancel(2**63), ValueError, "^id: "),
        (client.cancel(1, "a\0"), SubmissionError, "^reason: it has NUL or half"),
        (client.cancel(1, "\ud800"), SubmissionError, "^reason: it has NUL or half"),
    ):
        with pytest.raises(kind, match=words):
            await call
    assert await client.status([2**63 - 1, 0]) == {2**63 - 1: [], 0: []}
    for wrong, words in (
        ({"uri": "no uri ="}, "^uri: "),
        ({"connections": 0}, "^connections: "),
        ({"patience": 0}, "^patience: "),
        ({"patience": 3600}, "^patience: "),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            Client(**{"uri": uri, **wrong})  # type: ignore[arg-type]
        assert "no uri" not in str(refused.value)


async def test_a_client_has_one_event_loop(client: Client, uri: str) -> None:
    await client.send(mail())
    found: list[object] = []

    async def elsewhere() -> None:
        try:
            await client.send(mail())
        except RuntimeError as error:
            found.append(str(error))
        async with Client(uri) as other:  # and each loop may have its own
            found.append(await other.send(mail()))

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    await asyncio.to_thread(thread.join)
    refused, number = found
    assert "another event loop" in str(refused)
    assert isinstance(number, int)


async def test_what_is_cancelled_before_its_commit_is_not_sent(
    database: str, db: psycopg.Connection
) -> None:
    async with Client(database, connections=1) as client:
        await client.send(mail("first"))
        with psycopg.connect(database) as other:
            other.execute("LOCK TABLE messages IN SHARE MODE")
            begun = asyncio.create_task(client.send(mail("begun")))
            await eventually(lambda: column(db, _WAITING) == [1])
            tasks = [asyncio.create_task(client.send(mail(f"waits {n}"))) for n in range(3)]
            many = asyncio.create_task(client.send_many([mail("many")] * 3))
            await let_others_run(3)
            for task in (begun, tasks[1], many):
                task.cancel()
            await let_others_run(3)
            assert [task.cancelled() for task in (begun, *tasks, many)] == [
                True, False, True, False, True
            ]  # fmt: skip
        await asyncio.gather(tasks[0], tasks[2])
    names = [name for _, name in subjects(db)]
    assert names == ["Mail first", "Mail begun", "Mail waits 0", "Mail waits 2"]


_WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name LIKE 'pgmta client%' AND wait_event_type = 'Lock'
    AND datname = current_database()
"""


async def test_close_ends_what_is_begun(database: str, db: psycopg.Connection) -> None:
    client = Client(database, connections=1)
    await client.send(mail("first"))
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE messages IN SHARE MODE")
        many = asyncio.create_task(client.send_many(mail(n) for n in range(5_000)))
        await eventually(lambda: column(db, _WAITING) == [1])
        lone = asyncio.create_task(client.send(mail("lone")))
        await let_others_run(3)
        closing = [asyncio.create_task(client.close()) for _ in range(2)]
        with pytest.raises(NotBegun, match="client is closed"):
            await lone
    await asyncio.gather(*closing)
    found = await many
    assert len(found) == 5_000
    begun = [n for n, each in enumerate(found) if each.id]
    assert begun == list(range(len(begun)))
    assert 0 < len(begun) <= 1_000
    assert all(isinstance(each.error, NotBegun) for each in found[len(begun) :])
    assert subjects(db)[1:] == [(found[n].id, f"Mail {n}") for n in begun]
    for call in (client.send(mail()), client.status([1]), client.wait([1]), client.cancel(1)):
        with pytest.raises(NotBegun):
            await call
    assert [type(each.error) for each in await client.send_many([mail()])] == [NotBegun]
    unused = Client(database)
    await unused.close()
    with pytest.raises(NotBegun):
        await unused.send(mail())


async def test_close_waits_for_a_question_under_way(database: str, db: psycopg.Connection) -> None:
    client = Client(database)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE queue IN ACCESS EXCLUSIVE MODE")
        asked = asyncio.create_task(client.status([1]))
        await eventually(lambda: column(db, _WAITING) == [1])
        closing = asyncio.create_task(client.close())
        await let_others_run(3)
    assert await asked == {1: []}
    await closing


async def test_a_rule_of_operators_refuses_its_mail_alone(
    client: Client, db: psycopg.Connection
) -> None:
    db.execute("ALTER TABLE queue ADD CHECK (recipient <> 'r3@b.example')")
    found = await client.send_many(mail(n, to=[f"r{n}@b.example"]) for n in range(6))
    assert [n for n, each in enumerate(found) if each.error] == [3]
    assert isinstance(found[3].error, psycopg.errors.CheckViolation)
    with pytest.raises(psycopg.errors.CheckViolation):
        await client.send(mail(to=["r3@b.example"]))
    assert len(subjects(db)) == 5


async def test_a_login_without_the_role_and_a_database_without_the_schema(
    server: str, database: str, db: psycopg.Connection
) -> None:
    db.execute("DROP ROLE IF EXISTS no_program")
    db.execute("CREATE ROLE no_program")
    stranger = make_conninfo(database, options="-c role=no_program")
    words = "`GRANT pgmta_submit TO no_program;`"
    with fresh_database(server) as empty:
        for uri, kind, match in (
            (stranger, LoginRefused, words),
            (empty, SchemaMismatch, "run `queuectl database migrate`"),
        ):  # fmt: skip
            async with Client(uri, patience=60) as client:
                with pytest.raises(kind, match=match):
                    await client.send(mail())
                with pytest.raises(kind, match=match):
                    await client.status([1])
                assert [type(each.error) for each in await client.send_many([mail()])] == [kind]
    db.execute("DROP ROLE no_program")
    async with Client(make_conninfo(database, user="no_such_login", requirepeer="")) as client:
        with pytest.raises(pgmta.StoreUnavailable):
            await client.send(mail())


async def test_the_workers_are_notified(client: Client, database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as listener:
        await listener.execute("LISTEN pgmta_queue")
        await client.send(mail())
        async for notification in listener.notifies(timeout=60, stop_after=1):
            assert notification.channel == "pgmta_queue"
