"""The example of docs/lifecycle.md: a bound application that has its accounts elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg.conninfo import make_conninfo

from tests.lifecycle.tokens import collect
from tests.support.rows import column, fetch

PAGE = Path(__file__).parents[2] / "docs" / "lifecycle.md"


@pytest.fixture
def shop(accounts: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """The owner's session, with a shop that is bound as the page says."""
    accounts.execute(
        "DO $$ BEGIN CREATE ROLE shop LOGIN; EXCEPTION WHEN duplicate_object THEN END $$;"
        "CREATE SCHEMA shop AUTHORIZATION shop; GRANT pgmta_submit TO shop; SET ROLE shop;"
        "CREATE TABLE shop.customers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " email text, name text, blocked boolean DEFAULT false, confirmed boolean DEFAULT false);"
        "RESET ROLE"
    )
    (example,) = re.findall(r"```sql\n(SET ROLE shop;.*?)```", PAGE.read_text(), re.DOTALL)
    accounts.execute(example.encode())
    yield accounts
    accounts.execute("RESET ROLE; DROP OWNED BY shop CASCADE; DROP ROLE shop")
    accounts.execute(
        "DROP SCHEMA lifecycle CASCADE; DROP OWNED BY pgmta_binding; DROP ROLE pgmta_binding"
    )


def acting(db: psycopg.Connection, role: str) -> psycopg.Connection:
    """A session of a login that is in one role only."""
    return psycopg.connect(make_conninfo(db.info.dsn, user=role), autocommit=True)


def test_the_example_works_under_the_role_of_the_application(shop: psycopg.Connection) -> None:
    with acting(shop, "shop") as app:
        app.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
        app.execute("SELECT lifecycle.activate_again(1)")
    shop.execute("ALTER ROLE pgmta_queued LOGIN; ALTER ROLE pgmta_web LOGIN")
    try:
        with acting(shop, "pgmta_queued") as queued:
            assert collect(queued)[0] == 1
        (secret,) = fetch(shop, "SELECT secret FROM lifecycle.tokens")
        with acting(shop, "pgmta_web") as web:
            consume = "SELECT login, why FROM lifecycle.token_consume(%s, 'activation')"
            assert fetch(web, consume, secret) == ("ann", None)
    finally:
        shop.execute("ALTER ROLE pgmta_queued NOLOGIN; ALTER ROLE pgmta_web NOLOGIN")
    assert column(shop, "SELECT confirmed FROM shop.customers") == [True]
    with acting(shop, "shop") as app:
        app.execute("UPDATE shop.customers SET blocked = true")
        app.execute("SELECT lifecycle.account_changed(1)")
        app.execute("SELECT lifecycle.recover('ann')")
    assert column(shop, "SELECT action::text FROM lifecycle.tokens") == ["activation"]


def test_code_of_the_application_never_has_the_rights_of_the_owner(
    shop: psycopg.Connection,
) -> None:
    with pytest.raises(pg_errors.InsufficientPrivilege, match="a login that sees all mail"):
        collect_one(shop)
    with acting(shop, "shop") as app:
        for statement in (
            "CREATE OR REPLACE FUNCTION lifecycle.account_status(account bigint) RETURNS text"
            " LANGUAGE sql AS 'SELECT 1::text'",
            "ALTER FUNCTION lifecycle.account_status(bigint) SECURITY INVOKER",
            "SELECT lifecycle.bind('shop.mail_accounts', 'shop.confirm(bigint)')",
            "SELECT secret FROM lifecycle.tokens",
        ):
            with pytest.raises(pg_errors.InsufficientPrivilege):
                app.execute(statement.encode())


def collect_one(db: psycopg.Connection) -> None:
    """Insert a token as the owner, which asks the application for the account."""
    db.execute("INSERT INTO lifecycle.tokens (action, account) VALUES ('activation', 1)")


def test_what_cannot_be_bound(accounts: psycopg.Connection) -> None:
    accounts.execute("CREATE VIEW public.v AS SELECT 1::bigint AS id, 'x'::text AS email")
    accounts.execute(
        "CREATE FUNCTION public.f(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'"
    )
    for view, function, reason in [
        ("pgmta.queue", "public.f(bigint)", "is no view"),
        ("public.v", "public.f(bigint)", "lacks columns"),
    ]:
        with pytest.raises(pg_errors.ObjectNotInPrerequisiteState, match=reason):
            accounts.execute("SELECT bind(%s, %s)", (view, function))
