"""Actions of an application: from the page to its function."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from pgmta.compose.template import TemplateSource
from pgmta.compose.token import Purpose
from pgmta.config.urls import parse_return_url
from tests.features.lifecycle.tokens import add_accounts, put_template
from tests.support.rows import column, fetch
from tests.support.waiting import until
from tests.web.web import RETURN, RINGS, Web, forged, recover, return_to, secret_of, serving

ACTIVATE, RECOVER, CONFIRM = Purpose.ACTIVATE, Purpose.RECOVER, Purpose.CONFIRM
NOWHERE = "postgresql://x@127.0.0.1:1/x"

SHOP = f"""
CREATE SCHEMA shop;
CREATE TABLE shop.mood (answer boolean, fails boolean NOT NULL DEFAULT false);
INSERT INTO shop.mood VALUES (true);
CREATE TABLE shop.calls (account text, email text, data jsonb);
CREATE FUNCTION shop.take(account text, email text, data jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO shop.calls VALUES (account, email, data);
    IF (SELECT fails FROM shop.mood) THEN RAISE 'the shop is on fire'; END IF;
    RETURN (SELECT answer FROM shop.mood);
END $$;
INSERT INTO lifecycle.actions (name, template, confirmed_by, calls, titles) VALUES
    ('invitation', 'plain', 'email', 'shop.take', '{{"en": "Join <us>", "de": "Zum Team"}}');
INSERT INTO lifecycle.actions (name, template, confirmed_by, calls, returns_to) VALUES
    ('new_address', 'plain', 'both', 'shop.take', 'https://shop.example/done');
INSERT INTO lifecycle.actions (name, template, code, proof, returns_to) VALUES
    ('magic_link', 'coded', true, true, '{RETURN}');
"""


class Shop:
    """An application with three actions."""

    def __init__(self, db: psycopg.Connection) -> None:
        self._db = db
        add_accounts(db, 3, status="active")
        for name, body in {"plain": "{{link}}", "coded": "{{link}} {{code}}"}.items():
            source = TemplateSource(
                sender="s@a.example", from_="s@a.example", subject="", body=body
            )
            put_template(db, name, source)
        (owner,) = fetch(db, "SELECT nspowner::regrole::text FROM pg_namespace"
                             " WHERE nspname = 'lifecycle'")  # fmt: skip
        db.execute(f"SET ROLE {owner}; {SHOP}; RESET ROLE".encode())

    def ask(self, action: str, login: str = "", email: str | None = None) -> list[tuple[str, str]]:
        """Ask for the mail of an action; return the tokens with their codes."""
        (first,) = fetch(
            self._db,
            "SELECT ask(%s, (SELECT id::text FROM accounts WHERE login = %s), %s)",
            action,
            login,
            email,
        )
        rows = self._db.execute(
            "SELECT t.secret, a.code, t.code"
            " FROM tokens AS t JOIN actions AS a ON a.name = t.action"
            " WHERE t.id = %(id)s OR t.request = %(id)s ORDER BY t.id",
            {"id": first},
        ).fetchall()
        return [
            (sign(action, bytes(secret), code if coded else ""), code)
            for secret, coded, code in rows
        ]

    def set_mood(self, answer: bool | None, *, fails: bool = False) -> None:
        """Let the function return this from now on."""
        self._db.execute("UPDATE shop.mood SET answer = %s, fails = %s", (answer, fails))

    @property
    def calls(self) -> list[str]:
        """The addresses that the function has got."""
        return column(self._db, "SELECT email FROM shop.calls")


def sign(action: str, secret: bytes, code: str = "") -> str:
    return RINGS[CONFIRM].of_action(action).sign(secret, code)


def bad(code: str) -> str:
    return f"{(int(code) + 1) % 100_000:05}"


@pytest.fixture
def shop(accounts: psycopg.Connection) -> Shop:
    return Shop(accounts)


@pytest.fixture
def web(as_web: str, shop: Shop, tmp_path: Path) -> Iterator[Web]:
    with serving(tmp_path, as_web, limits={"exempt": ["127.0.0.0/8"]}) as daemon:
        yield daemon


def test_from_the_page_to_the_function(web: Web, shop: Shop) -> None:
    [(token, _)] = shop.ask("invitation", email="ann@b.example")
    for language, title in [
        ("de-AT", "Zum Team"), ("fr", "Veuillez confirmer"), ("ja", "Join &lt;us&gt;"),
    ]:  # fmt: skip
        page = web.ask("GET", f"/confirm/invitation?token={token}", Accept_Language=language)
        assert page.status == 200
        assert f"<h1>{title}</h1>" in page.body.decode()
        assert b'name="code"' not in page.body
        assert "form-action 'self';" in page.headers["content-security-policy"]
    assert web.call("verify", CONFIRM, token, action="invitation").members == {"valid": True}
    assert shop.calls == []
    answer = web.post("/confirm/invitation", token)
    assert (answer.status, answer.headers["location"]) == (303, f"{web.url}/confirmed")
    assert b"<h1>Thank you</h1>" in web.ask("GET", "/confirmed").body
    assert web.post("/confirm/invitation", token).status == 422
    assert web.call("consume", CONFIRM, token, action="invitation").status == 422
    assert shop.calls == ["ann@b.example"]


def test_a_program_gets_the_account(web: Web, shop: Shop) -> None:
    [(token, _)] = shop.ask("invitation", email="ann@b.example")
    found = web.call("consume", CONFIRM, token, action="invitation")
    assert (found.status, found.members) == (200, {"account": None, "login": None})
    [(token, code)] = shop.ask("magic_link", "u1")
    found = web.call("consume", CONFIRM, token, code, "magic_link")
    assert (found.members["login"], type(found.members["account"])) == ("u1", int)
    assert found.members["proof"]


def test_what_the_function_declines_or_fails_can_be_repeated(
    web: Web, shop: Shop, accounts: psycopg.Connection
) -> None:
    [(token, _)] = shop.ask("invitation", email="ann@b.example")
    for answer, fails, status, text in [
        (False, False, 409, b"<h1>Not possible now</h1>"),
        (None, False, 409, b"<h1>Not possible now</h1>"),
        (True, True, 503, b"<h1>Not possible right now</h1>"),
    ]:
        shop.set_mood(answer, fails=fails)
        page = web.post("/confirm/invitation", token)
        problem = web.call("consume", CONFIRM, token, action="invitation")
        assert (page.status, problem.status, problem.members["status"]) == (status,) * 3
        assert text in page.body
        assert problem.headers["content-type"] == "application/problem+json"
    assert "the shop is on fire" in web.wait_log("a token could not be consumed")["reason"]
    assert shop.calls == []
    assert column(accounts, "SELECT count(*) FROM tokens WHERE consumed_at IS NOT NULL") == [0]
    shop.set_mood(True)
    assert web.post("/confirm/invitation", token).status == 303
    assert shop.calls == ["ann@b.example"]


def test_both_mailboxes_confirm(web: Web, shop: Shop) -> None:
    tokens = [token for token, _ in shop.ask("new_address", "u1", "new@b.example")]
    page = web.ask("GET", f"/confirm/new_address?token={tokens[0]}")
    assert "form-action 'self' https://shop.example;" in page.headers["content-security-policy"]
    first, second = (web.post("/confirm/new_address", token) for token in tokens)
    assert (first.status, first.headers["location"]) == (303, f"{web.url}/half-confirmed")
    assert b"<h1>One confirmation is missing</h1>" in web.ask("GET", "/half-confirmed").body
    assert (second.status, second.headers["location"]) == (303, "https://shop.example/done")
    assert shop.calls == ["new@b.example"]
    tokens = [token for token, _ in shop.ask("new_address", "u2", "newer@b.example")]
    answers = [web.call("consume", CONFIRM, token, action="new_address") for token in tokens]
    assert [answer.members.get("missing") for answer in answers] == [1, None]


def test_a_code_is_counted_and_a_proof_returned(
    web: Web, shop: Shop, accounts: psycopg.Connection
) -> None:
    path = "/confirm/magic_link"
    for login, wrong, status in [("u1", 4, 303), ("u2", 5, 422)]:
        [(token, code)] = shop.ask("magic_link", login)
        assert b'name="code"' in web.ask("GET", f"{path}?token={token}").body
        for _ in range(wrong):
            page = web.post(path, token, bad(code))
            assert page.status == 422
            assert b'role="alert"' in page.body
            assert "http://localhost:9;" in page.headers["content-security-policy"]
            assert web.post(path, token).status == 422  # none is no guess
        answer = web.post(path, token, code)
        assert answer.status == status
        verified = web.call("verify", CONFIRM, token, code, "magic_link")
        assert verified.status == (200 if status == 303 else 422)
        if status == 303:
            url, _, proof = answer.headers["location"].rpartition("=")
            assert url == f"{RETURN}&proof"
            take = f"SELECT login FROM proof_take('{proof}')"
            assert [column(accounts, take), column(accounts, take)] == [[login], []]
    assert shop.calls == []


def test_a_token_is_for_one_action(web: Web, shop: Shop, accounts: psycopg.Connection) -> None:
    [(invitation, _)] = shop.ask("invitation", email="ann@b.example")
    [(change, _), _] = shop.ask("new_address", "u1", "new@b.example")
    recovery = RINGS[RECOVER].sign(*recover(accounts, "u2"))
    for path, token in [
        ("/confirm/new_address", invitation), ("/confirm/invitation", change),
        ("/activate", invitation), ("/recover", change), ("/confirm/invitation", recovery),
    ]:  # fmt: skip
        assert web.post(path, token).status == 422, path
    # a key of ours signed it, and its secret is that of another action
    secret, _ = secret_of(accounts, "u2", "password_recovery")
    for action in ("invitation", "password_recovery"):
        assert web.post(f"/confirm/{action}", sign(action, secret)).status in (404, 422)
    assert column(accounts, "SELECT count(*) FROM tokens WHERE consumed_at IS NOT NULL") == [0]
    assert web.post("/confirm/invitation", invitation).status == 303


def test_parallel_clicks_consume_once(web: Web, shop: Shop) -> None:
    [(token, _)] = shop.ask("invitation", email="ann@b.example")
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: web.post("/confirm/invitation", token), range(16)))
    assert sorted(answer.status for answer in answers) == [303] + [422] * 15
    assert shop.calls == ["ann@b.example"]


def test_refusals_have_equal_octets(web: Web, shop: Shop, accounts: psycopg.Connection) -> None:
    tokens = [shop.ask("magic_link", f"u{number}")[0] for number in (1, 2, 3)]
    used, expired, suspended = tokens
    assert web.post("/confirm/magic_link", *used).status == 303
    accounts.execute(
        "UPDATE tokens SET expires_at = epoch() - 1 WHERE account ="
        " (SELECT id FROM accounts WHERE login = 'u2')"
    )
    accounts.execute("UPDATE accounts SET status = 'suspended' WHERE login = 'u3'")
    unknown = sign("magic_link", os.urandom(32), "12345"), "12345"
    answers = [
        web.call("consume", CONFIRM, *each, "magic_link")
        for each in [used, expired, suspended, unknown, (forged(), "12345")]
    ]
    assert {(answer.status, answer.body) for answer in answers} == {(422, answers[0].body)}
    whys = {"consumed", "expired", "ineligible", "unknown", "code or signature"}
    until(lambda: {entry["why"] for entry in web.events("token refused")} == whys)
    # nor do they wait for a disk
    for each in (used, expired, suspended, unknown):
        secret = RINGS[CONFIRM].of_action("magic_link").verify(*each)
        with accounts.transaction():
            (why,) = fetch(accounts, "SELECT why FROM token_consume(%s, 'magic_link')", secret)
            assert why in whys
            assert column(accounts, "SELECT pg_current_xact_id_if_assigned()") == [None]


def test_looks_at_links_share_one_question(
    web: Web, shop: Shop, accounts: psycopg.Connection, database: str
) -> None:
    [(token, _)] = shop.ask("invitation", email="ann@b.example")
    path = f"/confirm/invitation?token={token}"
    assert web.ask("GET", path).status == 200
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE lifecycle.actions IN ACCESS EXCLUSIVE MODE")
        assert {web.ask("GET", path).status for _ in range(20)} == {200}
    later = sign("later", os.urandom(32))
    assert web.ask("GET", f"/confirm/later?token={later}").status == 404
    accounts.execute("INSERT INTO actions (name, template) VALUES ('later', 'plain')")
    until(lambda: web.ask("GET", f"/confirm/later?token={later}").status == 200)


def test_actions_without_a_page(web: Web, accounts: psycopg.Connection) -> None:
    for action in ("none", "activation", "password_recovery", "x-y", "x" * 64):
        token = sign(action, os.urandom(32))
        assert web.ask("GET", f"/confirm/{action}?token={token}").status == 404
        assert web.post(f"/confirm/{action}", token).status in (404, 422)
    order = '{"purpose": "%s", "token": "x"%s}'
    for purpose, more in [
        ("confirm", ""), ("confirm", ', "action": "activation"'), ("recover", ', "action": "x"'),
    ]:  # fmt: skip
        answer = web.ask(
            "POST", "/v1/tokens/verify", order % (purpose, more), Content_Type="application/json"
        )
        assert answer.status == 400
        assert "action" in answer.members["detail"]


def test_a_proof_that_no_page_takes_is_not_made(
    as_web: str, accounts: psycopg.Connection, tmp_path: Path
) -> None:
    add_accounts(accounts, 1)
    secret, code = recover(accounts, "u1")
    token = RINGS[RECOVER].sign(secret, code)
    accounts.execute("UPDATE actions SET returns_to = NULL")
    with serving(tmp_path, as_web) as web:
        assert web.ask("GET", f"/recover?token={token}").status == 404
        assert web.post("/recover", token, code).status == 404
        assert web.wait_log("an action has no page")["action"] == "password_recovery"
        assert web.call("consume", RECOVER, token, code).status == 200


@pytest.mark.parametrize(
    "url",
    [
        "https://shop.example", "https://shop.example:8443/a?b=c", "http://[::1]:80/a",
        "http://localhost?a", "http://shop.example/a", "https://u@shop.example/", "shop.example",
        "https://shop.example/#a", "https://shop.example/a;b", "https://shop.example/\u00e9",
        "https://shop.example/a b", "https://shop.example/\n", "https:///a", "",
        "http://localhost.shop.example/a", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_bad_url_is_not_stored(accounts: psycopg.Connection, url: str) -> None:
    """The database and queued web agree about URLs."""
    refused = pytest.raises(psycopg.errors.InvalidParameterValue, match="column returns_to")
    try:
        parse_return_url(url)
    except ValueError:
        with refused:
            return_to(accounts, url)
    else:
        return_to(accounts, url)


def test_without_a_database(tmp_path: Path) -> None:
    token = sign("invitation", os.urandom(32))
    path = "/confirm/invitation"
    with serving(tmp_path, NOWHERE) as web:
        page = web.ask("GET", f"{path}?token={token}")
        assert (page.status, b"Not possible right now" in page.body) == (503, True)
        assert web.post(path, token).status == 503
        assert web.call("verify", CONFIRM, token, action="invitation").status == 200
        assert web.call("consume", CONFIRM, token, action="invitation").status == 503
        for answer in (
            web.ask("GET", f"{path}?token={token[:50]}"),
            web.post(path, forged()),
            web.call("consume", CONFIRM, forged(), action="invitation"),
        ):
            assert answer.status == 422
