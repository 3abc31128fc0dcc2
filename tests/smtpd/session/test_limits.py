"""Clients that want more than their share."""

from __future__ import annotations

import itertools
import socket
import time
from contextlib import ExitStack, suppress

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smtpd.commands import tally
from smtpd.commands.commands import Commands
from smtpd.commands.tally import Consequence
from smtpd.config import Limits
from smtpd.server.server import Server
from smtpd.session.connection import TURN_COMMANDS
from tests.support.serving import Client, serving
from tests.support.waiting import PATIENCE, until

STRANGER = "127.0.0.5"
RELAY = {"networks": ["127.0.0.1"], "domains": ["example.org"]}
BEGIN = b"EHLO c\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<r@example.org>\r\nDATA\r\n"


def codes(client: Client) -> list[str]:
    """The codes of all replies until the server closes."""
    return [reply[:3] for reply in client.rest()]


def test_sessions_with_much_to_do_take_turns(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    real = Commands._noop

    def noop(self: Commands, argument: str) -> str:
        order.append(id(self))
        return real(self, argument)

    monkeypatch.setitem(Commands.METHODS, b"NOOP", noop)
    monkeypatch.setattr(tally, "MAX_USELESS_COMMANDS", 100_000)
    number = 5000
    with (
        serving(database, relay=RELAY) as port,
        Client(port) as one,
        Client(port) as other,
    ):
        for client in (one, other):
            assert client.reply()[:3] == "220"
            client.send(b"NOOP\r\n" * number)
        for client in (one, other):
            assert all(client.reply()[:3] == "250" for _ in range(number))
    both = set(order)
    assert len(both) == 2
    # until one of them has done all of its commands, none has done more than a turn's at a time
    last = {session: max(n for n, s in enumerate(order) if s == session) for session in both}
    first = {session: order.index(session) for session in both}
    shared = order[max(first.values()) : min(last.values())]
    longest = run = 0
    for before, after in itertools.pairwise(shared):
        run = run + 1 if before == after else 0
        longest = max(longest, run)
    assert longest <= 2 * TURN_COMMANDS


def test_who_sends_commands_without_mail_is_hung_up_on(database: str) -> None:
    limits = {"errors": 3}
    with serving(database, relay=RELAY, limits=limits) as port, Client(port) as client:
        assert client.reply()[:3] == "220"
        # more than the socket takes: our reply must not be lost by a reset
        with suppress(ConnectionError):
            client.send(b"NOOP\r\n" * 200_000)
        assert codes(client)[-1] == "421"


def test_errors_are_counted_from_mail_to_mail(database: str, db: psycopg.Connection) -> None:
    refused = b"RCPT TO:<r@elsewhere.example>\r\n"
    with (
        serving(database, relay=RELAY, limits={"errors": 4}) as port,
        Client(port, STRANGER) as client,
    ):
        assert client.reply()[:3] == "220"
        for _ in range(2):
            client.send(b"EHLO c\r\nMAIL FROM:<a@b>\r\n" + refused * 2)
            client.send(b"RCPT TO:<r@example.org>\r\nDATA\r\n.\r\n")
            found = [client.reply()[:3] for _ in range(7)]
            assert found == ["250", "250", "550", "550", "250", "354", "250"]
        client.send(b"MAIL FROM:<a@b>\r\n" + refused * 100 + b"QUIT\r\n")
        assert codes(client) == ["250", *["550"] * 4, "421"]
    assert len(db.execute("SELECT FROM queue").fetchall()) == 2


@given(
    st.lists(st.floats(1, 3), max_size=60) | st.lists(st.floats(0, 0.3), max_size=60),
    st.integers(1, 20),
    st.integers(2, 8),
)
def test_tally(waits: list[float], junk: int, errors: int) -> None:
    """A client that sends one such command per second is never hung up on; a burst is."""
    session = tally.Tally(Limits(errors=errors))
    now, consequences = 0.0, []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tally, "MAX_USELESS_COMMANDS", junk)
        for wait in waits:
            now += wait
            consequences.append(session.junk(now))
        if all(wait >= 1 for wait in waits):
            assert set(consequences) <= {Consequence.GO_ON}
        if len(waits) >= now + junk + errors + 1:
            assert Consequence.END in consequences
        session.errors = session.unknown_commands = 0  # mail was accepted
        session.junk_level = 0.0
        assert session.junk(now) is Consequence.GO_ON


