"""Addresses ignore case as ASCII does, whatever the locale of the database."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from pgmta.selection import parse
from pgmta.store.admin.migrate import migrate
from tests.sql.test_judged_conditions import slips
from tests.support.database import with_database
from tests.support.rows import fetch, message, row

_TURKISH = """
CREATE DATABASE {} TEMPLATE template0 ENCODING UTF8 LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'
    LOCALE 'C'
"""
_UNICODE = "CREATE DATABASE {} TEMPLATE template0 ENCODING UTF8 LOCALE 'C.UTF-8'"
SPELLINGS = ("INFO@MAIL.INFO", "info@mail.info", "Info@Mail.Info")


@contextmanager
def made(server: str, statement: str) -> Iterator[psycopg.Connection]:
    """A connection to a database that this statement makes."""
    name = sql.Identifier(f"pgmta_test_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(server, autocommit=True) as admin:
        try:
            admin.execute(sql.SQL(statement).format(name))
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this PostgreSQL is built without ICU")
        try:
            uri = with_database(server, name.as_string(None).strip('"'))
            migrate(uri)
            with psycopg.connect(uri, autocommit=True) as db:
                yield db
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def turkish(server: str) -> Iterator[psycopg.Connection]:
    """A connection to a database in which `I` in lower case is a dotless i."""
    with made(server, _TURKISH) as db:
        assert fetch(db, "SELECT lower('I') = 'i'") == (False,)
        yield db


@pytest.mark.parametrize("statement", [_TURKISH, _UNICODE], ids=["turkish", "unicode"])
def test_a_space_that_is_none_for_postgresql_hides_no_name(server: str, statement: str) -> None:
    with made(server, statement) as db:
        assert fetch(db, "SELECT chr(12288) ~ '\\S'") == (False,)
        assert slips(db) == []


def test_case_is_that_of_ascii(turkish: psycopg.Connection) -> None:
    db = turkish
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
