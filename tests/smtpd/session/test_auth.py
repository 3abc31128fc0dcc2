"""AUTH over a raw socket: mechanisms, odd exchanges, users that change, the throttle."""

from __future__ import annotations

import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgmta.password import login_name, prepared
from smtpd.session.connection import Connection
from tests.smtpd.tls.test_tls import secure
from tests.support.certificates import Certificate
from tests.support.database import fresh_database
from tests.support.serving import Client, serving
from tests.support.users import accounts, add_user, encoded, log_in, plain, scram
from tests.support.waiting import PATIENCE, SLACK, until

OPEN = [{"name": "here", "auth": "offered", "auth_without_tls": True, "early": "allow"}]
NO_TRUST: dict[str, Any] = {"relay": {"networks": []}, "listen": OPEN}
WRONG = "535 5.7.8"
LATER = "454 4.7.0"
GOOD = "235 2.7.0"
MAIL = "MAIL FROM:<ann@a.example>"
LONG = "\ufdfa" * 3000  # becomes 54,000 characters when it is prepared (RFC 4013)


@pytest.fixture(scope="module")
def users(server: str, template: str) -> Iterator[str]:
    """A database with users who don't change."""
    with fresh_database(server, template) as uri:
        add_user(uri, "ann@a.example", "Geheim, 42", any_sender=True, tenant="t")
        add_user(uri, "ümit", "pässwört", senders=["@a.example"], priorities=(3, 7))
        add_user(uri, "emoji", "\U0001f600\U0001f600\U0001f600", any_sender=True)
        add_user(uri, "off", "password")
        add_user(uri, "office", "password", networks=["192.0.2.0/24"])
        with accounts(uri) as operator:
            operator.disable("off", disabled=True)
        yield uri


@pytest.fixture(scope="module")
def port(users: str) -> Iterator[int]:
    with serving(users, **NO_TRUST, auth={"failures": {"address": 500}}) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[Client]:
    with Client(port).hello() as client:
        yield client


def test_mechanisms(client: Client, port: int) -> None:
    for number, command in enumerate([
        f"AUTH PLAIN {plain('ann@a.example', 'Geheim, 42')}",
        f"auth plain {plain('ANN@A.Example', 'Geheim, 42', 'ANN@A.Example')}",
        f"AUTH LOGIN {encoded('ann@a.example')} > {encoded('Geheim, 42')}",
        f"AUTH login > {encoded('ann@a.example')} > {encoded('Geheim, 42')}",
        f"Auth Plain > {plain('ann@a.example', 'Geheim, 42')}",
        f"AUTH PLAIN {plain('u' + chr(0x308) + 'MIT', 'pa' + chr(0x308) + 'ssw\u00f6rt')}",
        f"AUTH PLAIN {plain('emoji', chr(0x1f600) * 3)}",
    ]):  # fmt: skip
        with Client(port, f"127.0.1.{number + 1}").hello() as other:
            *first, last = command.split(" > ")
            assert all(other.say(line).startswith("334") for line in first), command
            assert other.say(last).startswith(GOOD), command
            assert other.say("AUTH PLAIN") == "503 5.5.1 Already authenticated"
            assert other.say("RSET").startswith("250")
            assert other.say(MAIL).startswith("250")
    assert scram(client, "ann@a.example", "Geheim, 42").startswith(GOOD)


@pytest.mark.slow
@pytest.mark.usefixtures("pauses")
def test_wrong_ones_get_one_reply_after_one_time(port: int) -> None:
    took = []
    for number, (name, password) in enumerate([
        ("ann@a.example", "geheim, 42"), ("nobody", "Geheim, 42"), ("off", "password"),
        ("office", "password"), ("ann@a.example\n", "x"), ("\ufffe", "x"), ("a" * 300, "x"),
        ("emoji", "x" * 2000),
    ]):  # fmt: skip
        with Client(port, f"127.0.2.{number + 1}").hello() as client:
            began = time.monotonic()
            assert log_in(client, name, password) == (
                "535 5.7.8 Authentication credentials invalid"
            ), name
            took.append(time.monotonic() - began)
            assert client.say(MAIL).startswith("250")  # AUTH is only offered
    assert 0.95 < min(took) <= max(took) < min(took) + SLACK


