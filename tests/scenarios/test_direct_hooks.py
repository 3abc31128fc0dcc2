"""Hooks that run among the sessions of a real smtpd, and then do what they should not."""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from smtpd.hooks.trial import CALLS
from tests.support.daemons import Smtpd
from tests.support.serving import Client
from tests.support.system import System
from tests.support.waiting import PATIENCE, until

LIMITS = {"junk": 10_000_000, "errors": 10_000, "recipients": 10_000}
FAILED = "451 4.3.0 Hook failed, try again later"
LONG = 5.0  # seconds of a hook that blocks: others must not wait for them


def start(system: System, name: str = "Quick", **more: Any) -> Smtpd:
    hooks = [f"tests.smtpd.handlers.direct:{name}"]
    return system.smtpd(**{"hooks": hooks, "limits": LIMITS, **more})


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    """Sessions that end with the test."""
    with ExitStack() as stack:
        yield stack


def session(smtpd: Smtpd, clients: ExitStack) -> Client:
    client = clients.enter_context(Client(smtpd.port))
    client.reply()
    for line in ("EHLO c", "MAIL FROM:<s@a.example>"):
        assert client.say(line)[:3] == "250"
    return client


def ask(client: Client, word: str) -> str:
    return client.say(f"RCPT TO:<{word}@example.org>")


def many(client: Client, count: int) -> list[str]:
    client.send(b"RCPT TO:<r@example.org>\r\n" * count)
    return [client.reply() for _ in range(count)]


def become_direct(client: Client) -> int:
    """Ask until the hook answers among the sessions; return how often."""
    asked = 0

    def direct() -> bool:
        nonlocal asked
        asked += 100
        return many(client, 100)[-1] == "250 2.1.5 direct"

    until(direct)
    return asked


def send(client: Client, content: str) -> str:
    assert client.say("DATA")[:3] == "354"
    return client.say(f"{content}\r\n.")


def test_a_handler_becomes_direct_and_a_new_process_begins_in_the_thread(
    system: System, clients: ExitStack
) -> None:
    smtpd = start(system, "Both")
    client = session(smtpd, clients)
    assert many(client, CALLS - 10) == ["250 2.1.5 thread"] * (CALLS - 10)
    become_direct(client)
    assert send(client, "x") == "250 2.0.0 direct"
    client.say("MAIL FROM:<s@a.example>")
    client.send(b"RCPT TO:<r@example.org>\r\nRCPT TO:<refuse@example.org>\r\nDATA\r\n")
    replies = [client.reply() for _ in range(3)]
    assert [reply[:3] for reply in replies] == ["250", "550", "354"]
    assert client.say("refuse\r\n.") == "554 5.7.1 direct"
    client.say("MAIL FROM:<s@a.example>")
    assert ask(client, "r") == "250 2.1.5 direct"
    assert send(client, "raise") == "250 2.0.0 thread"  # begun anew, with the content as it was
    rows = system.ask("SELECT body, (SELECT count(*) FROM queue) AS n FROM messages ORDER BY id")
    assert [bytes(row["body"]) for row in rows] == [
        b"X-Place: yes\r\nx\r\n", b"X-Place: yes\r\nraise\r\n"
    ]  # fmt: skip
    assert rows[0]["n"] == 2
    smtpd.signal(signal.SIGHUP)
    smtpd.wait_log("serving", 2)
    assert client.reply()[:3] == "421"
    assert ask(session(smtpd, clients), "r") == "250 2.1.5 thread"


@pytest.mark.parametrize("word", ["lock", "receive", "spin", "swallow"])
def test_a_direct_hook_that_blocks_is_interrupted_once(
    system: System, clients: ExitStack, word: str
) -> None:
    smtpd = start(system)
    blocked, other = session(smtpd, clients), session(smtpd, clients)
    become_direct(blocked)
    assert ask(other, "r") == "250 2.1.5 direct"
    began = time.monotonic()
    blocked.send(f"RCPT TO:<{word}+{LONG}@example.org>\r\n".encode())
    time.sleep(0.01)
    assert ask(other, "r")[:3] == "250"
    assert not select.select([blocked.socket], [], [], 0)[0], "others wait for the hook"
    assert smtpd.wait_log("hook blocks the sessions, and stays in its thread")
    assert set(many(other, 5 * CALLS)) == {"250 2.1.5 thread"}
    assert blocked.reply() == "250 2.1.5 thread"  # its thread has begun it anew
    assert time.monotonic() - began > LONG
    assert ask(blocked, f"{word}+0.5") == "250 2.1.5 thread"
    assert send(blocked, "x")[:3] == "250"
    assert len(system.queue()) == 3


