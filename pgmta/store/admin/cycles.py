"""Ends the statements that a migration waits for while they wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

_LOOK = 0.1  # seconds between two looks: PostgreSQL looks after 1 s, and may end the migration
_CYCLE = """
SELECT pid, coalesce(usename, 'of the server') FROM pg_stat_activity
WHERE pid = ANY (pg_blocking_pids(%(pid)s)) AND %(pid)s = ANY (pg_blocking_pids(pid))
"""


class Cycles:
    """Deadlocks of one session with others, which end in favor of that session."""

    def __init__(self, uri: str, pid: int) -> None:
        self._uri, self._pid = uri, pid
        self.refused: set[str] = set()
        """The roles whose statements this login may not cancel."""

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Cancel each statement that is in a cycle with the session, over a second connection.

        Without this connection PostgreSQL ends one of the two, as ever.
        """
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, done: threading.Event) -> None:
        try:
            with psycopg.connect(
                self._uri, autocommit=True, application_name="pgmta migrate"
            ) as db:
                while not done.wait(_LOOK):
                    for pid, role in db.execute(_CYCLE, {"pid": self._pid}).fetchall():
                        self._cancel(db, pid, role)
        except psycopg.OperationalError:
            return

    def _cancel(self, db: psycopg.Connection, pid: int, role: str) -> None:
        try:
            db.execute("SELECT pg_cancel_backend(%s)", (pid,))
        except psycopg.errors.InsufficientPrivilege:
            self.refused.add(role)