@pytest.mark.parametrize("word", ["GET / HTTP/1.1", "post /x HTTP/1.1"])
def test_browsers_are_hung_up_on_at_once(database: str, word: str) -> None:
    with serving(database) as port, Client(port) as client:
        client.send(f"{word}\r\nHost: x\r\n\r\nEHLO c\r\nMAIL FROM:<a@b>\r\n".encode())
        assert codes(client) == ["220", "502"]


def test_connections_by_address_and_network(database: str) -> None:
    limits = {"connections_per_address": 1}
    with serving(database, relay=RELAY, limits=limits) as port, ExitStack() as stack:

        def greeting(source: str) -> str:
            return stack.enter_context(Client(port, source)).reply()[:8]

        assert [greeting("127.0.0.5") for _ in range(2)] == ["220 mx.e", "421 4.7."]
        others = [greeting(f"127.0.0.{n}") for n in (6, 7, 8, 9)]  # four of a network
        assert others == ["220 mx.e"] * 3 + ["421 4.7."]
        assert [greeting("127.0.1.6") for _ in range(2)] == ["220 mx.e", "421 4.7."]
        assert {greeting("127.0.0.1") for _ in range(9)} == {"220 mx.e"}  # trusted
        stack.pop_all().close()
        until(lambda: greeting("127.0.0.5") == "220 mx.e", describe="their places free again")


