"""A bound table of another role: its code has the rights of that role, and no others."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import errors as pg_errors
from psycopg.conninfo import make_conninfo

from queued.daemon.queued import main
from tests.features.lifecycle.applications import dump, queuectl
from tests.features.lifecycle.test_check import check
from tests.features.lifecycle.test_token_commands import COMMAND, environment
from tests.features.lifecycle.tokens import collect
from tests.support.rows import column, fetch
from tests.support.waiting import until
from tests.web.web import serving

BIND = ("bind", "shop.customers", "--confirmed", "confirmed", "--blocked", "blocked", "--create")
CONSUME = "SELECT login, why FROM lifecycle.token_consume(%s, 'activation')"
VIEW = "CREATE OR REPLACE VIEW shop.pgmta_accounts AS SELECT id, email, name AS login, {} AS status"
REST = ", NULL::text AS language, NULL::jsonb AS words FROM shop.customers"
ANN = "INSERT INTO shop.customers (email, name) VALUES ('ann@b.example', 'ann')"


@pytest.fixture
def roles(root: psycopg.Connection, owned: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Logins of this test: of the shop, of queued and of queued web, of another, the owner's."""
    groups = {"shop": "submit", "queued": "queued", "web": "web", "other": "submit"}
    names = {name: f"{name}_{uuid.uuid4().hex[:8]}" for name in groups}
    for name, group in groups.items():
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
    """The owner's session, with a shop that is bound."""
    root.execute(f"GRANT {roles['shop']} TO {roles['owner']}".encode())
    result = queuectl(make_conninfo(root.info.dsn, user=roles["owner"]), *BIND)
    assert result.exit_code == 0, result.stderr
    with acting(root, roles["owner"]) as db:
        yield db


def acting(db: psycopg.Connection, role: str) -> psycopg.Connection:
    """A session of a login that is in one role only."""
    return psycopg.connect(make_conninfo(db.info.dsn, user=role), autocommit=True)


def test_the_shop_works_under_its_own_role(shop: psycopg.Connection, roles: dict[str, str]) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute(ANN.encode())
    with acting(shop, roles["queued"]) as queued:
        assert collect(queued)[0] == 1
    (secret,) = fetch(shop, "SELECT secret FROM lifecycle.tokens")
    with acting(shop, roles["web"]) as web:
        assert fetch(web, CONSUME, secret) == ("ann", None)
    assert column(shop, "SELECT confirmed FROM shop.customers") == [True]
    with acting(shop, roles["shop"]) as app:
        app.execute("SELECT lifecycle.recover('ANN@B.example')")
        app.execute("UPDATE shop.customers SET blocked = true")
        app.execute("SELECT lifecycle.recover('ann')")
    assert column(shop, "SELECT action FROM lifecycle.tokens ORDER BY id") == [
        "activation", "password_recovery",
    ]  # fmt: skip
    assert column(shop, "SELECT token FROM lifecycle.waiting_tokens") == []