def test_scram_tells_nothing_of_users(port: int) -> None:
    replies = []
    for number, name in enumerate(["ann@a.example", "nobody", "nobody", "emoji", "other"]):
        with Client(port, f"127.0.3.{number + 1}").hello() as client:
            assert scram(client, name, "wrong one").startswith(WRONG), name
            first = client.say(f"AUTH SCRAM-SHA-256 {encoded(f'n,,n={name},r=abc')}")
            said = dict(part.split("=", 1) for part in b64decode(first[4:]).decode().split(","))
            replies.append((said["s"], said["i"]))
            assert client.say("*").startswith("501")
    (ann, nobody, again, emoji, other) = replies
    assert nobody == again  # the salt stays, as that of a user does
    assert len({ann, nobody, emoji, other}) == 4
    assert len({each[1] for each in replies}) == 1
    assert len({len(each[0]) for each in replies}) == 1


ODD = [
    ("AUTH", "501 5.5.4"),
    ("AUTH  ", "501 5.5.4"),
    ("AUTH CRAM-MD5", "504 5.5.4"),
    ("AUTH PLAIN\tx", "504 5.5.4"),
    ("AUTH PLAIN a b", "501 5.5.4"),
    ("AUTH PLAIN !", "501 5.5.2"),
    ("AUTH PLAIN AGE", "501 5.5.2"),
    ("AUTH PLAIN ÄÖ==", "501 5.5.2"),
    ("AUTH PLAIN =", "501 5.5.2"),
    ("AUTH PLAIN AAA=", "501 5.5.2"),
    (f"AUTH PLAIN {encoded(b'a\0b')}", "501 5.5.2"),
    (f"AUTH PLAIN {encoded(b'\0b\0')}", "501 5.5.2"),
    (f"AUTH PLAIN {encoded(b'\0\xff\0x')}", "501 5.5.2"),
    (f"AUTH PLAIN {encoded(b'root\0ann@a.example\0Geheim, 42')}", "535 5.7.8"),
    (f"AUTH PLAIN > {encoded(b'\xff\0ann@a.example\0Geheim, 42')}", "535 5.7.8"),
    (f"AUTH PLAIN {encoded(b'ann@a.example\0ann@a.example\0')}", "501 5.5.2"),
    (f"AUTH PLAIN {encoded(b'\0a\0b\0c')}", "501 5.5.2"),
    (f"AUTH PLAIN {'A' * 12300}", "500 5.5.2"),
    ("AUTH PLAIN > *", "501 5.7.0"),
    ("AUTH PLAIN > ", "501 5.5.2"),
    ("AUTH PLAIN > QUIT", "501 5.5.2"),
    ("AUTH PLAIN >  AGEAYg==", "501 5.5.2"),
    (f"AUTH PLAIN > {'A' * 12289}", "500 5.5.6"),
    (f"AUTH PLAIN > {'A' * 12288}", "501 5.5.2"),
    ("AUTH LOGIN > *", "501 5.7.0"),
    ("AUTH LOGIN = > YQ==", "501 5.5.2"),
    ("AUTH LOGIN > YQ== > *", "501 5.7.0"),
    ("AUTH LOGIN YQ== > ", "501 5.5.2"),
    ("AUTH SCRAM-SHA-256 > *", "501 5.7.0"),
    ("AUTH SCRAM-SHA-256 =", "501 5.5.2"),
    (f"AUTH SCRAM-SHA-256 {encoded(b'n,,n=\xff,r=b')}", "501 5.5.2"),
    (f"AUTH SCRAM-SHA-256 {encoded(f'n,,n={LONG},r=b')}", "501 5.5.2"),
    (f"AUTH SCRAM-SHA-256 {encoded('n,,n=a,r=b')} > *", "501 5.7.0"),
    (f"AUTH SCRAM-SHA-256 {encoded('n,,n=a,r=b')} > {encoded('c=biws,r=x,p=YQ==')}", "501 5.5.2"),
    (f"AUTH SCRAM-SHA-256 {encoded('n,,n=a,r=b')} > {'A' * 20000}", "500 5.5.6"),
]


