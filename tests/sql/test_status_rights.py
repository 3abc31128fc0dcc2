"""Logins that only submit: EXPLAIN, advisory locks, limits of arguments, and commands."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import errors as pg_errors
from psycopg.conninfo import make_conninfo

from pgmta.action import Action
from pgmta.postgres.link import Link
from pgmta.store.admin import migrate as migrate_module
from pgmta.store.admin.migrate import migrate
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from tests.sql.test_status import submit
from tests.sql.test_submit_values import MAIL
from tests.support.queuectl import queuectl
from tests.support.rows import column, fetch
from tests.support.waiting import SLACK, until

_CHANGING = {"Actual Startup Time", "Actual Total Time", "Planning Time", "Execution Time"}
WANTED = [
    "recipient = '{}@example.com'",
    "recipient LIKE '{}@%'",
    "recipient = '{}@example.com' AND state = 'held'",
    "recipient IN (VALUES ('{}@example.com'))",
    "state = CASE WHEN recipient = '{}@example.com' THEN 'held' ELSE 'x' END",
]


def plan(db: psycopg.Connection, statement: str) -> Any:
    """The plan without its times, and without the text of conditions."""

    def kept(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: kept(v) for k, v in node.items() if k not in _CHANGING}
        if isinstance(node, list):
            return [kept(each) for each in node]
        return str(node).replace("other", "nobody")

    (text,) = fetch(db, f"EXPLAIN (ANALYZE, BUFFERS OFF, FORMAT JSON) {statement}")
    return kept(json.loads(text) if isinstance(text, str) else text)


@pytest.mark.parametrize("wanted", WANTED)
def test_explain_tells_nothing_of_recipients_of_others(db: psycopg.Connection, wanted: str) -> None:
    for _ in range(3):
        submit(db, "other", "second")
        submit(db, "other", "done")
    db.execute("UPDATE queue SET attempts = 1, status = 'HOLD' WHERE recipient LIKE 'second%'")
    db.execute("SELECT cancel(id) FROM messages WHERE id IN (SELECT message_id FROM queue"
               " WHERE recipient LIKE 'done%')")  # fmt: skip
    db.execute("SET SESSION AUTHORIZATION pgmta_submit")
    submit(db, "own")
    db.execute("RESET SESSION AUTHORIZATION")
    db.execute("ANALYZE")
    db.execute("SET SESSION AUTHORIZATION pgmta_submit")
    query = f"SELECT * FROM message_status WHERE {wanted}"
    for planner in ("SELECT", "SET enable_seqscan = off", "SET enable_hashjoin = off"):
        db.execute(planner.encode())
        assert plan(db, query.format("other")) == plan(db, query.format("nobody"))
        assert fetch(db, f"SELECT count(*) FROM ({query.format('other')}) AS x") == (0,)
    assert fetch(db, "SELECT count(*) FROM message_status") == (1,)


KEYS = [-(2**63), -1, 0, 2**31, 2**63 - 1]


def test_limits_of_ids(db: psycopg.Connection) -> None:
    number = submit(db, "bob")
    count = "SELECT count(*) FROM status(%s::bigint[])"
    for filler in ([], list(range(-500, 0)), list(range(number + 1, number + 500)), [number] * 500):
        asked = [None, *KEYS, *filler, number, number]
        assert fetch(db, count, asked) == (1,)
        assert fetch(db, count, asked[:-2]) == (int(number in filler),)
    assert fetch(db, "SELECT count(*) FROM status(array_fill(-7::bigint, ARRAY[100000]))") == (0,)
    began = time.monotonic()
    with pytest.raises(pg_errors.InvalidParameterValue) as caught:
        db.execute("SELECT status(array_fill(1::bigint, ARRAY[5000000]))")
    assert caught.value.diag.message_primary == "ids: there are over 100000"
    assert caught.value.diag.column_name == "ids"
    assert time.monotonic() - began < SLACK


HUGE = [
    ("recipients", "ARRAY[repeat('x', 1000000)]"),
    ("recipients", "ARRAY['a@b.example', repeat('x@', 500000) || E'\\n']"),
    ("recipients", "ARRAY[repeat('例', 300000) || '@b.example']"),
    ("sender", "'a@' || repeat('b.', 500000)"),
    ("sender", "'\"' || repeat(E'\\\\\"', 500000) || '\"@b.example'"),
    ("key", "repeat('k', 1000000)"),
    ("tenant", "repeat('t', 1000000)"),
    ("on_failed", "repeat('h', 1000000)"),
    ("metadata", "jsonb_build_object('a', repeat('x', 1000000))"),
    ("metadata", "jsonb_build_object(repeat('_', 1000000), 1)"),
    ("metadata", "('{\"a\":' || repeat('[', 1900) || repeat(']', 1900) || '}')::jsonb"),
    ("metadata", "jsonb_build_object('_partid', repeat('x', 3000))"),
]


@pytest.mark.parametrize(("argument", "value"), HUGE)
def test_a_huge_argument_is_a_short_error(
    template_db: psycopg.Connection, argument: str, value: str
) -> None:
    given = {"sender": "'a@b.example'", "recipients": "'{c@d.example}'", argument: value}
    options = ", ".join(f"{name} => {text}" for name, text in given.items())
    began = time.monotonic()
    with pytest.raises(pg_errors.InvalidParameterValue, match=f"^{argument}: ") as caught:
        template_db.execute(f"SELECT submit({options}, content => %s)".encode(), (MAIL,))
    diag = caught.value.diag
    texts = (diag.message_primary, diag.message_detail, diag.message_hint)
    assert sum(len(text or "") for text in texts) < 400
    assert len(diag.context or "") < 1000
    assert time.monotonic() - began < SLACK


def test_limits_of_values(db: psycopg.Connection) -> None:
    with pytest.raises(pg_errors.InvalidParameterValue, match="^reason: "):
        db.execute("SELECT cancel(1, repeat('x', 1000000))")
    deep = '{"a":' + "[" * 90 + "]" * 90 + "}"
    assert submit(db, "bob", options=f", metadata => '{deep}'")


def waiting(db: psycopg.Connection, number: int = 1) -> None:
    """Return when this number of sessions waits for a lock."""
    sessions = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    until(lambda: fetch(db, sessions) == (number,), describe="a session that waits")


@pytest.mark.parametrize("ids", [1, 200])
def test_a_day_that_is_dropped_meanwhile_is_no_error(
    database: str, db: psycopg.Connection, ids: int
) -> None:
    number = submit(db, "bob")
    (day,) = fetch(db, "SELECT min(inhrelid::regclass::text) FROM pg_inherits"
        " WHERE inhparent = 'attempts'::regclass")  # fmt: skip
    found: list[Any] = []

    def ask() -> None:
        with psycopg.connect(database) as app:
            query = "SELECT state FROM status(%s::bigint[])"
            for _ in range(2):
                found.extend(app.execute(query, (list(range(number, number + ids)),)).fetchall())

    with psycopg.connect(database) as owner:
        owner.execute(f"DROP TABLE {day}".encode())
        thread = threading.Thread(target=ask)
        thread.start()
        waiting(db)
        owner.commit()
        thread.join()
    assert found == [("queued",)] * 2


def test_an_open_transaction_with_a_status_stops_no_outcomes(
    database: str, db: psycopg.Connection
) -> None:
    """The duty that makes and drops days gives up soon, because outcomes wait behind it."""
    db.execute("CREATE TABLE attempts_20010101 PARTITION OF attempts FOR VALUES"
               " FROM ('2001-01-01 00:00+00') TO ('2001-01-02 00:00+00')")  # fmt: skip
    with psycopg.connect(database) as app:
        app.execute("SELECT status('{1}')")
        for duty in ("days_expire('attempts', '90 days')", "days_make('attempts', 30)"):
            with pytest.raises(pg_errors.LockNotAvailable):
                db.execute(f"SELECT {duty}".encode())
    assert fetch(db, "SELECT days_expire('attempts', '90 days')") == (1,)
    assert fetch(db, "SELECT days_make('attempts', 30) > 20") == (True,)


async def test_advisory_locks_of_others_stop_nothing(database: str, db: psycopg.Connection) -> None:
    submit(db, "bob")
    with psycopg.connect(database) as stranger:
        for name in ("attempts", "change", "partitions"):
            stranger.execute("SELECT pg_advisory_lock(hashtext('pgmta ' || %s))", (name,))
        db.execute("SET statement_timeout = '10s'")
        db.execute("SELECT days_make('attempts', 1), days_expire('attempts', '90 days')")
        assert fetch(db, "SELECT queue_hold('true', 'x')") == (1,)
        link = Link(database, "test")
        await WorkerChanges(link).run(RowChange(Action.RELEASE, "true", "w"))
        await link.close()
    assert column(db, "SELECT status FROM queue") == ["QUEUED"]


def test_changes_of_many_rows_go_one_at_a_time(database: str, db: psycopg.Connection) -> None:
    submit(db, "bob")
    with psycopg.connect(database) as first, psycopg.connect(database) as second:
        for each in (first, second):
            each.execute("SET SESSION AUTHORIZATION pgmta_operator")
        first.execute("SELECT queue_hold('false', 'x')")
        second.execute("SET lock_timeout = '50ms'")
        with pytest.raises(pg_errors.LockNotAvailable):
            second.execute("SELECT queue_hold('false', 'x')")
        second.rollback()
        first.commit()
        second.execute("SELECT queue_hold('false', 'x')")


def test_migrate_names_the_session_that_it_waits_for(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate_module, "_LOCK_TIMEOUT", "50ms")
    warnings: list[str] = []
    with psycopg.connect(database, application_name="shop") as stranger:
        stranger.execute("SELECT pg_advisory_lock(%s)", (migrate_module._ADVISORY_LOCK,))
        thread = threading.Thread(target=migrate, args=(database, warnings.append))
        thread.start()
        until(lambda: warnings != [], describe="a warning")
        waiting(db)
        pid = stranger.info.backend_pid
    thread.join()
    (login,) = fetch(db, "SELECT session_user")
    assert warnings == [
        f"waits for the lock of migrations, which this session has: pid {pid} (role {login}, shop)"
    ]


def test_commands_of_a_login_that_only_submits(
    database: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    number = submit(db, "bob")
    login = "test_submit_" + str(db.info.dbname)[-12:]
    db.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE pgmta_submit".encode())
    uri = make_conninfo(database, user=login, password="x")
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))
    command = partial(queuectl, config)
    try:
        for words in (["find", "--recipient", "bob@example.com"], ["list"], ["show", str(number)]):
            result = command(*words)
            assert result.exit_code == 1
            refused, hint = result.stderr.splitlines()
            assert refused.startswith("error: permission denied for table ")
            assert "queuectl status" in hint
        result = command("status", str(number))
        assert result.exit_code == 1
        assert "neither in the queue nor in the log" in result.stderr
        db.execute(f"GRANT pgmta_reader TO {login}".encode())
        rule = ["rule", "add", "x", "--domain", "x.example", "--reason", "x"]
        for words in (rule, ["database", "partition", "add", "queue_def_x", "--partid", "x"]):
            result = command(*words)
            assert result.exit_code == 1, words
            refused, hint = result.stderr.splitlines()
            assert refused.startswith("error: permission denied for table "), words
            assert "needs pgmta_operator. So do changes" in hint, words
            assert "partitions need the owner" in hint, words
    finally:
        db.execute(f"DROP ROLE {login}".encode())


def test_no_day_of_the_log_expires_before_its_time(db: psycopg.Connection) -> None:
    """The role of queued can't drop the log of today."""
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="-1 days is negative"):
        db.execute("SET ROLE pgmta_queued; SELECT days_expire('attempts', '-1 days')")


