"""The clients: SMTP sessions with two hosts, and a program that submits by SQL, at a steady rate.

Each event is a line of a file, written at once. Every try by SMTP is a new message, so that an
unclear outcome is nobody's duplicate. The program repeats a submission with its key until a commit
tells it the outcome.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from typing import Any

import psycopg
import uvloop

from bench.helper import listen, run, say

BEGUN, TAKEN, LATER, REFUSED, LOST, AWAY = "begun", "250", "4xx", "5xx", "lost", "away"
"""Events: before the content; its 250 or COMMIT; replies; a lost answer; no session."""
RATED_EVERY = 20
"""Every so many messages one goes to the destination with a rate."""
RATED_DOMAIN = "rated.example"
_SIZE = 2000
_RETRY_S = 0.2
_ANSWER_TIMEOUT_S = 60.0
_SUBMIT = "SELECT pgmta.submit(%s, ARRAY[%s], %s, key => %s)"


class Load:
    """What all clients share."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._file = os.open(config["file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbers = itertools.count()
        self.stopped = asyncio.Event()

    def line(self, event: str, where: str, what: str = "-") -> None:
        """Write an event: its time, where, and the id or a reply."""
        os.write(self._file, f"{time.monotonic():.6f} {event} {where} {what}\n".encode())

    def mail(self) -> tuple[str, str, bytes]:
        """Return sender, recipient and content of a new message; its id is the local part."""
        n = next(self._numbers)
        rated = n % RATED_EVERY == 0
        sender = "rated@a.example" if rated else "plain@a.example"
        domain = RATED_DOMAIN if rated else f"d{n % 10}.example"
        content = f"Subject: message {n}\r\n\r\n".encode() + b"a line of text, ends\r\n" * (
            _SIZE // 22
        )
        return sender, f"n{n}@{domain}", content

    async def paced(self, every: float) -> Any:
        """Give a turn each `every` seconds; turns that went by are left out."""
        due = time.monotonic()
        while not self.stopped.is_set():
            yield
            due = max(due + every, time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), due - time.monotonic())


class SmtpClient:
    """A session after the other with one host."""

    def __init__(self, load: Load, host: str, address: str) -> None:
        self._load, self._host, self._address = load, host, address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, every: float) -> None:
        """Send at a rate until the load stops."""
        async for _ in self._load.paced(every):
            try:
                await self._send()
            except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
                self._load.line(AWAY, self._host, type(error).__name__)
                self._drop()
                await asyncio.sleep(_RETRY_S)
        self._drop()

    def _drop(self) -> None:
        if self._writer:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _ask(self, octets: bytes) -> bytes:
        assert self._reader
        assert self._writer
        self._writer.write(octets)
        line = await asyncio.wait_for(self._reader.readuntil(b"\r\n"), _ANSWER_TIMEOUT_S)
        while line[3:4] == b"-":
            line = await asyncio.wait_for(self._reader.readuntil(b"\r\n"), _ANSWER_TIMEOUT_S)
        return line

    async def _good(self, octets: bytes, wanted: bytes) -> bool:
        """Return whether the reply is as wanted; note another one, and end the session."""
        reply = await self._ask(octets)
        if reply.startswith(wanted):
            return True
        event = REFUSED if reply.startswith(b"5") else LATER
        self._load.line(event, self._host, json.dumps(reply.decode(errors="replace").strip()))
        self._drop()
        await asyncio.sleep(_RETRY_S)
        return False

    async def _send(self) -> None:
        if self._writer is None:
            opening = asyncio.open_connection(self._address, 25)
            self._reader, self._writer = await asyncio.wait_for(opening, 5)
            if not await self._good(b"", b"220") or not await self._good(
                b"EHLO a.example\r\n", b"2"
            ):
                return
        sender, recipient, content = self._load.mail()
        envelope = [
            b"MAIL FROM:<%s>\r\n" % sender.encode(),
            b"RCPT TO:<%s>\r\n" % recipient.encode(),
        ]
        for line in envelope:
            if not await self._good(line, b"250"):
                return
        if not await self._good(b"DATA\r\n", b"354"):
            return
        self._load.line(BEGUN, self._host, recipient)
        try:
            if await self._good(content + b".\r\n", b"250"):
                self._load.line(TAKEN, self._host, recipient)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self._load.line(LOST, self._host, recipient)
            raise


class SqlClient:
    """A program with one connection, which submits with a key until a COMMIT says so."""

    def __init__(self, load: Load, uri: str) -> None:
        self._load, self._uri = load, uri
        self._db: psycopg.AsyncConnection[Any] | None = None
        self._warned = False

    async def run(self, every: float) -> None:
        """Submit at a rate until the load stops; what is under way is finished."""
        async for _ in self._load.paced(every):
            await self._submit()
        if self._db:
            await self._db.close()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        db = await psycopg.AsyncConnection.connect(self._uri, autocommit=True)

        def warn(notice: psycopg.errors.Diagnostic) -> None:
            self._warned = True  # the commit did not wait for its standby

        db.add_notice_handler(warn)
        return db

    async def _submit(self) -> None:
        sender, recipient, content = self._load.mail()
        self._load.line(BEGUN, "sql", recipient)
        while True:
            try:
                self._db = self._db or await self._connect()
                self._warned = False
                values = (sender, recipient, content, recipient)
                await asyncio.wait_for(self._db.execute(_SUBMIT, values), _ANSWER_TIMEOUT_S)
                if not self._warned:
                    self._load.line(TAKEN, "sql", recipient)
                    return
                self._load.line(LOST, "sql", recipient)
            except (psycopg.Error, TimeoutError) as error:
                self._load.line(LOST, "sql", f"{recipient} {type(error).__name__}")
            if self._db:
                with contextlib.suppress(psycopg.Error):
                    await self._db.close()
                self._db = None
            await asyncio.sleep(_RETRY_S)


async def work(config: dict[str, Any]) -> None:
    """Run all clients until the word stop, and say when the last one has ended."""
    load = Load(config)
    listen(asyncio.get_running_loop(), lambda word: load.stopped.set())
    rate, sessions = config["rate"], config["sessions"]
    clients: list[SmtpClient | SqlClient] = [
        SmtpClient(load, host, address)
        for host, address in config["smtp"].items()
        for _ in range(sessions)
    ]
    clients += [SqlClient(load, config["uri"]) for _ in range(sessions)]
    say(**{"is": "ready"})
    await asyncio.gather(*(client.run(len(clients) / rate) for client in clients))
    say(**{"is": "stopped"})
    await asyncio.Event().wait()  # cancelled when standard input ends


def main() -> None:
    """Serve until standard input ends; argument: JSON with file, rate, sessions, smtp and uri."""
    run(uvloop.new_event_loop(), work(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
