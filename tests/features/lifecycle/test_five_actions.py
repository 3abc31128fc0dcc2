"""The five actions of docs/programs/lifecycle.md, from SQL to the application's function."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.compose.token import KeyRing, Purpose, TokenKey
from pgmta_features.lifecycle.installation import install
from tests.features.lifecycle.shop import calls, examples, open_shop
from tests.features.lifecycle.test_delivery import token_in
from tests.features.lifecycle.tokens import KEYS, collect, put_templates, settings
from tests.support.database import PrivateServer
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until
from tests.web.web import Web, serving

CONFIRM = KeyRing(Purpose.CONFIRM, [TokenKey("k1", bytes.fromhex(KEYS["confirm"]))])
ASK = {
    "invitation":
        "ask('invitation', NULL, 'eve@b.example', '{\"team\": \"Sales\", \"host\": \"Ann\"}')",
    "magic_link": "ask('magic_link', '1')",
    "change_of_address": "ask('change_of_address', '1', 'new@b.example')",
    "deletion": "ask('deletion', '2')",
    "newsletter": "ask('newsletter', NULL, 'bob@b.example', '{\"list\": \"News\"}')",
}  # fmt: skip
ACTIONS = list(ASK)


@pytest.fixture
def shop(accounts: psycopg.Connection) -> psycopg.Connection:
    open_shop(accounts)
    return accounts


@pytest.fixture
def web(shop: psycopg.Connection, database: str, tmp_path: Path) -> Iterator[Web]:
    uri = make_conninfo(database, options="-c role=pgmta_web")
    with serving(tmp_path, uri, limits={"exempt": ["127.0.0.0/8"]}) as daemon:
        yield daemon


def links(db: psycopg.Connection, action: str) -> list[tuple[str, str]]:
    """Ask for an action; return its tokens with their codes, that of the account first."""
    (first,) = fetch(db, f"SELECT lifecycle.{ASK[action]}")
    assert first
    rows = db.execute(
        "SELECT t.secret, CASE WHEN a.code THEN t.code ELSE '' END FROM lifecycle.tokens AS t"
        " JOIN lifecycle.actions AS a ON a.name = t.action"
        " WHERE %s IN (t.id, t.request) ORDER BY t.id", [first],
    ).fetchall()  # fmt: skip
    ring = CONFIRM.of_action(action)
    return [(ring.sign(bytes(secret), code), code) for secret, code in rows]


def test_from_sql_to_the_function(
    shop: psycopg.Connection, web: Web, system: System, tmp_path: Path
) -> None:
    for block in examples():
        shop.execute(f"SELECT lifecycle.ask{block.partition('SELECT lifecycle.ask')[2]}".encode())
    assert collect(shop, 100)[:2] == (6, [])
    hop = system.hop()
    system.queued(hop, tokens=settings(tmp_path)["tokens"])
    hop.wait_kept(6)
    mail = {kept.recipients[0]: kept for kept in hop.kept if kept.recipients[0] != "ann1@b.example"}
    old, magic = sorted(
        (kept for kept in hop.kept if kept.recipients == ["ann1@b.example"]),
        key=lambda kept: b"Change" not in (kept.content or b""),
    )
    new = mail["new@b.example"]
    assert b"Ann invites you to the team Sales" in (mail["eve@b.example"].content or b"")
    for kept in (old, new):
        assert b"Change to new@b.example, asked for by ann1" in (kept.content or b"")

    def follow(kept: object, action: str, code: str = "") -> tuple[int, str]:
        path = f"/confirm/{action}"
        answer = web.post(path, token_in(kept, path), code)  # type: ignore[arg-type]
        return answer.status, answer.headers.get("location", "")

    found = follow(magic, "magic_link")[1]
    (proof,) = parse_qs(urlsplit(found).query)["proof"]
    assert fetch(shop, "SELECT * FROM lifecycle.proof_take(%s)", proof) == (
        "1", "ann1", "magic_link",
    )  # fmt: skip
    assert follow(mail["eve@b.example"], "invitation") == (303, f"{web.url}/confirmed")
    assert fetch(shop, "TABLE shop.members") == ("Sales", "eve@b.example")
    assert follow(new, "change_of_address") == (303, f"{web.url}/half-confirmed")
    assert follow(old, "change_of_address") == (303, f"{web.url}/confirmed")
    assert fetch(shop, "SELECT email FROM accounts WHERE id = 1") == ("new@b.example",)
    (code,) = column(shop, "SELECT code FROM tokens WHERE action = 'deletion'")
    assert code.encode() in (mail["ann2@b.example"].content or b"")
    wrong = f"{(int(code) + 1) % 100_000:05}"
    assert follow(mail["ann2@b.example"], "deletion", wrong)[0] == 422
    assert follow(mail["ann2@b.example"], "deletion", code) == (303, "https://shop.example/goodbye")
    assert column(shop, "SELECT id FROM accounts ORDER BY id") == [1, 3]
    assert follow(mail["bob@b.example"], "newsletter")[0] == 303
    assert column(shop, "SELECT list FROM shop.readers") == ["News"]
    for kept, action in [
        (magic, "magic_link"), (mail["eve@b.example"], "invitation"), (old, "change_of_address"),
        (new, "change_of_address"), (mail["ann2@b.example"], "deletion"),
        (mail["bob@b.example"], "newsletter"),
    ]:  # fmt: skip
        assert follow(kept, action, code if action == "deletion" else "")[0] == 422, action
    assert sorted(calls(shop)) == ["change_of_address", "deletion", "invitation", "newsletter"]


@pytest.mark.parametrize("action", ACTIONS)
def test_parallel_clicks(shop: psycopg.Connection, web: Web, action: str) -> None:
    tokens = links(shop, action)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(
            lambda each: web.post(f"/confirm/{action}", *each).status,
            list(itertools.chain.from_iterable([tokens] * (12 // len(tokens)))),
        ))  # fmt: skip
    assert sorted(answers) == [303] * len(tokens) + [422] * (12 - len(tokens))
    assert calls(shop) == ([] if action == "magic_link" else [action])


@pytest.mark.parametrize("action", ACTIONS)
def test_expired_links_do_nothing(shop: psycopg.Connection, web: Web, action: str) -> None:
    tokens = links(shop, action)
    shop.execute("UPDATE tokens SET expires_at = epoch()")
    assert [web.post(f"/confirm/{action}", *each).status for each in tokens] == [422] * len(tokens)
    assert calls(shop) == []


@pytest.mark.parametrize("action", [each for each in ACTIONS if each != "magic_link"])
def test_web_is_killed_between_page_and_function(
    shop: psycopg.Connection, web: Web, database: str, tmp_path: Path, action: str
) -> None:
    """The backend goes on: its statement is the whole transaction."""
    *others, last = links(shop, action)
    for each in others:
        assert web.post(f"/confirm/{action}", *each).status == 303
    stopped = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = %s"
    with psycopg.connect(database) as gate, ThreadPoolExecutor(1) as pool:
        gate.execute("SELECT pg_advisory_lock(1)")
        click = pool.submit(web.post, f"/confirm/{action}", *last)
        until(lambda: len(column(shop, stopped, shop.info.dbname)) == 1)
        web.kill()
        with pytest.raises(OSError):  # noqa: PT011 whichever the kernel says
            click.result()
    until(lambda: calls(shop) == [action])
    uri = make_conninfo(database, options="-c role=pgmta_web")
    with serving(tmp_path, uri) as again:
        assert again.post(f"/confirm/{action}", *last).status == 422
    assert calls(shop) == [action]


@pytest.mark.slow
def test_the_backend_is_killed_in_the_function(
    private_server: PrivateServer, tmp_path: Path
) -> None:
    """PostgreSQL starts again, and the click of before has done nothing."""
    install(private_server.uri)
    with psycopg.connect(private_server.uri, autocommit=True) as db:
        db.execute("SET search_path = lifecycle")
        put_templates(db)
        open_shop(db)
        tokens = {action: links(db, action) for action in ACTIONS}
    uri = make_conninfo(private_server.uri, options="-c role=pgmta_web")
    with serving(tmp_path, uri, limits={"exempt": ["127.0.0.0/8"]}) as web:
        for action in ACTIONS:
            *others, last = tokens[action]
            for each in others:
                assert web.post(f"/confirm/{action}", *each).status == 303
            if action != "magic_link":
                kill_in_function(private_server, web, action, last)
            assert clicked(web, action, last) == 303
    with psycopg.connect(private_server.uri) as db:
        assert sorted(calls(db)) == sorted(set(ACTIONS) - {"magic_link"})


def clicked(web: Web, action: str, link: tuple[str, str]) -> int:
    """Return the answer to a click once PostgreSQL is there again."""
    found = until(lambda: {web.post(f"/confirm/{action}", *link).status} - {503})
    return found.pop()


def kill_in_function(server: PrivateServer, web: Web, action: str, link: tuple[str, str]) -> None:
    stopped = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory'"
    with (
        psycopg.connect(server.uri, autocommit=True) as gate,
        psycopg.connect(server.uri, autocommit=True) as db,
        ThreadPoolExecutor(1) as pool,
    ):
        gate.execute("SELECT pg_advisory_lock(1)")
        click = pool.submit(web.post, f"/confirm/{action}", *link)
        until(lambda: len(column(db, stopped)) == 1)
        (pid,) = column(db, stopped)
        os.kill(pid, signal.SIGKILL)
        assert click.result().status == 503
