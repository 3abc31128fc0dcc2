"""Decisions of hooks in sessions, and hostile hooks beside other sessions."""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from tests.smtpd.handlers import hostile
from tests.smtpd.session.test_dialogue import stored
from tests.support.serving import Client, serving
from tests.support.waiting import until

RELAY = {"networks": ["127.0.0.2"], "domains": ["example.org", "mx.example"]}
LIMITS = {"message_size": "3MB", "errors": 1000, "recipients": 100}
REWRITER = {"hooks": ["tests.smtpd.handlers.changing:Rewriter"], "relay": RELAY, "limits": LIMITS}
SCRIPT = {"hooks": ["tests.smtpd.handlers.hostile:Script"], "relay": RELAY, "limits": LIMITS}
FAILED = "451 4.3.0 Hook failed, try again later"
MAIL = "MAIL FROM:<s@a.example> > 250"
DATA = "DATA > 354"


@pytest.fixture(autouse=True)
def held() -> Iterator[None]:
    """Hooks that block do so until the test releases them, or ends."""
    hostile.release.clear()
    yield
    hostile.release.set()


def speak(client: Client, steps: list[str]) -> None:
    """Say lines; each has its expected reply behind " > "."""
    for step in steps:
        line, _, expected = step.rpartition(" > ")
        reply = client.say(line)
        assert re.match(expected, reply), f"{line[:70]!r}: {reply!r}, not {expected!r}"


def test_addresses_of_hooks_are_judged(database: str, db: psycopg.Connection) -> None:
    with serving(database, **REWRITER) as port, Client(port) as client:
        client.reply()
        speak(client, [
            "EHLO c > 250", "MAIL FROM:<number@a.example> > 451 4.3.0",
            "MAIL FROM:<wrong@a.example> > 451", "MAIL FROM:<utf8@a.example> > 451",
            "RCPT TO:<r@example.org> > 503 5.5.1 Send MAIL", MAIL,
            "RCPT TO:<r@elsewhere.example> > 550 5.7.1 Relaying denied",
            "RCPT TO:<drop@example.org> > 250 2.1.5 Noted", "DATA > 503 5.5.1 No valid",
            "RCPT TO:<alias@example.org> > 250 2.1.5 Noted",
            "RCPT TO:<outside@example.org> > 451", "RCPT TO:<inject@example.org> > 451",
            "RCPT TO:<number@example.org> > 451", "RCPT TO:<gone@example.org> > 451",
            "RCPT TO:<deleted@example.org> > 451",
            "RCPT TO:<refuse@example.org> > 550 5.1.1 No$",
            "RCPT TO:<missing@example.org> > 250 2.1.5 Ok", "RCPT TO:<R@EXAMPLE.org> > 250",
            "RCPT TO:<R@example.org> > 250", "RCPT TO:<one@example.org> > 250",
            "RCPT TO:<postmaster> > 250 2.1.5 Noted", DATA, "x\r\n. > 250 2.6.0 Mine$",
        ])  # fmt: skip
        recipients = [f"{name}@example.org" for name in ("one", "two", "missing")]
        recipients += ["R@EXAMPLE.org", "postmaster@mx.example"]
        assert stored(db) == [("s+noted@a.example", recipients, b"x\r\n")]
        speak(client, [
            "MAIL FROM:<null@a.example> > 250", "RCPT TO:<a@example.org> > 250",
            "RCPT TO:<b@example.org> > 250", "RCPT TO:<only@example.org> > 250", DATA,
            "x\r\n. > 250 2.6.0 Mine",
        ])  # fmt: skip
        assert stored(db)[1:] == [("", ["only@example.org"], b"x\r\n")]


ALIASES = {"hooks": ["tests.smtpd.handlers.changing:Aliases"], "relay": RELAY, "limits": LIMITS}


