"""A whole installation: database, daemons, next hops; and questions to the queue."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tests.support.daemons import Daemon, Queued, Smtpd
from tests.support.nexthop import EXTENSIONS, NextHop, Script, as_usual
from tests.support.waiting import PATIENCE, until

Row = dict[str, Any]

_QUEUE = "SELECT * FROM queue ORDER BY id"

_SHOWN = 100  # entries of a long log, of its beginning and of its end


class System:
    """Starts things and ends them; every daemon's log has to be free of errors at the end."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder = folder
        self.uri = uri
        self.expected: set[str] = set()  # events at level error that the test provokes
        self.daemons: list[Daemon] = []
        self.environment: dict[str, str] = {}  # further variables of daemons that start
        self._names = itertools.count(1)
        self._stack = ExitStack()

    # -- starting and ending --

    def smtpd(self, **changes: Any) -> Smtpd:
        """Start an smtpd and wait until it serves."""
        name = f"smtpd{next(self._names)}"
        daemon = Smtpd(self.folder, name, self.uri, changes, self.environment.copy())
        self.daemons.append(daemon)
        return daemon.ready()

    def queued(self, hop: NextHop | None = None, *, ready: bool = True, **changes: Any) -> Queued:
        """Start a queued, with `hop` for all mail unless `routes` are given."""
        if hop:
            changes = {"routes": {"*": hop.target}, **changes}
        name = f"queued{next(self._names)}"
        daemon = Queued(self.folder, name, self.uri, changes, self.environment.copy())
        self.daemons.append(daemon)
        return daemon.ready() if ready else daemon

    def hop(
        self,
        script: Script = as_usual,
        extensions: tuple[str, ...] = EXTENSIONS,
        tls: ssl.SSLContext | None = None,
    ) -> NextHop:
        return self._stack.enter_context(NextHop(script, extensions, tls))

    def stop(self) -> None:
        """Stop every daemon that still runs, as an operator would; each has to end with 0."""
        for daemon in self.daemons:
            if daemon.alive:
                daemon.stop()

    def clean(self) -> None:
        """End everything by force; print the logs, which pytest shows for a failed test."""
        for daemon in self.daemons:
            daemon.clean()
            print(daemon.story(_SHOWN))
        self._stack.close()

    def faults(self) -> list[Row]:
        found = [entry for daemon in self.daemons for entry in daemon.faults()]
        return [entry for entry in found if entry["event"] not in self.expected]

    # -- questions --

    def ask(self, query: str, *params: object) -> list[Row]:
        """Run a query on a new connection."""
        with self._connect() as db:
            cursor = db.execute(query.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def _connect(self) -> psycopg.Connection[Row]:
        # a statement that is not prepared stands changes of its tables
        return psycopg.connect(
            self.uri, autocommit=True, row_factory=dict_row, prepare_threshold=None
        )

    def queue(self) -> list[Row]:
        return self.ask(_QUEUE)

    def rows(self) -> dict[str, Row]:
        return {row["recipient"]: row for row in self.queue()}

    def attempts(self, recipient: str | None = None) -> list[Row]:
        """The log of attempts, in order."""
        return self.ask(
            "SELECT * FROM attempts WHERE %s::text IS NULL OR recipient = %s"
            " ORDER BY lease_token, ended_at, row_id",
            recipient,
            recipient,
        )

    def events(self, recipient: str) -> list[str]:
        """The events in the log for one recipient."""
        return [attempt["event"] for attempt in self.attempts(recipient)]

    def wait_queue(
        self, condition: Callable[[list[Row]], object], timeout: float = PATIENCE
    ) -> list[Row]:
        """Wait for a state of the queue; return it."""
        found: list[Row] = []

        def look() -> bool:
            found[:] = db.execute(_QUEUE).fetchall()
            return bool(condition(found))

        try:
            with self._connect() as db:  # one for all looks: a new one costs more than the query
                until(look, timeout)
        except AssertionError:
            states = [(r["recipient"], r["status"], r["attempts"], r["last_reply"]) for r in found]
            raise AssertionError(f"not within {timeout} s; queue: {states[:10]}") from None
        return found

    def wait_status(self, **statuses: str) -> dict[str, Row]:
        """Wait until the local parts given have these statuses; return rows by local part."""

        def by_local(rows: list[Row]) -> dict[str, Row]:
            return {row["recipient"].partition("@")[0]: row for row in rows}

        rows = self.wait_queue(
            lambda rows: {k: v["status"] for k, v in by_local(rows).items()} == statuses
        )
        return by_local(rows)

    def wait_empty(self, timeout: float = PATIENCE) -> None:
        """Wait until the queue is empty; then no bodies may be left."""
        self.wait_queue(lambda rows: not rows, timeout)
        assert self.ask("SELECT id FROM messages") == []
        assert self.ask("SELECT message_id FROM message_chunks") == []

    def enqueue(
        self,
        *recipients: str,
        content: bytes = b"Subject: x\r\n\r\nx\r\n",
        sender: str = "sender@example.org",
        **columns: object,
    ) -> int:
        """Put one message into the queue by SQL, as smtpd would; returns its id.

        `columns` are further columns of its rows.
        """
        names = ["message_id", "sender", "recipient", "domain", *columns]
        insert = sql.SQL("INSERT INTO queue ({}) VALUES ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.SQL(", ").join(sql.Placeholder() for _ in names),
        )
        with psycopg.connect(self.uri) as db:
            row = db.execute(
                "INSERT INTO messages (id, size, trace, body)"
                " VALUES (nextval('message_ids'), %s, 'Received: by test' || E'\\r\\n', %s)"
                " RETURNING id",
                (len(content), content),
            ).fetchone()
            assert row
            for recipient in recipients:
                domain = recipient.rpartition("@")[2]
                values = [row[0], sender, recipient, domain, *columns.values()]
                db.execute(insert, values)
            db.execute("NOTIFY pgmta_queue")
        return int(row[0])
