"""The endpoints: tokens are verified without the database, and consumed once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from pgmta.compose.token import Purpose
from pgmta.errors import StoreUnavailable
from pgmta.http.route import Route
from pgmta.postgres.link_pool import LinkPool
from pgmta.postgres.resources import Resources
from pgmta.store.schema import Schema
from queued.web.readiness import Readiness
from tests.features.lifecycle.tokens import KEYS, add_accounts
from tests.support.daemons import ROOT
from tests.support.rows import column
from tests.support.waiting import PATIENCE, free_port, until
from tests.web.web import RINGS, Answer, Web, forged, recover, secret_of, serving

ACTIVATE, RECOVER = Purpose.ACTIVATE, Purpose.RECOVER
NOWHERE = "postgresql://x@127.0.0.1:1/x"
UNLIMITED = {"exempt": ["127.0.0.0/8"]}


def settings(port: int) -> str:
    """The least that web.yaml has to say here."""
    return f"listen: [{{port: {port}}}]\nenvironment: {{database: {{uri: '{NOWHERE}'}}}}\n"


def same(answers: list[Answer]) -> bool:
    """Whether the answers have equal octets, except the time."""
    for answer in answers:
        answer.headers.pop("date")
    return all(answer == answers[0] for answer in answers)


def test_an_activation(web: Web, accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1)
    secret, _ = secret_of(accounts, "u1")
    # by hand: base64url of secret and HMAC
    digest = hmac.digest(bytes.fromhex(KEYS["activate"]), b"/activate" + secret, hashlib.sha256)
    token = base64.urlsafe_b64encode(secret + digest).rstrip(b"=").decode()
    assert web.call("verify", ACTIVATE, token).members == {"valid": True}
    assert column(accounts, "SELECT status::text FROM accounts") == ["provisioned"]
    found = web.call("consume", ACTIVATE, token)
    assert (found.status, found.members["login"]) == (200, "u1")
    assert column(accounts, "SELECT status::text FROM accounts") == ["active"]
    assert web.call("consume", ACTIVATE, token).status == 422
    log = web.wait_log("token refused")
    assert (log["why"], log["client"]) == ("consumed", "127.0.0.1")


def test_refusals_have_equal_octets(
    as_web: str, accounts: psycopg.Connection, tmp_path: Path
) -> None:
    add_accounts(accounts, 3)
    sign = RINGS[ACTIVATE].sign
    used, expired, suspended = (secret_of(accounts, f"u{number}")[0] for number in (1, 2, 3))
    accounts.execute("UPDATE tokens SET expires_at = epoch() - 1 WHERE secret = %s", (expired,))
    accounts.execute("UPDATE accounts SET status = 'suspended' WHERE login = 'u3'")
    with serving(tmp_path, as_web, limits=UNLIMITED) as web:
        web.call("consume", ACTIVATE, sign(used))
        secrets = [used, expired, suspended, os.urandom(32)]
        tokens = [forged(), "short", *map(sign, secrets)]
        assert same([web.call("consume", ACTIVATE, token) for token in tokens])
        assert same([web.post("/activate", token) for token in tokens])
        whys = [entry["why"] for entry in web.events("token refused")]
        assert set(whys) == {"signature", "consumed", "expired", "ineligible", "unknown"}
        problem = web.call("consume", ACTIVATE, forged())
        assert problem.status == 422
        assert problem.headers["content-type"] == "application/problem+json"
        assert problem.members["type"] == "urn:pgmta:token-refused"
        assert all(sign(secret) not in web.story() for secret in secrets)


def test_refusals_wait_for_no_disk(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 2)
    used, expired = (secret_of(accounts, login)[0] for login in ("u1", "u2"))
    consume = "SELECT why FROM token_consume(%s, 'activation')"
    accounts.execute("UPDATE tokens SET expires_at = epoch() - 1 WHERE secret = %s", (expired,))
    assert accounts.execute(consume, (used,)).fetchone() == (None,)
    whys = {used: "consumed", expired: "expired", os.urandom(32): "unknown"}
    for secret, why in whys.items():
        with accounts.transaction():
            assert accounts.execute(consume, (secret,)).fetchone() == (why,)
            assert column(accounts, "SELECT pg_current_xact_id_if_assigned()") == [None]


def test_the_sixth_code_is_refused_also_if_it_is_right(
    web: Web, accounts: psycopg.Connection
) -> None:
    add_accounts(accounts, 2)
    for login, wrong, status in [("u1", 4, 200), ("u2", 5, 422)]:
        secret, code = recover(accounts, login)
        token = RINGS[RECOVER].sign(secret, code)
        bad = f"{(int(code) + 1) % 100_000:05}"
        answers = [web.call("consume", RECOVER, token, bad) for _ in range(wrong)]
        assert {answer.status for answer in answers} == {422}
        assert web.call("verify", RECOVER, token, code).status == status
        found = web.call("consume", RECOVER, token, code)
        assert found.status == status
        if status == 200:
            take = f"SELECT login FROM proof_take('{found.members['proof']}')"
            assert [column(accounts, take), column(accounts, take)] == [[login], []]


def test_forgeries_ask_no_database(tmp_path: Path) -> None:
    with serving(tmp_path, NOWHERE, limits=UNLIMITED) as web, web.connect() as client:
        for _ in range(500):
            body = json.dumps({"purpose": "activate", "token": forged()})
            client.request("POST", "/v1/tokens/consume", body, {"Content-Type": "application/json"})
            answer = client.getresponse()
            answer.read()
            assert answer.status == 422


def test_without_a_database_no_token_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path, NOWHERE) as web:
        token = RINGS[ACTIVATE].sign(os.urandom(32))
        assert web.call("verify", ACTIVATE, token).status == 200
        assert web.ask("GET", "/healthy").status == 200
        for answer in (web.call("consume", ACTIVATE, token), web.ask("GET", "/ready")):
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            assert answer.members["status"] == 503
        token = RINGS[RECOVER].sign(os.urandom(32), "12345")
        for code in ("12345", "54321"):  # or the answers would show the right one
            assert web.call("verify", RECOVER, token, code).status == 503
        token = RINGS[ACTIVATE].sign(os.urandom(32))
        page = web.post("/activate", token)
        assert (page.status, b"Not possible right now" in page.body) == (503, True)


def test_ready(web: Web, accounts: psycopg.Connection) -> None:
    assert web.ask("GET", "/ready").members == {"status": "ready"}
    until(lambda: column(accounts, "SELECT program FROM pgmta.daemons") == ["web"])
    web.stop()
    assert column(accounts, "SELECT program FROM pgmta.daemons") == []


def test_not_ready_while_the_database_is_read_only(web: Web, accounts: psycopg.Connection) -> None:
    def turn(value: str) -> None:
        accounts.execute("SET default_transaction_read_only = off")
        setting = f"ALTER DATABASE {accounts.info.dbname} SET default_transaction_read_only = "
        accounts.execute(f"{setting}{value}".encode())
        accounts.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'pgmta web%'"
        )

    turn("on")
    until(lambda: web.ask("GET", "/ready").status == 503)
    assert b"read-only" in web.ask("GET", "/ready").body
    turn("off")
    until(lambda: web.ask("GET", "/ready").status == 200)


@pytest.mark.needs("nodejs")
def test_a_token_that_node_signs(web: Web) -> None:
    script = """
    const {createHmac} = require('crypto'), [key, secret, code] = process.argv.slice(1);
    const octets = Buffer.from(secret, 'hex');
    const mac = createHmac('sha256', Buffer.from(key, 'hex'));
    mac.update('/recover').update(octets).update(code);
    console.log(Buffer.concat([octets, mac.digest()]).toString('base64url'));
    """
    words = ["node", "-e", script, "--", KEYS["recover"], os.urandom(32).hex(), "01234"]
    token = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert web.call("verify", RECOVER, token, "01234").status == 200
    for purpose, code in [(RECOVER, "01235"), (RECOVER, ""), (ACTIVATE, "01234")]:
        assert web.call("verify", purpose, token, code).status == 422


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(settings(free_port()))
    command = [sys.executable, "-m", "queued", "web", "-c", str(file), "--attached"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin
        assert child.stderr
        assert any(b"ready" in line for line in child.stderr)
        child.stdin.close()
        assert child.wait(PATIENCE) == 0


def test_an_address_that_is_taken(web: Web, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(settings(web.port))
    command = [sys.executable, "-m", "queued", "web", "-c", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1, port {web.port}: Address already in use" in done.stderr


def test_a_rotation_keeps_old_links(web: Web, tmp_path: Path) -> None:
    old = RINGS[ACTIVATE].sign(os.urandom(32))
    new = tmp_path / "new.key"
    new.touch(0o600)
    new.write_text("c" * 64)
    keys = web.config["tokens"]["activate"]
    for ring, status in [
        (["new.key", *keys], 200),
        (["new.key"], 422),
    ]:
        web.write({**web.config, "tokens": {"activate": ring}})
        before = len(web.events("configuration read again"))
        web.signal(1)
        web.wait_log("configuration read again", before + 1)
        assert web.call("verify", ACTIVATE, old).status == status
    web.write("tokens: 5")
    web.signal(1)
    web.wait_log("configuration kept as it was")
    web.log.clear()  # an error that was meant
    assert web.ask("GET", "/healthy").status == 200


def test_errors_are_problems(tmp_path: Path) -> None:
    consume, as_json = "/v1/tokens/consume", "application/json"
    with serving(tmp_path, NOWHERE) as web:
        for method, path, body, kind, status in (
            ("GET", consume, "", as_json, 405),
            ("POST", consume, "{}", "text/plain", 415),
            ("POST", consume, "{", as_json, 400),
            ("POST", consume, '{"purpose": "x", "token": "x"}', as_json, 400),
            ("POST", consume, '{"token": "geheim"}', as_json, 400),
            ("POST", consume, " " * 9000, as_json, 413),
            ("GET", "/v1/other", None, as_json, 404),
        ):
            answer = web.ask(method, path, body, Content_Type=kind, Accept=as_json)
            assert answer.status == answer.members["status"] == status, (path, body)
            assert answer.headers["content-type"] == "application/problem+json"
            assert b"geheim" not in answer.body


async def test_who_asks_meanwhile_waits_for_the_same_answer() -> None:
    class Silent:
        asked = 0
        answer = asyncio.Event()

        def routes(self) -> list[Route]:
            return []

        async def problem(self) -> str:
            self.asked += 1
            await self.answer.wait()
            raise StoreUnavailable("away")

    silent = Silent()
    pool = LinkPool(Resources("postgresql://", "web"), "tokens", 1)
    readiness = Readiness(pool, Schema(), [silent.problem])
    both = [asyncio.create_task(readiness.problem()) for _ in range(2)]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
    assert not any(task.done() for task in both)
    silent.answer.set()
    assert await asyncio.gather(*both) == ["The database does not answer."] * 2
    assert silent.asked == 1