def test_a_rewritten_recipient_keeps_notify_and_orcpt(
    database: str, db: psycopg.Connection
) -> None:
    """RFC 3461, sections 5.2.1 and 5.2.7.1: ORCPT is what the sender has written."""
    with serving(database, **ALIASES) as port, Client(port) as client:
        client.reply()
        speak(client, [
            "EHLO c > 250", f"{MAIL[:-6]} ENVID=e1 RET=HDRS > 250",
            "RCPT TO:<x+one@example.org> NOTIFY=FAILURE ORCPT=rfc822;First@example.org > 250",
            "RCPT TO:<x+left+right@example.org> NOTIFY=NEVER > 250",
            "RCPT TO:<x+moved@example.org> > 250", "RCPT TO:<stays@example.org> NOTIFY=DELAY > 250",
            "RCPT TO:<second@example.org> NOTIFY=NEVER > 450", "RCPT TO:<second@example.org> > 250",
            "RCPT TO:<y+self+y@example.org> NOTIFY=DELAY > 250",
            DATA, "swap last@example.org\r\n. > 250",
            MAIL, "RCPT TO:<a@example.org> NOTIFY=NEVER > 250", "RCPT TO:<b@example.org> > 250",
            DATA, "add c@example.org d@example.org\r\n. > 250",
            MAIL, "RCPT TO:<a@example.org> NOTIFY=NEVER > 250",
            "RCPT TO:<b@example.org> NOTIFY=DELAY > 250", DATA, "remove a@example.org\r\n. > 250",
            MAIL, 'RCPT TO:<"q"@example.org> NOTIFY=NEVER > 250',
            DATA, "swap unquoted@example.org\r\n. > 250",
        ])  # fmt: skip
    rows = db.execute(
        "SELECT split_part(recipient, '@', 1), notify, orcpt FROM queue ORDER BY id"
    ).fetchall()
    assert rows == [
        ("last", "FAILURE", "rfc822;First@example.org"),
        ("left", "NEVER", "rfc822;x+2Bleft+2Bright@example.org"),
        ("right", "NEVER", "rfc822;x+2Bleft+2Bright@example.org"),
        ("moved", None, "rfc822;x+2Bmoved@example.org"),
        ("stays", "DELAY", None),
        ("second", None, None),
        ("self", "DELAY", "rfc822;y+2Bself+2By@example.org"),
        ("y", "DELAY", "rfc822;y+2Bself+2By@example.org"),
        ("a", "NEVER", None),
        ("b", None, None),
        ("c", None, None),
        ("d", None, None),
        ("b", "DELAY", None),
        ("unquoted", "NEVER", 'rfc822;"q"@example.org'),
    ]
    assert db.execute("SELECT envid, ret FROM messages ORDER BY id").fetchall()[0] == ("e1", "HDRS")


@pytest.mark.parametrize("source", ["file", "table"])
def test_recipients_of_hooks_are_looked_up(
    database: str,
    db: psycopg.Connection,
    tmp_path: Path,
    source: str,
) -> None:
    known = ["a@example.org", "b@example.org", "c@example.org"]
    known += [f"x+{each}@example.org" for each in ("b", "no")]
    (tmp_path / "known").write_text("\n".join(known))
    db.cursor().executemany("INSERT INTO recipients VALUES (%s)", [(each,) for each in known])
    entry = {"file": str(tmp_path / "known")} if source == "file" else {"table": True}
    config = {**ALIASES, "relay": RELAY | {"recipients": [entry]}}
    with capture_logs() as log, serving(database, **config) as port, Client(port) as client:
        client.reply()
        speak(client, [
            "EHLO c > 250", MAIL, "RCPT TO:<no@example.org> > 550 5.1.1",
            "RCPT TO:<x+no@example.org> > 451 4.3.0", "RCPT TO:<x+b@example.org> > 250",
            "RCPT TO:<a@example.org> > 250", DATA, "add c@example.org b@example.org\r\n. > 250",
            MAIL, "RCPT TO:<a@example.org> > 250",
            DATA, "add c@example.org none@example.org\r\n. > 451 4.3.0",
            MAIL, "RCPT TO:<a@example.org> > 250", DATA, "swap b@example.org\r\n. > 250",
        ])  # fmt: skip
    rows = db.execute("SELECT split_part(recipient, '@', 1) FROM queue ORDER BY id").fetchall()
    assert [row[0] for row in rows] == ["b", "a", "c", "b"]
    (failure,) = [each["reason"] for each in log if each["event"] == "hook failed"]
    assert failure.startswith("recipient 'no@example.org': 550 5.1.1")


