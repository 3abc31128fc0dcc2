"""The example of docs/programs/lifecycle.md: an application that has its accounts elsewhere."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg.conninfo import make_conninfo

from tests.lifecycle.tokens import collect
from tests.support.rows import column, fetch

PAGE = Path(__file__).parents[2] / "docs" / "programs" / "lifecycle.md"


@pytest.fixture
def roles(accounts: psycopg.Connection) -> Iterator[dict[str, str]]:
    """Logins of this test: of the shop, of queued and of queued web."""
    names = {name: f"{name}_{uuid.uuid4().hex[:8]}" for name in ("shop", "queued", "web")}
    for name, group in {"shop": "submit", "queued": "queued", "web": "web"}.items():
        accounts.execute(f"CREATE ROLE {names[name]} LOGIN IN ROLE pgmta_{group}".encode())
    yield names
    accounts.execute("RESET ROLE; DROP SCHEMA lifecycle CASCADE")
    if fetch(accounts, "SELECT to_regrole('pgmta_binding') IS NOT NULL") == (True,):
        accounts.execute("DROP OWNED BY pgmta_binding")
    for login in names.values():
        accounts.execute(f"DROP OWNED BY {login} CASCADE; DROP ROLE {login}".encode())


@pytest.fixture
def shop(accounts: psycopg.Connection, roles: dict[str, str]) -> psycopg.Connection:
    """The owner's session, with a shop that is bound as the page says."""
    role = roles["shop"]
    accounts.execute(
        f"CREATE SCHEMA shop AUTHORIZATION {role}; SET ROLE {role};"
        "CREATE TABLE shop.customers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " email text, name text, blocked boolean DEFAULT false, confirmed boolean DEFAULT false);"
        "RESET ROLE".encode()
    )
    (example,) = re.findall(r"```sql\n(SET ROLE shop;.*?)```", PAGE.read_text(), re.DOTALL)
    accounts.execute(example.replace("SET ROLE shop", f"SET ROLE {role}").encode())
    return accounts


def acting(db: psycopg.Connection, role: str) -> psycopg.Connection:
    """A session of a login that is in one role only."""
    return psycopg.connect(make_conninfo(db.info.dsn, user=role), autocommit=True)


