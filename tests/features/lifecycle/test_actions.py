"""Actions as rows: which are refused, how often one may ask, when links end, and mail again."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from pgmta_features.lifecycle import pages
from tests.features.lifecycle.shop import calls, open_shop, put_mail
from tests.features.lifecycle.tokens import add_accounts, collect
from tests.support.rows import column, fetch

CONSUME = "SELECT why FROM token_consume(%s, %s)"
TEAM = Jsonb({"team": "Sales", "host": "Ann"})
LANGUAGES = ", ".join(
    sorted(each.stem for each in (Path(pages.__file__).parent / "texts").iterdir())
)
RECIPIENTS = "SELECT recipient FROM pgmta.queue ORDER BY id"


@pytest.fixture
def shop(accounts: psycopg.Connection) -> psycopg.Connection:
    open_shop(accounts)
    return accounts


def ask(db: psycopg.Connection, *values: Any, **named: Any) -> Any:
    """Ask for an action; return the token."""
    places = ", ".join([*["%s"] * len(values), *(f"{name} => %s" for name in named)])
    return fetch(db, f"SELECT lifecycle.ask({places})", *values, *named.values())[0]


def invite(db: psycopg.Connection, email: str = "eve@b.example") -> Any:
    return ask(db, "invitation", email=email, data=TEAM)


def secret(db: psycopg.Connection, token: int) -> bytes:
    return bytes(fetch(db, "SELECT secret FROM tokens WHERE id = %s", token)[0])


# -- rows that could not work --


@pytest.mark.parametrize(
    ("columns", "reason", "hint"),
    [
        ({"name": "Bad-Name"}, "column name", None),
        ({"template": "deletoin"}, 'column template: there is no template "deletoin"',
         "Did you mean deletion?"),
        ({"template": "linkless"}, "neither {{link}} nor {{token}}", None),
        ({"template": "deletion"}, "column code: .* has the word {{code}}", "true"),
        ({"code": True}, "column code: .* has no {{code}}", "false"),
        ({"template": None}, "column template: there is no template null", "There is"),
        ({"template": "change_of_address"}, "column confirmed_by: .*{{new_email}}", "both"),
        ({"priority": 10}, "column priority: 10 is not from 0 to 9", None),
        ({"expiry": "0"}, "column expiry", None),
        ({"expiry": "300000 years"}, "column expiry", None),
        ({"expiry_from": "delivry"}, "column expiry_from", "Did you mean delivery?"),
        ({"confirmed_by": "both", "proof": True, "url": "https://a.example"}, "column proof", None),
        ({"confirmed_by": "mail"}, "\"mail\" is none of account, email, both", "mean email?"),
        ({"statuses": ["active", "suspend"]}, "column statuses", "Did you mean suspended?"),
        ({"statuses": []}, "column statuses: it is empty", None),
        ({"name": "activation", "statuses": ["active"]}, "statuses: activation has {prov", None),
        ({"name": "activation", "statuses": ["provisioned"], "confirmed_by": "email"},
         "column confirmed_by: activation has account", None),
        ({"calls": "leave"}, '"leave" is no name of a function with its schema', None),
        ({"calls": "shop.leaf"}, "no function shop.leaf.*did you mean shop.leave?", None),
        ({"calls": "shop.leave(text)"}, "is no name of a function", None),
        ({"calls": "shop.twice"}, r"may mean shop.twice\(text, text, jsonb, integer\) too", None),
        ({"calls": "shop.counts"}, "does not return one boolean", None),
        ({"calls": "public.foreign"}, "belongs to .*, who has the rights of", None),
        ({"asker": "pgmta_submitt"}, 'column asker: there is no role "pgmta_submitt"',
         "Did you mean pgmta_submit?"),
        ({"url": "shop.example/take"}, "column url", None),
        ({"returns_to": "javascript:x"}, "column returns_to", "except on localhost"),
        ({"proof": True}, "column proof: no page", "returns_to or url"),
        ({"titles": Jsonb({"en": 1})}, 'the title of "en" is no text', None),
        ({"titles": Jsonb([])}, "column titles", None),
        ({"titles": Jsonb({"fi": "x"})}, f'column titles: "fi" is none of {LANGUAGES}\n', None),
    ],
)  # fmt: skip
def test_bad_rows_are_not_stored(
    shop: psycopg.Connection, columns: dict[str, Any], reason: str, hint: str | None
) -> None:
    put_mail(shop, "plain", "{{link}}")
    put_mail(shop, "linkless", "{{login}}")
    (owner,) = fetch(
        shop, "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'shop'"
    )
    shop.execute(
        "CREATE FUNCTION public.foreign(text, text, jsonb) RETURNS boolean LANGUAGE sql"
        " AS 'SELECT true';"
        f"SET ROLE {owner}; CREATE FUNCTION shop.counts(text, text, jsonb) RETURNS integer"
        " LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION shop.twice(text, text, jsonb, integer"
        " DEFAULT 1) RETURNS boolean LANGUAGE sql AS 'SELECT true'; CREATE FUNCTION"
        " shop.twice(text, text, jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
        " RESET ROLE".encode()
    )
    values = {"name": "other", "template": "plain"} | columns
    places = ", ".join(["%s"] * len(values))
    with pytest.raises(psycopg.Error, match=reason) as caught:
        shop.execute(
            f"INSERT INTO actions ({', '.join(values)}) VALUES ({places})".encode(),
            list(values.values()),
        )
    found = caught.value.diag.message_hint
    assert found is None if hint is None else hint in str(found)
    assert column(shop, "SELECT name FROM actions WHERE name IN ('other', 'Bad-Name')") == []


def test_a_function_of_another_role_has_the_rights_of_that_role(
    shop: psycopg.Connection, database: str
) -> None:
    put_mail(shop, "plain", "{{link}}")
    names = {name: f"{name}_{uuid.uuid4().hex[:8]}" for name in ("app", "web")}
    shop.execute(
        f"CREATE ROLE {names['app']}; CREATE ROLE {names['web']} LOGIN IN ROLE pgmta_web;"
        f"CREATE SCHEMA app AUTHORIZATION {names['app']}; SET ROLE {names['app']};"
        "CREATE TABLE app.calls (account text, who name);"
        "CREATE FUNCTION app.note(account text, email text, data jsonb) RETURNS boolean"
        " SECURITY DEFINER BEGIN ATOMIC"
        " INSERT INTO app.calls VALUES (account, current_user) RETURNING true; END;"
        "RESET ROLE".encode()
    )
    try:
        insert = "INSERT INTO actions (name, template, calls) VALUES ('note', 'plain', 'app.note')"
        with pytest.raises(psycopg.Error, match="after SELECT lifecycle.binding_role_redeems"):
            shop.execute(insert)
        (owner,) = fetch(
            shop, "SELECT relowner::regrole::text FROM pg_class WHERE relname = 'actions'"
        )
        shop.execute(f"SET ROLE {owner}; SELECT binding_role_redeems(); RESET ROLE".encode())
        with pytest.raises(psycopg.Error, match="runs GRANT USAGE ON SCHEMA app TO pgmta_binding"):
            shop.execute(insert)
        shop.execute("GRANT USAGE ON SCHEMA app TO pgmta_binding")
        shop.execute(insert)
        shop.execute("SELECT ask('note', '1')")
        (secret,) = fetch(shop, "SELECT secret FROM tokens WHERE action = 'note'")
        consume = "SELECT why FROM lifecycle.token_consume(%s, 'note')"
        # code of another role could leave something in a session that sees all mail
        with pytest.raises(pg_errors.InsufficientPrivilege, match="sees all mail"):
            shop.execute(consume, [secret])
        with psycopg.connect(make_conninfo(database, user=names["web"]), autocommit=True) as web:
            assert fetch(web, consume, secret) == (None,)
            # it would run as pgmta_binding now, so it is not called
            shop.execute("ALTER FUNCTION app.note SECURITY INVOKER")
            shop.execute("INSERT INTO tokens (action, account) VALUES ('note', 2)")
            (secret,) = fetch(shop, "SELECT secret FROM tokens WHERE account = 2")
            with pytest.raises(psycopg.Error, match="no SECURITY DEFINER"):
                web.execute(consume, [secret])
        assert column(shop, "SELECT who FROM app.calls") == [names["app"]]
    finally:
        shop.execute("DROP SCHEMA lifecycle, lifecycle_bound CASCADE; DROP OWNED BY pgmta_binding")
        for role in names.values():
            shop.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


@pytest.mark.parametrize(
    ("arguments", "reason", "hint"),
    [
        ({"action": "deletoin", "account": "1"}, 'no action "deletoin"', "Did you mean deletion?"),
        ({"action": "deletion"}, "it needs an account", ""),
        ({"action": "deletion", "account": "99"}, 'no account "99"', ""),
        ({"action": "deletion", "account": "x"}, 'no account "x"', ""),
        ({"action": "deletion", "account": "1", "email": "a@b.example"}, "of the account", "data"),
        ({"action": "invitation", "data": TEAM}, "it needs an email", ""),
        ({"action": "change_of_address", "account": "1"}, "it needs an email", ""),
        ({"action": "invitation", "email": "eve"}, '"eve" is no mailbox', ""),
        ({"action": "invitation", "email": "+491701234567"}, "is no mailbox", ""),
        ({"action": "invitation", "email": "e@b.example", "data": Jsonb({"team": "S"})},
         "data lacks host", "invitation"),
        ({"action": "invitation", "email": "e@b.example",
          "data": Jsonb({"team": None, "host": "A"})}, "data lacks team", ""),
        ({"action": "invitation", "email": "e@b.example", "data": Jsonb(["x"])}, "no JSON obj", ""),
        ({"action": "invitation", "email": "e@b.example", "data": None}, "no JSON object", ""),
        ({"action": "invitation", "email": "e@b.example", "data": Jsonb({"x": "y" * 8192})},
         "over 8 KB", ""),
    ],
)  # fmt: skip
def test_bad_questions_are_refused(
    shop: psycopg.Connection, arguments: dict[str, Any], reason: str, hint: str
) -> None:
    with pytest.raises(pg_errors.InvalidParameterValue, match=reason) as caught:
        ask(shop, **arguments)
    assert hint in (caught.value.diag.message_hint or "")
    assert fetch(shop, "SELECT count(*) FROM tokens") == (0,)


def test_tokens_are_inserted_whole(shop: psycopg.Connection) -> None:
    for action, reason in [
        ("invitation", "has no email"), ("change_of_address", "has no email"), ("x", "no action"),
    ]:  # fmt: skip
        with pytest.raises(psycopg.Error, match=reason):
            shop.execute("INSERT INTO tokens (action, account) VALUES (%s, 1)", [action])


def test_only_members_of_the_asker_ask(shop: psycopg.Connection) -> None:
    shop.execute("UPDATE actions SET asker = 'pgmta_operator' WHERE name = 'deletion'")
    with shop.transaction(force_rollback=True):
        shop.execute("SET LOCAL ROLE pgmta_submit")
        with pytest.raises(pg_errors.InsufficientPrivilege, match="no member"), shop.transaction():
            ask(shop, "deletion", "1")
    with shop.transaction(force_rollback=True):
        shop.execute("SET LOCAL ROLE pgmta_submit")
        assert invite(shop)
    assert ask(shop, "deletion", "1")  # a superuser is a member of all
    with shop.transaction(force_rollback=True):
        shop.execute(
            "CREATE ROLE gone; UPDATE actions SET asker = 'gone' WHERE name = 'deletion';"
            "DROP ROLE gone"
        )
        with pytest.raises(pg_errors.UndefinedObject, match="deletion: there is no role gone"):
            ask(shop, "deletion", "2")


# -- how often --


def test_a_mailbox_is_asked_once_in_a_time(shop: psycopg.Connection) -> None:
    assert invite(shop)
    assert invite(shop, '"Eve"@B.example') is None
    assert invite(shop, "bob@b.example")
    shop.execute("UPDATE tokens SET created_at = created_at - 60")
    assert invite(shop)
    # by day, also when the link has ended
    news = Jsonb({"list": "News"})
    assert ask(shop, "newsletter", email="eve@b.example", data=news)
    shop.execute("UPDATE tokens SET created_at = created_at - 80000, expires_at = epoch()")
    assert ask(shop, "newsletter", email="eve@b.example", data=news) is None


def test_a_mailbox_is_asked_once_for_all_accounts(shop: psycopg.Connection) -> None:
    assert ask(shop, "change_of_address", "1", "new@b.example")
    assert ask(shop, "change_of_address", "2", "NEW@b.example") is None
    assert ask(shop, "change_of_address", "1", "other@b.example") is None
    assert ask(shop, "change_of_address", "2", "other@b.example")


def test_an_account_of_another_status_gets_nothing(shop: psycopg.Connection) -> None:
    shop.execute("UPDATE accounts SET status = 'suspended' WHERE id = 2")
    assert ask(shop, "deletion", "2") is None
    for name in ("ann2", "nobody", "ANN1@b.example"):
        shop.execute("SELECT ask_named('magic_link', %s)", [name])
    assert column(shop, "SELECT account FROM tokens") == [1]
    with pytest.raises(pg_errors.InvalidParameterValue, match="needs an email"):
        shop.execute("SELECT ask_named('newsletter', 'ann1')")


def test_of_clients_that_ask_together_one_gets_an_invitation(
    shop: psycopg.Connection, database: str
) -> None:
    def one(_: int) -> Any:
        with psycopg.connect(database, autocommit=True) as db:
            return invite(db)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(16)))
    assert sum(each is not None for each in found) == 1


# -- until when --


def test_a_time_that_counts_from_the_delivery(shop: psycopg.Connection) -> None:
    token = invite(shop)
    collect(shop)
    (deadline,) = column(
        shop, "SELECT extract(epoch FROM (metadata ->> '_deadline')::timestamptz)::bigint -"
        " (SELECT created_at FROM tokens) FROM pgmta.queue",
    )  # fmt: skip
    assert deadline == 5 * 86400
    day = 86400
    attempt = (
        "INSERT INTO pgmta.attempts (ended_at, started_at, row_id, message_id, lease_token,"
        " attempt, code, event, sender, recipient, domain, worker, host, command, enhanced, reply)"
        " SELECT now() - %s * interval '1 day', now(), 1, message_id, 1, 1, 250, %s, '', '', '',"
        " '', '', '', '', '' FROM tokens"
    )
    cases: list[tuple[float, list[tuple[str, float]], str | None]] = [
        (11.9, [], None),
        (12.1, [], "expired"),
        (10, [("delivered", 6.9)], None),
        (10, [("delivered", 7.1)], "expired"),
        (10, [("deferred", 8), ("delivered", 6)], None),
    ]
    for age, attempts, why in cases:
        with shop.transaction(force_rollback=True):
            shop.execute(
                "UPDATE tokens SET created_at = created_at - %(age)s,"
                " expires_at = expires_at - %(age)s", {"age": int(age * day)},
            )  # fmt: skip
            for event, ago in attempts:
                shop.execute(attempt.encode(), (ago, event))
            found = fetch(shop, CONSUME, secret(shop, token), "invitation")
            assert found == (why,), (age, attempts)
            consumed = fetch(shop, "SELECT consumed_at IS NOT NULL FROM tokens")
            assert consumed == (why is None,)


# -- once, or not at all --


def test_two_confirmations_in_parallel_call_once(shop: psycopg.Connection, database: str) -> None:
    shop.execute("UPDATE actions SET every = '0'")
    for number in range(20):
        first = ask(shop, "change_of_address", "1", f"new{number}@b.example")
        secrets = [bytes(each) for each in column(
            shop, "SELECT secret FROM tokens WHERE request = %s ORDER BY id", first)]  # fmt: skip

        def consume(each: bytes) -> tuple[Any, ...]:
            with psycopg.connect(database, autocommit=True) as db:
                query = "SELECT why, missing FROM lifecycle.token_consume(%s, 'change_of_address')"
                return fetch(db, query, each)

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(consume, secrets * 2))
        assert sorted(map(str, found)) == sorted(
            map(str, [(None, 1), (None, 0), ("consumed", None), ("consumed", None)])
        )
        assert fetch(shop, "SELECT email FROM accounts WHERE id = 1") == (f"new{number}@b.example",)
    assert len(calls(shop)) == 20


def test_one_statement_that_consumes_both_calls_once(shop: psycopg.Connection) -> None:
    ask(shop, "change_of_address", "1", "new@b.example")
    shop.execute("UPDATE tokens SET consumed_at = epoch()")
    assert calls(shop) == ["change_of_address"]
    assert fetch(shop, "SELECT count(consumed_at) FROM tokens") == (2,)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_loses_no_confirmation(
    shop: psycopg.Connection, database: str, level: str
) -> None:
    first = ask(shop, "change_of_address", "1", "new@b.example")
    with psycopg.connect(database) as old:
        old.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        old.execute("SELECT FROM lifecycle.tokens")
        shop.execute("UPDATE tokens SET consumed_at = epoch() WHERE id = %s", [first])
        with pytest.raises(pg_errors.SerializationFailure):
            old.execute("UPDATE lifecycle.tokens SET consumed_at = 1 WHERE id <> %s", [first])
    assert calls(shop) == []
    shop.execute("UPDATE tokens SET consumed_at = epoch() WHERE consumed_at IS NULL")
    assert calls(shop) == ["change_of_address"]


def test_a_refusal_and_an_error_consume_nothing(shop: psycopg.Connection) -> None:
    token = ask(shop, "deletion", "2")
    with shop.transaction(force_rollback=True):
        shop.execute(
            "CREATE OR REPLACE FUNCTION shop.noted_deletion(account text, email text, data jsonb)"
            " RETURNS boolean LANGUAGE sql"
            " AS 'DELETE FROM lifecycle.accounts; SELECT NULL::boolean'"
        )
        (account, why) = fetch(
            shop, "SELECT account, why FROM token_consume(%s, 'deletion')", secret(shop, token)
        )
        assert (account, why) == (None, "refused")
        assert fetch(shop, "SELECT count(consumed_at) FROM tokens") == (0,)
    with shop.transaction(force_rollback=True):
        shop.execute("DROP FUNCTION shop.noted_deletion")
        with pytest.raises(pg_errors.UndefinedFunction, match="no function"), shop.transaction():
            shop.execute(CONSUME, (secret(shop, token), "deletion"))
    assert calls(shop) == []
    assert fetch(shop, CONSUME, secret(shop, token), "deletion") == (None,)
    assert fetch(shop, "SELECT count(*) FROM accounts WHERE id = 2") == (0,)
    assert fetch(shop, "SELECT count(*) FROM tokens") == (0,)  # they went with the account


def test_a_change_of_address_keeps_its_own_consumption(shop: psycopg.Connection) -> None:
    ask(shop, "magic_link", "1")
    ask(shop, "change_of_address", "1", "new@b.example")
    collect(shop)
    shop.execute("UPDATE tokens SET consumed_at = epoch() WHERE action = 'change_of_address'")
    assert fetch(shop, "SELECT email FROM accounts WHERE id = 1") == ("new@b.example",)
    consumed = "SELECT count(*) FROM tokens WHERE consumed_at IS NOT NULL AND expires_at > epoch()"
    assert fetch(shop, consumed) == (2,)
    (magic,) = column(shop, "SELECT secret FROM tokens WHERE action = 'magic_link'")
    assert fetch(shop, CONSUME, magic, "magic_link") == ("expired",)
    assert column(shop, RECIPIENTS) == []


# -- mail --


def test_the_language_of_an_account_chooses_the_template(shop: psycopg.Connection) -> None:
    for language in ("de", "pt", "pt-br"):
        put_mail(shop, f"magic_link.{language}", f"{language} {{{{link}}}}")
    put_mail(shop, "magic_link-de", "{{link}}")
    add_accounts(shop, 4, "more", status="active")
    shop.execute(
        "CREATE OR REPLACE FUNCTION account_rows(numbers bigint[]) RETURNS TABLE (number bigint,"
        " id text, email text, login text, status text, language text, words jsonb)"
        " LANGUAGE sql STABLE AS $$ SELECT a.id, a.id::text, a.email, a.login, a.status::text,"
        " ('{de-AT,pt_BR,pt-PT,PT-br,fr,NULL,de}'::text[])[a.id], NULL::jsonb"
        " FROM lifecycle.accounts AS a WHERE a.id = ANY (numbers) $$"
    )
    for account in range(1, 8):
        ask(shop, "magic_link", str(account))
    assert collect(shop)[0] == 7
    names = column(
        shop, "SELECT t.name FROM pgmta.messages AS m JOIN pgmta.templates AS t"
        " ON t.id = m.template_id ORDER BY m.id",
    )  # fmt: skip
    assert [name.removeprefix("magic_link") for name in names] == [
        ".de", ".pt-br", ".pt", ".pt-br", "", "", ".de",
    ]  # fmt: skip


def test_a_bad_template_of_a_language_lets_its_mail_wait(shop: psycopg.Connection) -> None:
    put_mail(shop, "magic_link.de", "no way")
    shop.execute(
        "CREATE OR REPLACE FUNCTION account_rows(numbers bigint[]) RETURNS TABLE (number bigint,"
        " id text, email text, login text, status text, language text, words jsonb)"
        " LANGUAGE sql STABLE AS $$ SELECT a.id, a.id::text, a.email, a.login, a.status::text,"
        " CASE a.id WHEN 2 THEN 'de' END, NULL::jsonb"
        " FROM lifecycle.accounts AS a WHERE a.id = ANY (numbers) $$"
    )
    for account in range(1, 4):
        ask(shop, "magic_link", str(account))
    assert collect(shop)[:2] == (2, [])
    assert column(shop, RECIPIENTS) == ["ann1@b.example", "ann3@b.example"]
    waits = "SELECT token, lease_until > now() FROM waiting_tokens"
    assert fetch(shop, waits) == (2, True)
    put_mail(shop, "magic_link.de", "{{link}}")
    shop.execute("UPDATE waiting_tokens SET lease_until = '-infinity'")
    assert collect(shop)[0] == 1


def test_an_application_has_a_page_of_its_own(shop: psycopg.Connection) -> None:
    shop.execute("UPDATE actions SET url = 'https://a.example/in' WHERE name = 'magic_link'")
    ask(shop, "magic_link", "1")
    collect(shop)
    found = "SELECT params -> 'token' ->> 'url' FROM pgmta.messages"
    assert column(shop, found) == ["https://a.example/in"]


def test_a_token_waits_for_a_template_without_the_word_that_it_lacks(
    shop: psycopg.Connection,
) -> None:
    invite(shop)
    put_mail(shop, "invitation", "{{host}} {{team}} {{logo}} {{link}}")
    ask(shop, "deletion", "1")
    assert collect(shop)[:2] == (1, [])
    assert column(shop, "SELECT fault FROM waiting_tokens WHERE lease_until > now()") == [
        "the word {{logo}} of its template has no value"
    ]
    put_mail(shop, "invitation", "{{host}} {{team}} {{link}}")
    shop.execute("UPDATE waiting_tokens SET lease_until = '-infinity'")
    assert collect(shop)[:2] == (1, [])
    put_mail(shop, "deletion", "{{link}}")
    ask(shop, "deletion", "2")
    assert collect(shop)[:2] == (0, [])
    assert column(shop, "SELECT fault FROM waiting_tokens") == [
        'the template "deletion" has no {{code}}'
    ]


def test_too_many_words_refuse_one_mail(shop: psycopg.Connection) -> None:
    long = TEAM.obj | {"host": "x" * 65536}
    shop.execute(
        "INSERT INTO tokens (action, email, data) VALUES ('invitation', 'eve@b.example', %s)",
        [Jsonb(long)],
    )
    invite(shop, "bob@b.example")
    taken, refused, _ = collect(shop)
    assert (taken, [reason for _, reason, _ in refused]) == (
        1, ["the words are over 65536 octets"],
    )  # fmt: skip


def test_another_priority_moves_what_waits(shop: psycopg.Connection) -> None:
    ask(shop, "deletion", "1")
    token = invite(shop)
    shop.execute("UPDATE actions SET priority = 0 WHERE name = 'invitation'")
    assert collect(shop, 1)[0] == 1
    assert column(shop, RECIPIENTS) == ["eve@b.example"]
    shop.execute("DELETE FROM tokens WHERE id = %s", [token])
    assert fetch(shop, "SELECT count(*) FROM waiting_tokens") == (1,)


def test_tokens_of_one_priority_go_by_the_oldest(shop: psycopg.Connection) -> None:
    tokens = [invite(shop, "eve@b.example"), invite(shop, "bob@b.example")]
    tokens += [ask(shop, "deletion", "1"), invite(shop, "zoe@b.example")]
    # a collector sets the first one aside if the database refuses it
    for batch in (tokens[:2], tokens[2:]):
        assert fetch(shop, "SELECT tokens_waiting(NULL, 2)") == (batch,)
        assert collect(shop, 2)[0] == 2
    assert column(shop, RECIPIENTS) == [
        f"{name}@b.example" for name in ("eve", "bob", "ann1", "zoe")
    ]


def test_a_changed_action_waits_for_no_transaction(shop: psycopg.Connection, database: str) -> None:
    ask(shop, "deletion", "2")
    with psycopg.connect(database) as other:
        other.execute("SET search_path = lifecycle")
        token = invite(other)
        ask(other, "deletion", "1")
        shop.execute("SET lock_timeout = '5s'")
        shop.execute("UPDATE actions SET priority = 0 WHERE name = 'deletion'")
        shop.execute("DELETE FROM actions WHERE name = 'invitation'")
        add_accounts(shop, 1, "new")
    assert collect(shop, 2)[0] == 2
    assert column(shop, RECIPIENTS) == ["ann2@b.example", "ann1@b.example"]
    assert collect(shop)[0] == 1
    # the token of the deleted action goes with its row
    assert column(shop, "SELECT token FROM waiting_tokens") == [token]
    shop.execute("DELETE FROM tokens WHERE id = %s", [token])
    assert column(shop, "SELECT token FROM waiting_tokens") == []


def test_a_deleted_action_ends_its_tokens(shop: psycopg.Connection) -> None:
    token = invite(shop)
    collect(shop)
    invite(shop, "bob@b.example")
    shop.execute("DELETE FROM actions WHERE name IN ('invitation', 'activation')")
    assert column(shop, RECIPIENTS) == column(shop, "SELECT token FROM waiting_tokens") == []
    assert fetch(shop, CONSUME, secret(shop, token), "invitation") == ("ineligible",)
    add_accounts(shop, 1)  # nobody has to activate it by a link
    assert fetch(shop, "SELECT count(*) FROM tokens") == (2,)


def test_what_expired_unsent_is_mailed_again(shop: psycopg.Connection) -> None:
    def again(*values: Any) -> Any:
        with shop.transaction():
            shop.execute("SET LOCAL ROLE pgmta_operator")
            places = ", ".join(["%s"] * len(values))
            return fetch(shop, f"SELECT lifecycle.mail_again({places})", *values)[0]

    add_accounts(shop, 2, "new")
    first = ask(shop, "change_of_address", "1", "new@b.example")
    invite(shop)
    ended = "UPDATE tokens SET created_at = created_at - 3600, expires_at = epoch() - 60"
    assert again() == 0
    collect(shop, 2)
    shop.execute("DELETE FROM waiting_tokens")
    shop.execute(ended)
    shop.execute(
        "INSERT INTO pgmta.attempts (ended_at, started_at, row_id, message_id, lease_token,"
        " attempt, code, event, sender, recipient, domain, worker, host, command, enhanced, reply)"
        " SELECT now(), now(), 1, message_id, 1, 1, 250, 'delivered', '', '', '',"
        " '', '', '', '', '' FROM tokens WHERE message_id IS NOT NULL ORDER BY id LIMIT 1"
    )
    shop.execute("UPDATE accounts SET status = 'suspended' WHERE login = 'new2'")
    with pytest.raises(pg_errors.InvalidParameterValue, match="no action"):
        again("activatoin")
    assert again("invitation") == 1
    assert again(None, "10 seconds") == 0
    found = again()
    # the first mail was delivered, and the owner of the second account is suspended
    rows = shop.execute(
        "SELECT action, account, email, request FROM tokens WHERE expires_at > epoch() ORDER BY id"
    ).fetchall()
    assert rows == [
        ("invitation", None, "eve@b.example", None),
        ("change_of_address", 1, None, first), ("change_of_address", 1, "new@b.example", first),
    ]  # fmt: skip
    assert found == 2
    assert again() == 0
    # the link would still work, but nobody sends its mail any more
    shop.execute("UPDATE tokens SET created_at = created_at - 5 * 86400 WHERE email LIKE 'eve%'")
    assert again() == 1
    shop.execute("UPDATE tokens SET consumed_at = epoch() WHERE request = %s", [first])
    assert calls(shop) == ["change_of_address"]


def test_what_the_log_of_attempts_no_longer_has_is_not_mailed_again(
    shop: psycopg.Connection,
) -> None:
    fetch(shop, "SELECT pgmta.days_make('attempts', 0)")
    for number in range(2):
        invite(shop, f"eve{number}@b.example")
    collect(shop)
    shop.execute("UPDATE tokens SET expires_at = epoch() - 60, created_at = created_at - 3600")
    shop.execute("UPDATE tokens SET collected_at = collected_at - interval '1 day' WHERE id = 1")
    assert column(shop, "SELECT token FROM tokens_unsent('1 day')") == [2]


def test_each_guest_of_a_host_is_mailed_again(shop: psycopg.Connection) -> None:
    shop.execute("UPDATE actions SET every = '0' WHERE name = 'invitation'")
    guests = [f"eve{number}@b.example" for number in range(3)]
    for guest in [*guests, guests[0]]:
        ask(shop, "invitation", "1", guest, TEAM)
    shop.execute("UPDATE tokens SET expires_at = epoch() - 60, created_at = created_at - 3600")
    assert fetch(shop, "SELECT mail_again()") == (3,)
    found = column(shop, "SELECT email FROM tokens WHERE expires_at > epoch() ORDER BY email")
    assert found == guests


def test_a_mailbox_is_forgotten(shop: psycopg.Connection) -> None:
    invite(shop, "Eve@b.example")
    invite(shop, "bob@b.example")
    collect(shop)
    forget = "SELECT pgmta.forget('eve@b.example', 'tokens', %s)"
    assert fetch(shop, forget, True) == ({"tokens": 1},)
    assert fetch(shop, forget, False) == ({"tokens": 1},)
    assert column(shop, RECIPIENTS) == ["bob@b.example"]
    assert column(shop, "SELECT email FROM tokens") == ["bob@b.example"]
