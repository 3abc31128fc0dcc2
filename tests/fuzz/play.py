"""A client that does a script to one session of smtpd in memory, and what has to hold afterwards.

A script is octets: the first chooses the listener, the others are what the client sends. After an
octet 0xFF follows the letter of something else that it does (`OPS`).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import structlog

from pgmta.intake.content import State
from smtpd.commands.listener import SmtpListener
from smtpd.config import SmtpdConfig
from smtpd.server.server import Server
from smtpd.session.connection import Connection
from smtpd.session.opening import open_connection
from smtpd.tls.contexts import ContextSet
from tests.fuzz.store import Accounts, Mood, Passwords, Store
from tests.fuzz.virtual import VirtualLoop, Wire
from tests.support.certificates import Certificate
from tests.support.transitions import checked_transitions
from tests.support.waiting import take_time_async

ESCAPE = 0xFF
OPS = {
    "c": "the octets so far come by themselves",
    "e": "the client closes its side",
    "d": "the client resets the connection",
    "w": "a second passes",
    "W": "a minute passes",
    "x": "the last octets come 200 times more",
    "b": "the client reads no replies",
    "r": "the client reads them again",
    "t": "TLS handshake of the client",
    "s": "smtpd stops",
    **{mood.value: f"the store is {mood.name.lower()} from now on" for mood in Mood},
}
LISTENERS: tuple[dict[str, Any], ...] = (
    {},
    {"early": "allow", "tls": "none"},
    {"role": "internal", "tls": "none"},
    {"role": "submission"},
    {"role": "submission", "tls": "none", "auth_without_tls": True},
    {"proxy": ["127.0.0.1"], "early": "allow", "auth": "offered", "auth_without_tls": True},
    {"role": "submission", "tls": "implicit"},
    {"proxy": ["127.0.0.1"], "tls": "implicit", "xclient": ["127.0.0.0/8"]},
    {"tls": "required", "auth": "offered"},
    {"protocol": "lmtp", "role": "internal", "tls": "none"},
    {"xclient": ["127.0.0.1"], "early": "allow", "auth": "offered", "auth_without_tls": True},
)
REPLY = re.compile(rb"[2345][0-9]{2}[ -][ -~]{0,510}\r\n")
QUEUED = re.compile(rb"^250 2\.0\.0 ([0-9]+) queued\r$", re.MULTILINE)
_SECONDS = 4000.0  # after which every session has ended, by its own limits
_REPEAT = 200
_TINY = 1e-3  # seconds in which all that waits for nothing is done


def decode(script: bytes) -> tuple[int, list[bytes | str]]:
    """Return the number of the listener, and the steps of the client."""
    steps: list[bytes | str] = []
    octets = bytearray()
    rest = iter(script[1:])
    for octet in rest:
        letter = chr(next(rest, ESCAPE)) if octet == ESCAPE else ""
        if letter in OPS:
            steps += [bytes(octets)] if octets else []
            steps += [letter] if letter != "c" else []
            octets = bytearray()
        else:
            octets.append(octet)
    steps += [bytes(octets)] if octets else []
    return (script[0] if script else 0) % len(LISTENERS), steps


@dataclass
class Heard:
    """The result of a script."""

    text: bytes
    """All replies."""
    stored: dict[int, Any]
    sent: bytes
    """All that was sent, in clear."""
    lmtp: bool
    calm: bool
    """Whether the client was there until the end, and read all."""

    @property
    def queued(self) -> list[int]:
        """Ids in the replies."""
        return [int(number) for number in QUEUED.findall(self.text)]


class Client:
    """The client of one script."""

    def __init__(self, wire: Wire, context: ssl.SSLContext) -> None:
        self.wire = wire
        self.text = bytearray()
        self.sent = bytearray()
        self.last = b""
        self.calm = True
        self._context = context
        self._tls: ssl.SSLObject | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()

    def send(self, octets: bytes) -> None:
        """Send octets, in TLS if there is any."""
        self.last = octets
        self.sent += octets
        if self._tls:
            self._tls.write(octets)
            octets = self._out.read()
        self.wire.receive(octets)

    def hear(self) -> None:
        data = bytes(self.wire.out)
        self.wire.out.clear()
        if not self._tls:
            self.text += data
            return
        self._in.write(data)
        try:
            while more := self._tls.read(1 << 16):
                self.text += more
        except ssl.SSLError:
            pass

    async def secure(self) -> None:
        """Do a handshake, as far as the server does it."""
        if self._tls:
            return
        self.hear()
        self.calm = False
        tls = self._context.wrap_bio(self._in, self._out, server_hostname="mx.example")
        for _ in range(6):
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                octets = self._out.read()
                self.sent += octets  # which may be content: the server may not expect TLS
                self.wire.receive(octets)
                await take_time_async(_TINY)
                self._in.write(bytes(self.wire.out))
                self.wire.out.clear()
            except ssl.SSLError:
                return
            else:
                self._tls = tls
                self.wire.receive(self._out.read())
                return


@dataclass
class Stage:
    """One smtpd in memory, for many scripts; each leaves it as it was."""

    loop: VirtualLoop
    folder: Path
    faults: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop.run_until_complete(self._make())
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    async def _make(self) -> None:
        root = Certificate.root()
        certificate, key = root.issue("mx.example").files(self.folder)
        self.settings = settings = SmtpdConfig.model_validate({
            "environment": {"hostname": "mx.example"},
            "submission": {"check_from": False},
            "listen": LISTENERS,
            "certificates": [{"certificate": str(certificate), "key": str(key)}],
            "relay": {"networks": ["127.0.0.2"], "domains": ["example.org"]},
            "limits": {"message_size": "1 MB", "memory": "1 MB", "timeout": "100s",
                       "recipients": 100,
                       "new_connections_per_address": 1 << 40},  # by the world's clock
            "dsn": True,
        })  # fmt: skip
        contexts = ContextSet(settings).load(Path("smtpd.yaml")).contexts
        self.listeners = [
            SmtpListener(settings, each, contexts=context)
            for each, context in zip(settings.listen, contexts, strict=True)
        ]
        self.server = cast(Any, Server(settings, ""))
        self.store = Store()
        self.server.committer = self.store
        logins: Any = self.server.logins
        if logins:
            accounts = Accounts()
            logins.users._store = logins._notes._store = accounts
            logins.users._passwords = Passwords()
            logins.throttle._clock = self.loop.time

    def play(self, script: bytes) -> Heard:
        """Do a script and check what has to hold after each. Raises AssertionError."""
        number, steps = decode(script)
        return self.do(number, steps)

    def do(self, listener: int, steps: list[bytes | str]) -> Heard:
        self.store.begin()
        heard = self.loop.run_until_complete(self._do(self.listeners[listener], steps))
        self._judge(heard)
        return heard

    async def _do(self, listener: SmtpListener, steps: list[bytes | str]) -> Heard:
        wire = Wire(self.loop, ("127.0.0.1", 12345))
        connection = open_connection(self.server, listener)
        wire.set_protocol(connection)
        connection.connection_made(wire)
        client = Client(wire, self._context)
        await take_time_async(_TINY)
        for step in steps:
            if wire.lost:
                break
            await self._step(client, step)
            await take_time_async(_TINY)
            client.hear()
        await self._end(client)
        lmtp = listener.protocol == "lmtp"
        return Heard(bytes(client.text), self.store.stored, bytes(client.sent), lmtp, client.calm)

    async def _step(self, client: Client, step: bytes | str) -> None:
        wire = client.wire
        if isinstance(step, bytes):
            client.send(step)
        elif step in "012":
            self.store.mood = Mood(step)
        elif step == "x":
            client.send(client.last[:4096] * _REPEAT)
        elif step == "t":
            await client.secure()
        elif step == "e":
            wire.receive(b"")
        elif step == "w":
            await take_time_async(1.0)
        elif step == "W":
            await take_time_async(60.0)
        else:
            client.calm = False
            if step == "d":
                wire.drop()
            elif step == "s":
                self.server.stopping = True
                for member in list(self.server._members):
                    member.stop()
            elif step == "b":
                wire.client_reads = False
            else:
                wire.read_on()

    async def _end(self, client: Client) -> None:
        """Send nothing more: smtpd has to end the session by itself."""
        end = self.loop.time() + _SECONDS
        while not client.wire.lost and self.loop.time() < end:
            await take_time_async(1.0)
            client.hear()
        assert client.wire.lost, "the session does not end"
        self.server.stopping = False
        await take_time_async(700.0)  # failed logins are forgotten, waits are over

        me = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not me]
        assert not tasks, tasks
        server = self.server
        assert not server._members
        assert not server._limits._counts
        assert not server.memory.used
        assert not server.scheduler._content._waiting
        assert not server.scheduler._commands._waiting
        if server.logins:
            assert not any(level.tried for level in server.logins.throttle._levels.values())
            assert not server.logins._checks

    def _judge(self, heard: Heard) -> None:
        faults, self.faults[:] = list(self.faults), []
        for fault in faults:
            if isinstance(fault, Exception):
                raise fault
        assert not faults, faults
        lines = heard.text.splitlines(keepends=True)
        for line in lines if heard.calm else lines[:-1]:
            assert REPLY.fullmatch(line), line
        assert set(heard.queued) <= heard.stored.keys(), "250 for a message that is not stored"
        for number, copies in Counter(heard.queued).items():
            recipients = len(heard.stored[number][0].recipients)
            enough = copies >= recipients or not heard.calm
            assert enough if heard.lmtp else copies == 1, "a wrong number of 250"
        if heard.calm:
            assert set(heard.queued) == heard.stored.keys(), "a message without its 250"
        for content in self.store.contents:
            assert content.state in (State.COMMITTED, State.DISCARDED), content.state
        assert not self.store.parts, "content without a message stays"
        for message, octets in heard.stored.values():
            self._judge_message(message, octets, heard)

    def _judge_message(self, message: Any, octets: bytes, heard: Heard) -> None:
        """Check that the content is one that was sent, and only one."""
        assert message.size == len(octets) <= self.settings.limits.message_size
        changed = message.options and message.options.submitted_by  # its header
        if not changed and b"BDAT" not in heard.sent.upper():
            assert octets in heard.sent.replace(b"\r\n.", b"\r\n"), "content that was not sent"


@contextmanager
def staged() -> Iterator[Stage]:
    """A stage whose sessions report every unexpected error, and every wrong change of state."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    with tempfile.TemporaryDirectory() as folder, _watched() as faults:
        stage = Stage(loop, Path(folder), faults)
        try:
            yield stage
        finally:
            loop.close()
            asyncio.set_event_loop(None)


@contextmanager
def _watched() -> Iterator[list[Any]]:
    faults: list[Any] = []
    fail = Connection.fail

    def failed(self: Connection, error: Exception) -> None:
        faults.append(error)
        fail(self, error)

    Connection.fail = failed  # type: ignore[method-assign]
    with structlog.testing.capture_logs(), checked_transitions(faults.append):
        try:
            yield faults
        finally:
            Connection.fail = fail  # type: ignore[method-assign]


def cut_up(octets: bytes, size: int) -> list[bytes | str]:
    """Return octets in segments of this size."""
    return [octets[at : at + size] for at in range(0, len(octets), size)]
