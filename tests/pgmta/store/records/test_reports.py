"""The duty that reports, on hostile rows, with refusals, locks, other processes and limits."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.mail.address import mailbox_key
from pgmta.mail.newlines import check
from pgmta.model import NewMessage
from pgmta.postgres.link import Link
from pgmta.store.records.reports import Reports
from queued.reports.report_batches import ReportBatches
from queued.upkeep.log_retention import DUTIES
from tests.support.reporting import dsns, duty, ended, ends
from tests.support.rows import column, fetch, message, row

NONE = "undeliverable, no DSN"
NULL = f"{NONE}: it has the null reverse-path"
UNSET = ", and bounces.postmaster is not set"


@pytest.fixture
def db(db: psycopg.Connection) -> psycopg.Connection:
    """A database whose next ids are above those of the tests."""
    db.execute("SELECT setval('message_ids', 1000)")
    return db


async def test_hostile_rows_are_ended_and_do_not_stop_others(
    database: str, db: psycopg.Connection
) -> None:
    odd = {
        "no address": ended(db, 1, sender="nodomain", sender_domain=""),
        "null": ended(db, 2, sender="", sender_domain=""),
        "null, no reason": ended(db, 20, sender="", sender_domain="", hold_reason=None),
        "a DSN": ended(db, 3, metadata={"_report": "failed"}),
        "never": ended(db, 4, notify="NEVER"),
        "success": ended(db, 5, notify="SUCCESS,DELAY"),
        "long": ended(db, 6, recipient="x" * 3000 + "@b.example"),
        "infinite": ended(db, 7, ts="-infinity", held_at="infinity"),
        "far ahead": ended(db, 16, held_at="infinity", held_by=None),
        "before all": ended(db, 17, ts="infinity", held_at="-infinity", held_by="w@other"),
        "a word of ours": ended(db, 18, hold_reason="delayed", last_reply=None),
        "endless": ended(
            db,
            19,
            last_reply="550 " + "x " * 2_000_000,
            orcpt="rfc822;" + "+0D" * 9999,
            notify="x" * 99_999,
            metadata={"_partid": "p" * 99_999},
        ),
        "no reason": ended(db, 8, hold_reason=None, last_reply=None, held_by=None),
        "relayed": ended(db, 9, report_kind="relayed", notify="SUCCESS", last_reply="250 ok"),
        "relayed, null": ended(db, 10, report_kind="relayed", sender="", sender_domain=""),
        "odd notify": ended(db, 11, notify="'; DROP TABLE queue --"),
        "8-bit reply": ended(db, 12, last_reply="550 é\u2028\ufffd" + "\\" * 900),
        "part": ended(db, 13, metadata={"_partid": "it's", "k": [1]}, priority=0, tenant="t"),
    }
    orphan = ended(db, 14)
    db.execute("ALTER TABLE messages DISABLE TRIGGER ALL")
    db.execute("DELETE FROM messages WHERE id = 14")
    db.execute("ALTER TABLE messages ENABLE TRIGGER ALL")
    busy = ended(db, 15, lease_token=1, lease_owner="w", lease_since="now",
                 lease_until="2100-01-01")  # an operator bounced it during its attempt  # fmt: skip
    async with duty(database):
        await ends(db, wanted=1)
    assert column(db, "SELECT id FROM queue WHERE status = 'REPORT'") == [busy]
    held: dict[int, str] = dict(
        db.execute("SELECT id, hold_reason FROM queue WHERE status = 'HOLD'").fetchall()
    )
    assert held == {
        odd["no address"]: f"{NONE}: its sender can't get one: no domain in 'nodomain'",
        odd["null"]: NULL + UNSET,
        odd["null, no reason"]: NULL + UNSET,
        odd["a DSN"]: "undeliverable, no DSN: it is a DSN" + UNSET,
    }
    logged: dict[int, str] = dict(
        db.execute("SELECT row_id, reason FROM reports WHERE report_id IS NULL").fetchall()
    )
    assert logged == {
        odd["never"]: "NOTIFY=NEVER",
        odd["success"]: "NOTIFY=SUCCESS,DELAY",
        odd["relayed, null"]: "undeliverable, no DSN: it has the null reverse-path",
    }
    sent = column(db, "SELECT row_id FROM reports WHERE report_id IS NOT NULL")
    assert set(sent) == {*odd.values(), orphan} - {*held, *logged}
    assert len(dsns(db)) == len(sent)
    assert set(db.execute("SELECT event, worker, row_id FROM attempts").fetchall()) == {
        ("failed", "", odd["no reason"]),
        ("failed", "w@p", odd["a word of ours"]),
    }
    assert fetch(db, "SELECT max(size) < 20000 FROM messages") == (True,)
    assert fetch(
        db,
        "SELECT priority, tenant, on_failed, metadata FROM queue WHERE metadata ->> '_partid' = %s"
        " AND sender = ''",
        "it's",
    ) == (0, "t", "bounce", {"_report": "failed", "_exempt": "report", "_partid": "it's"})


async def test_content_that_no_host_may_get_does_not_stop_its_dsn(
    database: str, db: psycopg.Connection
) -> None:
    """Content with an end of data in it failed for that, and its DSN would, too."""
    contents = [
        b"Subject: one\r\n\r\na\n.\nb\r\n",
        b"Subject: two\n.\nc\r\n\r\nx\r\n",
        b"Subject: x\n.",
    ]
    for number, content in enumerate(contents, 1):
        ended(db, number)
        db.execute("UPDATE messages SET body = %s WHERE id = %s", (content, number))
    async with duty(database):
        await ends(db)
    bodies = column(db, "SELECT body FROM messages WHERE id > 1000 ORDER BY id")
    assert [check(bytes(body), "guard") for body in bodies] == ["", "", ""]
    assert [b"Subject: one" in bytes(body) for body in bodies] == [True, False, False]
    assert len(dsns(db)) == 3


@pytest.mark.parametrize("names", [("user", "postmaster"), ("Postmaster", "user")])
async def test_a_row_of_the_postmaster_is_held_beside_others(
    database: str, db: psycopg.Connection, names: tuple[str, str]
) -> None:
    for name in names:
        ended(db, 1, sender="", sender_domain="", recipient=f"{name}@b.example")
    async with duty(database, postmaster="postmaster@b.example"):
        await ends(db)
    assert dsns(db) == [("postmaster@b.example", ["user@b.example"])]
    held = db.execute("SELECT lower(recipient), hold_reason FROM queue WHERE status = 'HOLD'")
    reason = f"{NULL}, and its recipient is bounces.postmaster"
    assert held.fetchall() == [("postmaster@b.example", reason)]


@pytest.mark.slow
async def test_two_processes_report_each_message_once_and_keep_to_the_limits(
    database: str, db: psycopg.Connection
) -> None:
    db.execute("SELECT setval('message_ids', 100000)")
    ids = itertools.count(1)
    for n, _ in itertools.product(range(30), range(10)):
        number = next(ids)
        for _ in range(2):
            local = (f"S{n}", f'"S{n}"', f'"\\S{n}"')[number % 3]  # all are one mailbox
            ended(db, number, sender=f"{local}@a.example")
    limits = {"sender": 8, "all": 200}
    async with duty(database, "p", limits=limits), duty(database, "q", limits=limits):
        await ends(db)
    found = dsns(db)
    assert len(found) == 200
    assert all(len(names) == 2 for _, names in found)
    counts = [sum(mailbox_key(to) == f"s{n}@a.example" for to, _ in found) for n in range(30)]
    assert max(counts) == 8
    reports = db.execute(
        "SELECT count(*), count(DISTINCT row_id), count(DISTINCT report_id) FROM reports"
    ).fetchone()
    assert reports == (400, 400, 200)
    held = column(db, "SELECT hold_reason FROM queue WHERE status = 'HOLD'")
    assert len(held) == 200
    assert {reason.partition(":")[0] for reason in held} == {"bounce limit"}
    assert fetch(db, "SELECT sum(number) FROM report_counts WHERE sender = ''") == (200,)
    # an hour later
    db.execute("UPDATE report_counts SET minute = minute - interval '61 min' WHERE number > 0")
    db.execute("UPDATE queue SET status = 'REPORT' WHERE status = 'HOLD'")
    async with duty(database, limits=limits):
        await ends(db)
    assert len(dsns(db)) == 200 + sum(min(8, 10 - count) for count in counts)


async def test_a_refused_dsn_puts_its_rows_on_hold_and_locked_rows_wait(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queued.reports.report_batches._LEFT_OUT_S", 0.2)
    for n in range(1, 41):
        ended(db, n, sender=f"s{n}@a.example")
    for n in range(41, 61):  # without a DSN
        ended(db, n, notify="NEVER") if n % 2 else ended(db, n, sender="", sender_domain="")
    db.execute("""
        CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.recipient = 's7@a.example' THEN RAISE EXCEPTION 'not this one'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER no BEFORE INSERT ON queue FOR EACH ROW EXECUTE FUNCTION no();
    """)
    with psycopg.connect(database) as operator:
        operator.execute("SELECT FROM queue WHERE message_id IN (9, 51, 52) FOR UPDATE")
        async with duty(database):
            await ends(db, wanted=3)
            operator.commit()
            await ends(db)
    assert db.execute(
        "SELECT message_id, hold_reason FROM queue WHERE status = 'HOLD' AND message_id < 41"
    ).fetchall() == [(7, "its DSN is refused: not this one")]
    assert len(dsns(db)) == 39


async def test_many_locked_rows_are_left_at_once(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other mail does not wait until each of them was tried."""
    for n in range(1, 201):
        ended(db, n, sender=f"s{n}@a.example")
    commit, sizes = ReportBatches._commit, list[int]()

    async def counted(self: ReportBatches, group: list[NewMessage], *more: Any) -> None:
        sizes.append(len(group))
        await commit(self, group, *more)

    monkeypatch.setattr(ReportBatches, "_commit", counted)
    with psycopg.connect(database) as operator:
        operator.execute("SELECT FROM queue WHERE message_id <> 77 FOR UPDATE")
        async with duty(database):
            await ends(db, wanted=199)
    assert sizes == [200, 1]


