"""Hooks beyond aiosmtpd's interface: decisions, header, files, threads, failures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from tests.smtpd.handlers import beyond
from tests.smtpd.hooks.test_hooks import DATA, MAIL, RELAY, speak
from tests.smtpd.session.test_dialogue import stored
from tests.support.serving import Client, serving
from tests.support.waiting import until

LIMITS = {"errors": 1000, "message_size": "30MB"}
FAILED = "451 4.3.0 Hook failed, try again later$"


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    beyond.SEEN.clear()
    beyond.BEGUN.clear()
    yield
    beyond.SEEN.clear()


def config(name: str, **entry: Any) -> dict[str, Any]:
    hook = {"handler": f"tests.smtpd.handlers.beyond:{name}", **entry}
    return {"hooks": [hook], "relay": RELAY, "limits": LIMITS}


def test_decisions_reach_the_rows(database: str, db: psycopg.Connection) -> None:
    rules = {"metadata": {"class": {"from": "listener"}, "client": {"from": "client"}}}
    with serving(database, **config("Decider"), **rules) as port, Client(port) as client:
        client.reply()
        speak(client, [
            "EHLO c > 250", MAIL, "RCPT TO:<plain@example.org> > 250",
            "RCPT TO:<refused@example.org> > 550", DATA, "Subject: a\r\n\r\nx\r\n. > 250 2.0.0",
            MAIL, "RCPT TO:<urgent@example.org> > 250", "RCPT TO:<other@example.org> > 451",
            *(f"RCPT TO:<{word}@example.org> > {FAILED}" for word in beyond.WRONG),
            DATA, "X-Scan: b\r\n c\r\nX-B:\r\n\r\nX-C: d\r\n. > 250 2.0.0",
            MAIL, "RCPT TO:<held@example.org> > 250", DATA, "x\r\n. > 250",
            MAIL, "RCPT TO:<r@example.org> > 250", "RCPT TO:<postmaster> > 250", DATA,
            "X-Virus: v1\r\n\r\n\r\n. > 250",
            MAIL, "RCPT TO:<r@example.org> > 250", DATA,
            "X-Refuse: v1\r\n\r\n\r\n. > 554 5.7.1 Not this header$", "NOOP > 250",
        ])  # fmt: skip
    rows = db.execute(
        "SELECT recipient, priority, status, hold_reason, metadata, split_part(trace, 'from', 1) "
        "FROM queue JOIN messages ON messages.id = message_id ORDER BY queue.id"
    ).fetchall()
    usual = {"class": "here", "client": "127.0.0.1"}
    scanned = "X-Scanned: yes\r\nX-Long: a\r\n b\r\nReceived: "
    jailed = ("HOLD", "quarantine v1", {**usual, "_quarantineid": "v1"}, "Received: ")
    assert rows == [
        ("plain@example.org", 5, "QUEUED", None, usual, "Received: "),
        ("urgent@example.org", 0, "QUEUED", None, {**usual, "class": "urgent"}, scanned),
        ("held@example.org", 5, "HOLD", "by a hook", usual, "Received: "),
        ("r@example.org", 5, *jailed),
        ("postmaster@mx.example", 5, *jailed),
    ]
    assert beyond.SEEN[1] == [("X-Scan", "b c"), ("X-B", "")]


@pytest.mark.parametrize(
    ("on_failure", "reply"),
    [("accept", "250 2.1.5 Ok$"), ("defer", FAILED), ("reject", "554 5.3.0 Hook failed$")],
)
def test_what_follows_from_a_failure(
    database: str, db: psycopg.Connection, on_failure: str, reply: str
) -> None:
    settings = config("Failing", on_failure=on_failure)
    with serving(database, **settings) as port, Client(port) as client:
        client.reply()
        speak(client, [
            "EHLO c > 250", MAIL, f"RCPT TO:<raise@example.org> > {reply}",
            f"RCPT TO:<none@example.org> > {reply}", "RCPT TO:<r@example.org> > 250",
            "RCPT TO:<raise@elsewhere.example> > 550 5.7.1 Relaying denied", DATA,
        ])  # fmt: skip
        ended = client.say("raise\r\n.")
    if on_failure == "accept":
        assert ended.endswith(" queued")
        recipients = [f"{name}@example.org" for name in ("raise", "none", "r")]
        assert stored(db) == [("s@a.example", recipients, b"raise\r\n")]
    else:
        assert ended == reply.rstrip("$")
        assert stored(db) == []


@pytest.mark.parametrize("name", ["Sleeper", "Blocker"])
def test_blocking_handlers_in_a_pool(database: str, name: str) -> None:
    settings = config(name, sync="thread")

    def rcpt(client: Client, seconds: float) -> str:
        return client.say(f"RCPT TO:<{seconds}@example.org>")

    patient = settings | {"hook_limits": {"threads": 4, "time": "60s"}}
    with serving(database, **patient) as port:
        clients = [Client(port) for _ in range(8)]
        for client in clients:
            client.reply()
            speak(client, ["EHLO c > 250", MAIL])
        with ThreadPoolExecutor(8) as pool:
            began = time.monotonic()
            replies = list(pool.map(rcpt, clients, [0.3] * 8))
            spent = time.monotonic() - began
        assert replies == ["250 2.1.5 Ok"] * 8
        assert len(set(beyond.SEEN)) == 4
        assert spent >= 0.6  # two rounds of four
        for client in clients:
            client.__exit__()
    limited = settings | {"hook_limits": {"threads": 4, "time": "1s"}}
    with capture_logs() as log, serving(database, **limited) as port, Client(port) as client:
        client.reply()
        speak(client, ["EHLO c > 250", MAIL])
        began = time.monotonic()
        assert rcpt(client, 1.5) == FAILED.rstrip("$")
        assert time.monotonic() - began >= 0.9  # timers may fire a moment early
        assert rcpt(client, 0.0) == "250 2.1.5 Ok"
    assert [line["reason"] for line in log if "hook" in line["event"]] == ["no answer after 1 s"]
    until(lambda: len(beyond.SEEN) == 10)  # the call that was given up ends its sleep


def test_a_blocking_handler_is_named(database: str) -> None:
    with (
        capture_logs() as log,
        serving(database, **config("Blocker")) as port,
        Client(port) as one,
        Client(port) as two,
    ):
        for client in (one, two):
            client.reply()
            speak(client, ["EHLO c > 250", MAIL])
        one.send(b"RCPT TO:<0.6@example.org>\r\n")
        until(lambda: beyond.BEGUN)
        assert two.say("RCPT TO:<0@example.org>") == "250 2.1.5 Ok"
        assert one.reply() == "250 2.1.5 Ok"
    (line,) = [line for line in log if line["event"] == "hook blocks its thread"]
    assert line["hook"] == "tests.smtpd.handlers.beyond:Blocker"
    assert re.fullmatch(r"Blocker\.handle_RCPT \(.*/handlers/beyond\.py:\d+\)", line["place"])


LARGE = (b"y" * 98 + b"\r\n") * 20_000  # 2 MB


def test_large_content_is_a_file_for_the_hook(database: str, db: psycopg.Connection) -> None:
    settings = config("Reader")
    settings["hooks"] *= 2
    settings["hook_limits"] = {"content": "1MB"}
    with serving(database, **settings) as port, Client(port) as client:
        client.reply()
        speak(client, ["EHLO c > 250"])
        for start in (b"keep\r\n", b"refuse\r\n", b"change\r\n", b"small\r\n"):
            speak(client, [MAIL, "RCPT TO:<r@example.org> > 250", DATA])
            body = LARGE if start != b"small\r\n" else b""
            client.send(start + b"..dot\r\n" + body + b"end of it.\r\n.\r\n")
            reply = "554 5.7.1 No" if start == b"refuse\r\n" else "250 2.0.0"
            assert client.reply().startswith(reply)
    file = ("file", b"keep\r\n.dot", b"d of it.\r\n", 12 + len(LARGE) + 12)
    assert beyond.SEEN[:2] == [file, file]
    assert beyond.SEEN[2][1] == b"refuse\r\n.d"
    assert beyond.SEEN[3][1] == b"change\r\n.d"
    assert beyond.SEEN[4:] == [("bytes", 9)] + [("bytes", 25)] * 2
    rows = db.execute("SELECT size, chunks > 0 FROM messages ORDER BY id").fetchall()
    assert rows == [(file[3], True), (9, False), (25, False)]
    (kept,) = db.execute(
        "SELECT string_agg(data, ''::bytea ORDER BY position) FROM message_chunks "
        "JOIN messages ON messages.id = message_id"
    ).fetchone() or (b"",)
    assert kept == b"keep\r\n.dot\r\n" + LARGE + b"end of it.\r\n"


def test_connections_begin_and_end_with_a_hook(database: str) -> None:
    with serving(database, **config("Watcher")) as port:
        said: dict[str, list[str]] = {}
        for last in range(1, 7):
            address = f"127.0.0.{last}"
            with Client(port, address) as client:
                lines = said.setdefault(address, [client.reply()])
                if lines[0][:3] != "421":
                    lines += [client.say("EHLO c")[:4], client.say(MAIL[:-6]), client.say("QUIT")]
        until(lambda: sum(one[0] == "DISCONNECT" for one in beyond.SEEN) == 6)
    usual = ["220 mx.example ESMTP pgmta", "250-", "250 2.1.0 Ok", "221 2.0.0 Bye"]
    closed = "503 5.5.1 Bad sequence of commands: only QUIT is left"
    assert said == {
        "127.0.0.1": usual,
        "127.0.0.2": ["554 5.7.1 Not you", closed[:4], closed, "221 2.0.0 Bye"],
        "127.0.0.3": ["421 4.7.0 Later"],
        "127.0.0.4": ["220 mx.example hello", *usual[1:]],
        "127.0.0.5": ["451 4.3.0 Hook failed, try again later", closed[:4], closed, usual[3]],
        "127.0.0.6": usual,
    }
    assert beyond.SEEN[:2] == [("CONNECT", "127.0.0.1"), ("DISCONNECT", "127.0.0.1", "c")]
    assert ("DISCONNECT", "127.0.0.2", None) in beyond.SEEN
