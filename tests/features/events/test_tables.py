"""Events as rows of an application's table: in the commit of the outcome, or later, and once."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict

from queued.cli.options.queue_command import who
from tests.features.events.event_log import events, number, send
from tests.support.queuectl import queuectl
from tests.support.rows import attempt, column, fetch
from tests.support.shop_login import shop_login
from tests.support.system import System
from tests.support.waiting import SLACK, until

# Code of an application: it leaves a trace also if it is rolled back.
SHOP = """
CREATE SCHEMA shop;
CREATE SEQUENCE shop.ran;
CREATE FUNCTION shop.evil(text) RETURNS boolean LANGUAGE sql IMMUTABLE
    AS $$ SELECT nextval('shop.ran') > 0 $$;
CREATE FUNCTION shop.evil() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM nextval('shop.ran'); RETURN NEW; END $$;
CREATE DOMAIN shop.word AS text CHECK (shop.evil(VALUE));
CREATE TABLE shop.other (id text PRIMARY KEY);
CREATE TABLE shop.events (
    id text PRIMARY KEY, type text NOT NULL, at timestamptz, message_id bigint, recipient text,
    document jsonb
);
"""
HOSTILE = {
    "trigger": "CREATE TRIGGER t BEFORE INSERT ON shop.events FOR EACH ROW"
    " EXECUTE FUNCTION shop.evil()",
    "trigger of a statement": "CREATE TRIGGER t AFTER INSERT ON shop.events"
    " EXECUTE FUNCTION shop.evil()",
    "CHECK": "ALTER TABLE shop.events ADD CHECK (shop.evil(id)) NOT VALID",
    "CHECK by PostgreSQL": "ALTER TABLE shop.events ADD CHECK (query_to_xml("
    "'SELECT shop.evil(''x'')', true, true, '') IS NOT NULL) NOT VALID",
    "default": "ALTER TABLE shop.events ADD more boolean, ALTER more SET DEFAULT shop.evil('x')",
    "default by PostgreSQL": "ALTER TABLE shop.events ADD more xml, ALTER more SET DEFAULT"
    " query_to_xml('SELECT shop.evil(''x'')', true, true, '')",
    "index": "CREATE INDEX ON shop.events (shop.evil(id))",
    "condition of an index": "CREATE INDEX ON shop.events (id) WHERE shop.evil(id)",
    "domain": "ALTER TABLE shop.events ADD more shop.word",
    "generated": "ALTER TABLE shop.events ADD more boolean"
    " GENERATED ALWAYS AS (shop.evil(id)) STORED",
    "identity": "ALTER TABLE shop.events ADD more bigint GENERATED ALWAYS AS IDENTITY",
    "NOT NULL": "ALTER TABLE shop.events ADD more text NOT NULL DEFAULT '';"
    " ALTER TABLE shop.events ALTER more DROP DEFAULT",
    "foreign key": "ALTER TABLE shop.events ADD FOREIGN KEY (id) REFERENCES shop.other NOT VALID",
    "deferred": "ALTER TABLE shop.events ADD UNIQUE (at) DEFERRABLE INITIALLY DEFERRED",
    "rule": "CREATE RULE r AS ON INSERT TO shop.events DO ALSO SELECT shop.evil('x')",
    "row security": "ALTER TABLE shop.events ENABLE ROW LEVEL SECURITY",
    "inherited": "CREATE TABLE shop.child () INHERITS (shop.events)",
    "no key": "ALTER TABLE shop.events DROP CONSTRAINT events_pkey",
    "unlogged": "ALTER TABLE shop.events SET UNLOGGED",
}

MANY = """
INSERT INTO attempts (ended_at, started_at, row_id, message_id, lease_token, attempt, code,
    event, sender, recipient, domain, worker, host, command, enhanced, reply, submitted_by,
    metadata)
SELECT now(), now(), n, n, 1, 1, 250, 'delivered', '', '', 'b.example', '', '', '', '', '',
    CASE n %% 2 WHEN 0 THEN 'me' ELSE 'you' END, CASE n WHEN 2 THEN %s ELSE '{}' END::jsonb
