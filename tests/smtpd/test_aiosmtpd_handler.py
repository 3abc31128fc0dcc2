"""AiosmtpdHandler: the mail of an aiosmtpd Controller goes into the queue as that of smtpd does."""

from __future__ import annotations

import asyncio
import signal
import smtplib
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller, UnixSocketController
from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import AuthResult
from structlog.testing import capture_logs

from pgmta.accounts.login import Login
from pgmta.errors import ConfigError
from pgmta.intake.committer import Committer
from pgmta.intake.content import Content, State
from pgmta.model import PART_OCTETS
from smtpd.aiosmtpd_handler import AiosmtpdHandler
from smtpd.message.incoming import IncomingMessage
from tests.smtpd.hooks.test_hooks_aiosmtpd import CONTENT, MAIL, differences, flat, speak
from tests.support.daemons import ROOT
from tests.support.rows import column
from tests.support.serving import serving
from tests.support.waiting import PATIENCE, free_port, until

HOST = {"environment": {"hostname": "mx.example"}}
OPEN = {**HOST, "relay": {"networks": ["127.0.0.1"]}}
RELAYED = [
    "NOOP", "EHLO c.example", "NOOP x", "VRFY r@example.org", *MAIL[:1],
    "RCPT TO:<r@elsewhere.example>", "RCPT TO:<r%elsewhere.example@example.org>",
    "RCPT TO:<postmaster@mx.example>", "RCPT TO:<r@example.org>", "RCPT TO:<r@EXAMPLE.org>",
    *CONTENT, "MAIL FROM:<ü@é.example> SMTPUTF8", "RCPT TO:<ü@example.org>", "RSET", "DATA",
    "MAIL FROM:<>", "RCPT TO:<r@example.org>", "DATA", "Received: x\r\n" * 101 + "\r\n.",
    "MAIL FROM:<>", "RCPT TO:<r@example.org>", "DATA", "a\n.\nMAIL FROM:<e@a.example>\r\n.",
    "MAIL FROM:<>", "RCPT TO:<r@example.org>", "DATA", ("y" * 900 + "\r\n") * 1200 + ".", "QUIT",
]  # fmt: skip


@contextmanager
def controlling(handler: AiosmtpdHandler, **options: Any) -> Iterator[int]:
    """The port of a Controller with this handler."""
    port = free_port()
    controller = Controller(
        handler, hostname="127.0.0.1", port=port, server_hostname="mx.example",
        data_size_limit=50 << 20, **options,
    )  # fmt: skip
    controller.start()
    try:
        yield port
    finally:
        handler.close()
        controller.stop()


def test_the_dialogue_and_the_rows_are_those_of_smtpd(
    database: str, db: psycopg.Connection
) -> None:
    relay = {"networks": ["127.0.0.2"], "domains": ["example.org"]}
    with serving(database, relay=relay) as port:
        ours = speak(port, RELAYED)
    with controlling(AiosmtpdHandler(database, {**HOST, "relay": relay})) as port:
        stock = speak(port, RELAYED)
    added = "250-PIPELINING / "
    pairs = {
        (flat(theirs).replace(added, ""), flat(mine))
        for (_, theirs), (_, mine) in zip(stock, ours, strict=True)
    }
    assert {pair for pair in pairs if pair[0] != pair[1]} <= set(differences())
    rows = db.execute(
        "SELECT m.size, m.chunks, m.utf8, q.sender, q.recipient, q.status, "
        "regexp_replace(m.trace, 'id.*', '') FROM messages m JOIN queue q ON q.message_id = m.id "
        "ORDER BY q.id"
    ).fetchall()
    assert len(rows) == 6
    assert rows[:3] == rows[3:]