@pytest.mark.parametrize(
    ("word", "reply", "content"),
    [
        ("change", "250 2.6.0 Mine$", b"X-Changed: yes\r\nchange\r\n"),
        ("dots", "250 2.6.0 Mine$", b".\r\n..\r\n.x\r\n.\r\n.\r\nno line end\r\n"),
        ("empty", "250 2.6.0 Mine$", b""),
        ("large", "250 2.6.0 Mine$", None),
        ("huge", "552 5.3.4 Message is larger", b""),
        ("smuggle", "550 5.5.2", b""),
        ("text", FAILED, b""),
        ("none left", FAILED, b""),
        ("redirect", "250 2.6.0 Mine$", b"redirect\r\n"),
        ("accepted", r"250 2.0.0 \d+ queued$", b"accepted\r\n"),
        ("default", r"250 2.0.0 \d+ queued$", b"default\r\n"),
        ("refuse", "554 5.7.1 No$", b""),
    ],
)
def test_content_of_hooks_is_checked(
    database: str, db: psycopg.Connection, word: str, reply: str, content: bytes | None
) -> None:
    with serving(database, **REWRITER) as port, Client(port) as client:
        client.reply()
        start = ["EHLO c > 250", MAIL, "RCPT TO:<r@example.org> > 250", DATA]
        speak(client, [*start, f"{word}\r\n. > {reply}", "NOOP > 250"])
        messages = db.execute(
            "SELECT q.sender, q.recipient, m.size, m.body FROM messages m "
            "JOIN queue q ON q.message_id = m.id"
        ).fetchall()
    if reply[0] != "2":
        assert messages == []
        return
    ((sender, recipient, size, body),) = messages
    new = word == "redirect"
    assert (sender, recipient) == (
        ("new@a.example", "new@example.org") if new else ("s+noted@a.example", "r@example.org")
    )
    assert body == content if content is not None else size == 2_000_002


def test_large_content_is_whole_for_the_hook_and_421_hangs_up(
    database: str, db: psycopg.Connection
) -> None:
    start = ["EHLO c > 250", MAIL, "RCPT TO:<r@example.org> > 250", DATA]
    body = ("y" * 998 + "\r\n") * 2500
    with serving(database, **REWRITER) as port, Client(port) as client:
        client.reply()
        speak(client, [*start, f"{body}change\r\n. > 250 2.6.0 Mine$", *start[1:]])
        client.send(b"bye\r\n.\r\nNOOP\r\n")
        assert client.rest() == ["421 4.3.2 Bye"]
    (row,) = db.execute("SELECT size, chunks > 0 FROM messages").fetchall()
    assert row == (len(body) + len("X-Changed: yes\r\nchange\r\n"), True)


def test_memory_of_content_for_hooks_is_bounded(database: str, db: psycopg.Connection) -> None:
    config = {**REWRITER, "limits": {**LIMITS, "memory": "1MB", "message_size": "30MB"}}
    start = ["EHLO c > 250", MAIL, "RCPT TO:<r@example.org> > 250", DATA]
    with serving(database, **config) as port, Client(port) as large, Client(port) as small:
        for client in (large, small):
            client.reply()
            speak(client, start)
        large.send(b"z" * 20_000_000 + b"\r\n")
        speak(small, ["x\r\n. > 250 2.6.0 Mine"])
        speak(large, [". > 451 4.3.0 Queue is unavailable", "NOOP > 250"])
    assert [body for _, _, body in stored(db)] == [b"x\r\n"]


