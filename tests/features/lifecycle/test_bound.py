"""The example of docs/programs/lifecycle.md: an application that has its accounts elsewhere."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import errors as pg_errors
from psycopg.conninfo import make_conninfo

from pgmta_features.lifecycle.installation import install, remove
from queued.daemon.queued import main
from tests.features.lifecycle.test_check import check
from tests.features.lifecycle.test_token_commands import COMMAND, environment
from tests.features.lifecycle.tokens import collect
from tests.support.rows import column, fetch
from tests.web.web import serving

PAGE = Path(__file__).parents[3] / "docs" / "programs" / "lifecycle.md"


@pytest.fixture
def roles(root: psycopg.Connection, owned: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Logins of this test: of the shop, of queued and of queued web, and the owner's."""
    names = {name: f"{name}_{uuid.uuid4().hex[:8]}" for name in ("shop", "queued", "web")}
    for name, group in {"shop": "submit", "queued": "queued", "web": "web"}.items():
        root.execute(f"CREATE ROLE {names[name]} LOGIN IN ROLE pgmta_{group}".encode())
    root.execute(f"CREATE SCHEMA shop AUTHORIZATION {names['shop']}".encode())
    with acting(root, names["shop"]) as app:
        app.execute(
            "CREATE TABLE shop.customers (id serial PRIMARY KEY, email varchar(254),"
            " name varchar(100), blocked boolean DEFAULT false, confirmed boolean DEFAULT false)"
        )
    yield names | {"owner": owned[1]}
    root.execute("DROP SCHEMA lifecycle, lifecycle_bound CASCADE; DROP OWNED BY pgmta_binding")
    for login in names.values():
        root.execute(f"DROP OWNED BY {login} CASCADE; DROP ROLE {login}".encode())


@pytest.fixture
def shop(root: psycopg.Connection, roles: dict[str, str]) -> Iterator[psycopg.Connection]:
    """The owner's session, with a shop that is bound as the page says."""
    role = roles["shop"]
    root.execute(f"GRANT {role} TO {roles['owner']}".encode())
    with acting(root, roles["owner"]) as db:
        (example,) = re.findall(r"```sql\n(SET ROLE shop;.*?)```", PAGE.read_text(), re.DOTALL)
        db.execute(example.replace("SET ROLE shop", f"SET ROLE {role}").encode())
        yield db


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
    shop: psycopg.Connection, root: psycopg.Connection, roles: dict[str, str]
) -> None:
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
        # whatever it does, it is not asked in these sessions
        app.execute(
            "CREATE OR REPLACE VIEW shop.mail_accounts AS SELECT id, email, name AS login,"
            " (1 / (id - id))::text AS status FROM shop.customers"
        )
    root.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
    for powerful in (root, shop):
        powerful.execute("SELECT lifecycle.activate_again(1), lifecycle.account_changed(1)")
        powerful.execute("INSERT INTO lifecycle.tokens (action, account) VALUES ('activation', 1)")
        for asks in ("recover('ann')", "collect_actions('{}'), lifecycle.account_rows('{1}')"):
            with pytest.raises(pg_errors.InsufficientPrivilege, match="a login that sees all mail"):
                powerful.execute(f"SELECT lifecycle.{asks}".encode())
    # nor after SET ROLE: the code could leave something for the login behind it
    root.execute(f"SET ROLE {roles['shop']}".encode())
    with pytest.raises(pg_errors.InsufficientPrivilege, match="a login that sees all mail"):
        root.execute("SELECT lifecycle.recover('ann')")
    root.execute("RESET ROLE")
    # as after a restore without owners
    root.execute(f"ALTER FUNCTION lifecycle_bound.account_rows OWNER TO {roles['owner']}".encode())
    with (
        acting(root, roles["queued"]) as queued,
        pytest.raises(pg_errors.InsufficientPrivilege, match="lost their owner"),
    ):
        collect(queued)
    root.execute("SELECT lifecycle.bind('shop.mail_accounts', 'shop.confirm(bigint)')")
    with acting(root, roles["queued"]) as queued, pytest.raises(pg_errors.DivisionByZero):
        collect(queued)


