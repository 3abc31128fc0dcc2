"""Addresses ignore case as ASCII does, whatever the locale of the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from pgmta.selection import parse
from pgmta.store.admin.migrate import migrate
from tests.sql.test_judged_conditions import slips
from tests.support.database import fresh_database
from tests.support.rows import fetch, message, row

_TURKISH = "TEMPLATE template0 ENCODING UTF8 LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR' LOCALE 'C'"
_UNICODE = "TEMPLATE template0 ENCODING UTF8 LOCALE 'C.UTF-8'"
SPELLINGS = ("INFO@MAIL.INFO", "info@mail.info", "Info@Mail.Info")


@pytest.fixture(params=[_TURKISH, _UNICODE], ids=["turkish", "unicode"])
def db(request: pytest.FixtureRequest, server: str) -> Iterator[psycopg.Connection]:
    """A connection to a database of this locale."""
    with ExitStack() as stack:
        try:
            uri = stack.enter_context(fresh_database(server, options=request.param))
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this PostgreSQL is built without ICU")
        migrate(uri)
        yield stack.enter_context(psycopg.connect(uri, autocommit=True))


def test_a_space_that_is_none_for_postgresql_hides_no_name(db: psycopg.Connection) -> None:
    assert fetch(db, "SELECT chr(12288) ~ '\\S'") == (False,)
    assert slips(db) == []


@pytest.mark.parametrize("db", [_TURKISH], indirect=True, ids=["turkish"])
def test_case_is_that_of_ascii(db: psycopg.Connection) -> None:
    assert fetch(db, "SELECT lower('I') = 'i'") == (False,), "it is a dotless i"
    for number, sender in enumerate(SPELLINGS, 1):
        message(db, number)
        row(db, number, sender=sender, recipient=sender, domain="mail.info", sender_domain=None)
    assert fetch(db, "SELECT array_agg(DISTINCT sender_domain) FROM queue") == (["mail.info"],)
    for text in (*SPELLINGS, "*NFO@mail.inf*", "*nfo@MAIL.INF*", "*@MAIL.INFO"):
        for field in ("sender", "recipient"):
            found = parse(**{field: [text]}).condition()
            assert fetch(db, f"SELECT count(*) FROM queue WHERE {found}") == (3,), found
            assert fetch(db, "SELECT condition_fault(%s)", found) == (None,)
    for text in SPELLINGS:
        for kind, value in (("sender", text), ("sender-domain", text.rpartition("@")[2])):
            ((stored, condition),) = db.execute(
                "INSERT INTO suspensions (kind, value, reason) VALUES (%s, %s, 'r')"
                " RETURNING value, suspension_condition(kind, value)", (kind, value)
            ).fetchall()  # fmt: skip
            assert stored == value.lower()
            assert fetch(db, f"SELECT count(*) FROM queue WHERE {condition}") == (3,), condition
            db.execute("DELETE FROM suspensions")
    db.execute(
        "UPDATE queue SET status = 'SENDING', lease_since = now(), lease_until = now(),"
        " lease_token = 1, lease_owner = 'w'"
    )
    states = "SELECT DISTINCT row_state(status, NULL, NULL, false, 0, 0, NULL) FROM queue"
    assert fetch(db, states) == ("sending",)