@pytest.mark.parametrize("word", ["sleep", "catch", "look", "task", "loop"])
def test_a_direct_hook_that_wants_to_wait_is_moved(
    system: System, clients: ExitStack, word: str
) -> None:
    smtpd = start(system)
    client = session(smtpd, clients)
    become_direct(client)
    assert ask(client, f"{word}+0.3") == "250 2.1.5 thread"
    assert smtpd.wait_log("hook runs in its thread again")["level"] == "info"
    assert set(many(client, 2 * CALLS)) == {"250 2.1.5 thread"}
    become_direct(client)  # after a longer trial
    assert send(client, "x")[:3] == "250"
    assert len(system.queue()) == 2


@pytest.mark.parametrize("word", ["raise", "exit", "cancel"])
def test_a_direct_hook_that_raises_harms_nothing(
    system: System, clients: ExitStack, word: str
) -> None:
    system.expected = {"hook failed"}
    smtpd = start(system)
    client = session(smtpd, clients)
    become_direct(client)
    assert ask(client, word) == FAILED
    assert many(client, 5) == ["250 2.1.5 thread"] * 5
    become_direct(client)
    assert ask(client, "none") == FAILED
    assert ask(client, "r") == "250 2.1.5 direct"
    assert send(client, "x")[:3] == "250"
    assert [row["recipient"] for row in system.queue()] == ["r@example.org"]


@pytest.mark.parametrize(
    ("name", "more"),
    [("Awaiting", {}), ("Database", {}), ("Quick", {"hook_limits": {"direct": False}})],
)
def test_some_handlers_stay_in_their_thread(
    system: System, clients: ExitStack, name: str, more: Any
) -> None:
    client = session(start(system, name, **more), clients)
    assert set(many(client, 6 * CALLS)) == {"250 2.1.5 thread"}


def test_hooks_before_a_moved_one_are_not_asked_again(system: System, clients: ExitStack) -> None:
    hooks = ["tests.smtpd.handlers.changing:Counter", "tests.smtpd.handlers.direct:Quick"]
    client = session(start(system, hooks=hooks), clients)
    become_direct(client)
    assert ask(client, "sleep+0.1") == "250 2.1.5 thread"
    assert send(client, "x")[:3] == "250"
    assert len(system.queue()) == 2


def test_sessions_while_handlers_change_their_place(system: System) -> None:
    system.expected = {"hook failed"}
    smtpd = start(system, "Both")
    replies: list[str] = []

    def mails(number: int) -> None:
        with Client(smtpd.port) as client:
            lines = ["EHLO c"]
            for mail in range(100):
                word = "raise" if mail == number else f"r{number}.{mail}"
                lines += ["MAIL FROM:<s@a.example>", f"RCPT TO:<{word}@example.org>",
                          f"RCPT TO:<r{number}@example.org>", "DATA", "x", "."]  # fmt: skip
            client.send("\r\n".join([*lines, "QUIT", ""]).encode())
            replies.extend(client.rest()[2:-1])

    threads = [threading.Thread(target=mails, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(replies) == 20 * 100 * 5
    assert replies.count(FAILED) == 20
    assert [reply[:3] for reply in replies].count("354") == 20 * 100
    assert [reply[:3] for reply in replies].count("250") == 20 * 100 * 4 - 20
    assert {row["count"] for row in system.ask("SELECT count(*) FROM queue")} == {2 * 20 * 100 - 20}
    assert any("direct" in reply for reply in replies)
    smtpd.stop()