def test_a_session_acts_for_the_role_that_it_has_set(database: str, db: psycopg.Connection) -> None:
    base = "test_acting_" + str(db.info.dbname)[-12:]
    login, shop, blog = f"{base}_login", f"{base}_shop", f"{base}_blog"
    for role in (shop, blog):
        db.execute(f"CREATE ROLE {role} IN ROLE pgmta_submit".encode())
    roles = f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE {shop}, {blog}"
    db.execute(roles.encode())
    try:
        with psycopg.connect(database, user=login, password="x", autocommit=True) as session:
            session.execute("SET search_path = pgmta")
            session.execute(f"SET ROLE {shop}".encode())
            number = submit(session, "bob")
            assert fetch(session, "SELECT state FROM status(ARRAY[%s::bigint])", number) == (
                "queued",
            )
            assert fetch(db, "SELECT submitted_by FROM messages") == (shop,)
            session.execute(f"SET ROLE {blog}".encode())
            assert column(session, "SELECT state FROM status(ARRAY[%s::bigint])", number) == []
            assert column(session, "SELECT state FROM message_status") == []
            with pytest.raises(pg_errors.NoDataFound):
                session.execute("SELECT cancel(%s::bigint)", [number])
            with pytest.raises(pg_errors.InsufficientPrivilege):
                session.execute("SET ROLE pgmta_operator")
            session.execute(f"SET ROLE {shop}".encode())
            assert fetch(session, "SELECT cancel(%s::bigint)", number) == (1,)
            assert fetch(db, "SELECT worker FROM attempts") == (f"{login} as {shop}",)
    finally:
        for role in (login, shop, blog):
            db.execute(f"DROP ROLE {role}".encode())
