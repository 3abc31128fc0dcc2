"""A real SMTP server that follows the script of a test, and records every transaction."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from tests.support.loop_thread import LoopThread
from tests.support.submit import unstuff
from tests.support.waiting import PATIENCE, free_port, let_others_run

_END = b"\r\n.\r\n"
EXTENSIONS = ("PIPELINING", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES", "SIZE 104857600")


@dataclass(frozen=True)
class Do:
    """The actions at one point of the dialogue, in this order."""

    hold: bool = False  # wait for NextHop.release
    hang: bool = False  # never answer
    line: str = ""  # reply with this instead of the usual one
    drop: bool = False  # close the connection, before any usual reply


@dataclass
class Transaction:
    """From MAIL to the final dot, or as far as it came."""

    connection: int
    mail: str
    recipients: list[str] = field(default_factory=list)  # those accepted
    asked: list[str] = field(default_factory=list)
    content: bytes | None = None  # once the final dot has come
    kept: bool = False  # the hop has the message, whether it could say so or not

    @property
    def sender(self) -> str:
        """Reverse-path."""
        return _path(self.mail)


Script = Callable[[str, str, Transaction | None], Do | None]
"""Asked at 'connect', 'EHLO', 'AUTH', 'MAIL', 'RCPT', 'DATA', 'end of data', with the command line
and the transaction; None: as usual. Also at 'content', when the first octets of it have come, and
at 'idle', after a transaction has ended: there nothing is usual."""


def _path(line: str) -> str:
    return line[line.index("<") + 1 : line.index(">")]


def as_usual(point: str, line: str, transaction: Transaction | None) -> Do | None:
    """The script of a good next hop."""
    return None


def hanging_at(*points: str) -> Script:
    """A next hop that never answers there."""
    return lambda point, line, transaction: Do(hang=True) if point in points else None


def holding_at(*points: str) -> Script:
    """A slow next hop: it answers there only after `release`."""
    return lambda point, line, transaction: Do(hold=True) if point in points else None


def at(point: str, line: str = "", *, drop: bool = False, times: int = 10**9) -> Script:
    """Give that reply, or drop the connection, at one point, at most `times` times."""
    left = [times]

    def script(asked: str, _: str, __: Transaction | None) -> Do | None:
        if asked != point or not left[0]:
            return None
        left[0] -= 1
        return Do(line=line, drop=drop)

    return script


class NextHop:
    """Serves in a thread on 127.0.0.1; `script` may be exchanged at any time.

    With `tls` it announces STARTTLS first, and `extensions` only under TLS. With `lmtp` it speaks
    LMTP, and its script is asked at 'end of data' for each recipient.
    """

    def __init__(
        self,
        script: Script = as_usual,
        extensions: tuple[str, ...] = EXTENSIONS,
        tls: ssl.SSLContext | None = None,
        *,
        lmtp: bool = False,
    ) -> None:
        self.tls = tls
        self.hello = "LHLO" if lmtp else "EHLO"
        self.port = free_port()
        self.script = script
        self.extensions = extensions
        self.transactions: list[Transaction] = []
        self.connections = 0
        self.open = 0
        self.commands: list[str] = []
        self.last_kept = 0.0
        self._changed = threading.Condition()
        self._thread = LoopThread()
        self._loop = self._thread.loop
        self._released = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.end()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    # -- what tests do --

    def start(self) -> None:
        """Listen, on the same port as ever."""

        async def begin() -> None:
            self._stopped = False
            self._server = await asyncio.start_server(
                self._connected, "127.0.0.1", self.port, backlog=512, limit=1 << 20
            )

        self._thread.do(begin())

    def stop(self) -> None:
        """Listen no more and drop every connection."""

        async def end() -> None:
            self._stopped = True
            server, self._server = self._server, None
            if server:
                # asyncio never closes a connection that it accepts just before close()
                for listening in server.sockets:
                    self._loop.remove_reader(listening.fileno())
                await let_others_run()
                server.close()
            await self._drop_all()
            if server:
                await server.wait_closed()

        self._thread.do(end())

    def drop_connections(self) -> None:
        """Drop every connection, and go on listening."""
        self._thread.do(self._drop_all())

    async def _drop_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def release(self) -> None:
        """Let everything go on that is held, now and later."""
        self._loop.call_soon_threadsafe(self._released.set)

    def wait(self, condition: Callable[[], object], timeout: float = PATIENCE) -> None:
        """Wait until the condition is true; it is asked after every step of any dialogue."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout), (
                f"not within {timeout} s; {len(self.kept)} kept of {len(self.transactions)}"
                f" on {self.connections} connections; last commands: {self.commands[-8:]}"
            )

    def wait_kept(self, number: int, timeout: float = PATIENCE) -> list[Transaction]:
        """Wait until `number` transactions have brought a message; return them."""
        self.wait(lambda: len(self.kept) >= number, timeout)
        return self.kept

    @property
    def kept(self) -> list[Transaction]:
        """Transactions whose message the hop has."""
        return [t for t in list(self.transactions) if t.kept]

    def deliveries(self) -> Counter[str]:
        """How often each recipient got a message."""
        return Counter(recipient for t in self.kept for recipient in t.recipients)

    # -- the server --

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        if self._stopped:  # accepted, and stopped before this task began
            writer.transport.abort()
            return
        self._tasks.add(task)
        with self._changed:
            self.connections += 1
            self.open += 1
            number = self.connections
        try:
            await _Dialogue(self, reader, writer, number).run()
        except (asyncio.CancelledError, ConnectionError, EOFError):
            pass  # by stop(), by the client, by a script that drops
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            with self._changed:
                self.open -= 1
                self._changed.notify_all()


