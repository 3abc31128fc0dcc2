"""A key makes a submission idempotent, and keeps no other submission waiting."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg.types.json import Jsonb

from pgmta.postgres.link import Link
from pgmta.store.admin.upkeep import Upkeep
from queued.upkeep.idempotency_keys import expire_keys
from tests.sql.test_submit_values import MAIL
from tests.support.rows import column, fetch
from tests.support.waiting import until

ARGUMENTS: dict[str, Any] = {
    "sender": "shop@example.org",
    "recipients": ["bob@example.com"],
    "content": MAIL,
    "key": "order 4711",
}


def submit(db: psycopg.Connection, **changes: Any) -> int:
    values = {**ARGUMENTS, **changes}
    named = ", ".join(f"{name} => %({name})s" for name in values)
    (number,) = db.execute(f"SELECT submit({named})".encode(), values).fetchone() or (0,)
    return int(number)


def count(db: psycopg.Connection) -> int:
    return int(fetch(db, "SELECT count(*) FROM queue")[0])


def test_a_repetition_gets_the_first_id(db: psycopg.Connection) -> None:
    first = submit(db)
    assert submit(db) == first
    assert submit(db, tenant="acme") != first  # each tenant has its own keys
    assert submit(db, key="order 4712") != first
    assert count(db) == 3
    db.execute("DELETE FROM queue")
    assert submit(db) == first  # it has left the queue
    assert count(db) == 0


OTHERS: dict[str, Any] = {
    "sender": "", "recipients": ["bob@example.com", "eve@example.com"],
    "content": MAIL + b"x\r\n", "priority": 1, "metadata": Jsonb({"a": "b"}),
    "on_failed": "hold", "once": True,
}  # fmt: skip


def test_another_message_under_the_key_is_refused(db: psycopg.Connection) -> None:
    first = submit(db)
    for name, value in OTHERS.items():
        with pytest.raises(pg_errors.UniqueViolation, match="key: it was used for an") as caught:
            submit(db, **{name: value})
        assert caught.value.diag.column_name == "key"
        assert str(first) in (caught.value.diag.message_detail or "")
    assert count(db) == 1


def test_a_rolled_back_submission_frees_its_key(database: str, db: psycopg.Connection) -> None:
    with psycopg.connect(database) as app:
        first = submit(app)
        app.rollback()
        with app.transaction(force_rollback=True):
            submit(app)
        second = submit(app, content=MAIL + b"changed\r\n")
        app.commit()
    assert second != first
    assert column(db, "SELECT id FROM messages") == [second]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_of_two_open_transactions_the_second_waits(
    database: str, db: psycopg.Connection, end: str
) -> None:
    ids: list[int] = []

    def repeat() -> None:
        with psycopg.connect(database) as second:
            ids.append(submit(second))

    with psycopg.connect(database) as app:
        first = submit(app)
        thread = threading.Thread(target=repeat)
        thread.start()
        waiting = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        until(lambda: db.execute(waiting, (app.info.backend_pid,)).rowcount)
        others = [submit(db, key=f"other {n}") for n in range(20)]  # these do not wait
        others += [submit(db, tenant="acme"), submit(db, key=None)]
        assert not ids
        getattr(app, end)()
        thread.join()
    assert (ids == [first]) is (end == "commit")
    assert count(db) == len(others) + 1


def test_a_snapshot_from_before_has_to_be_tried_again(
    database: str, db: psycopg.Connection
) -> None:
    with psycopg.connect(database) as app:
        app.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        fetch(app, "SELECT count(*) FROM queue")
        first = submit(db)
        with pytest.raises(pg_errors.SerializationFailure):
            submit(app)
        app.rollback()
        assert submit(app) == first


async def test_keys_expire(database: str, db: psycopg.Connection) -> None:
    first = submit(db)
    submit(db, key="young")
    db.execute(
        "UPDATE idempotency_keys SET created_at = now() - interval '25 h' WHERE key <> 'young'"
    )
    link = Link(database, "test")
    upkeep = Upkeep(link)
    await expire_keys(upkeep, "mx.example.org", 86400)
    db.execute("UPDATE submit_settings SET hostname = hostname || '.x'")
    await expire_keys(upkeep, "mx.example.org", 86400)
    await link.close()
    assert column(db, "SELECT key FROM idempotency_keys") == ["young"]
    second = submit(db)
    assert second != first
    (trace,) = fetch(db, f"SELECT trace FROM messages WHERE id = {second}")
    assert trace.startswith("Received: by mx.example.org.x (pgmta) with SQL id")


def test_the_key_of_another_login_reveals_nothing(database: str, db: psycopg.Connection) -> None:
    first = submit(db)
    db.execute("SET SESSION AUTHORIZATION pgmta_submit")
    for change in ({}, {"content": MAIL + b"x\r\n"}):
        with pytest.raises(pg_errors.UniqueViolation, match="another login") as caught:
            submit(db, **change)
        assert str(first) not in (caught.value.diag.message_detail or "")
    assert submit(db, key="shop 1")