def test_the_example_works_under_the_role_of_the_application(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
        app.execute("SELECT lifecycle.activate_again(1)")
    with acting(shop, roles["queued"]) as queued:
        assert collect(queued)[0] == 1
    (secret,) = fetch(shop, "SELECT secret FROM lifecycle.tokens")
    with acting(shop, roles["web"]) as web:
        consume = "SELECT login, why FROM lifecycle.token_consume(%s, 'activation')"
        assert fetch(web, consume, secret) == ("ann", None)
    assert column(shop, "SELECT confirmed FROM shop.customers") == [True]
    with acting(shop, roles["shop"]) as app:
        app.execute("UPDATE shop.customers SET blocked = true")
        app.execute("SELECT lifecycle.account_changed(1)")
        app.execute("SELECT lifecycle.recover('ann')")
    assert column(shop, "SELECT action::text FROM lifecycle.tokens") == ["activation"]


def test_code_of_the_application_never_has_the_rights_of_the_owner(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    with pytest.raises(pg_errors.InsufficientPrivilege, match="a login that sees all mail"):
        collect_one(shop)
    with acting(shop, roles["shop"]) as app:
        for statement in (
            "CREATE OR REPLACE FUNCTION lifecycle.account_status(account bigint) RETURNS text"
            " LANGUAGE sql AS 'SELECT 1::text'",
            "ALTER FUNCTION lifecycle.account_status(bigint) SECURITY INVOKER",
            "SELECT lifecycle.bind('shop.mail_accounts', 'shop.confirm(bigint)')",
            "SELECT secret FROM lifecycle.tokens",
        ):
            with pytest.raises(pg_errors.InsufficientPrivilege):
                app.execute(statement.encode())


def test_an_account_with_two_rows_gets_no_mail(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
        app.execute("SELECT lifecycle.activate_again(1)")
    shop.execute(
        f"SET ROLE {roles['shop']};"
        "CREATE OR REPLACE VIEW shop.mail_accounts AS SELECT id, e AS email, name AS login,"
        " 'provisioned' AS status FROM shop.customers, unnest(ARRAY[email, 'eve@b.example']) AS e;"
        "RESET ROLE".encode()
    )
    with acting(shop, roles["queued"]) as queued:
        taken, ((_, reason, _),), _ = collect(queued)
    assert (taken, reason) == (0, "its account has no usable mailbox")
    assert column(shop, "SELECT recipient FROM pgmta.queue") == []


def test_an_account_without_a_login_gets_no_mail(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute("INSERT INTO shop.customers (email) VALUES ('ann@b.example')")
        app.execute("SELECT lifecycle.activate_again(1)")
    with acting(shop, roles["queued"]) as queued:
        taken, ((_, reason, _),), _ = collect(queued)
    assert (taken, reason) == (0, "its account has no login")


def test_a_changed_search_path_gives_no_rights_of_the_owner(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    shop.execute(
        f"SET ROLE {roles['shop']};"
        "CREATE TABLE shop.tokens (action text, account bigint);"
        "CREATE FUNCTION shop.name() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''rights of %'', current_user; END';"
        "CREATE TRIGGER name BEFORE INSERT ON shop.tokens FOR EACH ROW"
        " EXECUTE FUNCTION shop.name();"
        "CREATE FUNCTION shop.never(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';"
        "CREATE OPERATOR shop.<> (FUNCTION = shop.never, LEFTARG = text, RIGHTARG = text);"
        "CREATE FUNCTION shop.taken(name text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM set_config('search_path', 'shop, pg_catalog', false); RETURN name; END $$;"
        "CREATE OR REPLACE VIEW shop.mail_accounts AS SELECT id, email, name AS login,"
        " shop.taken('provisioned') AS status FROM shop.customers;"
        "RESET ROLE".encode()
    )
    with acting(shop, roles["shop"]) as app:
        app.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
        for function in ("activate_again(1)", "account_changed(1)"):
            with pytest.raises(pg_errors.InsufficientPrivilege, match="changed search_path"):
                app.execute(f"SELECT lifecycle.{function}".encode())


def collect_one(db: psycopg.Connection) -> None:
    """Insert a token as the owner, which asks the application for the account."""
    db.execute("INSERT INTO lifecycle.tokens (action, account) VALUES ('activation', 1)")


def test_another_view_takes_the_place_of_the_first(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    """While there are no tokens, for example because the first view had a mistake."""
    shop.execute(
        f"SET ROLE {roles['shop']}; CREATE VIEW shop.others AS SELECT 7::bigint AS id,"
        " 'eve@b.example'::text AS email, 'eve'::text AS login, 'provisioned'::text AS status;"
        "RESET ROLE; SELECT lifecycle.bind('shop.others', 'shop.confirm(bigint)')".encode()
    )
    with acting(shop, roles["shop"]) as app:
        app.execute("SELECT lifecycle.activate_again(7)")
    with acting(shop, roles["queued"]) as queued:
        assert collect(queued)[0] == 1


def test_names_with_dots_are_bound(shop: psycopg.Connection, roles: dict[str, str]) -> None:
    role = roles["shop"]
    shop.execute(
        f'CREATE SCHEMA "a.b" AUTHORIZATION {role}; SET ROLE {role};'
        ' CREATE VIEW "a.b"."c.d" AS SELECT * FROM shop.mail_accounts; RESET ROLE;'
        """ SELECT lifecycle.bind('"a.b"."c.d"', 'shop.confirm(bigint)')""".encode()
    )
    with acting(shop, role) as app:
        app.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
        app.execute("SELECT lifecycle.activate_again(1)")
    assert column(shop, "SELECT token FROM lifecycle.waiting_tokens") == [1]


def test_what_cannot_be_bound(shop: psycopg.Connection, roles: dict[str, str]) -> None:
    role = roles["shop"]
    shop.execute(
        "CREATE VIEW public.short AS SELECT 1::bigint AS id, 'x'::text AS email;"
        "CREATE VIEW public.whole AS SELECT 1::bigint AS id, ''::text AS email, ''::text AS login,"
        " ''::text AS status;"
        "CREATE FUNCTION public.ours(bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER"
        " AS 'SELECT true';"
        f"SET ROLE {role};"
        "CREATE FUNCTION shop.word(text) RETURNS boolean LANGUAGE sql SECURITY DEFINER"
        " AS 'SELECT true';"
        "CREATE FUNCTION shop.invoked(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
        "RESET ROLE".encode()
    )
    confirm, view = "shop.confirm(bigint)", "shop.mail_accounts"
    for bound, function, reason in [
        ("shop.customers", confirm, r"shop\.customers is no view"),
        ("public.short", confirm, r"public\.short lacks columns"),
        (view, "shop.word(text)", r"shop\.word is no function of a bigint"),
        (view, "shop.invoked(bigint)", r"shop\.invoked has no SECURITY DEFINER"),
        (view, "public.ours(bigint)", "who owns the mail too"),
        ("public.whole", confirm, "have two owners"),
    ]:
        with pytest.raises(pg_errors.ObjectNotInPrerequisiteState, match=reason):
            shop.execute("SELECT lifecycle.bind(%s, %s)", (bound, function))
    with acting(shop, role) as app:
        app.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
        app.execute("SELECT lifecycle.activate_again(1)")
    with pytest.raises(pg_errors.ObjectNotInPrerequisiteState, match="there are tokens"):
        shop.execute("SELECT lifecycle.bind(%s, %s)", (view, confirm))