@pytest.mark.parametrize(("dialogue", "expected"), ODD)
def test_odd_exchanges(client: Client, dialogue: str, expected: str) -> None:
    *first, last = dialogue.split(" > ")
    assert all(client.say(line).startswith("334") for line in first)
    assert client.say(last).startswith(expected)
    assert client.say("NOOP").startswith("250")  # the exchange is over
    assert log_in(client, "ann@a.example", "Geheim, 42").startswith(GOOD)


def test_auth_comes_after_ehlo_and_outside_of_a_transaction(port: int) -> None:
    with Client(port) as client:
        client.reply()
        assert client.say("AUTH PLAIN") == "503 5.5.1 Send EHLO first"
        client.say("HELO c")
        assert client.say("AUTH PLAIN").startswith("500 5.5.2")
        client.say("EHLO c")
        client.say(MAIL)
        assert client.say("AUTH PLAIN").startswith("503 5.5.1")
        client.say("RSET")
        assert log_in(client, "ann@a.example", "Geheim, 42").startswith(GOOD)


def test_passwords_need_tls(users: str, root: Certificate, files: dict[str, str]) -> None:
    listen = [{"auth": "offered"}]
    with (
        serving(users, listen=listen, certificates=[files]) as port,
        Client(port).hello() as client,
    ):
        assert log_in(client, "ann@a.example", "Geheim, 42").startswith("538 5.7.11")
        assert client.say("STARTTLS").startswith("220")
        secure(client, root)
        assert client.say("AUTH PLAIN").startswith("503")
        client.say("EHLO c")
        assert scram(client, "ann@a.example", "Geheim, 42").startswith(GOOD)


def test_a_pipelined_exchange_and_an_early_end(port: int) -> None:
    lines = ["EHLO c", "AUTH LOGIN", encoded("ann@a.example"), encoded("Geheim, 42"), MAIL, "QUIT"]
    text = "".join(f"{line}\r\n" for line in lines).encode()
    with Client(port) as client:
        client.send(text)
        codes = [reply[:3] for reply in client.rest()]
        assert codes == ["220", "250", "334", "334", "235", "250", "221"]
    for cut in range(len(text)):
        with Client(port) as client:
            client.send(text[:cut])
    with Client(port) as client:  # beside all these
        client.hello()
        assert log_in(client, "ann@a.example", "Geheim, 42").startswith(GOOD)


def test_a_session_ends_after_some_failures(port: int) -> None:
    with Client(port, "127.0.4.1").hello() as client:
        for _ in range(5):
            assert log_in(client, "ann@a.example", "no").startswith(WRONG)
        assert client.rest() == ["421 4.7.0 mx.example Too many failed logins, closing connection"]