class _Dialogue:
    """One connection."""

    def __init__(
        self,
        hop: NextHop,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
    ) -> None:
        self._hop = hop
        self._reader = reader
        self._writer = writer
        self._number = number
        self._transaction: Transaction | None = None
        self._plain = hop.tls is not None

    async def run(self) -> None:
        await self._answer("connect", "", "220 hop.example ESMTP")
        while True:
            line = (await self._reader.readuntil(b"\r\n"))[:-2].decode()
            with self._hop._changed:
                self._hop.commands.append(line)
                self._hop._changed.notify_all()
            verb = line[:4].upper()
            if verb == "QUIT":
                await self._say("221 2.0.0 Bye")
                return
            await self._command(verb, line)

    async def _command(self, verb: str, line: str) -> None:
        hop = self._hop
        if verb == hop.hello:
            lines = ["hop.example", *(("STARTTLS",) if self._plain else hop.extensions)]
            usual = "\r\n".join([*(f"250-{x}" for x in lines), "250 HELP"])
            await self._answer("EHLO", line, usual)
        elif line == "STARTTLS" and hop.tls:
            if await self._answer(verb, line, "220 2.0.0 Go on"):
                await self._writer.start_tls(hop.tls)
                self._plain = False
        elif verb == "AUTH":
            await self._answer(verb, line, "235 2.7.0 Welcome", good="235")
        elif verb in ("HELO", "NOOP", "RSET"):
            self._transaction = None
            await self._answer(verb, line, "250 2.0.0 Ok")
        elif verb == "MAIL":
            if self._transaction:
                await self._say("503 5.5.1 Nested MAIL")
                return
            transaction = Transaction(self._number, line)
            hop.transactions.append(transaction)
            if await self._answer(verb, line, "250 2.1.0 Ok", transaction):
                self._transaction = transaction
        elif self._transaction is None:
            await self._say("503 5.5.1 MAIL first")
        elif verb == "RCPT":
            self._transaction.asked.append(_path(line))
            if await self._answer(verb, line, "250 2.1.5 Ok", self._transaction):
                self._transaction.recipients.append(_path(line))
        elif verb == "DATA":
            if not self._transaction.recipients:
                await self._say("503 5.5.1 RCPT first")
            elif await self._answer(verb, line, "354 Go on", self._transaction, good="354"):
                await self._data(self._transaction)
        else:
            await self._say("500 5.5.2 What?")

    async def _data(self, transaction: Transaction) -> None:
        wire = bytearray(b"\r\n")
        searched = 0
        while (end := wire.find(_END, searched)) < 0:
            searched = max(0, len(wire) - len(_END) + 1)
            data = await self._reader.read(1 << 16)
            if not data:
                raise EOFError
            if len(wire) == 2 and (do := self._hop.script("content", "", transaction)):
                await self._perform(do)
            wire += data
        assert end + len(_END) == len(wire), "pipelined past the final dot"
        transaction.content = unstuff(bytes(wire[2 : end + 2]))
        self._transaction = None
        for recipient in transaction.recipients if self._hop.hello == "LHLO" else [""]:
            await self._answer("end of data", recipient, "250 2.0.0 Ok", transaction)
        if do := self._hop.script("idle", "", transaction):
            await self._perform(do)

    async def _answer(
        self,
        point: str,
        line: str,
        usual: str,
        transaction: Transaction | None = None,
        good: str = "2",
    ) -> bool:
        """Do as the script says, otherwise reply as usual; return whether that is `good`."""
        do = self._hop.script(point, line, transaction) or Do()
        reply = do.line or usual
        positive = reply.startswith(good)
        if point == "end of data" and transaction and positive:
            transaction.kept = True
            self._hop.last_kept = time.monotonic()
        with self._hop._changed:
            self._hop._changed.notify_all()
        if do.hold or do.hang or do.drop or do.line:
            await self._perform(do)
            if do.line:
                return positive
        await self._say(usual)
        return positive

    async def _perform(self, do: Do) -> None:
        if do.hold:
            await self._hop._released.wait()
        if do.hang:
            await self._reader.read(-1)  # until the client gives up
            raise EOFError
        if do.line:
            await self._say(do.line)
        if do.drop:
            raise EOFError

    async def _say(self, reply: str) -> None:
        self._writer.write(reply.encode() + b"\r\n")
        await self._writer.drain()
