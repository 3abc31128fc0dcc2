"""Mail from a program: groups, chunks, and the rest after a failure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from email import message_from_bytes
from email.utils import parsedate_to_datetime

import psycopg
import pytest

from pgmta.errors import AddressError, SchemaMismatch
from pgmta.model import PART_SIZE
from pgmta.store.queue.submit import RawMail, Submission
from tests.sql.test_schema import FORMER_TABLES
from tests.support.database import fresh_database
from tests.support.rows import column, fetch

TEXT = b"Subject: x\r\nDate: x\r\nMessage-ID: <1@x>\r\n\r\nx\r\n"


@pytest.fixture
async def submission(database: str) -> AsyncIterator[Submission]:
    submission = Submission(database, "app.example")
    yield submission
    await submission.close()


async def test_every_mail_is_stored_once_and_in_order(
    submission: Submission, db: psycopg.Connection
) -> None:
    mails = [RawMail("", [f"r{n}@A.example", f"é{n}@b.example"], TEXT) for n in range(2500)]
    told: list[int] = []
    ids = await submission.submit(mails, told.extend)
    assert sorted(told) == sorted(ids)
    assert fetch(db, "SELECT count(*), count(DISTINCT message_id) FROM queue") == (5000, 2500)
    for n in (0, 1234, 2499):
        query = "SELECT recipient || ' ' || domain FROM queue WHERE message_id = %s ORDER BY domain"
        assert column(db, query, ids[n]) == [
            f"r{n}@A.example a.example",
            f"é{n}@b.example b.example",
        ]
    assert column(db, "SELECT DISTINCT body FROM messages WHERE utf8 AND chunks = 0") == [TEXT]
    (trace,) = column(db, f"SELECT trace FROM messages WHERE id = {ids[0]}")
    assert trace.startswith(f"Received: by app.example (pgmta) id {ids[0]};\r\n\t")


async def test_a_large_content_is_stored_in_chunks(
    submission: Submission, db: psycopg.Connection
) -> None:
    content = TEXT + b"x" * (2 * PART_SIZE - len(TEXT)) + b"\r\n"
    (number,) = await submission.submit([RawMail("s@a.example", ["r@a.example"], content)])
    assert fetch(db, "SELECT id, size, chunks, body FROM messages") == (
        number, len(content), 129, b""
    )  # fmt: skip
    chunks = column(db, "SELECT data FROM message_chunks ORDER BY position")
    assert b"".join(chunks) == content


@pytest.mark.parametrize(
    "content", [b"Subject: x\r\n\r\nx\r\n", b"Subject: x\r\n", b"x\r\n", b"\r\nx\r\n"]
)
async def test_date_and_message_id_are_added(
    submission: Submission, db: psycopg.Connection, content: bytes
) -> None:
    await submission.submit([RawMail("s@a.example", ["r@a.example"], content)])
    body, size, name = fetch(db, "SELECT body, size, message_id_header FROM messages")
    found = message_from_bytes(body)
    given = message_from_bytes(content)
    assert not found.defects
    assert size == len(body)
    assert found["Subject"] == given["Subject"]
    assert found.get_payload() == given.get_payload()
    assert found["Message-ID"] == name
    assert name.endswith("@app.example>")
    assert parsedate_to_datetime(found["Date"]).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "bad",
    [
        RawMail("s@a.example", [], TEXT),
        RawMail("s@a.example", ["no domain"], TEXT),
        RawMail("s\r\n@a.example", ["r@a.example"], TEXT),
        RawMail("é\x9b@a.example", ["r@a.example"], TEXT),
        RawMail("s@a.example", ["é\u202e@a.example"], TEXT),
        RawMail("s@a.example", ["r@a.example"], b"Subject: x\n\nx\n"),
        RawMail("s@a.example", ["r@a.example"], TEXT + b"\r"),
        RawMail("s@a.example", ["r@a.example"], TEXT + b"\0.\r\nMAIL\r\n"),
    ],
)
async def test_nothing_is_stored_where_one_mail_is_wrong(
    submission: Submission, db: psycopg.Connection, bad: RawMail
) -> None:
    with pytest.raises((AddressError, ValueError)):
        await submission.submit([RawMail("", ["r@a.example"], TEXT), bad])
    assert column(db, "SELECT id FROM messages") == []


async def test_after_a_refusal_those_that_were_told_are_stored_and_no_others(
    submission: Submission, db: psycopg.Connection
) -> None:
    db.execute("ALTER TABLE queue ADD CHECK (recipient <> 'r1500@a.example')")
    told: list[int] = []
    with pytest.raises(psycopg.errors.CheckViolation):
        await submission.submit(
            [RawMail("", [f"r{n}@a.example"], TEXT) for n in range(9000)], told.extend
        )
    assert len(told) in range(1000, 8001)
    assert sorted(column(db, "SELECT id FROM messages")) == sorted(told)


GIVEN = [
    "Subject: x",
    "DATE : x",
    "date\t:\r\n x",
    "Message-Id:<1@x>",
    "MESSAGE-ID  :\r\n\t<1@x>",
    "message-id:",
    "X-Date: a\r\nX-Message-ID: b\r\nResent-Date: c\r\nResent-Message-ID: d",
    "X: a\r\n Date: b\r\n\tMessage-ID: <c@d>",
    "Subject: é\r\nDateline: x\r\nMessage-IDs: y",
    "X: " + "a" * 900 + "\r\n " + "b" * 40_000,
    "Date: x\r\nMESSAGE-ID: <1@x>\r\nX: y",
    "\r\n".join(f"X-{n}: {'a' * 900}" for n in range(80)),
    "\r\n".join(f"X-{n}: {'a' * 900}" for n in range(80)) + "\r\nDate: x\r\nMessage-ID: <1@x>",
]


async def test_python_and_sql_add_the_same_fields(
    submission: Submission, db: psycopg.Connection
) -> None:
    """Each field that is given stays as it is, and in its place."""
    for header in GIVEN:
        content = f"{header}\r\n\r\nDate: x\r\n\r\nMessage-ID: <b@x>\r\n".encode()
        (number,) = await submission.submit([RawMail("s@a.example", ["r@a.example"], content)])
        numbers = [number]
        if len(header) < 1 << 16:  # SQL refuses a longer one
            query = "SELECT submit('s@a.example', ARRAY['r@a.example'], %s, key => %s)"
            numbers += [fetch(db, query, content, key)[0] for key in (None, str(number))]
        added = []
        for each in numbers:
            body, header_id = fetch(
                db,
                "SELECT body || coalesce((SELECT string_agg(data, '' ORDER BY position)"
                " FROM message_chunks WHERE message_id = id), ''), message_id_header"
                " FROM messages WHERE id = %s",
                each,
            )
            lines = content.splitlines(keepends=True)
            new = [line for line in body.splitlines(keepends=True) if line not in lines]
            rest = b"".join(line for line in body.splitlines(keepends=True) if line in lines)
            assert rest == content, header[:99]
            added.append([line.partition(b":")[0] for line in new])
            if b"Message-ID" in added[-1] and len(header) < 1 << 16:
                assert new[-1] == f"Message-ID: {header_id}\r\n".encode(), header[:99]
        names = [name.partition(":")[0].rstrip().lower() for name in header.split("\r\n")]
        wanted = [w for w in (b"Date", b"Message-ID") if w.decode().lower() not in names]
        assert added == [wanted] * len(numbers), header[:99]


async def test_a_database_without_the_present_queue(server: str) -> None:
    """Empty, and then one from before the baseline, where nothing is written either."""
    with fresh_database(server) as uri, psycopg.connect(uri, autocommit=True) as db:
        submission = Submission(uri, "app.example")
        mail = RawMail("", ["r@a.example"], TEXT)
        with pytest.raises(SchemaMismatch, match="run `queuectl migrate`"):
            await submission.submit([mail], lambda ids: None)
        db.execute("CREATE SCHEMA pgmta; CREATE SEQUENCE pgmta.message_ids")
        db.execute(FORMER_TABLES.format(schema="pgmta").encode())
        with pytest.raises(SchemaMismatch, match="from before the first release"):
            await submission.submit([mail], lambda ids: None)
        await submission.close()
        assert fetch(db, "SELECT count(*) FROM pgmta.queue") == (0,)