FROM generate_series(1, %s) AS n
"""


@pytest.fixture
def shop(db: psycopg.Connection) -> None:
    db.execute(SHOP.encode())
    slow_after(db, 60)


@pytest.fixture
def filled(db: psycopg.Connection, shop: None) -> None:
    """The table gets events."""
    db.execute("SELECT events_into('shop.events')")


def ids(db: psycopg.Connection, table: str = "shop.events") -> list[str]:
    return column(db, f"SELECT id FROM {table} ORDER BY at, id")


def slow_after(db: psycopg.Connection, seconds: float) -> None:
    """Have an insert count as slow after so long a time, whatever else the machine does."""
    (defined,) = fetch(db, "SELECT pg_get_functiondef('event_rows_put'::regproc)")
    changed, times = re.subn(r"(max_s CONSTANT .*:= )[\d.]+;", rf"\g<1>{seconds};", defined)
    assert times == 1
    db.execute(changed.encode())


def many(db: psycopg.Connection, count: int, metadata: str = "{}") -> None:
    """Have so many events in one statement; the second one has the metadata."""
    db.execute(MANY, (metadata, count))


def reasons(db: psycopg.Connection) -> list[str]:
    return column(db, "SELECT reason FROM event_retries ORDER BY commit, place")


def later(db: psycopg.Connection) -> None:
    """Do what the duty does, without its pauses, until nothing is due."""
    db.execute("UPDATE event_retries SET next_try = now()")
    while fetch(db, "SELECT count(*) FROM event_retries WHERE next_try <= now()") != (0,):
        db.execute("SELECT event_table_later(name) FROM event_tables")


def slow_down(db: psycopg.Connection) -> None:
    """Have an event take 10 ms or more, and one of a mail to a thousand 0.5 s."""
    for _ in range(200):
        db.execute("CREATE INDEX ON shop.events USING gin (document) WITH (fastupdate = off)")


def known(db: psycopg.Connection) -> list[str]:
    """The ids of all events."""
    number(db)
    return sorted(str(event.id) for event in events(db))


def ran(db: psycopg.Connection) -> bool:
    """Whether code of the application ran since the last call."""
    (found,) = fetch(db, "SELECT is_called FROM shop.ran")
    db.execute("SELECT setval('shop.ran', 1, false)")
    return bool(found)


def test_rows_commit_with_their_outcome(
    db: psycopg.Connection, database: str, filled: None
) -> None:
    with psycopg.connect(database) as other:
        message = send(other, "x@b.example", "y@b.example")
        assert ids(db) == []
        other.commit()
        assert len(ids(db)) == 1
        other.execute("SELECT cancel(%s)", (message,))
        other.rollback()
    db.execute("SELECT cancel(%s)", (message,))
    assert sorted(ids(db)) == known(db)
    query = (
        "SELECT id, type, message_id, recipient, document FROM shop.events ORDER BY at, recipient"
    )
    found = db.execute(query).fetchall()
    documents = {event.id: event.document for event in events(db)}
    assert {row[0]: row[4] for row in found} == documents
    assert [row[1:4] for row in found] == [
        ("mail.accepted", message, None),
        ("mail.cancelled", message, "x@b.example"),
        ("mail.cancelled", message, "y@b.example"),
    ]
    assert found[0][4]["recipients"] == ["x@b.example", "y@b.example"]
    assert reasons(db) == []


@pytest.mark.parametrize("statement", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_could_run_code_is_refused_at_once_and_at_each_use(
    db: psycopg.Connection, database: str, shop: None, statement: str
) -> None:
    with psycopg.connect(database) as other:
        other.execute(statement.encode())
        ran(other)
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no events go into"):
            other.execute("SELECT events_into('shop.events')")
        other.rollback()
    db.execute("SELECT events_into('shop.events')")
    attempt(db, 1, 1)
    assert len(ids(db)) == 1
    db.execute(statement.encode())
    ran(db)
    attempt(db, 2, 2)
    later(db)
    assert not ran(db)
    assert len(ids(db)) == 1
    assert len(reasons(db)) == 1


def test_a_locked_table_stops_no_outcome(
    db: psycopg.Connection, database: str, filled: None
) -> None:
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE shop.events IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        for place in range(20):
            attempt(db, place, place)
        assert time.monotonic() - began < 1 + SLACK  # one waits for 0.1 s, the others don't try
    assert ids(db) == []
    assert len(reasons(db)) == 20
    later(db)
    assert sorted(ids(db)) == known(db)
    (state,) = db.execute("SELECT later, error FROM event_tables").fetchall()
    assert state[0] == 20
    assert "lock timeout" in state[1]


def test_a_slow_table_delays_few_outcomes(db: psycopg.Connection, filled: None) -> None:
    """As a locked one: the next outcomes do not try, and the duty inserts theirs."""
    slow_after(db, 0)
    attempt(db, 0, 0)
    assert "an insert took" in reasons(db)[0]
    db.execute("UPDATE event_retries SET noted_at = now() + interval '1 hour'")  # just now
    for place in range(1, 20):
        attempt(db, place, place)
    assert len(ids(db)) == 1
    db.execute("UPDATE event_retries SET noted_at = now() - interval '1 second'")
    attempt(db, 20, 20)
    assert len(ids(db)) == 2
    later(db)
    assert sorted(ids(db)) == known(db)
    assert fetch(db, "SELECT later, left(error, 14) FROM event_tables") == (19, "an insert took")


def test_a_slow_table_gets_a_part_with_the_outcome_and_the_rest_later(
    db: psycopg.Connection, shop: None
) -> None:
    db.execute("SELECT events_into('shop.events', viewer => 'me')")
    slow_after(db, 0)
    many(db, 9)
    messages = "SELECT message_id FROM shop.events ORDER BY message_id"
    assert column(db, messages) == [2]
    assert fetch(db, "SELECT place, last FROM event_retries") == (3, 9)
    later(db)
    assert column(db, messages) == [2, 4, 6, 8]


@pytest.mark.slow
def test_what_a_slow_table_gets_later_is_bounded_by_time(
    db: psycopg.Connection, database: str, filled: None
) -> None:
    """By that of a round, and by the statement_timeout of a single event."""
    slow_down(db)
    slow_after(db, 0.1)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE shop.events IN ACCESS EXCLUSIVE MODE")
        many(db, 3, json.dumps({f"word{place}": place for place in range(1000)}))
    once = "SELECT reason FROM event_table_later('shop.events')"
    db.execute("SET statement_timeout = '0.2s'")
    assert "statement timeout" in column(db, once)[0]
    while len(ids(db)) < 2:
        db.execute(once)
    db.execute("RESET statement_timeout")
    assert column(db, "SELECT place FROM event_retries") == [1]
    many(db, 2500)
    db.execute(once)
    assert 2 < len(ids(db)) < 2500
    db.execute("DELETE FROM event_retries WHERE last - place > 100")
    later(db)
    assert reasons(db) == []


def test_a_table_that_takes_long_stops_no_other_upkeep(
    db: psycopg.Connection, database: str, filled: None, system: System
) -> None:
    session = (
        "SELECT query_start, wait_event_type, now() FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE '%%queued ' || %s"
    )
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE shop.events IN ACCESS EXCLUSIVE MODE")
        attempt(db)
        other.execute("SELECT FROM event_tables FOR UPDATE")  # the duty waits for it
        system.queued(system.hop())
        *_, at = until(
            lambda: [
                found for found in db.execute(session, ("late event rows",)) if found[1] == "Lock"
            ]
        )[0]
        until(lambda: fetch(db, session, "upkeep")[0] > at)


def test_a_row_that_an_open_transaction_inserts_delays_few_outcomes(
    db: psycopg.Connection, database: str, filled: None
) -> None:
    db.execute("CREATE UNIQUE INDEX one_each ON shop.events (recipient)")
    row = "INSERT INTO shop.events (id, type, recipient) VALUES ('x', 'x', 'r@b.example')"
    with psycopg.connect(database) as other:
        other.execute(row)
        began = time.monotonic()
        for place in range(20):
            attempt(db, place, place, recipient="r@b.example")
        assert time.monotonic() - began < 1 + SLACK
        assert len(reasons(db)) == 20
        other.rollback()
    later(db)
    assert len(ids(db)) == 1
    assert ["one_each" in reason for reason in reasons(db)] == [True] * 19


def test_a_table_keeps_its_events_under_another_name(db: psycopg.Connection, filled: None) -> None:
    """One that takes its name is another table, whose trigger would run."""
    db.execute("ALTER TABLE shop.events RENAME TO former")
    db.execute("CREATE TABLE shop.events (LIKE shop.former INCLUDING ALL)")
    db.execute(HOSTILE["trigger"].encode())
    attempt(db)
    assert ids(db, "shop.former") == known(db)
    assert (ids(db), ran(db)) == ([], False)


def test_a_table_that_was_dropped_gets_all_when_it_is_back(
    db: psycopg.Connection, filled: None
) -> None:
    with pytest.raises(errors.DependentObjectsStillExist):
        db.execute("DROP TABLE shop.events")
    db.execute("ALTER TABLE shop.events RENAME TO former")
    db.execute("CREATE TABLE shop.events (LIKE shop.former INCLUDING ALL)")
    db.execute("DROP TABLE shop.former CASCADE")
    attempt(db, 1, 1)
    assert reasons(db) == ["it was dropped"]
    db.execute("SELECT events_into('shop.events')")
    later(db)
    attempt(db, 2, 2)
    assert sorted(ids(db)) == known(db)


def test_an_event_that_a_table_refuses_keeps_no_other_out(
    db: psycopg.Connection, filled: None
) -> None:
    db.execute("CREATE UNIQUE INDEX one_each ON shop.events (recipient)")
    attempt(db, 0, 0, recipient="r3@b.example")
    message = send(db, *(f"r{place}@b.example" for place in range(10)))
    db.execute("SELECT cancel(%s)", (message,))
    assert len(ids(db)) == 2
    later(db)
    assert len(ids(db)) == 11
    assert ["one_each" in reason for reason in reasons(db)] == [True]
    db.execute("DROP INDEX shop.one_each")
    later(db)
    assert sorted(ids(db)) == known(db)


def test_what_does_not_fit_into_an_outcome_comes_later(
    db: psycopg.Connection, database: str, filled: None
) -> None:
    """Many events at once, and transactions that would not see a change of the table."""
    many(db, 2500)
    with psycopg.connect(database) as other:
        other.isolation_level = IsolationLevel.REPEATABLE_READ
        attempt(other, 9000, 9000)
    assert ids(db) == []
    attempt(db, 9001, 9001)  # not with those that found that out about themselves
    assert len(ids(db)) == 1
    later(db)
    assert sorted(ids(db)) == known(db)


def test_the_row_of_accepted_mail_waits_for_its_recipients(
    db: psycopg.Connection, database: str, filled: None
) -> None:
    with psycopg.connect(database) as other:
        other.execute("SET CONSTRAINTS ALL IMMEDIATE")
        send(other, "x@b.example")
    later(db)
    assert column(db, "SELECT document -> 'recipients' FROM shop.events") == [["x@b.example"]]


def test_a_subscription_that_ends_leaves_nothing(db: psycopg.Connection, filled: None) -> None:
    trigger = "SELECT FROM pg_trigger WHERE tgname = 'event_tables_fill'"
    assert db.execute(trigger).fetchall()
    db.execute("SELECT events_unsubscribe('shop.events')")
    assert db.execute(trigger).fetchall() == []
    attempt(db)
    assert ids(db) == []
    db.execute("DROP TABLE shop.events")


def test_only_mail_of_a_login_or_a_tenant(db: psycopg.Connection, shop: None) -> None:
    db.execute("SELECT events_into('shop.events', viewer => 'me', tenant => 'shop')")
    for place, (login, tenant) in enumerate((("me", "shop"), ("me", ""), ("you", "shop"))):
        attempt(db, place, place, submitted_by=login, tenant=tenant)
    assert column(db, "SELECT message_id FROM shop.events") == [0]


def test_queuectl_makes_a_table_for_an_application(
    db: psycopg.Connection, database: str, config: Path, system: System, tmp_path: Path
) -> None:
    operators = tmp_path / "operators.yaml"

    def run(*words: str, config: Path = config) -> tuple[int, str]:
        done = queuectl(config, "events", *words)
        return done.exit_code, done.output

    with shop_login(database, "pgmta_operator") as alice, shop_login(database) as uri:
        operators.write_text(f"environment: {{database: {{uri: {json.dumps(alice)}}}}}")
        login = conninfo_to_dict(uri)["user"]
        db.execute(f"CREATE SCHEMA shop AUTHORIZATION {login}".encode())
        code, said = run("unsubscribe", "shop.evnts")
        assert (code, said[:6]) == (1, "error:")
        code, said = run("table", "shop.evnts")
        assert (code, "no table shop.evnts" in said) == (1, True)
        # an operator may not make it, and is told how
        code, said = run("table", "shop.mail_events", "--create", config=operators)
        assert (code, f"{login} runs:\nCREATE TABLE" in said) == (1, True), said
        code, said = run("table", "shop.mail_events", "--create")
        assert (code, said.split(";")[0]) == (0, "events go into shop.mail_events")
        assert column(db, "SELECT created_by FROM event_subscriptions") == [who()]
        owner = "SELECT tableowner FROM pg_tables WHERE schemaname = 'shop'"
        assert column(db, owner) == [login]
        with psycopg.connect(uri) as application:
            application.execute("LOCK TABLE shop.mail_events IN ACCESS EXCLUSIVE MODE")
            send(db)
            code, said = run("list")
            assert "1 wait" in said
        system.queued(system.hop())
        until(lambda: len(ids(db, "shop.mail_events")) == 2)
        code, said = run("list")
        assert "inserted later" in said
        assert run("unsubscribe", "shop.mail_events")[0] == 0
        db.execute("DROP SCHEMA shop CASCADE")
