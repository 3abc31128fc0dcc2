"""Ends of data through smtpd and queued to servers that may take them for the real one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from bench.peer.postfix import Postfix
from tests.peers.collector import Collector
from tests.peers.exim import Exim
from tests.peers.opensmtpd import OpenSmtpd
from tests.peers.servers import CELL
from tests.smuggling.ends import ENDS, REAL, smuggled
from tests.smuggling.lenient import HABITS, LenientSink
from tests.smuggling.sendmail import sendmail
from tests.support.packages import folder
from tests.support.serving import Client, serving
from tests.support.system import System
from tests.support.waiting import until

DOMAIN = "peer.test"
RELAY = {"networks": [], "domains": [DOMAIN]}
LIMITS = {"exempt": ["127.0.0.1"]}
Roles = dict[str, int]


@pytest.fixture
def listeners(database: str) -> Iterator[Roles]:
    """The ports of an internal listener and of a relay listener, with their defaults."""
    with ExitStack() as stack:
        yield {
            role: stack.enter_context(
                serving(database, relay=RELAY, limits=LIMITS, listen=[{"role": role}])
            )
            for role in ("internal", "relay")
        }


class Sender:
    """Sends one content in one session, in two segments of the input or two chunks of BDAT."""

    def __init__(self, port: int, way: str, number: int, content: bytes, cut: int) -> None:
        self.recipient = f"user{number}@{DOMAIN}"
        self._way, self._content, self._cut = way, content, cut
        self._client = Client(port)
        self._client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert self._client.reply()[:3] == "220"
        for command in ("EHLO c", "MAIL FROM:<s@example.com>", f"RCPT TO:<{self.recipient}>"):
            assert self._client.say(command)[:3] == "250"
        if way == "DATA":
            assert self._client.say("DATA")[:3] == "354"

    def begin(self) -> None:
        """Send what comes before the cut."""
        octets = self._content[: self._cut]
        if self._way == "BDAT":
            octets = b"BDAT %d\r\n%b" % (len(octets), octets)
        self._client.send(octets)

    def close(self) -> None:
        """Close the connection."""
        self._client.__exit__()

    def end(self) -> bool:
        """Send the rest; return whether smtpd took the message. The replies are those of one."""
        octets = self._content[self._cut :]
        if self._way == "BDAT":
            octets = b"BDAT %d LAST\r\n%b" % (len(octets), octets)
        else:
            octets += b".\r\n"
        self._client.send(octets + b"QUIT\r\n")
        replies = [reply[:3] for reply in self._client.rest()]
        self.close()
        assert replies.pop() == "221"
        if self._way == "BDAT" and replies[0] == "550":
            assert replies.pop() == "503"  # the transaction has ended
        elif self._way == "BDAT":
            assert replies.pop(0) == "250"
        assert replies in (["250"], ["550"]), (self._content, replies)
        return replies == ["250"]


def _send(port: int, way: str, cut: int, first: int = 0) -> tuple[set[str], set[str]]:
    """Send all ends, cut at that octet of the end.

    Return recipients of accepted messages, and the names of ends that were refused.
    """
    senders: dict[str, Sender] = {}
    try:
        for number, name in enumerate(ENDS, first):
            content, cuts = smuggled(name, number, DOMAIN)
            if cut < len(cuts) and (way == "BDAT" or REAL not in ENDS[name]):
                senders[name] = Sender(port, way, number, content, cuts[cut])
        for sender in senders.values():
            sender.begin()
        taken = {name: sender.end() for name, sender in senders.items()}
    finally:
        for sender in senders.values():
            sender.close()
    accepted = {senders[name].recipient for name, good in taken.items() if good}
    return accepted, {name for name, good in taken.items() if not good}


def _bare(name: str) -> bool:
    """Return whether an end has a CR or LF that is not part of CRLF."""
    rest = ENDS[name].replace(b"\r\n", b"")
    return b"\r" in rest or b"\n" in rest


@pytest.mark.parametrize("way", ["DATA", "BDAT"])
def test_intake(listeners: Roles, db: psycopg.Connection, way: str) -> None:
    """One message and one verdict, wherever it is cut; a relay refuses bare CR and LF."""
    sent = {name for name in ENDS if way == "BDAT" or REAL not in ENDS[name]}
    for role, port in listeners.items():
        verdict: set[str] = set()
        for cut in range(max(map(len, ENDS.values())) + 1):
            accepted, refused = _send(port, way, cut)
            (messages,) = db.execute("SELECT count(*) FROM messages").fetchone() or (0,)
            rows = db.execute("DELETE FROM queue RETURNING recipient").fetchall()
            assert sorted(row[0] for row in rows) == sorted(accepted)
            assert messages == len(accepted)
            verdict = verdict or refused
            assert refused == {name for name in verdict if cut <= len(ENDS[name])}
        bare = {name for name in sent if _bare(name)}
        assert bare <= verdict if role == "relay" else verdict < bare | _with_nul(sent)


def _with_nul(names: set[str]) -> set[str]:
    return {name for name in names if b"\0" in ENDS[name]}


def _through(system: System, listeners: Roles, arrived: dict[str, list[bytes]], port: int) -> None:
    """Send everything on to a port: a message arrives as one, or the peer refuses it."""
    accepted: set[str] = set()
    for at, (role, way) in enumerate(
        (role, way) for role in ("internal", "relay") for way in ("DATA", "BDAT")
    ):
        accepted |= _send(listeners[role], way, 0, 1000 * at)[0]
    assert len(accepted) > 60
    later = {"intervals": ["1h"]}
    system.queued(
        routes={"*": f"127.0.0.1:{port}"}, retry=later, delivery={"tls": {"mode": "none"}}
    )

    def refused() -> set[str]:
        return {row["recipient"] for row in system.queue() if row["last_reply"]}

    def settled() -> bool:
        # first the queue: what leaves it later is there later
        return {row["recipient"] for row in system.queue()} <= refused() and (
            set(arrived) | refused() >= accepted
        )

    until(settled)
    twice = {recipient for recipient, messages in arrived.items() if len(messages) != 1}
    assert not twice
    assert set(arrived) | refused() == accepted  # so no evil one
    assert not set(arrived) & refused()
    for messages in arrived.values():
        assert b"this is the second message" in messages[0]


@pytest.mark.parametrize("habit", HABITS)
def test_lenient_sink(system: System, listeners: Roles, habit: str) -> None:
    """Also a server with no sense of CRLF gets one message."""
    with LenientSink(HABITS[habit]) as sink:
        _through(system, listeners, sink.arrived, sink.port)


Start = Callable[[Path, int], AbstractContextManager[int]]


@contextmanager
def _postfix(place: Path, next_hop: int) -> Iterator[int]:
    # that of Debian 12 takes bare LF for a line end by default
    with Postfix(folder(), {}).start(CELL, place, next_hop) as relay:
        yield relay.port


@contextmanager
def _exim(place: Path, next_hop: int) -> Iterator[int]:
    with Exim(folder()).start(CELL, place, next_hop) as relay:
        yield relay.port


@contextmanager
def _opensmtpd(place: Path, next_hop: int) -> Iterator[int]:
    with OpenSmtpd(folder()).start(CELL, place, next_hop) as relay:
        yield relay.port


def _peer(start: Start, package: str) -> object:
    return pytest.param(start, id=package, marks=pytest.mark.needs("root", package))


@pytest.mark.parametrize(
    "start",
    [
        _peer(_postfix, "postfix"),
        _peer(_exim, "exim4-daemon-light"),
        _peer(_opensmtpd, "opensmtpd"),
        _peer(sendmail, "sendmail-bin"),
    ],
)
def test_peer(system: System, listeners: Roles, place: Path, hop: Collector, start: Start) -> None:
    """Postfix, Exim, OpenSMTPD and Sendmail pass on one message for each."""
    with start(place, hop.port) as port:
        _through(system, listeners, hop.arrived, port)


@pytest.mark.parametrize(
    ("habit", "end"),
    [("LF", "\\n.\\n"), ("CR or LF", "\\r.\\r"), ("CR or LF, no NULs", "\\r\\n\\x00.\\r\\n")],
)
def test_the_sinks_can_be_smuggled_to(habit: str, end: str) -> None:
    """Without smtpd before it each sink takes two messages."""
    with LenientSink(HABITS[habit]) as sink:
        sender = Sender(sink.port, "DATA", 1, smuggled(end, 1, DOMAIN)[0], 0)
        sender.begin()
        with pytest.raises(AssertionError):
            sender.end()
        assert set(sink.arrived) == {f"user1@{DOMAIN}", f"evil1@{DOMAIN}"}
