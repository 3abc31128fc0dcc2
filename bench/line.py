"""A database with queued and a sink, which stay for many bursts of mail."""

import time
from pathlib import Path
from typing import Any, Self

import psycopg

from bench.corpus import Plan
from bench.daemons import Product
from bench.database import Server, check_durability, fresh
from bench.helper import Helper, HelperError
from bench.place import Place

LOOK = 0.02  # seconds between two looks whether all is done


class Line(Place):
    """One queued that delivers to one sink, and sessions of a program at its database.

    The database is there at once, and the daemons after `start`.
    """

    def __init__(
        self, name: str, plan: Plan, server: Server, directory: Path, commands: Path, stall: float
    ) -> None:
        super().__init__(name, plan, directory)
        self.server, self.commands, self.stall = server, commands, stall
        self.notes: list[str] = []
        self.received = 0  # by the sink
        self.times_sent = [0] * plan.messages

    def __enter__(self) -> Self:
        """Make the database."""
        self.uri = self.stack.enter_context(fresh(self.server, keep=False))
        check_durability(self.uri)
        self.product = Product(self.commands, self.directory, self.uri, self.notes)
        self.product.migrate()
        self.stack.callback(self.product.stop)
        self.control = self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all."""
        self.stack.close()

    def connect(self) -> psycopg.Connection[Any]:
        """Return another session, which closes at the end."""
        return self.stack.enter_context(psycopg.connect(self.uri, autocommit=True))

    def start(self, **sink: Any) -> None:
        """Start the sink, with further settings, and queued."""
        self.sink: Helper = self.helper("sink", traces=1, **sink)
        self.product.start_queued(1, int(self.sink.wait("ready")["port"]))

    def receive(self, number: int) -> dict[str, Any]:
        """Wait until the sink has that many messages more and the outcomes are stored.

        Return the report of the sink. Raises HelperError, DaemonError.
        """
        wanted, moved, before = self.received + number, time.monotonic(), -1
        while (arrived := int(self.sink.latest.get("received", 0))) < wanted or not self._empty():
            if arrived != before:
                before, moved = arrived, time.monotonic()
            elif time.monotonic() - moved > self.stall:
                raise HelperError(f"{arrived} of {wanted} at the sink, then nothing")
            self.product.check()
            time.sleep(LOOK)
        self.received = wanted
        return self.report()

    def sent(self, numbers: range) -> None:
        """Note that these messages are sent, once more."""
        for n in numbers:
            self.times_sent[n] += 1

    def report(self) -> dict[str, Any]:
        """Return the figures of the sink."""
        self.sink.tell("report")
        return self.sink.wait("report")

    def _empty(self) -> bool:
        """Return whether no row moves."""
        row = self.control.execute(
            "SELECT NOT EXISTS (SELECT FROM pgmta.queue"
            " WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING'))"
        ).fetchone()
        return bool(row and row[0])

    def problems(self) -> list[str]:
        """Return a line for each kind of loss, doubling and change."""
        got = self.report()
        found = [
            f"{number} times {kind}: {got['samples']}" for kind, number in got["wrong"].items()
        ]
        seen = (self.directory / "seen").read_bytes()
        pairs = zip(seen, self.times_sent, strict=True)
        if odd := [n for n, (came, times) in enumerate(pairs) if came != min(times, 255)]:
            some = [f"{n}: {seen[n]} of {self.times_sent[n]}" for n in odd[:8]]
            found.append(f"{len(odd)} messages did not arrive as often as sent: {some}")
        return found
