"""Bursts of mail through one stage of one checkout: CPU per message of its processes and sessions.

The product is started by its commands and asked by SQL, so another checkout can be measured too.
"""

import time
from pathlib import Path
from typing import Any, Self

import psycopg

from bench import cpu
from bench.corpus import Corpus
from bench.daemons import Product
from bench.database import Server, fresh
from bench.helper import ROOT, Helper, HelperError
from bench.peer.cells import Cell
from bench.peer.pgmta import front, settings
from bench.place import Place
from bench.progress import log

MESSAGES = 300  # few, so that the bursts of a pair are close to each other in time
EMPTY_TIMEOUT_S = 60.0
STAGES = {
    "smtpd": Cell("intake", MESSAGES),
    "smtpd, TLS": Cell("intake", MESSAGES, front="tls", reuse=False),
    "queued": Cell("e2e", MESSAGES),
    "queued, TLS": Cell("e2e", MESSAGES, tls="each"),
    "queued, DKIM": Cell("e2e", MESSAGES, sign="rsa"),
    "queued, DSN": Cell("e2e", MESSAGES, refused=True),
    "submit": Cell("submit", MESSAGES),
    "hook": Cell("intake", 3000),
}
"""The loads; messages have 4 KB, and queued does not run beside "smtpd" and "submit".

TLS means a connection and a handshake for each message. "hook" is smtpd, for its rate.
"""

_FILL = """
SELECT pgmta.submit(one.sender, ARRAY[one.recipient], one.content,
    on_failed => 'bounce', wake => true)
FROM unnest(%b::text[], %b::text[], %b::bytea[]) AS one (sender, recipient, content)
"""
_SUBMIT = "SELECT pgmta.submit(%b::text, ARRAY[%b::text], %b::bytea)"
_SUPPRESS = """
ALTER TABLE pgmta.suppressions DISABLE TRIGGER USER;
INSERT INTO pgmta.suppressions (address, reason)
SELECT md5(n::text) || '@suppressed.example', 'bounced' FROM generate_series(1, %(number)s) AS n;
ALTER TABLE pgmta.suppressions ENABLE TRIGGER USER;
INSERT INTO pgmta.suppression_sieve (part, bits)
SELECT pgmta.sieve_part(hash), bit_or(set_bit(0::bit(2048), pgmta.sieve_place(hash), 1))
FROM pgmta.suppressions, LATERAL (SELECT pgmta.sieve_hash(address) AS hash OFFSET 0) AS h
GROUP BY 1;
"""
"""Fills the list as its triggers would, which would take ten minutes for ten million."""
_SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def _spent(pid: int) -> float:
    """Return the CPU seconds of all threads of a process; 0 if it has ended."""
    used = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            used += int(path.read_text().split()[0])
        except OSError:
            continue
    return used / 1e9