def test_content_for_a_hook_is_never_written_ahead(database: str, db: psycopg.Connection) -> None:
    config = {**REWRITER, "limits": {**LIMITS, "memory": "2MB"}}
    begin = "EHLO c\r\nMAIL FROM:<s@a.example>\r\nRCPT TO:<r@example.org>\r\nDATA\r\nchange\r\n"
    content = (b"y" * 98 + b"\r\n") * 4000
    with serving(database, **config) as port, ExitStack() as stack:
        clients = [stack.enter_context(Client(port)) for _ in range(20)]
        for client in clients:
            client.send(begin.encode())
        for start in range(0, len(content), 4000):  # all at the same time, as a network brings it
            for client in clients:
                client.send(content[start : start + 4000])
        for client in clients:
            client.send(b".\r\nQUIT\r\n")
        ends = [client.rest()[-2][:3] for client in clients]
    assert set(ends) == {"250", "451"}
    whole = len(content) + len("X-Changed: yes\r\nchange\r\n")
    assert db.execute("SELECT size FROM messages").fetchall() == [(whole,)] * ends.count("250")
    orphans = "SELECT FROM message_chunks WHERE message_id NOT IN (SELECT id FROM messages)"
    assert not db.execute(orphans).fetchall()


def test_relay_hook_and_hooks_of_listeners(database: str, db: psycopg.Connection) -> None:
    listener = {"relay": "hook", "hooks": ["tests.smtpd.handlers.changing:OpenRelay"]}
    with serving(database, listen=[listener], relay=RELAY) as port, Client(port) as client:
        client.reply()
        speak(client, [
            "EHLO c > 250", MAIL, "RCPT TO:<friend@elsewhere.example> > 250 2.1.5 Friend",
            "RCPT TO:<r@example.org> > 550 5.7.1 No friend", DATA, "x\r\n. > 250 2.0.0",
        ])  # fmt: skip
        assert stored(db) == [("s@a.example", ["friend@elsewhere.example"], b"x\r\n")]
    listener = {"relay": "hook", "hooks": ["tests.smtpd.handlers.changing:Silent"]}
    with (
        serving(database, listen=[listener], relay=RELAY) as port,
        Client(port, "127.0.0.9") as client,
    ):
        client.reply()  # a hook that has no opinion makes no open relay
        speak(client, [
            "EHLO c > 250", MAIL, "RCPT TO:<missing@elsewhere.example> > 550 5.7.1",
            "RCPT TO:<missing@example.org> > 250", "RCPT TO:<postmaster> > 250",
        ])  # fmt: skip
    none = {**REWRITER, "listen": [{"hooks": []}]}
    with serving(database, **none) as port, Client(port) as client:
        client.reply()
        speak(client, ["EHLO c > 250", "MAIL FROM:<number@a.example> > 250 2.1.0 Ok"])


def test_hooks_are_asked_in_their_order_until_one_refuses(database: str) -> None:
    names = ("changing:Counter", "hostile:Script", "changing:Counter", "changing:Rewriter")
    hooks = [f"tests.smtpd.handlers.{name}" for name in names]
    with serving(database, **{**SCRIPT, "hooks": hooks}) as port, Client(port) as client:
        client.reply()
        speak(client, [
            "EHLO c > 250", MAIL, "RCPT TO:<refuse@example.org> > 550 5.1.1 No such user",
            "RCPT TO:<outside@example.org> > 451", "RCPT TO:<missing@example.org> > 250 OK",
            "RCPT TO:<r@example.org> > 250 2.1.5 Noted",
        ])  # fmt: skip


def test_nonsense_is_a_temporary_refusal(database: str, db: psycopg.Connection) -> None:
    with serving(database, **SCRIPT) as port, Client(port) as client:
        client.reply()
        speak(client, ["EHLO c > 250", MAIL, "RCPT TO:<r@example.org> > 250 OK$"])
        for word, answer in hostile.ANSWERS.items():
            expected = re.escape(answer) if word in hostile.GOOD else FAILED
            speak(client, [f"RCPT TO:<{word}@example.org> > {expected}$"])
        for word in ("raise", "exit", "cancel", "push"):
            speak(client, [f"RCPT TO:<{word}@example.org> > {FAILED}$"])
        for _ in range(20):  # more than there may be threads
            speak(client, ["RCPT TO:<callback@example.org> > 250 OK$"])
        speak(client, ["RCPT TO:<take@example.org> > 250 OK$", DATA, "x\r\n. > 250 2.0.0"])
    recipients = [f"{word}@example.org" for word in ("r", "callback", "take")]
    assert stored(db) == [("s@a.example", recipients, b"x\r\n")]


