"""A hypothesis state machine: several sessions at a time over real sockets, into PostgreSQL.

`--fuzz-seconds N` runs it for that time.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from itertools import count

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.fuzz.conftest import LISTENERS, PASSWORD, USER, Running
from tests.fuzz.scripts import V2, WORDS
from tests.support.users import plain
from tests.support.waiting import PATIENCE

RESET = struct.pack("ii", 1, 0)
PROXY = (b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 25\r\n", V2, b"PROXY UNKNOWN\r\n")
BATCH = 5  # runs of the machine between two looks at the clock
_marks = count()


@dataclass(eq=False)
class Session:
    """A client: what it has sent and heard since its last clean point."""

    listener: str
    socket: socket.socket
    tls: bool = False
    over: bool = False
    heard: bytes = b""
    marks: list[str] = field(default_factory=list)
    """Of messages whose 250 it got."""

    def send(self, octets: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(octets)

    def hear(self) -> bytes:
        """Read up to the end of a reply; nothing if the connection ends."""
        end, found = time.monotonic() + PATIENCE, b""
        while not (found.endswith(b"\n") and found.splitlines()[-1][3:4] == b" "):
            assert time.monotonic() < end, (self.listener, self.heard, found)
            try:
                more = self.socket.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                more = b""
            if not more:
                self.over = True
                break
            found += more
        self.heard += found
        return found

    def say(self, command: bytes) -> bytes:
        """Return the last line of the reply."""
        self.send(command)
        return (self.hear().splitlines() or [b""])[-1]

    def drain(self) -> None:
        if self.over:
            return
        self.socket.settimeout(0.02)
        while not self.over:
            try:
                more = self.socket.recv(1 << 16)
            except TimeoutError:
                break
            except OSError:
                more = b""
            self.heard += more
            self.over = not more
        self.socket.settimeout(PATIENCE)

    def close(self, *, reset: bool) -> None:
        if reset:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()


class Machine(RuleBasedStateMachine):
    """Clients that do right things and wrong ones; each knows which of its messages got a 250."""

    running: Running
    db: psycopg.Connection
    context: ssl.SSLContext
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Session] = []
        self.accepted: list[str] = []
        self.sent: list[str] = []

    @rule(target=sessions, listener=st.sampled_from(list(LISTENERS)),
          header=st.sampled_from(PROXY), cut=st.integers(0, 30))  # fmt: skip
    def connect(self, listener: str, header: bytes, cut: int) -> Session:
        plainly = socket.create_connection(("127.0.0.1", self.running.ports[listener]), PATIENCE)
        plainly.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = Session(listener, plainly)
        self.open.append(session)
        if listener == "proxied":
            session.send(header[:cut])
            session.send(header[cut:])
        if listener == "implicit":
            self._secure(session)
        assert session.hear()[:4] == b"220 "
        return session

    def _secure(self, session: Session) -> None:
        session.socket.settimeout(PATIENCE)
        try:
            session.socket = self.context.wrap_socket(session.socket)
            session.tls = True
        except OSError:
            session.over = True

    @rule(session=sessions)
    def secure(self, session: Session) -> None:
        """STARTTLS, if it is offered."""
        session.drain()
        if session.over or session.tls or session.listener == "plain":
            return
        session.say(b"RSET\r\n")
        if session.say(b"STARTTLS\r\n")[:3] == b"220":
            self._secure(session)
            assert session.tls

    @rule(session=sessions, right=st.booleans())
    def log_in(self, session: Session, right: bool) -> None:
        """Log in; a wrong password takes a second."""
        session.drain()
        if session.over:
            return
        for command in (b"RSET\r\n", b"EHLO c\r\n"):
            session.say(command)
        word = plain(USER, PASSWORD if right else "wrong")
        reply = session.say(f"AUTH PLAIN {word}\r\n".encode())
        offered = session.tls and session.listener not in ("relay", "plain")
        if offered and not session.over:
            assert reply[:3] in ((b"235", b"503") if right else (b"535", b"503", b"454")), reply

    @rule(session=sessions, chunks=st.lists(st.integers(0, 40), max_size=4), bdat=st.booleans(),
          lines=st.integers(0, 3000))  # fmt: skip
    def mail(self, session: Session, chunks: list[int], bdat: bool, lines: int) -> None:
        """Send a message by DATA or BDAT, in several segments."""
        session.drain()
        if session.over:
            return
        mark = f"mark{next(_marks)}"
        self.sent.append(mark)
        for command in (b"EHLO c\r\n", b"MAIL FROM:<ann@example.org>\r\n"):
            session.say(command)
        session.say(f"RCPT TO:<{mark}@example.org>\r\n".encode())
        body = b"Subject: x\r\n\r\n" + b"some line of text\r\n" * lines
        if bdat:
            for size in chunks:
                chunk, body = body[:size], body[size:]
                session.say(b"BDAT %d\r\n" % len(chunk) + chunk)
            session.send(b"BDAT %d LAST\r\n" % len(body))
        elif session.say(b"DATA\r\n")[:3] != b"354":
            return
        else:
            body += b".\r\n"
        for size in chunks:
            session.send(body[:size])
            body = body[size:]
        reply = session.say(body) if body or not bdat else session.hear()
        if b" queued" in reply:
            self.accepted.append(mark)

    @rule(session=sessions, words=st.lists(st.sampled_from(WORDS), max_size=6), seam=st.booleans())
    def nonsense(self, session: Session, words: list[bytes], seam: bool) -> None:
        """Send words without order; then the session has lost its way, and only ends."""
        session.drain()
        for word in words if seam else [b"".join(words)]:
            session.send(word)
        session.drain()
        self._end(session, reset=not seam)

    def _end(self, session: Session, *, reset: bool) -> None:
        session.over = True
        session.close(reset=reset)

    @rule(session=consumes(sessions), cut=st.integers(0, 200), reset=st.booleans())
    def break_off(self, session: Session, cut: int, reset: bool) -> None:
        """End in the middle of a mail."""
        mark = f"mark{next(_marks)}"
        self.sent.append(mark)
        if not session.over:
            session.send(b"RSET\r\nEHLO c\r\n")
            text = f"MAIL FROM:<{USER}>\r\nRCPT TO:<{mark}@example.org>\r\nDATA\r\nSubject: x\r\n"
            session.send((text.encode() + b"\r\nx\r\n.\r\n")[:cut])
            session.drain()
        self._end(session, reset=reset)

    @rule(session=consumes(sessions))
    def quit(self, session: Session) -> None:
        session.drain()
        if not session.over:
            session.send(b"QUIT\r\n")
            while not session.over:
                session.hear()
        session.close(reset=False)

    @rule(target=sessions, session=consumes(sessions))
    def go_on(self, session: Session) -> object:
        """Everything in order beside the others: a NOOP gets its reply."""
        session.drain()
        if session.over:
            return multiple()
        assert session.say(b"NOOP\r\n")[:1] in (b"2", b"5", b"4", b"")
        return session

    def teardown(self) -> None:
        for session in self.open:
            session.close(reset=False)
        self.running.idle()
        rows = self.db.execute(
            "SELECT split_part(recipient, '@', 1), count(*) FROM queue GROUP BY 1"
        ).fetchall()
        there: dict[str, int] = dict(rows)
        missing = set(self.accepted) - there.keys()
        assert not missing, f"accepted and not in the database: {missing}"
        assert all(there[mark] == 1 for mark in self.accepted)
        strange = self.db.execute("SELECT count(*) FROM queue WHERE octet_length(recipient) > 60")
        assert strange.fetchone() == (0,)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_sessions(running: Running, pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.getoption("fuzz_seconds")
    Machine.running = running
    Machine.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    Machine.context.check_hostname = False
    Machine.context.verify_mode = ssl.CERT_NONE
    end = time.monotonic() + seconds
    with psycopg.connect(running.uri, autocommit=True) as Machine.db:
        while time.monotonic() < end:
            run_state_machine_as_test(
                Machine,
                settings=settings(
                    max_examples=BATCH, stateful_step_count=30, deadline=None, database=None,
                    phases=(Phase.generate,),  # a shorter example would take minutes
                    suppress_health_check=list(HealthCheck),
                ),
            )  # fmt: skip
        Machine.db.execute("DELETE FROM queue")
