"""The log: a line for each message that smtpd has taken, and one name for each session."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from pgmta.config.environment import Log
from pgmta.errors import StoreUnavailable
from pgmta.logs import Lines
from pgmta.store.queue.enqueue import Enqueue
from smtpd.config.smtpd_config import SmtpdLog
from smtpd.server.log import AcceptedLog
from tests.support.serving import Client, serving
from tests.support.users import add_user, log_in
from tests.support.waiting import until

AUTH = {"name": "mx", "auth": "offered", "auth_without_tls": True, "early": "allow"}
MESSAGE = b"From: a@b.example\r\nSubject: x\r\n\r\nx\r\n.\r\n"


def accepted(text: str) -> list[dict[str, str]]:
    """The fields of each line `accepted` in the form for people; no value has a blank."""
    return [
        dict(part.split("=", 1) for part in line.partition("accepted ")[2].split())
        for line in text.splitlines()
        if "] accepted " in line
    ]


def send(client: Client, sender: str = "a@b.example", *recipients: str) -> str:
    """The message id of a message."""
    for command in (
        f"MAIL FROM:<{sender}>",
        *(f"RCPT TO:<{each}>" for each in recipients or ("r@c.example",)),
        "DATA",
    ):
        assert client.say(command)[0] in "23"
    client.send(MESSAGE)
    reply = client.reply()
    assert reply[:3] == "250"
    return reply.split()[2]


def test_one_name_finds_all_lines_of_a_session(
    database: str, capfd: pytest.CaptureFixture[str]
) -> None:
    add_user(database, "ann@b.example", "right one", senders=["@b.example"])
    with (
        capture_logs([merge_contextvars]) as log,
        serving(database, listen=[AUTH], auth={"mechanisms": ["PLAIN"]}) as port,
        Client(port) as client,
        Client(port, "127.0.0.2") as other,
    ):
        client.hello()
        assert log_in(client, "ann@b.example", "wrong one")[:3] == "535"
        assert log_in(client, "ann@b.example", "right one")[:3] == "235"
        assert client.say("MAIL FROM:<a@elsewhere.example>")[:3] == "553"
        number = send(client, "a@b.example", "r@c.example", "s@c.example")
        client.send(b"WHAT\r\n" * 6)
        client.rest()
        other.hello()
        second = send(other)
    first, last = accepted(until_lines(capfd, 2))
    session = first.pop("session")
    assert first == {
        "id": number, "recipients": "2", "size": "36", "sender": "a@b.example",
        "client": "127.0.0.1", "user": "ann@b.example", "listener": "mx",
        "daemon": "smtpd", "part": "session",
    }  # fmt: skip
    assert last["id"] == second
    assert "user" not in last
    assert last["session"] != session
    found = [line for line in log if line.get("session") == session]
    assert [line["event"] for line in found] == [
        "login failed", "refused", *["refused"] * (len(found) - 3), "session ended by a limit",
    ]  # fmt: skip
    assert {line["listener"] for line in found} == {"mx"}
    assert {line.get("session") for line in log} == {session}


def until_lines(capfd: pytest.CaptureFixture[str], number: int) -> str:
    text = ""

    def read() -> bool:
        nonlocal text
        text += capfd.readouterr().err
        return text.count("] accepted ") >= number

    until(read)
    return text


def test_a_failed_handshake_names_session_and_listener(
    database: str, files: dict[str, str]
) -> None:
    relay = {"networks": [], "domains": ["c.example"]}
    with (
        capture_logs() as log,
        serving(database, certificates=[files], relay=relay) as port,
        Client(port) as client,
    ):
        client.hello()
        client.say("MAIL FROM:<a@b.example>")
        assert client.say("RCPT TO:<r@elsewhere.example>")[:3] == "550"
        assert client.say("STARTTLS")[:3] == "220"
        client.send(b"no TLS at all\r\n")
        assert client.rest() == []
        until(lambda: len(log) > 1)
    refused, failed = log
    assert failed["event"] == "TLS handshakes failed"
    assert failed["session"] == refused["session"]
    assert failed["listener"] == refused["listener"] == "here"
    assert failed["reason"]


def test_no_line_before_the_commit_and_one_for_a_client_that_has_gone(
    database: str,
    db: psycopg.Connection,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line says that the message is in the queue; without a commit there is none."""
    real = Enqueue.commit
    gone: list[int] = []

    async def commit(self: Enqueue, group: list[Any], *rest: Any, **more: Any) -> bool:
        assert "] accepted " not in capfd.readouterr().err
        if group[0].sender.startswith("lost"):
            raise StoreUnavailable("away")
        if group[0].sender.startswith("gone"):
            os.close(gone.pop())  # the client
        return await real(self, group, *rest, **more)

    monkeypatch.setattr(Enqueue, "commit", commit)
    with serving(database) as port, Client(port) as client:
        for sender in ("lost@b.example", "gone@b.example"):
            with Client(port) as each:
                each.reply()
                each.send(b"HELO c\r\nMAIL FROM:<%s>\r\n" % sender.encode())
                each.send(b"RCPT TO:<r@c.example>\r\nDATA\r\n")
                replies = [each.reply() for _ in range(4)]
                assert replies[-1][:3] == "354"
                if sender.startswith("gone"):
                    gone.append(os.dup(each.socket.fileno()))
                each.send(MESSAGE)
                if sender.startswith("lost"):
                    assert each.reply()[:3] == "451"
        (line,) = accepted(until_lines(capfd, 1))
        del client
    assert db.execute("SELECT id::text, 'gone@b.example' FROM messages").fetchall() == [
        (line["id"], line["sender"])
    ]


