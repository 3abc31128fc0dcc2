"""The sender: SMTP sessions that put all messages of a plan into a server as fast as it takes."""

import asyncio
import json
import ssl
import sys
import time
from array import array
from collections import deque
from pathlib import Path
from typing import cast

import uvloop

from bench.corpus import Corpus, Plan
from bench.helper import listen, say

MAX_ATTEMPTS = 5
RETRY_PAUSE_S = 0.1
MAX_SAMPLES = 5
GREETING, HELLO, SECURING, ENVELOPE, CONTENT, LEAVING, OVER = range(7)
STATES_BEFORE_MAIL = (GREETING, HELLO, SECURING)


class Work:
    """The messages still to be sent, and what became of the others."""

    def __init__(self, config: dict[str, object], corpus: Corpus) -> None:
        self.corpus = corpus
        self.port = cast(int, config["port"])
        self.reuse = cast(bool, config["reuse"])
        self.rate = cast(float, config["rate"])
        self.address = cast("str | None", config.get("address"))  # from which it connects
        self.base = cast(int, config.get("base", 0))  # number of the first message
        self.tls = client_context() if config.get("tls") else None
        self.todo = deque(range(self.base, corpus.plan.messages))
        self.total = len(self.todo)
        self.sent = array("d", bytes(8 * corpus.plan.messages))
        self.taken = array("d", bytes(8 * corpus.plan.messages))
        self.delays = array("d")
        self.attempts: dict[int, int] = {}
        self.accepted = 0
        self.refused = 0
        self.unsent = 0
        self.retries = 0
        self.connections = 0
        self.first = 0.0
        self.last = 0.0
        self.samples: list[str] = []
        self.finished = asyncio.Event()

    def settle(self) -> None:
        """See whether all messages have an outcome."""
        if self.accepted + self.refused + self.unsent == self.total:
            self.finished.set()

    def stop(self) -> None:
        """Begin no further message."""
        self.unsent += len(self.todo)
        self.todo.clear()
        self.settle()

    def due(self, n: int) -> float:
        """Return when message n is to be sent: now, unless there is a rate."""
        now = time.monotonic()
        self.first = self.first or now
        return self.first + (n - self.base) / self.rate if self.rate else now

    def accept(self, n: int, started: float) -> None:
        """Message n got its 250."""
        self.last = self.taken[n] = now = time.monotonic()
        self.sent[n] = started
        self.delays.append(now - started)
        self.accepted += 1
        self.settle()

    def fail(self, n: int, reason: str, again: bool) -> None:
        """Message n was not taken: put it back if that is safe and not yet too often."""
        tries = self.attempts[n] = self.attempts.get(n, 0) + 1
        if len(self.samples) < MAX_SAMPLES:
            self.samples.append(f"message {n}: {reason}")
        if again and tries < MAX_ATTEMPTS:
            self.retries += 1
            self.todo.append(n)
        else:
            self.refused += 1
            self.settle()


def client_context() -> ssl.SSLContext:
    """Return a TLS context that takes any certificate: the servers have self-signed ones."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Session(asyncio.Protocol):
    """One connection; it takes messages from the work until there are none."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.closed = asyncio.get_running_loop().create_future()
        self.state = GREETING
        self.buffer = b""
        self.wanted = 0
        self.current = -1
        self.started = 0.0
        self.failed = False
        self.secured = False
        self.handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. (uvloop sets TCP_NODELAY itself.)"""
        self.transport = cast(asyncio.Transport, transport)
        self.work.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the message under way back."""
        if self.state in STATES_BEFORE_MAIL:
            self.failed = True
        self._drop(f"connection lost {exc or ''}", self.state != CONTENT)
        self.state = OVER
        if not self.closed.done():
            self.closed.set_result(None)

    def _drop(self, reason: str, again: bool) -> None:
        if self.current >= 0:
            n, self.current = self.current, -1
            self.failed = True
            self.work.fail(n, reason, again)

    def data_received(self, data: bytes) -> None:
        """Take the replies."""
        if self.buffer:
            data = self.buffer + data
        *lines, self.buffer = data.split(b"\r\n")
        for line in lines:
            if line[3:4] != b"-":
                self._reply(line)

    def _reply(self, line: bytes) -> None:
        state = self.state
        if state == ENVELOPE:
            self.wanted -= 1
            if line[:3] != (b"250" if self.wanted else b"354"):
                self._bad(line)
            elif not self.wanted:
                self.state = CONTENT
                self.transport.write(self.work.corpus.on_wire(self.current) + b".\r\n")
        elif state == CONTENT:
            if line[:3] != b"250":
                self._bad(line)
                return
            n, self.current = self.current, -1
            self.work.accept(n, self.started)
            if self.work.reuse:
                self._next()
            else:
                self._leave()
        elif state == GREETING:
            if line[:3] != b"220":
                self._bad(line)
                return
            self._hello()
        elif state == HELLO:
            if line[:3] != b"250":
                self._bad(line)
            elif self.work.tls and not self.secured:
                self.state = SECURING
                self.transport.write(b"STARTTLS\r\n")
            else:
                self._next()
        elif state == SECURING:
            if line[:3] != b"220":
                self._bad(line)
                return
            self.handshake = asyncio.ensure_future(self._secure())
        elif state == LEAVING:
            self.transport.close()

    def _hello(self) -> None:
        self.state = HELLO
        self.transport.write(b"EHLO source.bench.test\r\n")

    async def _secure(self) -> None:
        loop, context = asyncio.get_running_loop(), self.work.tls
        assert context
        try:
            transport = await loop.start_tls(self.transport, self, context)
        except OSError as error:
            self._bad(f"handshake: {error}".encode())
            return
        assert transport
        self.transport = transport
        self.secured = True
        self._hello()

    def _bad(self, line: bytes) -> None:
        self.failed = True
        if self.current < 0 and len(self.work.samples) < MAX_SAMPLES:
            self.work.samples.append(repr(line[:200]))
        self._drop(repr(line[:200]), line.startswith(b"4"))
        self.state = OVER
        self.transport.abort()

    def _next(self) -> None:
        work = self.work
        if not work.todo:
            self._leave()
            return
        n = work.todo.popleft()
        wait = work.due(n) - time.monotonic()
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self._begin, n)
        else:
            self._begin(n)

    def _begin(self, n: int) -> None:
        self.current = n
        corpus = self.work.corpus
        commands = [b"MAIL FROM:<%s>\r\n" % corpus.sender(n)]
        commands += [
            b"RCPT TO:<%s>\r\n" % corpus.recipient(n, i) for i in range(corpus.plan.recipients)
        ]
        commands.append(b"DATA\r\n")
        self.wanted = len(commands)
        self.state = ENVELOPE
        self.started = self.work.due(n)
        self.transport.write(b"".join(commands))

    def _leave(self) -> None:
        self.state = LEAVING
        self.transport.write(b"QUIT\r\n")


