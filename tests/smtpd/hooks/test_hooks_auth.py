"""AUTH and STARTTLS by hooks: the same in smtpd and in aiosmtpd's Controller.

Replies that differ are in docs/programs/hooks.md with the RFC.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import shutil
import ssl
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import LoginPassword
from structlog.testing import capture_logs

from pgmta.accounts.login import Login
from smtpd.hooks import phases
from tests.smtpd.handlers import examples, logins
from tests.smtpd.hooks.test_hooks_aiosmtpd import DOCS, differences
from tests.support.certificates import Certificate
from tests.support.serving import Client, serving
from tests.support.users import add_user
from tests.support.waiting import free_port, until

HEADING = "## Replies of AUTH and STARTTLS that differ"


def b64(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def plain(name: str | bytes, password: str | bytes) -> str:
    octets = [one.encode() if isinstance(one, str) else one for one in ("", name, password)]
    return b64(b"\0".join(octets))


GOOD, WRONG = f"AUTH PLAIN {plain('good', 'secret')}", f"AUTH PLAIN {plain('good', 'wrong')}"
MAIL = "MAIL FROM:<s@a.example>"
CRAM = hmac.new(b"secret", b"<1896.697170952@mx.example>", "md5").hexdigest()

OTHER = f"AUTH PLAIN {plain('other', 'secret')}"

ORDER = [
    ["AUTH", "AUTH PLAIN", "HELO c", "AUTH", "EHLO c", "AUTH", "AUTH GSSAPI"],
    ["EHLO c", "AUTH PLAIN a b", f"auth PLAIN {plain('good', 'secret')}", "AUTH", GOOD, MAIL],
    ["EHLO c", MAIL, GOOD, "RSET", GOOD, "RSET", GOOD],
    ["EHLO c", f"AUTH plain {plain('good', 'secret')}"],
    ["EHLO c", GOOD, "EHLO c", GOOD, MAIL],
]
EXCHANGES = [
    ["EHLO c", "AUTH PLAIN", "*", "NOOP", "AUTH PLAIN", "ab@%", "AUTH PLAIN not-b64"],
    ["EHLO c", "AUTH PLAIN", plain("good", "secret"), MAIL],
    ["EHLO c", f"AUTH PLAIN {b64('no nul')}", "AUTH PLAIN =", "AUTH PLAIN", "="],
    ["EHLO c", WRONG, f"AUTH PLAIN {plain('bad', 'secret')}", MAIL, "QUIT"],
    ["EHLO c", f"AUTH PLAIN {plain('ü', b'g\xfcnter')}", MAIL],
    ["EHLO c", f"AUTH PLAIN {plain(b'\xfc', 'secret')}"],
    ["EHLO c", "AUTH LOGIN", b64("good"), b64("secret"), MAIL],
    ["EHLO c", f"AUTH LOGIN {b64('good')}", b64("wrong"), MAIL],
    ["EHLO c", "AUTH LOGIN", "*", "AUTH LOGIN", b64("good"), "*", "AUTH LOGIN x@"],
    ["EHLO c", "AUTH LOGIN", "not-b64", "AUTH LOGIN", b64("good"), "ab@%"],
]
FORMS = [
    ["EHLO c", GOOD, MAIL],
    ["EHLO c", f"AUTH PLAIN {plain('later', 'x')}", f"AUTH PLAIN {plain('raise', 'x')}"],
    ["EHLO c", f"AUTH PLAIN {plain('welcome', 'x')}", MAIL],
    ["EHLO c", f"AUTH PLAIN {plain('missing', 'x')}", "AUTH FALSE", "AUTH DENYMISSING", MAIL],
    ["EHLO c", "AUTH PUSH", "AUTH HANDLED", "AUTH IDENTITY", MAIL],
    ["EHLO c", "AUTH RAISE", "AUTH CRAM_MD5", "AUTH OTHER"],
    ["EHLO c", "AUTH CRAM-MD5", b64(f"tim {CRAM}"), MAIL],
    ["EHLO c", "AUTH CRAM-MD5", b64("tim 12"), MAIL, "RSET", "AUTH CRAM-MD5", "*"],
    ["EHLO c", "AUTH TWICE initial", b64("1"), b64("2"), MAIL],
    ["EHLO c", "AUTH TWICE", b64("1"), "*", "NOOP"],
    ["EHLO c", "AUTH RAW", b64("answer"), MAIL],
    ["EHLO c", "AUTH OTHER-NAME", MAIL],
]
WHOLE = [
    ["EHLO c", f"AUTH PLAIN {b64('me')}", MAIL, "RSET", GOOD],
    ["EHLO c", f"AUTH LOGIN {b64('ask')}", b64("I"), f"AUTH PLAIN {b64('no')}", MAIL],
    ["EHLO c", GOOD, MAIL],
    ["EHLO c", "AUTH PLAIN", plain("good", "wrong"), f"AUTH LOGIN {b64('ask')}", "*"],
]
TLS = [
    ["STARTTLS now", "EHLO c", "STARTTLS", "<TLS>", MAIL, "NOOP", "EHLO c", "NOOP", "QUIT"],
    ["EHLO c", MAIL, "STARTTLS", "<TLS>", "EHLO c", "RCPT TO:<r@example.com>"],
    ["EHLO c", MAIL, "RCPT TO:<r@example.com>", "STARTTLS", "<TLS>", "EHLO c", MAIL, "DATA"],
    ["HELO c", "STARTTLS", "<TLS>", "HELO c", "NOOP"],
]
REQUIRED = [["HELO c", "EHLO c", MAIL, "RCPT TO:<r@example.com>", "DATA", "VRFY r", "NOOP", "QUIT"]]
ENCRYPTED = [
    ["EHLO c", "AUTH", GOOD, "STARTTLS", "<TLS>", "EHLO c", GOOD, MAIL],
    ["EHLO c", "STARTTLS", "<TLS>", WRONG, "EHLO c", WRONG],
]
NEEDED = [
    ["EHLO c", MAIL, "RCPT TO:<r@example.com>", "DATA", "VRFY r", GOOD, MAIL],
    ["VRFY <r@example.com>", "EHLO c", GOOD, "VRFY <r@example.com>", "RCPT TO:<r@example.com>"],
]


@contextmanager
def controlling(handler: Any, files: dict[str, str] | None, **options: Any) -> Iterator[int]:
    """The port of aiosmtpd's Controller."""
    port = free_port()
    if files:
        options["tls_context"] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        options["tls_context"].load_cert_chain(files["certificate"], files["key"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of AUTH without TLS
        controller = Controller(
            handler, hostname="127.0.0.1", port=port, server_hostname="mx.example", **options
        )
        controller.start()
        try:
            yield port
        finally:
            controller.stop()


@contextmanager
def hooked(
    database: str,
    handler: Any,
    files: dict[str, str] | None = None,
    limits: dict[str, Any] | None = None,
    **listener: Any,
) -> Iterator[int]:
    """The port of smtpd; a handler that is no handler is an authenticator."""
    examples.LIVE["handler"] = handler
    entry = {"handler": "tests.smtpd.handlers.examples:live", "arguments": ["handler"]}
    if isinstance(handler, dict):
        entry = handler
    bounds = {"address": 1000, "user": 1000}
    with serving(
        database, hooks=[entry], listen=[{"name": "here", **listener}],
        certificates=[files] if files else [], auth={"failures": bounds},
        limits={"errors": 1000}, hook_limits=limits or {},
    ) as port:  # fmt: skip
        yield port


def speak(port: int, lines: list[str], root: Certificate) -> list[tuple[str, str]]:
    """Each line and its reply; <TLS> does a handshake."""
    with Client(port) as client:
        said = [("", client.reply())]
        for line in lines:
            if line == "<TLS>":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_verify_locations(cadata=root.der)
                client.over(context.wrap_socket(client.socket, server_hostname="mx.example"))
            else:
                said.append((line, flat(line, client.say(line))))
        return said[1:]


def flat(line: str, reply: str) -> str:
    """A reply in one line; of EHLO only the two extensions."""
    if line.startswith("EHLO") and reply[:3] == "250":
        words = re.findall(r"^250[ -](STARTTLS|AUTH .*)$", reply, re.MULTILINE)
        return "250 " + (" / ".join(sorted(words)) or "neither")
    return re.sub(r"Mechanisms: .*", "Mechanisms: LIST", reply.replace("\n", " / "))


def compare(
    stock: tuple[Callable[[Any], Any], Any], ours: tuple[Callable[[Any], Any], Any],
    dialogues: list[list[str]], root: Certificate,
) -> set[tuple[str, str]]:  # fmt: skip
    said = []
    for serve, handler in (stock, ours):
        with serve(handler) as port, ThreadPoolExecutor(16) as pool:
            said.append(list(pool.map(lambda lines, p=port: speak(p, lines, root), dialogues)))
    pairs = set()
    for theirs, mine in zip(*said, strict=True):
        for (_, one), (_, two) in zip(theirs, mine, strict=True):
            pairs |= {(one, two)} if one != two else set()
    return pairs


def test_same_replies(
    database: str,
    files: dict[str, str],
    root: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Login, "addresses", ("any",))  # aiosmtpd binds no user to addresses
    users = str(tmp_path / "users.db")
    open_auth: dict[str, Any] = {"auth": "offered", "auth_without_tls": True}
    different = set()

    def both(
        make: Callable[[], Any], dialogues: list[list[str]], *, certified: bool = False,
        stock: dict[str, Any], **listener: Any,
    ) -> None:  # fmt: skip
        theirs, mine = make(), make()
        judge = theirs if callable(theirs) else getattr(theirs, "authenticator", None)
        entry = mine
        if callable(mine):
            reference = "tests.smtpd.handlers.logins:Users"
            entry = {"authenticator": reference, "arguments": [users]}
        certificate = files if certified else None
        nonlocal different
        found = compare(
            (lambda one: controlling(one, certificate, authenticator=judge, **stock), theirs),
            (lambda one: hooked(database, one, certificate, **listener), entry),
            dialogues, root,
        )  # fmt: skip
        different |= found
        if hasattr(mine, "seen"):
            assert sorted(map(repr, mine.seen)) == sorted(map(repr, theirs.seen))

    plain_text = {"auth_require_tls": False}
    both(lambda: logins.Users(users), ORDER + EXCHANGES, stock=plain_text, **open_auth)
    both(logins.Peeker, FORMS, stock=plain_text, **open_auth)
    both(logins.Whole, WHOLE, stock=plain_text, **open_auth)
    both(logins.Handshake, TLS, certified=True, stock={})
    both(lambda: logins.Handshake(secure=False), TLS[:2], certified=True, stock={})
    both(
        logins.Handshake, REQUIRED, certified=True, stock={"require_starttls": True}, tls="required"
    )
    both(logins.Handshake, [["EHLO c", "STARTTLS"]], stock={})
    both(lambda: logins.Users(users), ENCRYPTED, certified=True, stock={}, auth="offered")
    needed: dict[str, Any] = {**plain_text, "auth_required": True}
    both(lambda: logins.Users(users), NEEDED, stock=needed, **{**open_auth, "auth": "required"})
    different -= set(differences())
    known = set(differences(HEADING))
    assert different == known, sorted(different ^ known)


FAILING = ("true", "text", "failure with 2xx", "success with 5xx", "injection", "name",
           "name of a key", "slow", "secret in error", "secret in message")  # fmt: skip
ODD = [
    *([f"AUTH PLAIN {plain(name, 'Geheim')}", "454 4.7.0"] for name in (*FAILING, "none")),
    [f"AUTH PLAIN {plain('truthy', 'x')}", "535 5.7.8"],
    ["AUTH ASK", "454 4.7.0"],
    ["AUTH SECRET", "334 eA==", b64("Geheim"), "454 4.7.0"],
    ["AUTH ANYWAY", "334 eA==", "*", "501 5.7.0"],
    ["AUTH ANYWAY", "334 eA==", "x@", "501 5.5.2"],
    ["AUTH ANYWAY", "334 eA==", "x" * 20_000, "501 5.5.2"],
    ["NOOP", "451 4.3.0"],
]


@pytest.mark.slow
def test_no_odd_answer_lets_a_client_in(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "_LOG_INTERVAL_S", 0.0)  # every failure is logged

    def attempt(lines: list[str]) -> None:
        with Client(port).hello() as client:
            for line, expected in zip(lines[::2], lines[1::2], strict=True):
                reply = client.say(line)
                assert reply.startswith(expected), (line, reply)
                assert "\n" not in reply
            assert client.say(MAIL)[:9] == "530 5.7.0"

    with capture_logs() as log, hooked(
        database, logins.Odd(), auth="required", auth_without_tls=True, limits={"time": "5s"}
    ) as port, ThreadPoolExecutor(16) as pool:  # fmt: skip
        list(pool.map(attempt, ODD))
    reasons = [line["reason"] for line in log if line["event"] == "hook failed"]
    assert len(reasons) == len(FAILING) + 4
    assert sum("KeyError (" in reason for reason in reasons) == 2
    assert "Geheim" not in repr(log)


def test_users_of_hooks_are_in_the_rows(database: str, db: psycopg.Connection) -> None:
    add_user(database, "ann", "Geheim, 42", any_sender=True)
    handler = logins.Named()
    data = ["RCPT TO:<r@example.com>", "DATA", "From: s@a.example\r\n\r\nx\r\n."]
    with hooked(database, handler, auth="required", auth_without_tls=True) as port:
        for login in ("AUTH TOKEN dG9rZW4=", f"AUTH PLAIN {plain('ann', 'Geheim, 42')}"):
            with Client(port) as client:
                client.reply()
                keywords = client.say("EHLO c")
                assert "AUTH PLAIN LOGIN SCRAM-SHA-256 TOKEN" in keywords
                assert client.say("AUTH TOKEN eA==")[:3] == "535"
                assert client.say(login) == "235 2.7.0 Authentication successful"
                if "TOKEN" in login:
                    assert client.say("MAIL FROM:<s@b.example>")[:9] == "553 5.7.1"
                assert [client.say(line)[0] for line in (MAIL, *data)] == ["2", "2", "3", "2"]
    (named, known) = handler.seen
    assert (named[0], named[1].tenant) == (True, "t1")
    assert known == (True, LoginPassword(b"ann", b""))
    rows = db.execute(
        "SELECT m.submitted_by, q.tenant, q.metadata FROM messages m "
        "JOIN queue q ON q.message_id = m.id ORDER BY q.id"
    ).fetchall()
    assert rows == [("service", "t1", {"from": "hook"}), ("ann", "", {})]


def _begins(port: int, last: str) -> bool:
    """Leave in an exchange, and return whether it had begun."""
    with Client(port).hello() as client:
        if last == "MQ==" and client.say("AUTH TWICE")[:3] != "334":
            return False
        return client.say(last)[:3] == "334"


def test_clients_that_leave_in_an_exchange_keep_no_call(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call ends soon after its client has left."""
    monkeypatch.setattr("smtpd.hooks.runner.MAX_CALLS", 2)
    settings: dict[str, Any] = {"auth": "required", "auth_without_tls": True}
    with hooked(database, logins.Peeker(), **settings) as port:
        for last in ("AUTH TWICE", "MQ==", "AUTH CRAM-MD5", "AUTH TWICE", "MQ=="):
            until(partial(_begins, port, last))
        until(partial(_begins, port, "AUTH TWICE"))
        with Client(port).hello() as client:
            until(lambda: client.say("AUTH TWICE")[:3] == "334")
            assert client.say("MQ==")[:3] == "334"
            assert client.say("Mg==")[:3] == "235"


def example(heading: str, kind: str) -> str:
    """The first block of a kind in a section of docs/programs/hooks.md."""
    text = DOCS.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    return text.partition(f"```{kind}\n")[2].partition("```")[0]


def test_the_authenticator_of_the_documentation(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "site_users.py").write_text(example("Logins", "python"))
    salt = b"0123456789abcdef"
    key = hashlib.scrypt(b"secret", salt=salt, n=16384, r=8, p=1)
    (tmp_path / "passwords").write_text(f"good:{salt.hex()}:{key.hex()}\n")
    text = example("Logins", "yaml").replace("/etc/pgmta", str(tmp_path))
    (entry,) = yaml.safe_load(text)["hooks"]
    with hooked(database, entry, auth="required", auth_without_tls=True) as port:
        for line, expected in (
            (GOOD, "235"),
            (WRONG, "535"),
            (OTHER, "535"),
        ):
            with Client(port).hello() as client:
                assert client.say(line)[:3] == expected


def test_the_delivering_handler_of_the_documentation(
    database: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    maildir = tmp_path / "archive"
    text = example("Handlers that deliver", "yaml").replace("/var/mail/archive", str(maildir))
    (entry,) = yaml.safe_load(text)["hooks"]
    lines = ["EHLO c", MAIL, "RCPT TO:<r@example.com>", "DATA", "Subject: x\r\n\r\nx\r\n."]
    with hooked(database, entry) as port:
        for number in range(2):
            with Client(port) as client:
                client.reply()
                replies = [client.say(line) for line in lines]
            if not number:
                assert replies[-1] == "250 OK"  # that of the handler
                (copy,) = (maildir / "new").iterdir()
                assert b"X-RcptTo: r@example.com" in copy.read_bytes()
                shutil.rmtree(maildir)  # the archive is away
            else:
                assert re.fullmatch(r"250 2.0.0 \d+ queued", replies[-1])
    bodies = db.execute(
        "SELECT body FROM messages JOIN queue ON messages.id = message_id"
    ).fetchall()
    assert bodies == [(b"Subject: x\r\n\r\nx\r\n",)] * 2  # beside the queue