def test_the_line_can_be_switched_off(database: str, capfd: pytest.CaptureFixture[str]) -> None:
    for log in ({"accepted": False}, {"level": "warning"}):
        with serving(database, log=log) as port, Client(port).hello() as client:
            send(client)
    assert "accepted" not in capfd.readouterr().err


HOSTILE = [
    '"x user=root"@b',
    "\u202ex@b",
    "x\x1b[2J\n2026 [info] accepted id=9@b",
    "é@b",
    "a\\'%s@b",
]


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_word_of_a_peer_forges_a_field_or_a_line(
    form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    senders = ["'@b", "a=b@b", "id='x@b", "x{}%s@b", '"\\\\ client=\'"@b', "é'@b", "", *HOSTILE]
    user = "a 'user=%s \n\x1b"

    async def note() -> None:
        log = AcceptedLog(SmtpdLog(format=form), asyncio.get_running_loop())  # type: ignore[arg-type]
        template = log.template("::1", user, "mx", "s-1")
        for number, sender in enumerate(senders):
            message = SimpleNamespace(id=number, sender=sender, recipients=[""], size=1)
            log.note([SimpleNamespace(message=message, log_template=template)])  # type: ignore[list-item]
        log.write_line()

    asyncio.run(note())
    text = capfd.readouterr().err
    lines = text.splitlines()
    assert len(lines) == text.count("\n") == len(senders)
    assert text.replace("\n", "").isprintable()
    if form == "json":
        found = [json.loads(line) for line in lines]
        assert [(each["sender"], each["user"]) for each in found] == [(s, user) for s in senders]
        assert {(each["event"], each["level"], each["daemon"]) for each in found} == {
            ("accepted", "info", "smtpd")
        }
        return
    names = ["id", "recipients", "size", "sender", "client", "user", "listener", "session"]
    for line in lines:
        fields = shlex.split(line.replace("\\'", "").partition(" accepted ")[2])
        assert [field.partition("=")[0] for field in fields] == [*names, "daemon", "part"]


def test_many_lines_leave_in_few_whole_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(Log(), "accepted")
    written: list[str] = []
    monkeypatch.setattr(lines._stream, "write", written.append)
    lines.write([f"{lines.head()}id={number} {'x' * 150}" for number in range(100)])
    assert [line.split()[4] for line in "".join(written).splitlines()] == [
        f"id={number}" for number in range(100)
    ]
    assert all(text.endswith("\n") and len(text) <= 4096 for text in written)
    assert len(written) < 10
    written.clear()
    lines.write(["漢" * 100] * 40)
    assert all(len(text.encode()) <= 4096 for text in written)
    assert "".join(written).split() == ["漢" * 100] * 40
    lines.write(["x" * 5000])
    assert written[-1].endswith("x\n")