async def test_the_role_of_queued_has_the_rights(database: str, db: psycopg.Connection) -> None:
    message(db, 1, chunks=3)  # so the DSN has chunks
    db.execute("UPDATE message_chunks SET data = convert_to(repeat('x', 8000), 'UTF8')")
    for number in (1, 2, 3):
        ended(
            db,
            number,
            recipient=f"{number}@b.example",
            report_kind=("failed", "bounced")[number == 2],
        )
    ended(db, 4, sender="", sender_domain="")
    db.execute("INSERT INTO delays VALUES (%s, '4 h', 1)", (row(db, 1, on_failed="bounce"),))
    uri = make_conninfo(database, options="-c role=pgmta_queued")
    async with duty(uri) as work:
        await ends(db)
        await ends(db, "SELECT count(*) FROM delays WHERE noticed_at IS NULL")
        (tidy,) = [each for each in DUTIES if each.name == "reports"]
        await tidy.make(work._process)()
    assert fetch(db, "SELECT count(*) FROM messages WHERE id > 1000") == (4,)
    with psycopg.connect(uri, autocommit=True) as queued:
        for query in (
            "UPDATE reports SET reason = ''",
            "DELETE FROM reports",
            "INSERT INTO messages (id, size, trace) VALUES (1, 1, '')",
            "INSERT INTO queue (message_id, sender, recipient, domain) VALUES (4, '', '', 'x')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                queued.execute(query.encode())


async def test_an_operator_is_quicker(database: str, db: psycopg.Connection) -> None:
    for n, status in enumerate(("HOLD", "DELETE", "QUEUED"), 1):
        row_id = ended(db, n)
        db.execute("UPDATE queue SET status = %s WHERE id = %s", (status, row_id))
    ended(db, 4)
    async with duty(database):
        await ends(db)
    assert column(db, "SELECT message_id FROM reports") == [4]
    assert column(db, "SELECT status FROM queue WHERE sender <> '' ORDER BY id") == [
        *("HOLD", "DELETE", "QUEUED"),
    ]


async def test_rows_of_a_message_wait_for_the_others(database: str, db: psycopg.Connection) -> None:
    ended(db, 1, recipient="a@b.example", held_at="now")
    waits = row(db, message(db, 2), status="DEFERRED", due=3600)
    ended(db, 2, recipient="b@b.example", held_at="now")
    async with duty(database, gather="1h"):
        await ends(db, wanted=1)
        db.execute(
            "UPDATE queue SET status = 'REPORT', report_kind = 'failed' WHERE id = %s", (waits,)
        )
        await ends(db)
    assert sorted(names for _, names in dsns(db)) == [
        ["a@b.example"],
        ["r@b.example", "b@b.example"],
    ]


async def test_old_rows_come_in_a_turn(database: str, db: psycopg.Connection) -> None:
    for number, age in enumerate((0, 5, 3600), 1):
        ended(db, number, held_at=datetime.now(UTC) - timedelta(seconds=age))
    ended(db, 4, held_at="infinity")
    link = Link(database, "test")
    reports = Reports(link, "p")
    for recent, expected in ((3000.0, {1, 2, 4}), (0.0, {4}), (None, {1, 2, 3, 4})):
        page = await reports.waiting(None, 10, "p", 1e9, recent)
        assert page
        assert {number for number, _, _ in page.messages} == expected
    await link.close()


async def test_a_long_delay_is_reported_once_for_each_time(
    database: str, db: psycopg.Connection
) -> None:
    message(db, 1)
    common = {"status": "DEFERRED", "due": 3600, "on_failed": "bounce", "last_reply": "451 later"}
    rows = [row(db, 1, recipient=f"{n}@b.example", **common) for n in range(3)]
    rows.append(row(db, 1, recipient="3@b.example", notify="FAILURE", **common))
    delay = "INSERT INTO delays (row_id, after, message_id) VALUES (%s, %s, 1)"
    for each in (*rows, 999):
        db.execute(delay, (each, "4 h"))
    waiting = "SELECT count(*) FROM delays WHERE noticed_at IS NULL"
    async with duty(database), duty(database, "q"):
        await ends(db, waiting)
        assert [names for _, names in dsns(db)] == [[f"{n}@b.example" for n in range(3)]]
        db.execute(delay, (rows[0], "8 h"))
        await ends(db, waiting)
        assert [names for _, names in dsns(db)][1:] == [["0@b.example"]]
        db.execute(
            "UPDATE queue SET status = 'REPORT', report_kind = 'failed' WHERE id = %s", (rows[0],)
        )
        await ends(db, "SELECT count(*) FROM reports WHERE kind = 'failed'", 1)
    kinds = "SELECT kind, count(*), count(report_id) FROM reports GROUP BY 1 ORDER BY 1"
    assert db.execute(kinds).fetchall() == [("delayed", 5, 4), ("failed", 1, 1)]
    assert fetch(db, "SELECT count(*) FROM queue WHERE status = 'DEFERRED'") == (3,)


async def test_a_message_is_due_by_its_first_delay_with_all_its_rows(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queued.upkeep.reports._ROWS_PER_LOOK", 3)
    monkeypatch.setattr("queued.upkeep.reports._MAX_BATCH_ROWS", 25)
    delay = "INSERT INTO delays VALUES (%s, '4 h', %s, now() - make_interval(secs => %s))"
    numbers = {1: 10, 2: 25, 3: 10, 4: 1}  # of rows; the last message is not due
    for number, rows in numbers.items():
        message(db, number)
        for n in range(rows):
            row_id = row(db, number, recipient=f"{n}@b.example", status="DEFERRED", due=3600,
                         on_failed="bounce", sender=f"s{number}@a.example")  # fmt: skip
            db.execute(delay, (row_id, number, 7200 if n == 1 and number < 4 else 0))
    for number in (1, 5):
        db.execute(delay, (900 + number, number, 7200))  # these rows have ended
    async with duty(database, gather="1h"):
        await ends(db, "SELECT count(*) FROM delays WHERE noticed_at IS NULL", wanted=1)
    assert {to: len(names) for to, names in dsns(db)} == {
        f"s{number}@a.example": numbers[number] for number in (1, 2, 3)
    }
    assert column(db, "SELECT message_id FROM delays WHERE noticed_at IS NULL") == [4]


async def test_messages_that_are_left_are_forgotten(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queued.reports.report_batches._LEFT_OUT_S", 0.0)
    async with duty(database) as work:
        for number in range(1000):
            work._round._leave(number)
            work._round._leave(number // 2)
        assert len(work._round._left) < 1000


async def test_a_stranger_does_not_learn_why_somebody_gets_no_mail(
    database: str, db: psycopg.Connection
) -> None:
    words = "suppressed since 2026-11-03 14:02 UTC: complained (message 123)"
    for number, origin in enumerate(("stranger", "user"), 1):
        ended(db, number, sender=f"{origin}@a.example", recipient="ann@b.example",
              last_reply=words)  # fmt: skip
        db.execute("UPDATE messages SET origin = %s WHERE id = %s", (origin, number))
    db.execute(
        "INSERT INTO attempts (ended_at, started_at, row_id, message_id, lease_token, attempt,"
        " code, event, sender, recipient, domain, worker, host, command, enhanced, reply)"
        " SELECT held_at, held_at, id, message_id, 1, 0, 0, 'suppressed', sender, recipient,"
        " domain, '', '', '', '', last_reply FROM queue"
    )
    async with duty(database):
        await ends(db)
    found: dict[str, str] = dict(
        db.execute(
            "SELECT q.recipient, convert_from(m.body, 'UTF8') FROM queue AS q"
            " JOIN messages AS m ON m.id = q.message_id WHERE q.metadata ? '_report'"
        ).fetchall()
    )
    assert "X-pgmta; suppressed since 2026" in found["user@a.example"]
    assert "X-pgmta; suppressed\r\n" in found["stranger@a.example"]
    assert "complained" not in found["stranger@a.example"]
    assert all("Status: 5.7.1" in body for body in found.values())