async def sender(work: Work) -> None:
    """Keep one session open (or one after another) while there are messages."""
    loop = asyncio.get_running_loop()
    broken = 0
    while not work.finished.is_set():
        if not work.todo:
            await asyncio.sleep(RETRY_PAUSE_S)
            continue
        accepted = work.accepted
        try:
            _, session = await loop.create_connection(
                lambda: Session(work),
                "127.0.0.1",
                work.port,
                local_addr=(work.address, 0) if work.address else None,
            )
        except OSError as error:
            failed = True
            if len(work.samples) < MAX_SAMPLES:
                work.samples.append(f"connect: {error}")
        else:
            await session.closed
            failed = session.failed
        broken = broken + 1 if failed and work.accepted == accepted else 0
        if broken >= MAX_ATTEMPTS * 4:
            return
        if failed:
            await asyncio.sleep(RETRY_PAUSE_S)


async def run(work: Work, sessions: int) -> None:
    """Send everything; ends as soon as the last message has its outcome, or nothing goes on."""

    async def senders() -> None:
        await asyncio.gather(*(sender(work) for _ in range(sessions)))

    async def finished() -> None:
        await work.finished.wait()

    sending, done = asyncio.ensure_future(senders()), asyncio.ensure_future(finished())
    await asyncio.wait([sending, done], return_when=asyncio.FIRST_COMPLETED)
    done.cancel()


def percentile(values: list[float], part: float) -> float:
    """Return the value below which that part of the sorted values lies."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0


def main() -> None:
    """Send all from "go" on, up to "stop"; argument: JSON with plan, port, sessions and more."""
    config = json.loads(sys.argv[1])
    corpus = Corpus(Plan(**config["plan"]))
    work = Work(config, corpus)
    directory, prefix = Path(config["directory"]), config.get("prefix", "")
    loop = uvloop.new_event_loop()

    def status() -> None:
        slow = max(work.delays[-MAX_SAMPLES:], default=0.0)
        say(accepted=work.accepted, refused=work.refused, slow=slow, last=work.last)
        loop.call_later(0.1, status)

    def report() -> None:
        (directory / f"{prefix}sent").write_bytes(work.sent.tobytes())
        (directory / f"{prefix}taken").write_bytes(work.taken.tobytes())
        delays = sorted(work.delays)
        names = "accepted refused unsent retries connections first last samples"
        say(
            **{"is": "result"},
            **{name: getattr(work, name) for name in names.split()},
            p50=percentile(delays, 0.50),
            p99=percentile(delays, 0.99),
        )

    async def job() -> None:
        await run(work, config["sessions"])
        report()

    tasks: set[asyncio.Task[None]] = set()

    def command(word: str) -> None:
        nonlocal work
        if word == "go":
            work = Work(config, corpus)
            tasks.add(loop.create_task(job()))
        elif word == "report":
            report()
        elif word == "stop":
            work.stop()

    listen(loop, command)
    status()
    say(**{"is": "ready"})
    loop.run_forever()


if __name__ == "__main__":
    main()