def test_what_a_hook_of_noop_changes_is_judged(database: str, db: psycopg.Connection) -> None:
    with serving(database, **SCRIPT) as port, Client(port) as client:
        client.reply()
        speak(client, [
            "EHLO c > 250", "NOOP recipients > 250", "NOOP sender > 250", "NOOP > 250", MAIL,
            "RCPT TO:<r@example.org> > 250", "NOOP recipients > 451", "NOOP sender > 451",
            "NOOP add > 250", DATA, "x\r\n. > 250", "NOOP name > 250", "MAIL FROM:<> > 503",
        ])  # fmt: skip
    assert stored(db) == [("s@a.example", ["r@example.org", "added@example.org"], b"x\r\n")]


def taken(client: Client) -> None:
    """Wait until smtpd has taken what others sent before: its loop reads all of that at once."""
    speak(client, ["HELP > 214"] * 2)


@pytest.mark.parametrize("word", ["block", "spin", "wait"])
def test_a_slow_hook_holds_up_no_other_session(
    database: str, db: psycopg.Connection, word: str
) -> None:
    config = {**SCRIPT, "hook_limits": {"time": "60s"}}
    with serving(database, **config) as port, Client(port) as slow, Client(port) as other:
        for client in (slow, other):
            client.reply()
            speak(client, ["EHLO c > 250", MAIL])
        slow.send(f"RCPT TO:<{word}@example.org>\r\nDATA\r\n".encode())
        taken(other)
        for number in range(20):
            speak(other, [f"RCPT TO:<r{number}@example.org> > 250 OK"])
        speak(other, [DATA, "x\r\n. > 250 2.0.0", "RSET > 250", MAIL])
        assert not select.select([slow.socket], [], [], 0)[0]
        hostile.release.set()
        assert slow.reply() == "250 OK"
        assert slow.reply()[:3] == "354"
        speak(slow, ["x\r\n. > 250 2.0.0"])
    assert len(stored(db)) == 2


@pytest.mark.slow
def test_hooks_that_never_answer_are_given_up(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smtpd.hooks.runner.MAX_CALLS", 5)
    config = {**SCRIPT, "hook_limits": {"time": "3s", "threads": 2}}
    with serving(database, **config) as port:
        clients = [Client(port) for _ in range(6)]
        for client in clients:
            client.reply()
            speak(client, ["EHLO c > 250", MAIL])
        for word, client in zip(("never", "never", "stubborn", "block+6", "spin+60"), clients,
                                strict=False):  # fmt: skip
            client.send(f"RCPT TO:<{word}@example.org>\r\n".encode())
            taken(clients[5])
        speak(clients[5], [f"RCPT TO:<r@example.org> > {FAILED}"])  # too many calls
        for client in clients[:5]:
            assert client.reply() == FAILED

        def serves() -> bool:
            return clients[5].say("RCPT TO:<r@example.org>") == "250 OK"

        until(serves, describe="a hook answers again")
        hostile.release.set()
        speak(clients[5], [DATA, "x\r\n. > 250"])
        for client in clients:
            client.__exit__()
    assert stored(db) == [("s@a.example", ["r@example.org"], b"x\r\n")]


def test_a_client_that_goes_away_leaves_nothing(database: str, db: psycopg.Connection) -> None:
    with serving(database, **SCRIPT) as port:
        for word in ("wait+1", "block+1", "never"):
            with Client(port) as client:
                client.reply()
                speak(client, ["EHLO c > 250", MAIL])
                client.send(f"RCPT TO:<{word}@example.org>\r\nDATA\r\nx\r\n.\r\n".encode())
                client.socket.shutdown(socket.SHUT_RDWR)
        with Client(port) as client:
            client.reply()
            speak(client, ["EHLO c > 250", MAIL, "RCPT TO:<r@example.org> > 250"])
    assert stored(db) == []