def test_large_content_is_stored_octet_for_octet(database: str, db: psycopg.Connection) -> None:
    content = "Subject: ü\r\n\r\n..\r\n".encode() + (b"\xff" * 900 + b"\r\n") * 5000 + b".x\r\n"
    with controlling(AiosmtpdHandler(database, OPEN)) as port, smtplib.SMTP("127.0.0.1", port) as c:
        c.sendmail("ü@é.example", ["ü@example.org"], content, ["SMTPUTF8", "BODY=8BITMIME"])
    parts = db.execute("SELECT data FROM message_chunks ORDER BY position").fetchall()
    assert len(parts) > len(content) // PART_OCTETS
    assert b"".join(part for (part,) in parts) == content
    assert db.execute("SELECT utf8 FROM messages").fetchall() == [(True,)]


def test_lmtp_over_a_unix_socket(
    database: str, db: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = AiosmtpdHandler(database, HOST)
    path = str(tmp_path / "lmtp")
    controller = UnixSocketController(handler, path)
    monkeypatch.setattr(controller, "factory", lambda: LMTP(handler, hostname="mx.example"))
    controller.start()
    with smtplib.LMTP(path) as client:
        client.ehlo()  # says LHLO
        client.mail("s@a.example")
        for recipient in ("r@b.example", "r@b.example", "q@b.example"):
            assert client.rcpt(recipient)[0] == 250
        client.data("x")
        further = [client.getreply()[0] for _ in range(2)]
    handler.close()
    controller.stop()
    assert further == [250, 250]
    assert column(db, "SELECT recipient FROM queue ORDER BY id") == ["r@b.example", "q@b.example"]
    assert "with LMTP id" in column(db, "SELECT trace FROM messages")[0]


def authenticate(_: Any, __: Any, ___: Any, ____: str, data: Any) -> AuthResult:
    if data.login == b"ann":
        return AuthResult(success=True, auth_data=data)
    login = Login("service", "PLAIN", tenant="t1", senders=("any",))
    return AuthResult(success=True, auth_data=login)


def test_users_of_the_controller(
    database: str, db: psycopg.Connection, files: dict[str, str]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["certificate"], files["key"])
    handler = AiosmtpdHandler(database, {**HOST, "relay": {"networks": []}})
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with controlling(handler, tls_context=context, authenticator=authenticate) as port:
        for user in ("", "ann", "other"):
            with smtplib.SMTP("127.0.0.1", port) as client:
                client.starttls(context=trust)
                if user:
                    client.login(user, "secret")
                client.ehlo("c.example")
                mail = client.mail("s@a.example")
                assert mail[0] == (553 if user == "ann" else 250)
                if user != "ann":
                    assert client.rcpt("r@b.example")[0] == (250 if user else 550)
                if user == "other":
                    assert client.data("From: x@y.example\r\n\r\nx")[0] == 250
    [row] = db.execute(
        "SELECT m.trace, m.submitted_by, q.tenant FROM messages m JOIN queue q ON message_id = m.id"
    ).fetchall()
    assert "with ESMTPSA" in row[0]
    assert row[1:] == ("service", "t1")


def test_the_client_that_a_proxy_names_counts(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trigger(controller: Controller) -> None:  # its own waits for the end of the time
        with socket.create_connection(("127.0.0.1", controller.port)) as client:
            client.sendall(b"no header\r\n")  # else the connection stays open for that time

    monkeypatch.setattr(Controller, "_trigger_server", trigger)

    class Proxied(AiosmtpdHandler):
        async def handle_PROXY(self, *_: Any) -> bool:
            return True

    handler = Proxied(database, OPEN)
    rcpt = ["EHLO c", "MAIL FROM:<s@a.example>", "RCPT TO:<r@b.example>"]
    with controlling(handler, proxy_protocol_timeout=PATIENCE) as port:
        for header, code in (
            ("TCP4 127.0.0.1 127.0.0.1 1 25", "250"), ("TCP4 192.0.2.1 127.0.0.1 1 25", "550"),
            ("UNKNOWN", "550"),
        ):  # fmt: skip
            with socket.create_connection(("127.0.0.1", port)) as client, client.makefile() as back:
                client.sendall(f"PROXY {header}\r\n".encode())
                assert back.readline()[:3] == "220"
                for line in rcpt:
                    client.sendall(f"{line}\r\n".encode())
                    while (reply := back.readline())[3] == "-":
                        pass
                assert reply[:3] == code, header


class Changing(AiosmtpdHandler):
    """Changes envelopes as the first word of their recipient says."""

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        word = envelope.rcpt_tos[0].partition("@")[0]
        if word == "add":
            envelope.rcpt_tos.append("archive@b.example")
            envelope.pgmta.priority = 2
            envelope.content = b"X-Seen: yes\r\n" + envelope.content
        if word == "wrong":
            envelope.rcpt_tos.append("no address")
        if word == "raise":
            raise RuntimeError("on purpose")
        return await super().handle_DATA(server, session, envelope)


def test_a_subclass_may_change_the_envelope(database: str, db: psycopg.Connection) -> None:
    said = {}
    with capture_logs() as logged, controlling(Changing(database, OPEN)) as port:
        for word in ("add", "wrong", "raise"):
            lines = ["EHLO c", MAIL[0], f"RCPT TO:<{word}@b.example>", "DATA", "\r\nx\r\n."]
            said[word] = speak(port, lines)[-1][1][:9]
    assert said == {"add": "250 2.0.0", "wrong": "451 4.3.0", "raise": "451 4.3.0"}
    assert [line["event"] for line in logged if line["log_level"] == "error"] == [
        "the handler has changed the envelope", "error in a session",
    ]  # fmt: skip
    rows = db.execute("SELECT recipient, priority FROM queue ORDER BY id").fetchall()
    assert rows == [("add@b.example", 2), ("archive@b.example", 2)]
    assert column(db, "SELECT body FROM messages") == [b"X-Seen: yes\r\n\r\nx\r\n"]


def test_an_error_before_the_commit_is_answered(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(_: IncomingMessage) -> str:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(IncomingMessage, "prepare", prepare)
    with controlling(AiosmtpdHandler(database, OPEN)) as port:
        lines = ["EHLO c", "MAIL FROM:<s@a.example>", "RCPT TO:<r@b.example>", "DATA", "x\r\n."]
        assert speak(port, lines)[-1][1] == "451 4.3.0 Internal error, try again later"


def test_mail_is_deferred_while_there_is_no_database() -> None:
    uri = f"postgresql://absent@127.0.0.1:{free_port()}/nowhere"
    with controlling(AiosmtpdHandler(uri, {**OPEN, "ingest": {"patience": "0s"}})) as port:
        lines = ["EHLO c", "MAIL FROM:<s@a.example>", "RCPT TO:<r@b.example>", "DATA", "x\r\n."]
        assert "451 4.3.0" in {reply[:9] for _, reply in speak(port, lines)}


def test_close_waits_for_messages_under_way(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = AiosmtpdHandler(database, OPEN)
    real, held = Committer.commit, []
    monkeypatch.setattr(Committer, "commit", lambda *arguments: held.append(arguments))
    lines = ["EHLO c", "MAIL FROM:<s@a.example>", "RCPT TO:<r@b.example>", "DATA", "x\r\n."]
    with controlling(handler) as port, smtplib.SMTP("127.0.0.1", port) as late:
        late.ehlo()
        with ThreadPoolExecutor(2) as pool:
            sending = pool.submit(speak, port, lines)
            until(lambda: held)
            closing = pool.submit(handler.close, PATIENCE)
            while late.mail("s@a.example")[0] != 421:
                late.rset()
            assert not closing.done()
            assert handler._server
            handler._server.loop.call_soon_threadsafe(real, *held[0])
            assert sending.result()[-1][1][:9] == "250 2.0.0"
            closing.result()
    assert column(db, "SELECT recipient FROM queue") == ["r@b.example"]


def test_commands_may_be_pipelined(database: str, db: psycopg.Connection) -> None:
    lines = ["MAIL FROM:<s@a.example>", "RCPT TO:<r@b.example>", "DATA"]
    with controlling(AiosmtpdHandler(database, OPEN)) as port, smtplib.SMTP("127.0.0.1", port) as c:
        c.ehlo()
        assert c.has_extn("pipelining")
        c.send("".join(f"{line}\r\n" for line in lines).encode())
        assert [c.getreply()[0] for _ in lines] == [250, 250, 354]
        c.send(b"x\r\n.\r\n")
        assert c.getreply()[0] == 250
    assert column(db, "SELECT recipient FROM queue") == ["r@b.example"]


def test_mail_of_a_client_that_has_gone_is_given_up(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Any] = []
    monkeypatch.setattr(Committer, "commit", lambda *arguments: held.append(arguments))
    lines = ["EHLO c", "MAIL FROM:<s@a.example>", "RCPT TO:<r@b.example>", "DATA", "x", ".", ""]
    with controlling(AiosmtpdHandler(database, OPEN)) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall("\r\n".join(lines).encode())
            until(lambda: held)
            content: Content = held[0][1]
            assert content.state is State.MEMORY
        until(lambda: content.state is State.DISCARDED)


def test_a_handler_belongs_to_one_loop(database: str) -> None:
    handler = AiosmtpdHandler(database, OPEN)
    with controlling(handler), pytest.raises(RuntimeError, match="one Controller"):
        _begin_twice(handler)


def _begin_twice(handler: AiosmtpdHandler) -> None:
    async def begin() -> None:
        handler._begin()

    async def end() -> None:
        await handler.aclose()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(begin())
        try:
            second.run(begin())
        finally:
            first.run(end())


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({"relay": {"network": []}}, ["relay.network: unknown key; did you mean 'networks'?"]),
        ({"relay": 1}, ["relay: expected a mapping of keys"]),
        (
            {"hooks": [], "listen": [{}], "limits": {"hops": 5, "connections": 5},
             "environment": {"database": {"uri": "postgresql:///x"}}, "log": {"format": "json"}},
            [f"{key}: has no effect on a Controller" for key in (
                "environment.database", "hooks", "limits.connections", "listen", "log.format",
            )],
        ),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(settings: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        AiosmtpdHandler("postgresql:///x", settings)
    assert caught.value.problems == problems


@pytest.mark.slow
def test_the_example_tells_mistakes_in_one_line() -> None:
    usage = "usage: examples/aiosmtpd_controller.py URI PORT"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, said in (
            ((), usage), (("postgresql:///x", "smtp"), usage),
            (("postgresq://x", "0"), "uri: is no libpq connection string: "),
            (("postgresql:///x", port), "[Errno "),
        ):  # fmt: skip
            result = subprocess.run(
                [sys.executable, "examples/aiosmtpd_controller.py", *arguments],
                capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE, check=False,
            )  # fmt: skip
            assert (result.returncode, result.stdout) == (1, "")
            [line] = result.stderr.splitlines()
            assert line.startswith(said)


def test_the_example_puts_mail_into_the_queue(database: str, db: psycopg.Connection) -> None:
    port = free_port()
    program = ROOT / "examples" / "aiosmtpd_controller.py"
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(program), database, str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            with smtplib.SMTP("127.0.0.1", port) as client:
                to = ["r@example.com", "nobody@example.com", "urgent@example.com"]
                refused = client.sendmail("s@a.example", to, "Subject: x\r\n\r\nhello\r\n")
            assert refused == {"nobody@example.com": (550, b"5.1.1 No such recipient")}
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    rows = db.execute("SELECT recipient, priority, status FROM queue ORDER BY id").fetchall()
    assert rows == [("r@example.com", 0, "QUEUED"), ("urgent@example.com", 0, "QUEUED")]
    assert column(db, "SELECT body FROM messages") == [b"Subject: x\r\n\r\nhello\r\n"]
