"""Bounds: of one client, of a request, and of the configuration."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from pgmta.compose.token import Purpose
from pgmta.features import FEATURES
from pgmta.http.route import HttpLimits
from pgmta.http.server import HttpServer
from pgmta.http.site import HttpSite
from pgmta_features.lifecycle.pages import with_proof
from queued.daemon.queued import main
from queued.web.clients import Clients
from queued.web.web_config import WebConfig
from tests.features.lifecycle.tokens import add_accounts
from tests.support.copies import Copy
from tests.support.rows import column
from tests.support.trees import environment_of
from tests.support.waiting import until
from tests.web.web import RETURN, RINGS, Web, forged, recover, secret_of, serving

ACTIVATE, RECOVER = Purpose.ACTIVATE, Purpose.RECOVER
NOWHERE = "postgresql://x@127.0.0.1:1/x"
STATUS = "SELECT status::text FROM accounts"


def raw(web: Web, octets: bytes, source: str = "127.0.0.1") -> bytes:
    """Send octets; return what comes until the server closes."""
    with socket.create_connection(("127.0.0.1", web.port), 20, (source, 0)) as client:
        client.sendall(octets)
        answer = b""
        try:
            while data := client.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        return answer


# -- clients --


def test_refusals_are_limited_by_address(web: Web, accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 2)
    secret, code = recover(accounts, "u1")
    bad = f"{(int(code) + 1) % 100_000:05}"
    other = RINGS[RECOVER].sign(os.urandom(32), code)
    good = RINGS[ACTIVATE].sign(secret_of(accounts, "u2")[0])
    for _ in range(60):  # what succeeds costs nothing
        assert web.call("verify", ACTIVATE, good, source="127.0.0.2").status == 200
    answers = [web.call("consume", RECOVER, other, bad, source="127.0.0.2") for _ in range(100)]
    statuses = [answer.status for answer in answers]
    assert statuses[:20] == [422] * 20
    assert statuses.count(429) >= 77  # one more after 3 s each
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 4
    assert answers[-1].members["status"] == 429
    page = web.post("/recover", RINGS[RECOVER].sign(secret, code), code, source="127.0.0.2")
    assert (page.status, b"Too many attempts" in page.body) == (429, True)
    assert web.call("consume", ACTIVATE, good).status == 200
    assert web.post("/recover", RINGS[RECOVER].sign(secret, code), code).status == 303


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", ["198.51.100.1"], "192.0.2.1"),  # no proxy of ours
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.1"], "198.51.100.1"),  # the left one is forged
        ("10.0.0.1", ["203.0.113.9", "198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["198.51.100.1, unknown"], "10.0.0.1"),
    ],
)
def test_only_proxies_name_their_clients(peer: str, forwarded: list[str], client: str) -> None:
    config = WebConfig.model_validate({"proxies": ["10.0.0.0/8"]})
    assert Clients(config).find_client(peer, forwarded) == client


def test_an_ipv6_network_is_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queued.web.clients.MAX_REFUSALS", 1)
    clients = Clients(WebConfig())
    clients.count_refusal("2001:db8:0:1::1")
    assert clients.free_in("2001:db8:0:1:ffff::2") > 0
    assert clients.free_in("2001:db8:0:2::1") == 0


# -- requests --


def test_slow_clients_and_too_many(tmp_path: Path) -> None:
    limits = {"request": "1s", "address_connections": 3}
    with serving(tmp_path, NOWHERE, limits=limits) as web:
        slow = [socket.create_connection(("127.0.0.1", web.port), 20) for _ in range(3)]
        for client in slow:
            client.sendall(b"GET /healthy HTTP/1.1\r\nX: ")
        assert raw(web, b"").startswith(b"HTTP/1.1 503 ")  # the fourth of its address
        assert web.ask("GET", "/healthy", source="127.0.0.2").status == 200
        for client in slow:
            assert client.recv(1) == b""  # after a second
            client.close()
        until(lambda: web.ask("GET", "/healthy").status == 200)


def test_a_reload_reads_no_template_that_an_upgrade_replaces(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy", FEATURES)
    with serving(tmp_path, NOWHERE, environment_of(copy.folder)) as web:
        for folder in (*copy.folder.rglob("templates"), *copy.folder.rglob("texts")):
            shutil.rmtree(folder)
        web.signal(signal.SIGHUP)
        web.wait_log("configuration read again")
        answer = web.ask("GET", "/activate?token=x")
        assert answer.headers["content-type"].startswith("text/html")


async def test_a_reload_loses_no_count_of_connections() -> None:
    config = WebConfig()
    clients = Clients(config)
    limits = HttpLimits(connections=2, request_s=1.0, idle_s=1.0, address_connections=1)
    server = HttpServer("web", clients.unit_of)
    await server.serve(HttpSite((), limits))
    first, second = server(), server()
    first.peer = second.peer = "192.0.2.1"
    assert server.admit(first)
    clients.configure(WebConfig.model_validate({"limits": {"exempt": ["192.0.2.0/24"]}}))
    server.release(first)
    clients.configure(config)
    assert server.admit(second)


def test_a_body_that_stays_away_behind_another_request(tmp_path: Path) -> None:
    with (
        serving(tmp_path, NOWHERE, limits={"request": "1s"}) as web,
        socket.create_connection(("127.0.0.1", web.port), 20) as client,
    ):
        begun = b"POST /v1/tokens/verify HTTP/1.1\r\nContent-Type: application/json\r\n"
        begun += b"Host: x\r\nContent-Length: 9\r\n\r\n"
        client.sendall(b"GET /healthy HTTP/1.1\r\nHost: x\r\n\r\n" + begun)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert client.recv(1) == b""  # after a second


@pytest.mark.slow
def test_a_client_that_takes_no_answer_is_given_up(tmp_path: Path) -> None:
    limits = {"address_connections": 1, "body": "10MB"}
    with serving(tmp_path, NOWHERE, limits=limits) as web, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(2)
        client.connect(("127.0.0.1", web.port))
        with suppress(TimeoutError):
            for _ in range(4000):  # more answers than the buffers of the system have
                client.sendall(b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
        asked = b"GET /healthy HTTP/1.0\r\nHost: x\r\n\r\n"
        assert raw(web, asked).startswith(b"HTTP/1.1 503 ")
        until(lambda: raw(web, asked).startswith(b"HTTP/1.0 200 "))


def test_requests_that_wait_for_the_database_are_bounded(
    web: Web, accounts: psycopg.Connection, database: str
) -> None:
    body = json.dumps({"purpose": "recover", "token": forged(), "code": "12345"}).encode()
    head = f"POST /v1/tokens/verify HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
    with (
        psycopg.connect(database) as other,
        socket.create_connection(("127.0.0.1", web.port), 20) as client,
    ):
        other.execute("LOCK TABLE lifecycle.tokens")
        client.sendall(head + b"Content-Type: application/json\r\n\r\n" + body)
        waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        until(lambda: column(accounts, waits) == [True])
        taken = 0
        with suppress(ConnectionError):
            for _ in range(1000):
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
                taken += 1
        assert taken < 300  # what the buffers of the system have


def test_what_is_no_request(tmp_path: Path) -> None:
    """Also a target whose host is none, which is not read."""
    head = b"POST /v1/tokens/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunked, chunk = b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b" " * 4096 + b"\r\n"
    with serving(tmp_path, NOWHERE) as web:
        for octets in (
            b"GET /healthy HTTP/1.1\r\n" + b"X: " + b"x" * 50_000,
            b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n",
            b"GET /healthy HTTP/1.1\r\n" + b"X: x\r\n" * 100 + b"\r\n",
            b"\x16\x03\x01 token=geheim\r\n\r\n",
            b"GET /activate?token=geheim HTTP/9\r\n\r\n",
        ):
            answer = raw(web, octets)
            if answer:
                assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), octets[:50]
                assert b"application/problem+json" in answer
            assert b"geheim" not in answer
        for host in (b"xn--a", b"[::1", b"a:99999"):
            request = b"GET http://" + host + b"/healthy HTTP/1.1\r\nHost: x\r\n"
            status = raw(web, request + b"Connection: close\r\n\r\n").split(b" ", 2)[1]
            assert status in (b"200", b"400"), host
        for more in (b"Content-Length: 1000000\r\n\r\n", chunked + chunk * 3):  # too long
            assert raw(web, head + more).startswith(b"HTTP/1.1 413 ")
        assert raw(web, head + chunked + b"zz\r\n").startswith(b"HTTP/1.0 400 ")
        with socket.create_connection(("127.0.0.1", web.port)) as client:
            client.sendall(head + chunked + chunk)  # and it goes away
        assert web.ask("GET", "/healthy").status == 200
        assert "geheim" not in web.story()


# -- pages --


def test_looking_at_a_link_changes_nothing(web: Web, accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1)
    token = RINGS[ACTIVATE].sign(secret_of(accounts, "u1")[0])
    path = f"/activate?token={token}"
    page = web.ask("GET", path)
    assert page.status == 200
    assert token.encode() in page.body
    head = web.ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert web.ask("GET", path, Sec_Purpose="prefetch;prerender").status == 200
    assert web.ask("OPTIONS", path).status == 405
    assert column(accounts, STATUS) == ["provisioned"]
    assert token not in web.story()
    assert web.post("/activate", token).status == 303
    assert column(accounts, STATUS) == ["active"]


def test_fields_of_answers(tmp_path: Path) -> None:
    """They protect browsers; the language is that with the most weight."""
    link = f"/activate?token={forged()}"
    with serving(tmp_path, NOWHERE) as web:
        for path in (link, "/recover", "/style.css", "/healthy", "/none"):
            fields = web.ask("GET", path, Accept="text/html").headers
            assert fields["content-security-policy"] == (
                "default-src 'none'; style-src 'self'; base-uri 'none'; "
                "form-action 'self'; frame-ancestors 'none'"
            )
            assert fields["x-content-type-options"] == "nosniff"
            assert fields["referrer-policy"] == "no-referrer"
            assert fields["cache-control"] == "no-store"
            assert fields["server"] == "pgmta"
            assert "strict-transport-security" not in fields
        for wanted, language in [
            ("fr-CH, de;q=0.5", "fr"), ("nl, de;q=0.2, es;q=0.8", "es"), ("ja", "en"), ("", "en"),
            ("de;q=0, *", "en"),
        ]:  # fmt: skip
            fields = web.ask("GET", link, Accept_Language=wanted).headers
            assert fields["content-language"] == language


def test_urls_come_from_the_configuration(
    as_web: str, accounts: psycopg.Connection, tmp_path: Path
) -> None:
    add_accounts(accounts, 2)
    with serving(tmp_path, as_web, public={"url": "https://shop.example/mail"}) as web:
        secret, code = recover(accounts, "u1")
        token = RINGS[RECOVER].sign(secret, code)
        page = web.ask("GET", f"/mail/recover?token={token}", Host="evil")
        assert page.headers["strict-transport-security"] == "max-age=63072000"
        assert b'action="/mail/recover"' in page.body
        assert "form-action 'self' http://localhost:9;" in page.headers["content-security-policy"]
        assert b"evil" not in page.body
        activated = web.post("/mail/activate", RINGS[ACTIVATE].sign(secret_of(accounts, "u2")[0]))
        assert activated.headers["location"] == "https://shop.example/mail/activated"
        answer = web.post("/mail/recover?next=https://evil", token, code, Host="evil")
        assert answer.status == 303
        assert answer.headers["location"].startswith(f"{RETURN}&proof=")


def test_a_proof_goes_beside_other_parameters() -> None:
    assert with_proof("https://a.example/p", "x-_") == "https://a.example/p?proof=x-_"
    assert with_proof("https://a.example/p?a=&b=1", "x") == "https://a.example/p?a=&b=1&proof=x"


# -- configuration --


@pytest.mark.parametrize(
    ("digits", "mode", "reason"),
    [
        ("a" * 63, 0o600, "has no key of 64 hexadecimal digits: it has 63 characters"),
        ("a" * 64, 0o644, "has the mode 0644"),
        ("g" * 64, 0o600, "has no key of 64 hexadecimal digits"),
    ],
)
def test_bad_keys(tmp_path: Path, digits: str, mode: int, reason: str) -> None:
    (tmp_path / "key").write_text(digits)
    (tmp_path / "key").chmod(mode)
    file = tmp_path / "web.yaml"
    file.write_text("tokens:\n  activate:\n    - key\n")
    result = CliRunner().invoke(main, ["web", "-c", str(file), "--check"])
    assert result.exit_code == 2
    assert f"{file}:3: tokens.activate[0]: {tmp_path / 'key'} {reason}" in result.stderr
    assert digits not in result.stderr


def test_one_key_for_two_purposes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text("a" * 64)
    file = tmp_path / "web.yaml"
    file.write_text("tokens: {activate: [one], recover: [two]}\n")
    result = CliRunner().invoke(main, ["web", "-c", str(file), "--check"])
    assert (result.exit_code, "recover: two is the same key as activate: one" in result.stderr) == (
        2,
        True,
    )