def test_functions_of_actions_have_the_rights_of_the_shop(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute(ANN.encode())
        app.execute(
            "CREATE TABLE shop.ended (account text, who text);"
            "CREATE FUNCTION shop.end(account text, email text, data jsonb) RETURNS boolean"
            " LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS"
            " $$ SELECT set_config('default_transaction_read_only', 'on', false);"
            " INSERT INTO shop.ended VALUES (account, current_user) RETURNING true $$;"
            "CREATE FUNCTION shop.closed(account text, email text, data jsonb) RETURNS boolean"
            " LANGUAGE sql SECURITY DEFINER AS 'SELECT true';"
            "REVOKE ALL ON FUNCTION shop.closed FROM PUBLIC;"
            "CREATE FUNCTION shop.open(account text, email text, data jsonb) RETURNS boolean"
            " LANGUAGE sql AS 'SELECT true'"
        )
    add = (
        "INSERT INTO lifecycle.actions (name, template, statuses, calls)"
        " VALUES ('end', 'activation', '{provisioned}', %s)"
    )
    for calls, fault in (
        ("shop.closed", r"pgmta_binding may not call it: .* runs GRANT EXECUTE ON FUNCTION"),
        ("shop.open", "no SECURITY DEFINER"),
    ):
        with pytest.raises(psycopg.Error, match=fault):
            shop.execute(add, [calls])
    shop.execute(add, ["shop.end"])
    with acting(shop, roles["shop"]) as app:
        app.execute("SELECT lifecycle.ask('end', '1')")
    (secret,) = fetch(shop, "SELECT secret FROM lifecycle.tokens WHERE action = 'end'")
    consume = "SELECT account, why FROM lifecycle.token_consume(%s, 'end')"
    with acting(shop, roles["web"]) as web:
        assert fetch(web, consume, secret) == (1, None)
        assert fetch(web, "SHOW default_transaction_read_only") == ("off",)
    assert fetch(shop, "SELECT account, who FROM shop.ended") == ("1", roles["shop"])


NOTE = (
    "CREATE FUNCTION {0}.note(account text, email text, data jsonb) RETURNS boolean"
    " LANGUAGE sql SECURITY DEFINER AS 'SELECT true';"
    "GRANT USAGE ON SCHEMA {0} TO pgmta_binding"
)


def test_functions_of_a_third_role_are_not_called(
    shop: psycopg.Connection, root: psycopg.Connection, roles: dict[str, str]
) -> None:
    """Its owner could take SECURITY DEFINER away before the call, which can read the table."""
    root.execute(f"CREATE SCHEMA other AUTHORIZATION {roles['other']}".encode())
    with acting(root, roles["other"]) as other:
        other.execute(NOTE.format("other").encode())
    add = (
        "INSERT INTO lifecycle.actions (name, template, statuses, calls)"
        " VALUES ('note', 'activation', '{provisioned}', 'other.note')"
    )
    fault = "not to the owner of shop.customers"
    with pytest.raises(psycopg.Error, match=fault):
        shop.execute(add)
    with root.transaction():  # from before the binding
        root.execute("SET LOCAL session_replication_role = replica")
        root.execute(add.encode())
    with acting(shop, roles["shop"]) as app:
        app.execute(ANN.encode())
        app.execute("SELECT lifecycle.ask('note', '1')")
    (secret,) = fetch(shop, "SELECT secret FROM lifecycle.tokens WHERE action = 'note'")
    with acting(shop, roles["web"]) as web, pytest.raises(psycopg.Error, match=fault):
        web.execute("SELECT lifecycle.token_consume(%s, 'note')", [secret])


def test_without_a_bound_table_functions_of_one_role_are_called(
    root: psycopg.Connection, roles: dict[str, str]
) -> None:
    root.execute(f"CREATE SCHEMA other AUTHORIZATION {roles['other']}".encode())
    with acting(root, roles["owner"]) as owner:
        owner.execute("SELECT lifecycle.binding_role_redeems()")
        for name in ("shop", "other"):
            with acting(root, roles[name]) as app:
                app.execute(NOTE.format(name).encode())
        add = (
            "INSERT INTO lifecycle.actions (name, template, calls)"
            " VALUES ('{0}', 'activation', '{0}.note')"
        )
        owner.execute(add.format("shop").encode())
        fault = "the function of the action shop to shop_.*: those of one other role are called"
        with pytest.raises(psycopg.Error, match=fault):
            owner.execute(add.format("other").encode())
        owner.execute("UPDATE lifecycle.actions SET calls = 'other.note' WHERE name = 'shop'")


def test_a_binding_leaves_nothing_of_others_to_the_application(
    root: psycopg.Connection, roles: dict[str, str]
) -> None:
    """Code of an earlier one may have made a function that has the rights of pgmta_binding."""
    uri = make_conninfo(root.info.dsn, user=roles["owner"])
    root.execute(f"GRANT {roles['shop']} TO {roles['owner']}".encode())
    root.execute(f"CREATE SCHEMA other AUTHORIZATION {roles['other']}".encode())
    with acting(root, roles["owner"]) as owner:
        owner.execute("SELECT lifecycle.binding_role()")
    with acting(root, roles["other"]) as other:
        other.execute(NOTE.format("other").encode())
    for left, mend in {
        "ALTER FUNCTION other.note OWNER TO pgmta_binding": "of pgmta_binding",
        f"ALTER FUNCTION other.note OWNER TO {roles['other']};"
        "GRANT EXECUTE ON FUNCTION other.note TO pgmta_binding": f"of {roles['other']}",
    }.items():
        root.execute(left.encode())
        result = queuectl(uri, *BIND)
        assert result.exit_code == 1
        assert f"has the function other.note(text,text,jsonb) {mend}" in result.stderr
    root.execute("REVOKE ALL ON FUNCTION other.note FROM pgmta_binding")
    result = queuectl(uri, *BIND)
    assert result.exit_code == 0, result.stderr


def test_code_of_the_application_never_has_the_rights_of_the_owner(
    shop: psycopg.Connection, root: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        for statement in (
            "CREATE OR REPLACE FUNCTION lifecycle.account_status(number bigint) RETURNS text"
            " LANGUAGE sql AS 'SELECT 1::text'",
            "ALTER FUNCTION lifecycle.account_status(bigint) SECURITY INVOKER",
            "SELECT lifecycle.account_activate(1)",
            "SELECT secret FROM lifecycle.tokens",
        ):
            with pytest.raises(pg_errors.InsufficientPrivilege):
                app.execute(statement.encode())
        # whatever it does, it is not asked in these sessions
        app.execute((VIEW.format("(1 / (id - id))::text") + REST).encode())
    root.execute(ANN.encode())
    for powerful in (root, shop):
        powerful.execute("UPDATE shop.customers SET blocked = NOT blocked")
        powerful.execute("INSERT INTO lifecycle.tokens (action, account) VALUES ('activation', 1)")
        for asks in ("recover('ann')", "ask('activation', '2')", "account_rows('{1}')"):
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
    uri = make_conninfo(root.info.dsn, user=roles["owner"])
    result = queuectl(uri, *BIND)  # which makes the view again
    assert result.exit_code == 0, result.stderr
    with acting(root, roles["queued"]) as queued:
        assert collect(queued)[0] > 0


def test_a_superuser_writes_customers(
    shop: psycopg.Connection, root: psycopg.Connection, roles: dict[str, str]
) -> None:
    """The trigger says the status; the collector looks at it again with a login of its own."""
    for number, powerful in enumerate((root, shop), 1):
        add = "INSERT INTO shop.customers (email, name, confirmed) VALUES (%s, %s, %s)"
        powerful.execute(add, (f"{number}@b.example", str(number), False))
        powerful.execute(add, (f"x{number}@b.example", f"x{number}", True))  # who needs no link
    with acting(root, roles["queued"]) as queued:
        assert collect(queued)[0] == 2
    assert column(root, "SELECT recipient FROM pgmta.queue") == ["1@b.example", "2@b.example"]
    root.execute("UPDATE shop.customers SET blocked = true WHERE name = '1'")
    assert column(root, "SELECT recipient FROM pgmta.queue WHERE status <> 'DELETE'") == [
        "2@b.example"
    ]
    shop.execute("DELETE FROM shop.customers WHERE name = '2'")
    assert column(root, "SELECT recipient FROM pgmta.queue WHERE status <> 'DELETE'") == []


def test_a_customer_who_is_deleted_meanwhile_gets_no_mail_again(
    shop: psycopg.Connection, root: psycopg.Connection
) -> None:
    """The session of an operator can't lock customers, but what their tokens refer to."""
    add = "INSERT INTO shop.customers (email, name) SELECT n || '@b.example', n"
    root.execute(f"{add} FROM generate_series(1, 3) AS n".encode())
    root.execute(
        "UPDATE lifecycle.tokens"
        " SET created_at = created_at - 3600, expires_at = lifecycle.epoch() - 60"
    )
    with psycopg.connect(root.info.dsn) as other, ThreadPoolExecutor() as pool:
        other.execute("DELETE FROM shop.customers WHERE name = '2'")
        made = pool.submit(fetch, shop, "SELECT lifecycle.mail_again()")
        waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        until(lambda: column(root, waits, shop.info.backend_pid) == ["Lock"])
        other.commit()
        assert made.result() == (2,)


def test_two_confirmations_of_sessions_that_see_all_mail(
    shop: psycopg.Connection, root: psycopg.Connection, roles: dict[str, str]
) -> None:
    """They can't lock the customer, and the second sees the first all the same."""
    shop.execute(
        "INSERT INTO lifecycle.actions (name, template, confirmed_by)"
        " VALUES ('move', 'activation', 'both')"
    )
    with acting(shop, roles["shop"]) as app:
        app.execute(
            "INSERT INTO shop.customers (email, name, confirmed) VALUES ('a@b.example', 'a', true)"
        )
        app.execute("SELECT lifecycle.ask('move', '1', 'new@b.example')")
    consume = "UPDATE lifecycle.tokens SET consumed_at = lifecycle.epoch() WHERE email IS {} NULL"
    with psycopg.connect(root.info.dsn) as other, ThreadPoolExecutor() as pool:
        other.execute(consume.format("").encode())
        second = pool.submit(shop.execute, consume.format("NOT").encode())
        waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        until(lambda: second.done() or column(root, waits, shop.info.backend_pid) == ["Lock"])
        other.commit()
        second.result()
    done = "SELECT consumed_at IS NOT NULL AND request IS NULL FROM lifecycle.tokens"
    assert column(root, done) == [True, True]


def test_who_may_bind(root: psycopg.Connection, roles: dict[str, str]) -> None:
    """Errors say what to do; and nothing of the binding is left behind."""
    uri = make_conninfo(root.info.dsn, user=roles["owner"])
    shop = roles["shop"]
    with acting(root, roles["owner"]) as db:
        db.execute("SELECT lifecycle.binding_role_redeems()")  # an action may need it afterwards
    before = dump(root.info.dsn)
    result = queuectl(uri, *BIND)
    needed = f"GRANT {shop} TO {roles['owner']};"
    assert (result.exit_code, needed in result.stderr) == (1, True), result.stderr
    printed = queuectl(uri, *BIND[:-1]).stdout
    # each role runs its part
    parts = printed.partition("BEGIN;")[2].partition("COMMIT;")[0].split("\n-- as ")[1:]
    for part in parts:
        role, statements = part.split("\n", 1)
        lines = [line for line in statements.splitlines() if "SET LOCAL ROLE" not in line]
        with acting(root, role) as db, db.transaction():
            db.execute("\n".join(lines).encode())
    with acting(root, shop) as app:
        app.execute(ANN.encode())
    with acting(root, roles["queued"]) as queued:
        assert collect(queued)[0] == 1
    assert queuectl(uri, "unbind").exit_code == 1
    result = queuectl(root.info.dsn, "unbind")  # a superuser may act as both
    assert result.exit_code == 0, result.stderr
    assert dump(root.info.dsn) == before
    left = column(
        root,
        "SELECT pg_describe_object(d.classid, d.objid, 0) FROM pg_shdepend AS d"
        " JOIN pg_database AS b ON b.oid = d.dbid"
        " WHERE d.refobjid = to_regrole('pgmta_binding') AND b.datname = current_database()",
    )
    assert left == ["function lifecycle_bound.redeem(text,text,text,jsonb)"]
    with acting(root, shop) as app, pytest.raises(pg_errors.InsufficientPrivilege):
        app.execute("SELECT lifecycle.account_deleted('1')")


def test_an_account_without_a_login_gets_no_mail(
    shop: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute("INSERT INTO shop.customers (email) VALUES ('ann@b.example')")
    with acting(shop, roles["queued"]) as queued:
        taken, ((_, reason, _),), _ = collect(queued)
    assert (taken, "login" in reason) == (0, True)


@pytest.mark.parametrize(
    "attack",
    [
        "ALTER FUNCTION %s SECURITY INVOKER SET search_path = shop, pg_catalog, pg_temp",
        "ALTER FUNCTION %s RESET search_path",
        "ALTER FUNCTION %s SET SCHEMA shop;"
        " CREATE OR REPLACE FUNCTION shop.account_named(name text)"
        " RETURNS text[] LANGUAGE sql AS $x$ SELECT shop.spy(1::text)::text[] $x$",
        "REASSIGN OWNED BY pgmta_binding TO shop",
        "SELECT set_config('search_path', 'pg_catalog, pg_temp', false)",
        "SELECT set_config('search_path', 'shop, pg_catalog', false)",
    ],
)
def test_code_of_the_application_can_change_nothing_that_the_owner_runs(
    shop: psycopg.Connection, roles: dict[str, str], attack: str
) -> None:
    """The functions of a view run as the role that reads it. Here they never run as another."""
    role = roles["shop"]
    attack = attack.replace("TO shop", f"TO {role}")
    with acting(shop, role) as app:
        app.execute(ANN.encode())
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
                FOREACH target IN ARRAY '{{account_named(text),account_lock(text),'
                    'account_lock(bigint),account_status(bigint)}}'::text[]
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
                RETURN $1;
            END $body$;
            {VIEW.format("shop.spy('active')")}{REST} WHERE shop.spy('') = '';
            CREATE FUNCTION shop.never(name, name) RETURNS boolean LANGUAGE sql AS 'SELECT false';
            CREATE OPERATOR shop.<> (FUNCTION = shop.never, LEFTARG = name, RIGHTARG = name);
            CREATE FUNCTION shop.fired() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM shop.spy(NULL); RETURN NULL; END';
            GRANT ALL ON SCHEMA shop TO PUBLIC
            """.encode()
        )
        for _ in range(3):
            app.execute(
                "DROP TABLE IF EXISTS pg_temp.tokens;"
                "CREATE TEMP TABLE tokens (action text, account bigint,"
                " consumed_at bigint, failures integer, expires_at bigint, created_at bigint);"
                "GRANT ALL ON tokens TO PUBLIC;"
                "CREATE TRIGGER fired BEFORE INSERT ON tokens FOR EACH ROW"
                " EXECUTE FUNCTION shop.fired();"
            )
            for asks in (
                "SELECT lifecycle.recover('ann')",
                "SELECT lifecycle.ask('password_recovery', '1')",
                "UPDATE shop.customers SET confirmed = NOT confirmed",
                "INSERT INTO shop.customers (email, name) VALUES ('eve@b.example', 'eve')",
            ):
                with suppress(pg_errors.InsufficientPrivilege):  # it is noticed
                    app.execute(asks.encode())
                app.execute("RESET search_path")
    with acting(shop, roles["web"]) as web:
        for (secret,) in shop.execute("SELECT secret FROM lifecycle.tokens").fetchall():
            with suppress(pg_errors.InsufficientPrivilege):
                web.execute(CONSUME, [secret])


def test_a_login_with_which_nothing_could_be_collected_is_refused(
    shop: psycopg.Connection, roles: dict[str, str], tmp_path: Path
) -> None:
    uri = {name: make_conninfo(shop.info.dsn, user=role) for name, role in roles.items()}
    assert check(tmp_path, uri["queued"]).exit_code == 0
    refused = check(tmp_path, uri["owner"])
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
    result = queuectl(uri["owner"], "check")
    assert "whose code does not run in a session of the owner" in result.stderr


def test_queuectl_collect_sets_no_token_aside_for_its_login(
    shop: psycopg.Connection, root: psycopg.Connection, roles: dict[str, str]
) -> None:
    with acting(shop, roles["shop"]) as app:
        app.execute(ANN.encode())
    uri = make_conninfo(shop.info.dsn, user=roles["owner"])
    with subprocess.Popen(
        [COMMAND, "lifecycle", "collect"], env=environment(uri), stderr=subprocess.PIPE
    ) as child:
        assert child.stderr
        assert any(b"a login that sees all mail" in line for line in child.stderr)
        child.terminate()
    untouched = "SELECT lease_until = '-infinity' FROM lifecycle.waiting_tokens"
    assert column(root, untouched) == [True]
