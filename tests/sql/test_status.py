"""The state of a message, the logins that may ask for it, and its cancellation."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg_errors

from pgmta.action import Action
from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.admin.migrate import migrate
from pgmta.store.admin.upkeep import Upkeep
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.lease import RowLeases
from pgmta.store.queue.settle import Settlements
from queued.upkeep.requests import answer_requests
from tests.sql.test_submit_values import MAIL
from tests.sql.test_surface import outcome
from tests.support.database import fresh_database
from tests.support.rows import column, fetch

STATES = "SELECT recipient, state FROM status(%s::bigint[])"


def submit(db: psycopg.Connection, *names: str, options: str = "") -> int:
    people = [f"{name}@example.com" for name in names]
    (number,) = fetch(db, f"SELECT submit('s@a.example', %s, %s{options})", people, MAIL)
    return int(number)


def states(db: psycopg.Connection, *ids: int) -> dict[str, str]:
    """States by the name before the @, from the function; the view has to say the same."""
    found: dict[str, str] = dict(db.execute(STATES.encode(), (list(ids),)).fetchall())
    view = "SELECT recipient, state FROM message_status WHERE message_id = ANY (%s)"
    assert dict(db.execute(view.encode(), (list(ids),)).fetchall()) == found
    return {recipient.partition("@")[0]: state for recipient, state in found.items()}


async def claim(link: Link) -> dict[str, Item]:
    items = (await Claims(link, "w", 60).claim(100, [])).items
    return {item.recipient.partition("@")[0]: item for item in items}


async def requests(link: Link) -> None:
    await answer_requests(Upkeep(link), WorkerChanges(link), "upkeep")


async def test_each_state_at_its_moment(db: psycopg.Connection, link: Link) -> None:
    first = submit(db, "done", "later", "never", "lost")
    gone = submit(db, "bounced", "once", options=", on_failed => 'remove', once => true")
    kept = submit(db, "twice", options=", once => true")
    ids = (first, gone, kept)
    assert set(states(db, *ids).values()) == {"queued"}
    items = await claim(link)
    assert set(states(db, *ids).values()) == {"sending"}
    events = {"done": Event.DELIVERED, "later": Event.DEFER, "never": Event.FAIL,
              "lost": Event.UNKNOWN, "bounced": Event.FAIL, "once": Event.UNKNOWN,
              "twice": Event.UNKNOWN}  # fmt: skip
    await Settlements(link, "w").settle([outcome(items[name], e) for name, e in events.items()])
    waits = submit(db, "held", "timed")
    db.execute("UPDATE queue SET status = 'HOLD' WHERE recipient LIKE 'held@%'")
    db.execute(
        "UPDATE queue SET status = 'SCHEDULED', send_at = now() + '1 d'"
        " WHERE recipient LIKE 'timed@%'"
    )
    assert states(db, *ids, waits) == {
        "done": "delivered", "later": "deferred", "never": "failed", "lost": "deferred",
        "bounced": "failed", "once": "unknown", "twice": "unknown",
        "held": "held", "timed": "scheduled",
    }  # fmt: skip
    columns = "SELECT attempts, next_attempt IS NOT NULL, at <= now(), code, reply FROM status(%s)"
    asked = f"{columns} WHERE recipient = '%s@example.com'"
    assert fetch(db, asked % ("%s", "done"), [first])[:3] == (1, False, True)
    assert fetch(db, asked % ("%s", "later"), [first])[:3] == (1, True, True)
    (code, reply) = fetch(db, asked % ("%s", "never"), [first])[3:]
    (logged,) = fetch(db, "SELECT reply FROM attempts WHERE recipient LIKE 'never@%'")
    assert (code, reply) == (outcome(items["never"], Event.FAIL).reply.code or None, logged)
    assert fetch(db, "SELECT count(*) FROM status(%s)", [first, 7, None]) == (4,)
    assert fetch(db, "SELECT count(*) FROM status(NULL)") == (0,)


async def test_cancel_stops_what_waits(db: psycopg.Connection, link: Link) -> None:
    first = submit(db, "done")
    items = await claim(link)
    await Settlements(link, "w").settle([outcome(items["done"], Event.DELIVERED)])
    mixed = submit(db, "held", "waits")
    db.execute("UPDATE queue SET status = 'HOLD' WHERE recipient LIKE 'held@%'")
    assert fetch(db, "SELECT cancel(%s, 'changed my mind')", mixed) == (2,)
    assert fetch(db, "SELECT cancel(%s)", mixed) == (0,)
    assert fetch(db, "SELECT cancel(%s)", first) == (0,)
    assert states(db, first, mixed) == {
        "done": "delivered",
        "held": "cancelled",
        "waits": "cancelled",
    }
    last = "SELECT DISTINCT event, reply, worker FROM attempts WHERE message_id = %s"
    login = fetch(db, "SELECT session_user")[0]
    assert fetch(db, last, mixed) == ("cancelled", "changed my mind", login)
    assert fetch(db, "SELECT count(*) FROM messages") == (0,)
    for bad in ("7", "NULL"):
        with pytest.raises(pg_errors.NoDataFound, match="no message with this id"):
            db.execute(f"SELECT cancel({bad})")
    with pytest.raises(pg_errors.InvalidParameterValue, match="reason: "):
        db.execute("SELECT cancel(1, E'a\\nb')")


async def test_cancel_leaves_what_has_an_outcome(db: psycopg.Connection, link: Link) -> None:
    number = submit(db, "done", "failed", "waits")
    db.execute("UPDATE queue SET on_failed = 'bounce'")
    for name, kind in (("done", "delivered"), ("failed", "failed")):
        db.execute(
            "UPDATE queue SET status = 'REPORT', report_kind = %s WHERE recipient LIKE %s",
            (kind, f"{name}@%"),
        )
    assert fetch(db, "SELECT cancel(%s)", number) == (1,)
    assert states(db, number) == {"done": "delivered", "failed": "failed", "waits": "cancelled"}
    assert column(db, "SELECT status FROM queue") == ["REPORT"] * 2


@pytest.mark.parametrize("held", [False, True])
async def test_cancel_of_one_in_flight_lets_its_outcome_count(
    db: psycopg.Connection, link: Link, held: bool
) -> None:
    number = submit(db, "done", "later", "waits")
    db.execute("UPDATE queue SET next_attempt = now() + '1 h' WHERE recipient LIKE 'waits%'")
    items = await claim(link)
    if held:
        db.execute("UPDATE queue SET status = 'HOLD' WHERE recipient LIKE 'later%'")
    assert fetch(db, "SELECT cancel(%s, 'why')", number) == (1,)
    assert states(db, number) == {"done": "sending", "later": "sending", "waits": "cancelled"}
    await requests(link)
    assert states(db, number) == {"done": "sending", "later": "sending", "waits": "cancelled"}
    await Settlements(link, "w").settle(
        [outcome(items["done"], Event.DELIVERED), outcome(items["later"], Event.DEFER)]
    )
    wanted = {"done": "delivered", "later": "cancelled", "waits": "cancelled"}
    assert states(db, number) == wanted
    assert await claim(link) == {}
    await requests(link)
    assert states(db, number) == wanted
    last = (
        "SELECT event, reply, worker FROM attempts WHERE recipient LIKE 'later%'"
        " ORDER BY ended_at DESC"
    )
    assert fetch(db, last) == ("cancelled", "why", fetch(db, "SELECT session_user")[0])
    assert fetch(db, "SELECT count(*) FROM queue") == (0,)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_cancelled_attempt_whose_worker_died_is_unknown(
    db: psycopg.Connection, link: Link, deleted: bool, held: bool
) -> None:
    """The next hop may have the mail, unless a transaction with `once` had not begun."""
    number = submit(db, "plain")
    once = submit(db, "begun", "not", options=", once => true")
    items = await claim(link)
    await RowLeases(link, "w", 60).mark_begun([items["begun"]])
    if held:
        db.execute("UPDATE queue SET status = 'HOLD'")
    if deleted:
        db.execute("SELECT queue_delete('true', 'why')")
    else:
        db.execute("SELECT cancel(%s, 'why'), cancel(%s, 'why')", (number, once))
    await requests(link)
    assert set(states(db, number, once).values()) == {"sending"}
    db.execute("UPDATE queue SET lease_until = now() - interval '1 s'")
    await requests(link)
    assert states(db, number, once) == {"plain": "unknown", "begun": "unknown", "not": "cancelled"}
    log = "SELECT event FROM attempts WHERE recipient LIKE %s ORDER BY event"
    gone = "deleted" if deleted else "cancelled"
    for name, events in (
        ("plain", [gone, "unknown"]),
        ("begun", [gone, "unknown"]),
        ("not", [gone]),
    ):
        assert [row[0] for row in db.execute(log.encode(), (f"{name}@%",))] == events


async def test_a_request_of_an_operator_is_cancelled_too(
    db: psycopg.Connection, link: Link
) -> None:
    number = submit(db, "a")
    db.execute("SELECT queue_hold('true', 'x')")
    db.execute("SELECT queue_delete('true', 'ticket')")
    await requests(link)
    assert states(db, number) == {"a": "cancelled"}
    assert column(db, "SELECT event FROM attempts") == ["deleted"]


async def test_cancel_belongs_to_the_transaction(
    database: str, db: psycopg.Connection, link: Link
) -> None:
    number = submit(db, "a")
    with psycopg.connect(database) as app:
        assert fetch(app, "SELECT cancel(%s)", number) == (1,)
        assert await claim(link) == {}
        app.rollback()
    assert states(db, number) == {"a": "queued"}
    assert list(await claim(link)) == ["a"]


async def test_a_login_sees_and_cancels_only_its_own_mail(
    database: str, db: psycopg.Connection, link: Link
) -> None:
    other = submit(db, "other", "gone")
    items = await claim(link)
    await Settlements(link, "w").settle([outcome(items["gone"], Event.DELIVERED)])
    db.execute("SET SESSION AUTHORIZATION pgmta_submit")
    own = submit(db, "own", "ready")
    assert states(db, other, own) == {"own": "queued", "ready": "queued"}
    for number in (other, 7):
        with pytest.raises(pg_errors.NoDataFound) as caught:
            db.execute("SELECT cancel(%s)", (number,))
        said = "id: there is no message with this id that this login may cancel"
        assert caught.value.diag.message_primary == said
    db.execute("RESET SESSION AUTHORIZATION")
    items = await claim(link)
    await Settlements(link, "w").settle([outcome(items["ready"], Event.DELIVERED)])
    db.execute("UPDATE queue SET status = 'QUEUED', lease_until = NULL, lease_token = NULL")
    db.execute("SET SESSION AUTHORIZATION pgmta_submit")
    assert states(db, other, own) == {"own": "queued", "ready": "delivered"}
    assert fetch(db, "SELECT cancel(%s)", own) == (1,)
    assert states(db, own) == {"own": "cancelled", "ready": "delivered"}
    assert fetch(db, "SELECT cancel(%s)", own) == (0,)  # its log knows the login
    # a function in the condition does not see rows of others
    db.execute("RESET SESSION AUTHORIZATION")
    db.execute(
        "CREATE FUNCTION public.spy(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS"
        " $$ BEGIN RAISE WARNING 'saw %', $1; RETURN true; END $$"
    )
    db.execute("SET SESSION AUTHORIZATION pgmta_submit")
    seen: list[str] = []
    db.add_notice_handler(lambda diag: seen.append(diag.message_primary or ""))
    db.execute("SELECT * FROM message_status WHERE message_id > 0 AND public.spy(recipient)")
    assert seen
    assert not [s for s in seen if "other" in s or "gone" in s]
    db.execute("RESET SESSION AUTHORIZATION")
    for role in ("pgmta_operator", "pgmta_reader"):
        db.execute(f"SET SESSION AUTHORIZATION {role}")
        assert len(states(db, other, own)) == 4
        db.execute("RESET SESSION AUTHORIZATION")
    db.execute("SET SESSION AUTHORIZATION pgmta_operator")
    assert fetch(db, "SELECT cancel(%s)", other) == (1,)


async def test_a_delete_by_a_worker_says_so(db: psycopg.Connection, link: Link) -> None:
    number = submit(db, "a")
    await WorkerChanges(link).run(RowChange(Action.DELETE, "true", "w", reason="old"))
    assert states(db, number) == {"a": "cancelled"}
    assert column(db, "SELECT event FROM attempts") == ["deleted"]


def test_a_day_that_was_dropped_after_the_snapshot_is_no_error(
    db: psycopg.Connection, database: str
) -> None:
    first = submit(db, "bob")
    with psycopg.connect(database) as app:
        app.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        app.execute("SELECT")
        (day,) = fetch(db, "SELECT min(inhrelid::regclass::text) FROM pg_inherits"
            " WHERE inhparent = 'attempts'::regclass")  # fmt: skip
        db.execute(f"DROP TABLE {day}".encode())
        found = app.execute(STATES.encode(), (list(range(first, first + 200)),)).fetchall()
    assert found == [("bob@example.com", "queued")]


def test_text_that_no_worker_can_read_is_refused(server: str) -> None:
    hole, good = (f"convert_from('\\{octet}', 'WIN1252')" for octet in ("x81", "xe4"))
    submit = "pgmta.submit('a@b.example', ARRAY['c@d.example'], 'Subject: x', {} => {})"
    options = "ENCODING WIN1252 LOCALE 'C' TEMPLATE template0"
    with fresh_database(server, options=options) as uri:
        migrate(uri)
        with psycopg.connect(uri, autocommit=True) as db:
            for argument, call in (
                ("key", submit.format("key", hole)),
                ("metadata", submit.format("metadata", f"jsonb_build_object('a', {hole})")),
                ("reason", f"pgmta.cancel(1, {hole})"),
            ):
                with pytest.raises(pg_errors.InvalidParameterValue, match=f"^{argument}: "):
                    db.execute(f"SELECT {call}".encode())
            taken = submit.format("metadata", f"jsonb_build_object('a', {good})")
            db.execute(f"SELECT {taken}".encode())