@pytest.mark.slow
@pytest.mark.parametrize("hooks", [[], [{"authenticator": "tests.smtpd.handlers.logins:RightOne"}]])
def test_a_user_who_is_attacked_gets_in_from_his_own_network(
    database: str, db: psycopg.Connection, hooks: list[dict[str, str]]
) -> None:
    add_user(database, "ann", "right one")
    add_user(database, "bob", "right one")
    limits = {"failures": {"address": 3, "user": 6}}
    home, away = "127.0.9.1", "127.0.8.1"

    def tried(port: int, source: str, name: str, password: str) -> str:
        with Client(port, source).hello() as client:
            return log_in(client, name, password)

    with (
        serving(database, **NO_TRUST, auth=limits, hooks=hooks) as port,
        serving(database, **NO_TRUST, auth=limits, hooks=hooks) as other,
    ):
        assert tried(port, home, "ann", "right one").startswith(GOOD)
        guesses = iter(range(1000))
        for address in range(3):
            source = f"127.0.{address}.7"
            replies = [tried(port, source, "ann", f"guess {next(guesses)}") for _ in range(4)]
            some = 3 if address < 2 else 0  # then the user is full
            assert [reply[:3] for reply in replies] == ["535"] * some + ["454"] * (4 - some)
            unknown = tried(port, source, "nobody", "x")
            assert unknown.startswith(LATER if address < 2 else WRONG)
        assert tried(port, away, "ann", "right one").startswith(LATER)
        assert tried(port, home, "ann", "right one").startswith(GOOD)
        assert tried(port, away, "bob", "right one").startswith(GOOD)

        # the other process knows it as well, and the network from which ann logged in
        until(lambda: db.execute("SELECT 1 FROM user_networks WHERE name = 'ann'").fetchone())
        until(
            lambda: db.execute(
                "SELECT 1 FROM login_failures WHERE unit LIKE 'user %' AND failures = 6"
            ).fetchone()
        )
        assert tried(other, away, "ann", "right one").startswith(LATER)
        assert tried(other, home, "ann", "right one").startswith(GOOD)
        # from the own network a guess looks as from any other, and there are few of them
        for _ in range(4):
            assert tried(other, home, "ann", f"guess {next(guesses)}").startswith(LATER)
        assert tried(other, home, "ann", "right one").startswith(LATER)
        with accounts(database) as operator:
            until(lambda: len(operator.failures("ann")) == 2)
            assert operator.unlock("ann") == 2
        until(lambda: tried(other, home, "ann", "right one").startswith(GOOD))
        until(lambda: tried(other, away, "ann", "right one").startswith(GOOD))


def test_preparing_what_a_client_sends_takes_no_time() -> None:
    began = time.thread_time()
    assert prepared(LONG.encode()) == LONG.encode()
    with pytest.raises(ValueError, match="too long"):
        login_name(LONG)
    assert time.thread_time() - began < 0.3  # it was 0.7 s, in the thread of the sessions


def test_the_database_is_away(database: str, db: psycopg.Connection) -> None:
    add_user(database, "ann", "right one")
    with serving(database, **NO_TRUST) as port, Client(port).hello() as client:
        db.execute("ALTER FUNCTION login_verifier RENAME TO other")
        assert log_in(client, "ann", "right one").startswith(LATER)
        db.execute("ALTER FUNCTION other RENAME TO login_verifier")
        assert log_in(client, "ann", "right one").startswith(GOOD)


@pytest.mark.parametrize(
    ("hooks", "begin", "expected"),
    [
        ([], "AUTH LOGIN", "500 5.5.6"),
        (["tests.smtpd.handlers.logins:Whole"], "AUTH PLAIN YXNr", "501 5.5.2"),
    ],
)
def test_a_response_too_long_to_be_kept_ends_auth(
    users: str, monkeypatch: pytest.MonkeyPatch, hooks: list[str], begin: str, expected: str
) -> None:
    skipped, skip = threading.Event(), Connection._skip

    def note(connection: Connection, octets: int) -> None:
        skip(connection, octets)
        skipped.set()

    monkeypatch.setattr(Connection, "_skip", note)
    with serving(users, hooks=hooks, **NO_TRUST) as port, Client(port).hello() as client:
        assert client.say(begin).startswith("334")
        client.send(b"A" * 70_000)
        assert skipped.wait(PATIENCE)  # the end of the line comes in another read
        assert client.say("A").startswith(expected)
        assert client.say("NOOP").startswith("250")
