"""Users tables of applications, each bound as it is by an owner without further rights."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg.conninfo import make_conninfo

from pgmta.compose.template import TemplateSource
from pgmta_features.lifecycle.account_checks import AccountChecks
from tests.features.lifecycle.applications import (
    CAPITALS,
    DJANGO,
    OWN,
    UUID,
    Application,
    django,
    dump,
    plain_database,
    plain_template,
    queuectl,
)
from tests.features.lifecycle.tokens import collect, put_template
from tests.support.daemons import ROOT
from tests.support.operating import diagnosed
from tests.support.rows import column, fetch
from tests.support.waiting import until

OURS = ("lifecycle", "lifecycle_bound")
PAGE = (ROOT / "docs" / "programs" / "lifecycle.md").read_text()


@pytest.fixture(scope="session")
def plain(server: str) -> Iterator[tuple[str, str]]:
    with plain_template(server) as found:
        yield found


@pytest.fixture
def uri(server: str, plain: tuple[str, str]) -> Iterator[str]:
    """URI of a database as its owner."""
    with plain_database(server, plain) as found:
        yield found


@pytest.fixture
def owner(uri: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(uri, autocommit=True) as db:
        yield db


def bound(uri: str, application: Application) -> None:
    """Bind it by three commands at most; Django's as docs/programs/lifecycle.md says."""
    if application is DJANGO:
        (block,) = re.findall(r"```sh\n(queuectl lifecycle install\nq.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines():
            _, _, *arguments = shlex.split(line, comments=True)
            result = queuectl(uri, *arguments)
            assert result.exit_code == 0, result.stdout + result.stderr
        return
    assert queuectl(uri, "install").exit_code == 0
    if application.bind:
        result = queuectl(uri, "bind", *application.bind, "--create")
        assert result.exit_code == 0, result.stderr
        result = queuectl(uri, "check")
        assert result.exit_code == 0, result.stdout + result.stderr


def add(db: psycopg.Connection, application: Application, numbers: str) -> None:
    db.execute(
        f"INSERT INTO {application.table} ({application.columns})"
        f" SELECT {application.row} FROM {numbers} AS s (n)".encode()
    )


@pytest.mark.parametrize(
    "application", [DJANGO, UUID, CAPITALS, OWN], ids=["django", "uuid", "capitals", "own"]
)
@pytest.mark.parametrize("number", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_an_application_is_bound_as_it_is(
    uri: str, owner: psycopg.Connection, application: Application, number: int
) -> None:
    """By three commands; thousands of accounts get a token each; and unbound without a trace."""
    if application is DJANGO:
        django(uri, "call_command('migrate', verbosity=0)")
    else:
        owner.execute(application.made.encode())
    before = dump(uri, *OURS)
    bound(uri, application)
    assert fetch(owner, "SELECT count(*) FROM lifecycle.tokens") == (0,)

    def one_by_one() -> None:
        with psycopg.connect(uri, autocommit=True) as db:
            for n in range(number // 10):
                add(db, application, f"(VALUES ({n}))")

    with ThreadPoolExecutor() as pool:
        beside = pool.submit(one_by_one)
        add(owner, application, f"generate_series({number // 10}, {number - 1})")
        beside.result()
    assert fetch(
        owner,
        "SELECT count(*), count(DISTINCT account) FROM lifecycle.tokens AS t"
        " JOIN lifecycle.waiting_tokens AS w ON w.token = t.id WHERE t.action = 'activation'",
    ) == (number, number)
    found = collect(owner, 20)
    assert found[0] == 20, found
    first, second = column(
        owner, "SELECT secret FROM lifecycle.tokens WHERE message_id > 0 ORDER BY id LIMIT 2"
    )
    consume = "SELECT why FROM lifecycle.token_consume(%s, 'activation')"
    assert fetch(owner, consume, first) == (None,)
    assert fetch(owner, consume, first) == ("consumed",)
    count = f"SELECT count(*), min({application.email}) FROM {application.table} WHERE"
    active, email = fetch(owner, f"{count} {application.active}")
    assert active == 1
    owner.execute("SELECT lifecycle.recover(%s)", [email.upper()])
    assert fetch(
        owner, "SELECT count(*) FROM lifecycle.tokens WHERE action = 'password_recovery'"
    ) == (1,)
    owner.execute(f"UPDATE {application.table} SET {application.suspend}".encode())
    if application is not DJANGO:  # there they are not active yet, and stay so
        assert fetch(owner, consume, second) == ("ineligible",)
        assert column(owner, "SELECT recipient FROM pgmta.queue WHERE status <> 'DELETE'") == []
    owner.execute(f"DELETE FROM {application.table}".encode())
    assert fetch(owner, "SELECT count(*) FROM lifecycle.tokens") == (0,)
    if application.bind:
        result = queuectl(uri, "unbind")
        assert (result.exit_code, "is no longer bound" in result.stdout) == (0, True), result.stderr
    assert dump(uri, *OURS) == before
    assert queuectl(uri, "remove").exit_code == 0


def test_what_cannot_be_bound(uri: str, owner: psycopg.Connection, server: str) -> None:
    """Each mistake is named before anything is stored."""
    assert queuectl(uri, "bind", "users", "--active", "ok").exit_code == 1  # not installed
    assert queuectl(uri, "install").exit_code == 0
    owner.execute(
        "CREATE SCHEMA a; CREATE SCHEMA b;"
        "CREATE TABLE a.users (id bigint PRIMARY KEY, email text, ok boolean, word text, at date);"
        "CREATE TABLE a.twice (id bigint); CREATE TABLE b.twice (id bigint);"
        'CREATE TABLE a."Shop Users" (id bigint); CREATE TABLE pgmta.landed (id bigint);'
        "CREATE TABLE a.keyless (id bigint, email text, ok boolean);"
        "CREATE TABLE a.odd (id numeric PRIMARY KEY, email bigint, ok text);"
        "CREATE VIEW a.seen AS TABLE a.users;"
        "CREATE TABLE a.hidden (id int PRIMARY KEY, email text, ok boolean);"
        "ALTER TABLE a.hidden FORCE ROW LEVEL SECURITY, ENABLE ROW LEVEL SECURITY;"
        "CREATE TABLE b.taken (id int PRIMARY KEY, email text, ok boolean);"
        "CREATE VIEW b.pgmta_accounts AS SELECT 1 AS id;"
        "CREATE TABLE b.parts (id int PRIMARY KEY, email text, ok boolean) PARTITION BY HASH (id);"
        "CREATE TABLE b.part PARTITION OF b.parts FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    )
    with psycopg.connect(server, dbname=owner.info.dbname, autocommit=True) as root:
        stranger = f"stranger_{owner.info.dbname[-6:]}"
        root.execute(
            "CREATE TABLE public.roots (id int PRIMARY KEY, email text, ok boolean);"
            f"CREATE ROLE {stranger}; CREATE SCHEMA x AUTHORIZATION {stranger};"
            f"GRANT USAGE ON SCHEMA x TO {owner.info.user}; SET ROLE {stranger};"
            "CREATE FUNCTION x.spy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
            "RESET ROLE".encode()
        )
        owner.execute(
            "CREATE TABLE a.spied (id int PRIMARY KEY, email text, ok boolean); CREATE TRIGGER spy"
            " BEFORE INSERT ON a.spied FOR EACH ROW EXECUTE FUNCTION x.spy()"
        )
        before = dump(make_conninfo(uri, user=root.info.user))
        for code, reason, *arguments in [
            (2, "there is no table user; did you mean 'users'?", "user", "--active", "ok"),
            (2, "there is no table \"Shop User\"; did you mean '\"Shop Users\"'?", '"Shop User"',
             "--active", "ok"),
            (2, "one with blanks or signs as '\"Shop Users\"'", "Shop Users", "--active", "ok"),
            (2, "ALTER TABLE pgmta.landed SET SCHEMA public;", "landed", "--active", "ok"),
            (2, "by one of --status, --active, --confirmed, not by --status and --active",
             "a.users", "--active", "ok", "--status", "word"),
            (2, "lifecycle.accounts belongs to pgmta", "accounts", "--active", "ok"),
            (2, "may be one of a.twice, b.twice", "twice", "--active", "ok"),
            (2, "a.users has no such column; did you mean 'email'?", "a.users", "--active", "ok",
             "--email", "emial"),
            (2, "by one of --status, --active, --confirmed; its booleans: ok", "a.users"),
            (2, "--active word: its type is text: expected boolean", "a.users", "--active", "word"),
            (2, "--confirmed word: its type is text: expected boolean or a time", "a.users",
             "--confirmed", "word"),
            (2, "--status at: its type is date", "a.users", "--status", "at"),
            (2, "no word means provisioned", "a.users", "--status", "word", "--status-words",
             "ok=active"),
            (2, "ok=activ: did you mean 'active'?", "a.users", "--status", "word",
             "--status-words", "ok=activ"),
            (2, "--words email: this word of a mail has another meaning", "a.users", "--active",
             "ok", "--words", "email"),
            (2, "the primary key of a.keyless is missing: name a column by --id", "a.keyless",
             "--active", "ok"),
            (2, "no unique index of a.keyless has it alone", "a.keyless", "--active", "ok", "--id",
             "id"),
            (2, "--id id: its type is numeric: expected one of", "a.odd", "--active", "ok"),
            (2, "--email email: its type is bigint: expected text", "a.odd", "--active", "ok"),
            (2, "a.seen is a view: name its table", "a.seen", "--active", "ok"),
            (2, "NO FORCE ROW LEVEL SECURITY", "a.hidden", "--active", "ok"),
            (2, "b.part is a partition", "b.part", "--active", "ok"),
            (1, "there is already b.pgmta_accounts, which is not of pgmta", "b.taken", "--active",
             "ok"),
            (2, "belongs to", "public.roots", "--active", "ok"),
            (2, "ALTER FUNCTION x.spy() OWNER TO", "a.spied", "--active", "ok"),
            (1, "no table is bound", ),
        ]:  # fmt: skip
            command = ["bind", *map(str, arguments), "--create"] if arguments else ["unbind"]
            result = queuectl(uri, *command)
            assert (result.exit_code, str(reason) in result.stderr) == (code, True), result.stderr
        assert dump(make_conninfo(uri, user=root.info.user)) == before
        root.execute("DROP TABLE public.roots; DROP SCHEMA x CASCADE")
        root.execute(f"DROP OWNED BY {stranger}; DROP ROLE {stranger}".encode())
    owner.execute("INSERT INTO lifecycle.accounts (email, login) VALUES ('x@b.example', 'x')")
    result = queuectl(uri, "bind", "a.users", "--active", "ok", "--create")
    assert "lifecycle.accounts has 1 rows" in result.stderr
    owner.execute("DELETE FROM lifecycle.accounts")
    for _ in range(2):  # again: the same table may be bound with other columns
        assert queuectl(uri, "bind", "a.users", "--active", "ok", "--create").exit_code == 0
    result = queuectl(uri, "bind", "a.keyless", "--active", "ok", "--id", "id", "--create")
    assert result.exit_code == 2
    owner.execute("ALTER TABLE a.keyless ADD PRIMARY KEY (id)")
    result = queuectl(uri, "bind", "a.keyless", "--active", "ok", "--create")
    assert "a.users is bound already" in result.stderr
    result = queuectl(uri, "remove")
    assert "a.users is bound: run `queuectl lifecycle unbind`" in result.stderr


def test_the_printed_statements_bind_it(uri: str, owner: psycopg.Connection) -> None:
    owner.execute(UUID.made.encode())
    assert queuectl(uri, "install").exit_code == 0
    printed = queuectl(uri, "bind", *UUID.bind)
    assert printed.exit_code == 0, printed.stderr
    assert queuectl(uri, "check").exit_code == 1
    owner.execute(printed.stdout.encode())
    assert queuectl(uri, "check").exit_code == 0
    owner.execute("INSERT INTO public.members (mail, phone) VALUES ('secret@b.example', 7)")
    assert queuectl(uri, "check").exit_code == 0  # its copy has no telephone
    owner.execute("UPDATE public.members SET phone = 7")
    owner.execute("ALTER TABLE public.members ALTER phone SET NOT NULL")
    for arguments, code, words in [
        ((), 1, "(column phone)"),
        (("--set", "phone=8"), 0, ""),
        (("--set", "phone=8", "--set", "mail=none"), 1, 'check constraint "named"'),
        (("--set", "phon=8"), 2, "did you mean 'phone'?"),
    ]:
        result = queuectl(uri, "check", *arguments)
        assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
        assert "secret" not in result.stderr
    assert fetch(owner, "SELECT count(*) FROM public.members") == (1,)


def test_a_login_of_the_application_writes_and_can_do_nothing_else(
    uri: str, owner: psycopg.Connection, server: str
) -> None:
    owner.execute(UUID.made.encode())
    with psycopg.connect(server, dbname=owner.info.dbname, autocommit=True) as root:
        login = f"app_{owner.info.dbname[-6:]}"
        root.execute(f"CREATE ROLE {login} LOGIN".encode())
        # as hosters do, so that programs see what is made later
        defaults = f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner.info.user} GRANT ALL ON"
        root.execute(
            f"{defaults} TABLES TO {login}; {defaults} FUNCTIONS TO {login};"
            f"GRANT ALL ON public.members TO {login}".encode()
        )
        bound(uri, UUID)
        with psycopg.connect(uri, user=login, autocommit=True) as app:
            app.execute(
                "INSERT INTO members (member, mail) VALUES ('0A000000-0000-0000-0000-000000000000',"
                " 'a@b.example') ON CONFLICT DO NOTHING;"
                "INSERT INTO members (member, mail) VALUES ('0a000000-0000-0000-0000-000000000000',"
                " 'c@b.example') ON CONFLICT (member) DO UPDATE SET mail = excluded.mail"
            )
            with app.cursor().copy("COPY members (mail) FROM STDIN") as copy:
                copy.write("d@b.example\n")
            for forbidden in (
                "SELECT * FROM public.pgmta_accounts",
                "SELECT public.pgmta_activate('0a000000-0000-0000-0000-000000000000', '', '{}')",
                "SELECT lifecycle.account_inserted('x', 'provisioned')",
                "SELECT secret FROM lifecycle.tokens",
            ):
                with pytest.raises(pg_errors.InsufficientPrivilege):
                    app.execute(forbidden.encode())
        good = (
            "SELECT count(*) FROM lifecycle.tokens"
            " WHERE expires_at > lifecycle.epoch() AND consumed_at IS NULL"
        )
        assert fetch(owner, good) == (2,)  # the link to the earlier mailbox ended
        # any spelling of an id is one account
        ask = "SELECT lifecycle.account_number(%s)"
        number = fetch(owner, ask, "0A000000-0000-0000-0000-000000000000")
        assert number == fetch(owner, ask, "{0a000000000000000000000000000000}")
        assert fetch(owner, ask, "none") == (None,)
        root.execute(f"DROP OWNED BY {login}; DROP ROLE {login}".encode())


def test_a_blocked_account_is_not_activated_by_a_link_that_was_clicked(
    uri: str, owner: psycopg.Connection
) -> None:
    """A link waits for a transaction that blocks its account, and loses; there is no deadlock."""
    owner.execute(CAPITALS.made.encode())
    bound(uri, CAPITALS)
    add(owner, CAPITALS, "generate_series(1, 2)")
    secrets = column(owner, "SELECT secret FROM lifecycle.tokens ORDER BY id")
    consume = "SELECT why FROM lifecycle.token_consume(%s, 'activation')"
    with ThreadPoolExecutor() as pool, psycopg.connect(uri) as blocker:
        for number, (change, why) in enumerate(
            [('"Blocked" = true', "ineligible"), ("\"EMail\" = 'new@b.example'", "expired")]
        ):
            where = f"WHERE \"Id\" = 'c{number + 1}'"
            blocker.execute(f"UPDATE {CAPITALS.table} SET {change} {where}".encode())
            with psycopg.connect(uri, autocommit=True) as web:
                clicked = pool.submit(fetch, web, consume, secrets[number])
                _wait_for_lock(owner, web.info.backend_pid)
                blocker.commit()
                assert clicked.result() == (why,)


def test_a_name_of_two_accounts_of_which_one_is_deleted_meanwhile(
    uri: str, owner: psycopg.Connection
) -> None:
    owner.execute(UUID.made.encode())
    add_two = "INSERT INTO public.members (mail, state) SELECT 'two@b.example', 'ok'"
    first, second = column(owner, f"{add_two} FROM generate_series(1, 2) RETURNING member::text")
    bound(uri, UUID)
    with (
        ThreadPoolExecutor() as pool,
        psycopg.connect(uri) as other,
        psycopg.connect(uri, autocommit=True) as asking,
    ):
        other.execute("SELECT lifecycle.ask('password_recovery', %s)", [first])  # gives it a number
        asked = pool.submit(asking.execute, "SELECT lifecycle.recover('two@b.example')")
        _wait_for_lock(owner, asking.info.backend_pid)
        owner.execute("DELETE FROM public.members WHERE member::text = %s", [second])
        other.rollback()
        asked.result()
    holder = "SELECT h.id FROM lifecycle.tokens AS t JOIN lifecycle.holders AS h"
    assert column(owner, f"{holder} ON h.number = t.account") == [first]


def _wait_for_tokens(db: psycopg.Connection) -> None:
    count = "SELECT count(*) FROM lifecycle.tokens"
    before = fetch(db, count)
    until(lambda: fetch(db, count) > before, describe="tokens")


def _wait_for_lock(db: psycopg.Connection, pid: int) -> None:
    waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    until(lambda: fetch(db, waits, pid) == (True,), describe="a session that waits for a lock")


def test_djangos_accounts_that_were_there_are_suspended_and_new_ones_are_activated(
    uri: str, owner: psycopg.Connection
) -> None:
    django(uri, "call_command('migrate', verbosity=0)")
    django(
        uri,
        "from django.contrib.auth.models import User as u;"
        "u.objects.create_user('old', 'old@b.example', is_active=False)",
    )
    bound(uri, DJANGO)
    django(
        uri,
        "from django.contrib.auth.models import User as u;"
        "u.objects.create_user('new', 'new@b.example', is_active=False);"
        "u.objects.create_user('ready', 'ready@b.example')",
    )
    assert column(
        owner, "SELECT h.id FROM lifecycle.tokens AS t JOIN lifecycle.holders AS h"
        " ON h.number = t.account JOIN lifecycle.waiting_tokens AS w ON w.token = t.id"
    ) == column(owner, "SELECT id::text FROM auth_user WHERE username = 'new'")  # fmt: skip
    owner.execute("SELECT lifecycle.account_number(id::text) FROM auth_user")
    states = (
        "SELECT username, lifecycle.account_status(lifecycle.account_number(id::text))"
        " FROM auth_user ORDER BY id"
    )
    assert owner.execute(states).fetchall() == [
        ("old", "suspended"), ("new", "provisioned"), ("ready", "active"),
    ]  # fmt: skip
    owner.execute("UPDATE auth_user SET is_active = true")
    owner.execute("UPDATE auth_user SET is_active = false")
    assert [state for _, state in owner.execute(states)] == ["suspended"] * 3
    assert column(owner, "SELECT token FROM lifecycle.waiting_tokens") == []


def test_language_and_words_reach_the_mail(
    uri: str, owner: psycopg.Connection, server: str
) -> None:
    """Addresses are citext where the server has it, which compares without case."""
    citext = fetch(owner, "SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'")
    kind = "public.citext" if citext == (1,) else "varchar(254)"
    if citext == (1,):
        owner.execute("CREATE EXTENSION citext SCHEMA public")
    owner.execute(
        f"CREATE DOMAIN public.mailbox AS {kind} CHECK (VALUE LIKE '%@%');"
        "CREATE TABLE public.people (id smallint PRIMARY KEY, email public.mailbox UNIQUE,"
        f" login {kind} UNIQUE,"
        " status text NOT NULL DEFAULT 'provisioned', \"firstName\" text, lang char(5));".encode()
    )
    with psycopg.connect(server, dbname=owner.info.dbname, autocommit=True) as root:
        source = TemplateSource(
            sender="shop@a.example", from_="shop@a.example", subject="Hallo {{firstname}}",
            body="{{link}}\n",
        )  # fmt: skip
        put_template(root, "activation.de", source)
    assert queuectl(uri, "install").exit_code == 0
    bind = ("bind", "people", "--status", "status", "--language", "lang", "--words", "firstName")
    for more, fault in [((), "has words that no column gives: firstname"), (bind[-2:], "")]:
        assert queuectl(uri, *bind[:-2], *more, "--create").exit_code == 0
        change = "UPDATE lifecycle.actions SET template = 'activation{}' WHERE name = 'activation'"
        owner.execute(change.format(".de").encode())
        result = queuectl(uri, "check")
        assert (result.exit_code, fault in result.stderr) == (int(bool(fault)), True), result.stderr
    owner.execute(change.format("").encode())
    owner.execute(
        'INSERT INTO public.people (id, email, login, lang, "firstName") VALUES'
        " (1, 'Ann@b.example', 'Ann', 'de', 'Ann'), (2, 'bob@b.example', 'Bob', NULL, NULL)"
    )
    assert collect(owner)[0] == 2
    assert owner.execute(
        "SELECT t.name, m.params -> 'words' ->> 'firstname' FROM pgmta.messages AS m"
        " JOIN pgmta.templates AS t ON t.id = m.template_id ORDER BY m.id"
    ).fetchall() == [("activation.de", "Ann"), ("activation", None)]
    owner.execute("UPDATE public.people SET status = 'active'")
    for name, found in [("ANN@B.example", True), ("Ann", True), ("ann", citext == (1,))]:
        named = "SELECT lifecycle.account_named(%s) IS NOT NULL"
        assert fetch(owner, named, name) == (found,), name


def test_functions_of_actions_change_the_account_whose_link_was_clicked(
    uri: str, owner: psycopg.Connection
) -> None:
    """Their changes fire the triggers of the table within the consumption, which stays."""
    owner.execute(UUID.made.encode())
    bound(uri, UUID)
    function = (
        "CREATE FUNCTION public.{}(account text, email text, data jsonb) RETURNS boolean LANGUAGE"
        " sql AS 'WITH done AS ({} RETURNING 1) SELECT count(*) = 1 FROM done';"
        "INSERT INTO lifecycle.actions (name, template, calls, confirmed_by)"
        " VALUES ('{}', 'activation', 'public.{}', '{}')"
    )
    for name, change, confirmed_by in [
        ("moved", "UPDATE public.members SET mail = $2 WHERE member::text = $1", "both"),
        ("bye", "DELETE FROM public.members WHERE member::text = $1", "account"),
    ]:
        owner.execute(function.format(name, change, name, name, confirmed_by).encode())
    owner.execute("INSERT INTO public.members (mail, state) VALUES ('a@b.example', 'ok')")
    (member,) = fetch(owner, "SELECT member::text FROM public.members")
    secrets = "SELECT secret FROM lifecycle.tokens WHERE action = %s ORDER BY id"
    consume = "SELECT account, why, missing FROM lifecycle.token_consume(%s, %s)"
    owner.execute("SELECT lifecycle.ask('moved', %s, 'new@b.example')", [member])
    first, second = column(owner, secrets, "moved")
    assert fetch(owner, consume, first, "moved") == (member, None, 1)
    assert fetch(owner, consume, second, "moved") == (member, None, 0)
    assert column(owner, "SELECT mail FROM public.members") == ["new@b.example"]
    assert fetch(owner, consume, second, "moved") == (None, "consumed", None)
    owner.execute("SELECT lifecycle.ask('bye', %s), lifecycle.recover('new@b.example')", [member])
    (secret,) = column(owner, secrets, "bye")
    assert fetch(owner, consume, secret, "bye") == (member, None, 0)
    assert column(owner, "SELECT mail FROM public.members") == []
    assert fetch(owner, "SELECT count(*) FROM lifecycle.tokens") == (0,)
    assert fetch(owner, consume, secret, "bye") == (None, "unknown", None)


def test_accounts_in_partitions(uri: str, owner: psycopg.Connection) -> None:
    """A row that moves to another partition is the same account; ids may be used again."""
    owner.execute(
        "SET search_path = public;"
        "CREATE TABLE people (id int NOT NULL, place text NOT NULL, email varchar(254),"
        " confirmed boolean, PRIMARY KEY (id, place)) PARTITION BY LIST (place);"
        "CREATE TABLE here PARTITION OF people FOR VALUES IN ('here');"
        "CREATE TABLE there PARTITION OF people FOR VALUES IN ('there')"
    )
    assert queuectl(uri, "install").exit_code == 0
    result = queuectl(uri, "bind", "people", "--id", "id", "--confirmed", "confirmed", "--create")
    assert result.exit_code == 0, result.stderr
    result = queuectl(uri, "check")
    assert result.exit_code == 1
    assert "--set COLUMN=VALUE" in result.stderr
    assert queuectl(uri, "check", "--set", "place=there").exit_code == 0
    owner.execute(
        "INSERT INTO people VALUES (1, 'here', 'a@b.example'), (2, 'here', 'c@b.example')"
    )
    good = (
        "SELECT h.id, t.id FROM lifecycle.tokens AS t JOIN lifecycle.holders AS h"
        " ON h.number = t.account WHERE t.expires_at > lifecycle.epoch() ORDER BY 1"
    )
    first, second = owner.execute(good).fetchall()
    assert (first[0], second[0]) == ("1", "2")
    owner.execute("UPDATE people SET place = 'there' WHERE id = 1")
    owner.execute("UPDATE people SET place = 'there', email = 'd@b.example' WHERE id = 2")
    kept, ended = owner.execute(good).fetchall()
    assert (kept, ended[0]) == (first, "2")
    assert ended != second
    owner.execute("UPDATE people SET id = id + 10")
    assert "1" not in [row[0] for row in owner.execute(good)]
    owner.execute("INSERT INTO here VALUES (1, 'here', 'e@b.example')")
    assert "1" in [row[0] for row in owner.execute(good)]
    owner.execute("TRUNCATE people")
    assert fetch(owner, "SELECT count(*) FROM lifecycle.tokens") == (0,)


def test_lookups_use_the_indexes_of_the_table(uri: str, owner: psycopg.Connection) -> None:
    owner.execute(CAPITALS.made.encode())
    assert queuectl(uri, "install").exit_code == 0
    advised = queuectl(uri, "bind", *CAPITALS.bind, "--create", "--json")
    for statement in json.loads(advised.stdout)["advice"]:
        owner.execute(statement.encode())
    assert json.loads(queuectl(uri, "bind", *CAPITALS.bind, "--json").stdout)["advice"] == []
    owner.execute(f"ALTER TABLE {CAPITALS.table} DISABLE TRIGGER USER".encode())
    add(owner, CAPITALS, "generate_series(1, 20000)")
    owner.execute("ANALYZE")
    owner.execute("SELECT lifecycle.recover('U7@B.example'), lifecycle.activate_again('c8')")
    before = _scans(owner)
    for number in range(20):
        owner.execute("SELECT lifecycle.recover(%s)", [f"U{number}@B.example"])
        owner.execute("SELECT lifecycle.activate_again(%s)", [f"c{number + 100}"])
    assert _scans(owner) == before


def _scans(db: psycopg.Connection) -> int:
    db.execute("SELECT pg_stat_force_next_flush()")
    db.execute("SELECT 1")
    (number,) = fetch(
        db,
        "SELECT seq_scan FROM pg_stat_user_tables WHERE relid = %s::regclass",
        CAPITALS.table,
    )
    return int(number)


@pytest.mark.slow
def test_a_table_is_bound_again_and_unbound_while_programs_use_it(
    uri: str, owner: psycopg.Connection
) -> None:
    owner.execute(CAPITALS.made.encode())
    assert queuectl(uri, "install").exit_code == 0
    before = dump(uri)
    bound(uri, CAPITALS)
    stopped = Event()

    def insert() -> int:
        with psycopg.connect(uri, autocommit=True) as db:
            number = 0
            while not stopped.is_set():
                number += 1
                add(db, CAPITALS, f"(VALUES ({number}))")
            return number

    def collect_all() -> int:
        taken = 0
        with psycopg.connect(uri, autocommit=True) as db:
            while not stopped.is_set():
                with suppress(pg_errors.DeadlockDetected):  # it tries again
                    taken += collect(db)[0]
        return taken

    with ThreadPoolExecutor() as pool:
        programs = [pool.submit(insert), pool.submit(collect_all)]
        for _ in range(3):
            _wait_for_tokens(owner)
            result = queuectl(uri, "bind", *CAPITALS.bind, "--create")
            assert result.exit_code == 0, result.stderr
        result = queuectl(uri, "unbind")
        assert result.exit_code == 0, result.stderr
        stopped.set()
        inserted, taken = (program.result() for program in programs)
    assert dump(uri) == before
    assert fetch(owner, f"SELECT count(*) FROM {CAPITALS.table}") == (inserted,)
    assert fetch(owner, "SELECT count(*) FROM lifecycle.tokens") == (0,)
    assert fetch(owner, "SELECT count(*) FROM pgmta.queue WHERE status <> 'DELETE'") == (0,), taken


def test_doctor_names_a_renamed_column(uri: str, owner: psycopg.Connection) -> None:
    owner.execute(UUID.made.encode())
    bound(uri, UUID)

    def found() -> list[str]:
        checks = diagnosed(uri, lambda examination: AccountChecks(examination).accounts())
        return [each.finding for each in checks]

    assert found() == []
    owner.execute("ALTER TABLE public.members RENAME mail TO mailbox")
    assert found() == ["the bound table public.members lacks what the binding names: mail"]
    (one,) = diagnosed(uri, lambda examination: AccountChecks(examination).accounts())
    assert "`queuectl lifecycle bind public.members --id " in one.remedy
    assert " --email mail --login " in one.remedy
    again = ["mailbox" if word == "mail" else word for word in UUID.bind]
    assert queuectl(uri, "bind", *again, "--create").exit_code == 0
    assert found() == []
