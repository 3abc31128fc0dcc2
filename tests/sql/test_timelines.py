"""Another timeline moves all sequences on, once, whoever comes first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.postgres.link import Link
from pgmta.postgres.operator import connected
from pgmta.store.queue.enqueue import Enqueue
from tests.support.database import owned_template
from tests.support.rows import column, fetch

MILLION = 1_000_000
OTHER = "SELECT setval('pgmta.timelines', 42)"  # of a server that there was before
SUBMIT = "SELECT pgmta.submit('a@a.example', '{b@b.example}', 'Subject: x\r\n\r\nx\r\n')"
TOLD = "SELECT sequencename, coalesce(last_value, start_value - 1) FROM pg_sequences"


def values(db: psycopg.Connection) -> dict[str, int]:
    """The last number of each sequence."""
    return {name: n for name, n in db.execute(TOLD).fetchall() if name != "timelines"}


def noted(db: psycopg.Connection) -> bool:
    return column(db, "SELECT last_value = server_timeline() FROM timelines") == [True]


def test_a_new_database_is_on_its_own_timeline(database: str, db: psycopg.Connection) -> None:
    assert noted(db)
    with psycopg.connect(database) as program:
        assert column(program, SUBMIT) == [1]
        assert column(program, SUBMIT) == [2]


@pytest.mark.parametrize("way", ["link", "operator", "program"])
async def test_whoever_connects_first_moves_all_sequences(
    database: str, db: psycopg.Connection, way: str
) -> None:
    db.execute("CREATE SEQUENCE public.of_others")
    db.execute(OTHER)
    before = values(db)
    if way == "link":
        link = Link(database, "test")
        await Enqueue(link).reserve(1)
        await link.close()
    elif way == "operator":
        async with connected(database):
            pass
    else:
        with psycopg.connect(database) as program:
            assert column(program, SUBMIT)[0] > MILLION
            assert noted(db), "though its transaction is open"
            program.rollback()
            assert column(program, SUBMIT) == [MILLION + 3]
    assert noted(db)
    moved = {name: n - before[name] for name, n in values(db).items()}
    assert moved.pop("of_others") == 0
    assert all(MILLION < by < MILLION + 9 for by in moved.values()), moved


def test_one_of_two_at_once_moves_them(database: str, db: psycopg.Connection) -> None:
    db.execute(OTHER)

    def note(_: int) -> bool:
        with psycopg.connect(database) as session:
            return bool(fetch(session, "SELECT pgmta.note_timeline()")[0])

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(note, range(8))) == [False] * 7 + [True]
    assert column(db, "SELECT nextval('message_ids')")[0] < MILLION + 9
    locks = """SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database
        WHERE locktype = 'advisory' AND datname = current_database()"""
    assert column(db, locks) == [0]


def test_any_login_may_note_it(database: str, db: psycopg.Connection) -> None:
    db.execute(OTHER)
    db.execute("SET ROLE pgmta_reader")
    assert column(db, "SELECT note_timeline()") == [True]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute(OTHER)


def test_an_owner_of_no_more_than_the_tables_moves_all_numbers_on(server: str) -> None:
    with owned_template(server) as (name, owner):
        uri = make_conninfo(server, dbname=name, user=owner)
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute("SET enable_nestloop = off")  # then schemas of others are asked for, too
            (before,) = fetch(db, "SELECT last_value FROM pgmta.message_ids")
            fetch(db, "SELECT setval('pgmta.timelines', 0)")
            assert fetch(db, "SELECT pgmta.note_timeline()") == (True,)
            assert fetch(db, "SELECT pgmta.note_timeline()") == (False,)
            (after,) = fetch(db, "SELECT last_value FROM pgmta.message_ids")
            assert after - before >= 1_000_000