def test_a_superuser_adds_a_customer_whose_trigger_asks_for_mail(
    shop: psycopg.Connection, root: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute(
            "CREATE FUNCTION shop.made() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM lifecycle.account_changed(NEW.id); RETURN NULL; END';"
            " CREATE TRIGGER made AFTER INSERT OR UPDATE ON shop.customers FOR EACH ROW"
            " EXECUTE FUNCTION shop.made()"
        )
    for number, powerful in enumerate((root, shop), 1):
        add = "INSERT INTO shop.customers (email, name, confirmed) VALUES (%s, %s, %s)"
        powerful.execute(add, (f"{number}@b.example", str(number), False))
        powerful.execute(add, (f"x{number}@b.example", f"x{number}", True))  # who needs no link
    with acting(root, roles["queued"]) as queued:
        assert collect(queued)[0] == 2
    assert column(root, "SELECT recipient FROM pgmta.queue") == ["1@b.example", "2@b.example"]
    assert column(root, "SELECT token FROM lifecycle.waiting_tokens") == []


def test_whoever_may_bind(root: psycopg.Connection, roles: dict[str, str]) -> None:
    """Strange names end no statement; the owner is no member of the shop; errors say what to do."""
    call = 'shop."x$b$;SELECT 1/0;--\\"'
    with acting(root, roles["shop"]) as app:
        app.execute(
            """CREATE VIEW shop."v$b$;'" AS SELECT id, email AS name, email, name AS login,
                CASE WHEN confirmed THEN 'active' ELSE 'provisioned' END AS status, 1 AS ids,
                2 AS account, 3 AS result FROM shop.customers;"""
            f"CREATE FUNCTION {call}(account bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER"
            " AS 'UPDATE shop.customers SET confirmed = true WHERE id = account RETURNING true';"
            f"REVOKE ALL ON FUNCTION {call} FROM PUBLIC;"
            "GRANT USAGE ON SCHEMA shop TO pgmta_binding;"
            "INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')".encode()
        )
    bind = """SELECT lifecycle.bind('shop."v$b$;''"', %s)"""
    with acting(root, roles["owner"]) as owner:
        with pytest.raises(pg_errors.InsufficientPrivilege, match="pgmta_binding lacks") as caught:
            owner.execute(bind, [f"{call}(bigint)"])
        _, needed = (caught.value.diag.message_hint or "").split(": ", 1)
        with acting(root, roles["shop"]) as app:
            app.execute(needed.encode())
        owner.execute(bind, [f"{call}(bigint)"])
    root.execute(bind, [f"{call}(bigint)"])
    with acting(root, roles["shop"]) as app:
        app.execute("SELECT lifecycle.activate_again(1)")
    with acting(root, roles["queued"]) as queued:
        assert collect(queued)[0] == 1
    with acting(root, roles["owner"]) as owner:  # the same again, for whoever restores a database
        owner.execute(bind, [f"{call}(bigint)"])
    (secret,) = fetch(root, "SELECT secret FROM lifecycle.tokens")
    with acting(root, roles["web"]) as web:
        consume = "SELECT login, why FROM lifecycle.token_consume(%s, 'activation')"
        assert fetch(web, consume, secret) == ("ann", None)
    with acting(root, roles["shop"]) as app:
        app.execute("SELECT lifecycle.recover('ANN@B.example'), lifecycle.recover('ann')")
    actions = "SELECT action::text FROM lifecycle.tokens ORDER BY id"
    assert column(root, actions) == ["activation", "password_recovery"]
    # as after a restore without privileges
    root.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lifecycle TO PUBLIC")
    with acting(root, roles["owner"]) as owner:
        assert fetch(owner, "SELECT lifecycle.grants()") == ([],)
        owner.execute("DELETE FROM lifecycle.tokens")
    with (
        acting(root, roles["shop"]) as app,
        pytest.raises(pg_errors.InsufficientPrivilege, match="tokens_lease"),
    ):
        app.execute("SELECT lifecycle.tokens_lease(1, '{activation}', '1 min')")
    uri = make_conninfo(root.info.dsn, user=roles["owner"])
    assert remove(uri)
    may = "SELECT has_schema_privilege('pgmta_binding', 'pgmta', 'USAGE')"
    assert fetch(root, may) == (False,)  # those that the shop gave are the shop's affair
    assert install(uri)
    with acting(root, roles["owner"]) as owner:
        owner.execute(bind, [f"{call}(bigint)"])


def test_an_account_with_two_rows_gets_no_mail(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
        app.execute("SELECT lifecycle.activate_again(1)")
    shop.execute(
        f"SET ROLE {roles['shop']};"
        "CREATE OR REPLACE VIEW shop.mail_accounts AS SELECT id, e::varchar(254) AS email,"
        " name AS login,"
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


@pytest.mark.parametrize(
    "attack",
    [
        "ALTER FUNCTION %s SECURITY INVOKER SET search_path = shop, pg_catalog, pg_temp",
        "ALTER FUNCTION %s RESET search_path",
        "ALTER FUNCTION %s SET SCHEMA shop;"
        " CREATE OR REPLACE FUNCTION shop.account_named(name text)"
        " RETURNS bigint[] LANGUAGE sql AS $x$ SELECT shop.spy(1::text)::bigint[] $x$",
        "REASSIGN OWNED BY pgmta_binding TO shop",
        "SELECT set_config('search_path', 'pg_catalog, pg_temp', false)",
    ],
)
def test_code_of_the_application_can_change_nothing_that_the_owner_runs(
    shop: psycopg.Connection, roles: dict[str, str], attack: str
) -> None:
    """The functions of a view run as the role that reads it. Here they never run as another."""
    role = roles["shop"]
    attack = attack.replace("TO shop", f"TO {role}")
    with acting(shop, role) as app:
        with suppress(psycopg.Error):  # PostgreSQL 15 lets a role give itself away
            app.execute(f"GRANT {role} TO pgmta_binding".encode())
        app.execute(
            f"""CREATE FUNCTION shop.spy(text) RETURNS text LANGUAGE plpgsql AS $body$
            DECLARE
                target text;
            BEGIN
                IF current_user NOT IN ('pgmta_binding', '{role}') THEN
                    RAISE EXCEPTION 'rights of %', current_user;
                END IF;
                FOREACH target IN ARRAY
                    '{{account_named(text),account_lock(bigint),account_status(bigint)}}'::text[]
                LOOP
                    FOREACH target IN ARRAY
                        ARRAY['lifecycle.' || target, 'lifecycle_bound.' || target]
                    LOOP
                        BEGIN
                            EXECUTE replace($attack${attack}$attack$, '%s', target);
                        EXCEPTION WHEN OTHERS THEN NULL;
                        END;
                    END LOOP;
                END LOOP;
                PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
                RETURN $1;
            END $body$;
            CREATE OR REPLACE VIEW shop.mail_accounts AS SELECT id, email, name AS login,
                shop.spy('active') AS status FROM shop.customers WHERE shop.spy('') = '';
            CREATE FUNCTION shop.never(name, name) RETURNS boolean LANGUAGE sql AS 'SELECT false';
            CREATE OPERATOR shop.<> (FUNCTION = shop.never, LEFTARG = name, RIGHTARG = name);
            CREATE FUNCTION shop.fired() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM shop.spy(NULL); RETURN NULL; END';
            GRANT ALL ON SCHEMA shop TO PUBLIC;
            INSERT INTO shop.customers (email, name, confirmed)
                VALUES ('ann@b.example', 'ann', true)
            """.encode()
        )
        for _ in range(3):
            app.execute(
                "DROP TABLE IF EXISTS pg_temp.tokens;"
                "CREATE TEMP TABLE tokens (action lifecycle.token_action, account bigint,"
                " consumed_at bigint, failures integer, expires_at bigint, created_at bigint);"
                "GRANT ALL ON tokens TO PUBLIC;"
                "CREATE TRIGGER fired BEFORE INSERT ON tokens FOR EACH ROW"
                " EXECUTE FUNCTION shop.fired();"
            )
            for asks in ("recover('ann')", "activate_again(1)", "account_changed(1)"):
                with suppress(pg_errors.InsufficientPrivilege):  # it is noticed
                    app.execute(f"SELECT lifecycle.{asks}".encode())
                app.execute("RESET search_path")


def test_a_login_with_which_nothing_could_be_collected_is_refused(
    shop: psycopg.Connection, roles: dict[str, str], tmp_path: Path
) -> None:
    uri = {name: make_conninfo(shop.info.dsn, user=role) for name, role in roles.items()}
    assert check(tmp_path, uri["queued"], "activation").exit_code == 0
    refused = check(tmp_path, uri["owner"], "activation")
    assert refused.exit_code == 2
    assert "does not run for a login that sees all mail" in refused.stderr
    assert "Log in as a member of pgmta_queued" in refused.stderr
    file = tmp_path / "web.yaml"
    for name, code in {"web": 0, "owner": 2}.items():
        file.write_text(f"environment: {{database: {{uri: '{uri[name]}'}}}}\n")
        result = CliRunner().invoke(main, ["web", "--check", "-c", str(file)])
        assert result.exit_code == code, result.stderr
    with serving(tmp_path, uri["owner"]) as web:
        assert web.ask("GET", "/ready").status == 503


def test_queuectl_collect_sets_no_token_aside_for_its_login(
    shop: psycopg.Connection, root: psycopg.Connection, roles: dict[str, str], tmp_path: Path
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute("INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')")
        app.execute("SELECT lifecycle.activate_again(1)")
    uri = make_conninfo(shop.info.dsn, user=roles["owner"])
    with subprocess.Popen(
        [COMMAND, "lifecycle", "collect"], env=environment(uri), stderr=subprocess.PIPE
    ) as child:
        assert child.stderr
        assert any(b"a login that sees all mail" in line for line in child.stderr)
        child.terminate()
    untouched = "SELECT lease_until = '-infinity' FROM lifecycle.waiting_tokens"
    assert column(root, untouched) == [True]


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
        "CREATE VIEW public.typed AS SELECT 1.5 AS id, ''::text AS email, ''::text AS login,"
        " ''::text AS status;"
        "CREATE FUNCTION public.ours(bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER"
        " AS 'SELECT true';"
        f"SET ROLE {role};"
        "CREATE FUNCTION shop.word(text) RETURNS boolean LANGUAGE sql SECURITY DEFINER"
        " AS 'SELECT true';"
        "CREATE FUNCTION shop.invoked(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
        "CREATE VIEW shop.others AS TABLE shop.mail_accounts;"
        "RESET ROLE".encode()
    )
    confirm, view = "shop.confirm(bigint)", "shop.mail_accounts"
    for bound, function, reason in [
        ("shop.customers", confirm, r"shop\.customers is no view"),
        ("public.short", confirm, r"public\.short lacks columns"),
        ("public.typed", confirm, r"id of public\.typed is numeric, and has to be a whole number"),
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
        shop.execute("SELECT lifecycle.bind(%s, %s)", ("shop.others", confirm))
