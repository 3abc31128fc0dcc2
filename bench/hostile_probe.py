"""Probe mails: a few sessions at a steady rate; a latency counts from when the mail was due."""

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from typing import BinaryIO

from bench.corpus import Corpus, Plan
from bench.helper import say

ADDRESS = "127.0.2.1"
SESSIONS = 4
EVERY = 0.1  # seconds between mails of a session
VISIT = 0.25  # seconds between new connections that only wait for the greeting
TIMEOUT = 60.0


class Prober:
    """Sends the messages of the plan from `first` on; each failure is one, and not tried again."""

    def __init__(self, corpus: Corpus, port: int, first: int) -> None:
        self.corpus, self.port, self.first = corpus, port, first
        self.probes: list[tuple[int, float, float, bool]] = []  # number, due, seconds, accepted
        self.visits: list[tuple[float, float, bool]] = []  # due, seconds, greeted
        self.reasons: set[str] = set()
        self.over = threading.Event()
        self._open: set[socket.socket] = set()

    def start(self) -> list[threading.Thread]:
        """Begin, every session at its own part of the interval."""
        began = time.monotonic()
        jobs = [threading.Thread(target=self._visit, args=(began,), daemon=True)]
        places = [(place, began) for place in range(SESSIONS)]
        jobs += [threading.Thread(target=self._session, args=one, daemon=True) for one in places]
        for job in jobs:
            job.start()
        return jobs

    def stop(self) -> None:
        """Begin nothing more."""
        self.over.set()

    def cut(self) -> None:
        """Break off whatever still waits."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _connect(self, timeout: float = TIMEOUT) -> tuple[socket.socket, BinaryIO]:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout, (ADDRESS, 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(connection)
        file = connection.makefile("rb")
        try:
            _expect(file, b"220")
        except OSError:
            self._close(connection)
            raise
        return connection, file

    def _close(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # the file object keeps it open a while
        connection.close()

    def _session(self, place: int, began: float) -> None:
        connection: socket.socket | None = None
        turn = 0
        while True:
            due = began + (turn + place / SESSIONS) * EVERY
            if self.over.wait(max(0.0, due - time.monotonic())):
                return
            number = self.first + turn * SESSIONS + place
            turn += 1
            try:
                if connection is None:
                    connection, file = self._connect()
                    connection.sendall(b"EHLO probe.test\r\n")
                    _expect(file, b"250")
                self._send(connection, file, number)
                good = True
            except OSError as error:
                good = False
                self.reasons.add(str(error)[:100])
                if connection:
                    self._close(connection)
                    connection = None
            self.probes.append((number, due, time.monotonic() - due, good))

    def _send(self, connection: socket.socket, file: BinaryIO, number: int) -> None:
        corpus = self.corpus
        sender, recipient = corpus.sender(number), corpus.recipient(number, 0)
        connection.sendall(b"MAIL FROM:<%s>\r\nRCPT TO:<%s>\r\nDATA\r\n" % (sender, recipient))
        for code in (b"250", b"250", b"354"):
            _expect(file, code)
        connection.sendall(corpus.on_wire(number) + b".\r\n")
        _expect(file, b"250")

    def _visit(self, began: float) -> None:
        turn = 0
        while not self.over.wait(max(0.0, (due := began + turn * VISIT) - time.monotonic())):
            turn += 1
            try:
                connection, _ = self._connect(10.0)
                connection.sendall(b"QUIT\r\n")
                self._close(connection)
                good = True
            except OSError as error:
                good = False
                self.reasons.add(str(error)[:100])
            self.visits.append((due, time.monotonic() - due, good))


def _expect(file: BinaryIO, code: bytes) -> None:
    while (line := file.readline(1000))[3:4] == b"-":
        pass
    if not line.startswith(code):
        raise OSError(repr(line) if line else "connection closed")


def main() -> None:
    """Send from "go" to "stop"; argument: JSON with plan, port and first number."""
    config = json.loads(sys.argv[1])
    prober = Prober(Corpus(Plan(**config["plan"])), config["port"], config["first"])
    jobs: list[threading.Thread] = []
    say(**{"is": "ready"})
    while True:
        if not select.select([0], [], [], 0.1)[0]:
            seen = prober.probes[-SESSIONS:]
            slow = max((seconds for _, _, seconds, _ in seen), default=0.0)
            last = max((due + seconds for _, due, seconds, _ in seen), default=0.0)
            say(slow=slow, last=last)
            continue
        word = os.read(0, 64).strip()
        if not word:
            return
        if word == b"go":
            jobs = prober.start()
        else:
            prober.stop()
            end = time.monotonic() + 10
            for job in jobs:
                job.join(max(0.0, end - time.monotonic()))
            prober.cut()
            for job in jobs:
                job.join(2)
            found = {"probes": prober.probes, "visits": prober.visits}
            say(**{"is": "report"}, **found, reasons=sorted(prober.reasons))


if __name__ == "__main__":
    main()