@pytest.mark.usefixtures("pauses")
def test_connections_that_are_turned_away_hold_nothing(
    database: str, servers: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(database, limits={"connections": 1}) as port, Client(port) as first:
        assert first.reply()[:3] == "220"
        Client(port).__exit__()  # has gone when its refusal is due
        began = time.monotonic()
        with Client(port) as talker, Client(port) as sender:
            talker.send(b"EHLO c\r\n")
            with suppress(ConnectionError):
                sender.send(b"x" * (64 << 20))
                raise AssertionError("all of it was read")
            assert codes(talker) == ["421"]
            assert time.monotonic() - began >= 0.9  # it is kept busy that long
        (server,) = servers
        until(lambda: not server._turned_away)
        assert server.memory.used == 0
        assert first.say("NOOP")[:3] == "250"
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize(
    ("last", "code"), [(b"AUTH PLAIN\r\n", "502"), (b"MAIL FROM:<\r\n", "501")]
)
def test_the_last_error_ends_the_session_a_second_later(
    database: str, last: bytes, code: str
) -> None:
    with serving(database, limits={"errors": 1}) as port, Client(port) as client:
        began = time.monotonic()
        client.send(b"EHLO c\r\n" + last)
        assert [client.reply()[:3] for _ in range(3)] == ["220", "250", code]
        client.send(b"NOOP\r\n")
        assert codes(client) == ["421"]
        assert time.monotonic() - began >= 0.9


def test_content_without_end_is_ended(database: str) -> None:
    limits = {"message_size": "100KB"}
    with serving(database, relay=RELAY, limits=limits) as port, Client(port) as client:
        client.send(BEGIN)
        with suppress(ConnectionError):  # it goes on sending long after our reply
            for _ in range(200):
                client.send(b"x" * 9998 + b"\r\n")
        assert codes(client) == ["220", "250", "250", "250", "354", "552"]


def test_a_line_without_end(database: str) -> None:
    with serving(database) as port, Client(port) as client:
        with suppress(ConnectionError):
            client.send(b"x" * (3 << 20))
        assert codes(client) == ["220", "421"]


def test_content_of_all_sessions_has_one_budget(
    database: str, db: psycopg.Connection, servers: list[Server]
) -> None:
    lines = [b"%4d" % n + b"x" * 94 + b"\r\n" for n in range(4000)]
    content = b"".join(lines)  # 400 KB: none of the sessions would write ahead of itself
    with (
        serving(database, relay=RELAY, limits={"memory": "2MB"}) as port,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(Client(port)) for _ in range(20)]
        for client in clients:
            client.send(BEGIN)
        # as a network brings it, and all at the same time
        for start in range(0, len(content) - 100, 4000):
            for client in clients:
                client.send(content[start : min(start + 4000, len(content) - 100)])
        stored = "SELECT coalesce(sum(length(data)), 0) FROM message_chunks"
        wanted = len(clients) * len(content) - (2 << 20)
        until(lambda: (db.execute(stored).fetchone() or (0,))[0] >= wanted)
        until(lambda: servers[0].memory.used <= 2 << 20)
        for client in clients:
            client.send(content[-100:] + b".\r\nQUIT\r\n")
        for client in clients:
            assert codes(client) == ["220", "250", "250", "250", "354", "250", "221"]
        until(lambda: servers[0].memory.used == 0)
    found = db.execute(
        "SELECT m.size, (SELECT string_agg(data, '' ORDER BY position) FROM message_chunks c"
        " WHERE c.message_id = m.id) FROM messages m"
    ).fetchall()
    assert [(size, bytes(data)) for size, data in found] == [(len(content), content)] * 20


@pytest.mark.parametrize("postmaster", [None, "admin@example.org"])
def test_everybody_may_write_to_the_postmaster(
    database: str, db: psycopg.Connection, postmaster: str | None
) -> None:
    with (
        serving(database, relay=RELAY, postmaster=postmaster) as port,
        Client(port, STRANGER) as client,
    ):
        client.hello()
        for name in ("postmaster", "Postmaster@MX.example"):
            assert client.say("MAIL FROM:<a@b.example>")[:3] == "250"
            assert client.say(f"RCPT TO:<{name}>")[:3] == "250"
            assert client.say("RCPT TO:<r@example.org>")[:3] == "250"
            assert client.say("RCPT TO:<r@mx.example>")[:3] == "550"
            assert client.say("DATA")[:3] == "354"
            assert client.say(".")[:3] == "250"
    rows = db.execute(
        "SELECT recipient, domain, status, held_by, hold_reason IS NOT NULL, held_at IS NOT NULL"
        " FROM queue ORDER BY id"
    ).fetchall()
    other = ("r@example.org", "example.org", "QUEUED", None, False, False)
    if postmaster:
        there: tuple[object, ...] = (postmaster, "example.org", "QUEUED", None, False, False)
    else:
        there = ("postmaster@mx.example", "mx.example", "HOLD", "smtpd", True, True)
    assert rows == [there, other] * 2


def test_replies_hold_nothing_that_controls_a_terminal(database: str) -> None:
    with serving(database) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(PATIENCE)
        client.sendall(b"EHLO c\r\nMAIL FROM:<a@b> \x1b[31m\x9b\r\nMAIL FROM:<" + b"\x1b" * 900)
        client.sendall(b"@b>\r\nMAIL FROM:<" + b"x" * 900 + b"@b\xe2\x80\xae>\r\nQUIT\r\n")
        wire = b"".join(iter(lambda: client.recv(65536), b""))
    lines = wire.split(b"\r\n")
    assert all(len(line) <= 510 for line in lines)
    assert all(32 <= octet < 127 for line in lines for octet in line)
    assert [line[:3] for line in lines if line[3:4] == b" "][2:] == [b"555", b"553", b"553", b"221"]


@pytest.mark.parametrize(("size", "memory"), [(10, "64MB"), (300_000, "64MB"), (3_000_000, "1MB")])
def test_a_session_that_always_takes_turns_gets_its_replies(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, size: int, memory: str
) -> None:
    monkeypatch.setattr("smtpd.session.connection.HEAVY_S", -1.0)
    content = (b"x" * 98 + b"\r\n") * (size // 100)
    with (
        serving(database, relay=RELAY, limits={"memory": memory}) as port,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(Client(port)) for _ in range(6)]
        for client in clients:
            assert client.reply()[:3] == "220"
            for _ in range(2):
                for command in ("EHLO c", "MAIL FROM:<a@b>", "RCPT TO:<r@example.org>", "DATA"):
                    assert client.say(command)[0] in "23"
                client.send(content + b".\r\n")
                assert client.reply()[:3] == "250"
            client.send(BEGIN + content[:-10])
        for client in clients:
            client.send(content[-10:] + b".\r\nQUIT\r\n")
            assert codes(client) == ["250", "250", "250", "354", "250", "221"]
    assert db.execute("SELECT array_agg(DISTINCT size), count(*) FROM messages").fetchall() == [
        ([len(content)], 18)
    ]
