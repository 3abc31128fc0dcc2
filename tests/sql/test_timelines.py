"""Numbers after a promotion: the owner of the tables is no superuser."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.database import owned_template
from tests.support.rows import fetch


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
