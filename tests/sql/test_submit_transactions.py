"""Mail from SQL belongs to the transaction of the caller, whatever that transaction is."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg.conninfo import conninfo_to_dict

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import connect
from pgmta.postgres.notify import CHANNEL
from pgmta.postgres.operator import connect_operator
from pgmta.store.admin.migrate import migrate
from tests.sql.test_submit_values import MAIL
from tests.support.database import PrivateServer, fresh_database
from tests.support.pooler import pgbouncer
from tests.support.rows import column, fetch

SESSION_STATE = """
SELECT current_setting('search_path'), current_setting('default_transaction_isolation'),
    current_setting('client_min_messages'),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
    (SELECT count(*) FROM pg_prepared_statements)
"""
SUBMIT = "SELECT pgmta.submit('shop@example.org', ARRAY[%s], %s)"
STRANGERS = """
CREATE TABLE public.messages (id text);
CREATE TABLE public.queue (status integer);
CREATE TABLE public.audit (x integer);
CREATE TABLE public.accounts (x integer);
CREATE TABLE public.idempotency_keys (key integer);
CREATE TABLE public.orders (number integer PRIMARY KEY, who text);
CREATE FUNCTION public.mailbox_domain(text) RETURNS text LANGUAGE sql AS $$ SELECT 'evil' $$;
CREATE FUNCTION public.nextval(text) RETURNS bigint LANGUAGE sql AS $$ SELECT 0::bigint $$;
"""


@pytest.fixture(scope="module")
def model(server: str) -> Iterator[str]:
    """Name of a database of an application, with tables and functions of the same names."""
    with fresh_database(server) as uri:
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute(STRANGERS.encode())
        migrate(uri)
        yield str(conninfo_to_dict(uri)["dbname"])


@pytest.fixture
def shop(server: str, model: str) -> Iterator[str]:
    """A copy, whose sessions have the search_path of the application."""
    with fresh_database(server, model) as uri:
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute(f"ALTER DATABASE {db.info.dbname} RESET search_path".encode())
        yield uri


@pytest.fixture
def app(shop: str) -> Iterator[psycopg.Connection]:
    """A session of that application."""
    with psycopg.connect(shop) as connection:
        yield connection


def order(app: psycopg.Connection, number: int) -> int:
    who = f"buyer{number}@example.com"
    app.execute("INSERT INTO orders VALUES (%s, %s)", (number, who))
    (message_id,) = fetch(app, SUBMIT, who, MAIL)
    return int(message_id)


def mails(uri: str) -> list[str]:
    with psycopg.connect(uri) as db:
        return column(
            db,
            "SELECT recipient FROM pgmta.queue AS q JOIN pgmta.messages AS m ON m.id = q.message_id"
            " ORDER BY 1",
        )


def test_mail_is_sent_with_the_order_and_not_without(shop: str, app: psycopg.Connection) -> None:
    assert fetch(app, "SHOW search_path") == ('"$user", public',)
    app.rollback()
    order(app, 1)
    app.rollback()
    assert mails(shop) == []
    first = order(app, 1)
    with app.transaction():
        second = order(app, 2)
    with app.transaction(force_rollback=True):  # a savepoint
        order(app, 3)
    assert mails(shop) == []
    app.commit()
    assert mails(shop) == ["buyer1@example.com", "buyer2@example.com"]
    assert second > first
    size, body, name, *rest = fetch(
        app,
        "SELECT size, body, message_id_header, chunks, utf8, submitted_by, tenant"
        " FROM pgmta.messages WHERE id = %s",
        first,
    )
    assert rest == [0, False, fetch(app, "SELECT session_user")[0], ""]
    assert size == len(body)
    added, _, found = body.decode().partition(f"Message-ID: {name}\r\n")
    assert found == MAIL.decode()
    age = datetime.now(UTC) - parsedate_to_datetime(added.removeprefix("Date: ").rstrip())
    assert timedelta(seconds=-2) < age < timedelta(minutes=1)
    assert re.fullmatch("<[0-9a-f-]{36}@localhost>", name)
    row = "sender, sender_domain, domain, status, priority, metadata, on_failed, once, attempts"
    assert fetch(app, f"SELECT {row} FROM pgmta.queue WHERE message_id = {first}") == (
        "shop@example.org", "example.org", "example.com", "QUEUED", 5, {}, "remove", False, 0,
    )  # fmt: skip
    (trace,) = fetch(app, f"SELECT trace FROM pgmta.messages WHERE id = {first}")
    assert trace.startswith(f"Received: by localhost (pgmta) with SQL id {first};\r\n\t")
    assert fetch(app, "SELECT count(*) FROM public.messages") == (0,)


def test_a_trigger_of_the_application_submits(shop: str, app: psycopg.Connection) -> None:
    app.execute(
        b"CREATE FUNCTION thank() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        b" PERFORM pgmta.submit('shop@example.org', ARRAY[NEW.who],"
        b" convert_to(E'Subject: Order\\r\\n\\r\\n' || NEW.number || E'\\r\\n', 'UTF8'));"
        b" RETURN NEW; END $$;"
        b"CREATE TRIGGER thank BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION thank()"
    )
    app.execute(
        "INSERT INTO orders SELECT n, 'b' || n || '@example.com' FROM generate_series(1, 3) n"
    )
    app.commit()
    with pytest.raises(
        pg_errors.InvalidParameterValue, match="recipients: an address has no domain"
    ):
        app.execute("INSERT INTO orders VALUES (4, 'no address')")
    app.rollback()
    assert mails(shop) == [f"b{n}@example.com" for n in (1, 2, 3)]
    assert fetch(app, "SELECT count(*) FROM orders") == (3,)


def test_serializable_transactions_are_tried_again(shop: str) -> None:
    """Each takes the next number, so all but one of those that overlap fail."""
    failures: list[int] = []

    def buy() -> None:
        with psycopg.connect(shop) as app:
            app.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            for _ in range(5):
                while True:
                    try:
                        (number,) = fetch(app, "SELECT coalesce(max(number), 0) + 1 FROM orders")
                        order(app, number)
                        app.commit()
                        break
                    except (pg_errors.SerializationFailure, pg_errors.UniqueViolation):
                        app.rollback()
                        failures.append(1)

    threads = [threading.Thread(target=buy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures
    assert mails(shop) == sorted(f"buyer{n}@example.com" for n in range(1, 21))


def test_submissions_alone_never_fail_each_other(shop: str) -> None:
    """Nor in SERIALIZABLE: nothing that they read is written by others."""
    apps = [psycopg.connect(shop) for _ in range(3)]
    for turn in range(20):
        for app in apps:
            app.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        for number, app in enumerate(apps):
            app.execute(SUBMIT.encode(), (f"r{turn}-{number}@example.com", MAIL))
        for app in apps:
            app.commit()
    for app in apps:
        app.close()
    assert len(mails(shop)) == 60


def test_a_prepared_transaction_sends_when_it_is_committed(private_server: PrivateServer) -> None:
    with psycopg.connect(private_server.uri, autocommit=True) as db:
        for name, end in (("kept", "COMMIT"), ("gone", "ROLLBACK")):
            db.execute("BEGIN")
            db.execute(SUBMIT.encode(), (f"{name}@example.com", MAIL))
            db.execute(f"PREPARE TRANSACTION '{name}'")
            assert mails(private_server.uri) == (["kept@example.com"] if end == "ROLLBACK" else [])
            db.execute(f"{end} PREPARED '{name}'")
        assert mails(private_server.uri) == ["kept@example.com"]
        # PostgreSQL prepares no transaction with a notification
        db.execute("BEGIN")
        db.execute("SELECT pgmta.submit('', '{a@b.example}', 'S: x', wake => true)")
        with pytest.raises(pg_errors.FeatureNotSupported, match="NOTIFY"):
            db.execute("PREPARE TRANSACTION 'woken'")


def test_wake_notifies_at_the_commit(shop: str, app: psycopg.Connection) -> None:
    with psycopg.connect(shop, autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        order(app, 1)
        app.commit()
        app.execute("SELECT pgmta.submit('', '{a@b.example}', 'S: x', wake => true)")
        assert list(listener.notifies(timeout=0.2)) == []
        app.commit()
        assert len(list(listener.notifies(timeout=30, stop_after=1))) == 1


def test_a_large_content_goes_into_chunks(app: psycopg.Connection) -> None:
    content = (
        b"Date: x\r\nMessage-ID: <1@x>\r\n"
        + MAIL
        + b"".join(b"%07d \xc3\xa9\r\n" % n for n in range(20_000))
    )
    sent = [content[:8096], content[:8097], content]
    for each in sent:
        fetch(app, SUBMIT, "bob@example.com", each if each.endswith(b"\n") else each[:-2] + b"..")
    found = app.execute(
        "SELECT size, chunks, length(body),"
        " (SELECT string_agg(data, '' ORDER BY position) FROM pgmta.message_chunks"
        " WHERE message_id = id)"
        " FROM pgmta.messages ORDER BY id"
    ).fetchall()
    assert [row[:3] for row in found] == [(8096, 0, 8096), (8097, 2, 0), (len(content), 30, 0)]
    assert found[2][3] == content
    # compressed in a table of the application
    app.execute("CREATE TEMPORARY TABLE letters AS SELECT %s::bytea AS body", (content * 3,))
    (last,) = fetch(app, "SELECT pgmta.submit('', '{a@b.example}', body) FROM letters")
    chunks = "SELECT string_agg(data, '' ORDER BY position) FROM pgmta.message_chunks"
    assert fetch(app, f"{chunks} WHERE message_id = {last}") == (content * 3,)


def test_each_recipient_is_stored_once(app: psycopg.Connection) -> None:
    people = ["b@EXAMPLE.com", "a@example.com", "b@example.com", "B@example.com", "a@example.com"]
    app.execute(
        "SELECT pgmta.submit('', %s, 'S: x', metadata => '{\"_partid\": \"3\"}')", (people,)
    )
    rows = "SELECT recipient FROM pgmta.queue WHERE metadata ->> '_partid' = '3' ORDER BY id"
    assert column(app, rows) == ["b@EXAMPLE.com", "a@example.com", "B@example.com"]
    many = [f"r{n}@example.com" for n in range(1000)]
    (last,) = fetch(app, "SELECT pgmta.submit('', %s, 'S: x')", many)
    assert column(
        app, "SELECT recipient FROM pgmta.queue WHERE message_id = %s ORDER BY id", last
    ) == many  # fmt: skip


def test_ids_never_meet_those_of_smtpd(app: psycopg.Connection) -> None:
    reserved = column(
        app, "SELECT pg_catalog.nextval('pgmta.message_ids') FROM generate_series(1, 3)"
    )
    assert order(app, 1) not in reserved


@pytest.fixture
def pooled(shop: str) -> Iterator[str]:
    """The same database behind pgbouncer."""
    with pgbouncer(shop) as uri:
        yield uri


@pytest.mark.needs("pgbouncer")
def test_submissions_share_a_connection_behind_pgbouncer(pooled: str, shop: str) -> None:
    apps = [psycopg.connect(pooled, prepare_threshold=None) for _ in range(3)]
    try:
        for turn in range(5):
            for number, app in enumerate(apps):
                order(app, turn * 3 + number)
                if number:
                    app.commit()
                else:
                    app.rollback()
    finally:
        for app in apps:
            app.close()
    assert mails(shop) == sorted(f"buyer{n}@example.com" for n in range(15) if n % 3)


@pytest.mark.needs("pgbouncer")
async def test_sessions_of_ours_leave_nothing_behind_in_pgbouncer(pooled: str) -> None:
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as app:
        session = app.execute(SESSION_STATE).fetchone()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="connection pooler"):
                await connect_operator(pooled)
            with pytest.raises(StoreUnavailable, match="connection pooler"):
                migrate(pooled)
            with pytest.raises(psycopg.OperationalError, match="connection pooler"):
                await connect(pooled, "test")
        assert app.execute(SESSION_STATE).fetchone() == session