class Burst(Place):
    """A stage that runs on a separate database, ready for one burst after another."""

    def __init__(
        self,
        name: str,
        commands: Path,
        server: Server,
        directory: Path,
        hook: str = "",
        suppressed: int = 0,
    ) -> None:
        self.cell = STAGES[name]
        super().__init__(
            name.replace(", ", "-"), self.cell.options(20.0, None, commands).plan(), directory
        )
        self.commands, self.server, self.hook = commands, server, hook
        self.suppressed = suppressed
        self.corpus = Corpus(self.plan)
        self.messages = self.plan.messages
        self.seconds = 0.0  # duration of the last burst
        self._sink: Helper | None = None
        self._source: Helper | None = None
        self._delivered = 0
        self._roots: list[int] = []
        self._notes: list[str] = []

    def __enter__(self) -> Self:
        """Start the daemon and the sink that the stage needs."""
        cell = self.cell
        uri = self.stack.enter_context(fresh(self.server, keep=False))
        self.product = Product(self.commands, self.directory, uri, self._notes)
        self.product.migrate()
        self.control = self.stack.enter_context(psycopg.connect(uri, autocommit=True))
        self.client = self.stack.enter_context(psycopg.connect(uri, autocommit=True))
        if self.suppressed:
            log(f"{self.suppressed} suppressions")
            cursor = psycopg.ClientCursor(self.control)
            cursor.execute(_SUPPRESS, {"number": self.suppressed})
            # else autovacuum would do it beside the bursts
            cursor.execute("VACUUM (ANALYZE) pgmta.suppressions, pgmta.suppression_sieve")
        self.stack.callback(self.product.stop)
        if cell.scenario == "intake":
            more = front(cell, self.directory)
            if self.hook:
                self.product.environment["PYTHONPATH"] = str(ROOT)
                more = {"more": {"hooks": [self.hook]}}
            pid, port = self.product.start_smtpd(None, **more)
            self._roots = [pid]
            names: dict[str, Any] = {"sessions": cell.sessions, "reuse": cell.reuse, "rate": 0.0}
            self._source = self.helper("source", port=port, tls=bool(cell.front), **names)
            self._source.wait("ready")
        elif cell.end_to_end:
            sink = self._sink = self.helper(
                "sink", traces=0, starttls=bool(cell.tls), refuse=cell.refused
            )
            port = int(sink.wait("ready")["port"])
            more = settings(cell, self.directory)
            self._roots = self.product.start_queued(1, port, more)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all."""
        self.stack.close()

    def run(self) -> float:
        """Let one burst through, and return the CPU seconds of a message. Raises HelperError."""
        self.product.check()
        if not self.cell.end_to_end:
            self.control.execute("TRUNCATE pgmta.queue, pgmta.messages CASCADE")
        load = {"intake": self._receive, "e2e": self._deliver, "submit": self._submit}
        return load[self.cell.scenario]() / self.messages

    def _mark(self) -> dict[int, float]:
        sessions = [pid for (pid,) in self.control.execute(_SESSIONS).fetchall()]
        return {pid: _spent(pid) for pid in [*cpu.members(self._roots), *sessions]}

    def _since(self, before: dict[int, float], began: float) -> float:
        self.seconds = time.monotonic() - began
        return sum(used - before.get(pid, 0.0) for pid, used in self._mark().items())

    def _receive(self) -> float:
        source = self._source
        assert source
        before, began = self._mark(), time.monotonic()
        source.tell("go")
        sent = source.wait("result", EMPTY_TIMEOUT_S)
        used = self._since(before, began)
        if sent["accepted"] != self.messages:
            raise HelperError(f"smtpd took {sent['accepted']} messages: {sent['samples']}")
        self.seconds = sent["last"] - sent["first"]
        return used

    def _mails(self) -> list[tuple[str, str, bytes]]:
        corpus = self.corpus
        return [
            (corpus.sender(n).decode(), corpus.recipient(n, 0).decode(), corpus.as_sent(n))
            for n in range(self.messages)
        ]

    def _deliver(self) -> float:
        with self.control.transaction():
            self.control.execute(
                _FILL, [list(column) for column in zip(*self._mails(), strict=True)]
            )
            before, began = self._mark(), time.monotonic()
        while not self._is_empty():
            if time.monotonic() - began > EMPTY_TIMEOUT_S:
                raise HelperError(f"the queue is not empty after {EMPTY_TIMEOUT_S:g} s")
            time.sleep(0.02)
        used = self._since(before, began)
        assert self._sink
        self._sink.tell("report")
        received = self._sink.wait("report")["received"]
        if received - self._delivered != self.messages:
            raise HelperError(f"{received - self._delivered} of {self.messages} at the next hop")
        self._delivered = received
        return used

    def _is_empty(self) -> bool:
        row = self.control.execute("SELECT NOT EXISTS (SELECT FROM pgmta.queue)").fetchone()
        return bool(row and row[0])

    def _submit(self) -> float:
        mails = self._mails()
        before, began = self._mark(), time.monotonic()
        for mail in mails:
            self.client.execute(_SUBMIT, mail, prepare=True)
        return self._since(before, began)
