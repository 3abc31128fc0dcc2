"""The daemons that run, and their versions: every process has a heartbeat."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import psycopg
from psycopg import errors as pg_errors

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.schema import Schema, program_version

BEAT = 10.0
"""Seconds between two heartbeats."""

_LEAVE = 2.0  # seconds

_SQL = queries("daemons")


class Heartbeat:
    """The heartbeat of one `process` of the program queued or smtpd on `host`."""

    def __init__(self, link: Link, schema: Schema, process: str, program: str, host: str) -> None:
        self._link = link
        self._schema = schema
        self._fields = {
            "process": process,
            "program": program,
            "host": host,
            "pid": os.getpid(),
            "version": program_version(),
            "schema": schema.name,
        }

    async def look(self) -> None:
        """Learn which schema the database has. Raises StoreUnavailable, psycopg.Error."""
        try:
            rows = await self._link.run(_SQL["schema"])
        except (pg_errors.InsufficientPrivilege, pg_errors.UndefinedTable):
            # the role may read it since the migration that made the table daemons; a new
            # database has no migrations
            rows = []
        self._schema.learn(name for (name,) in rows)

    async def beat(self) -> None:
        """Learn the schema and say that the process lives.

        Raises StoreUnavailable, psycopg.Error.
        """
        await self.look()
        try:
            await self._link.run(_SQL["beat"], self._fields)
        except psycopg.Error:
            if not self._schema.problem:
                raise

    async def run(self) -> None:
        """Beat until cancelled, also while PostgreSQL is away."""
        while True:
            with suppress(StoreUnavailable, psycopg.Error):
                await self.beat()
            await asyncio.sleep(BEAT)

    async def leave(self) -> None:
        """Say that the process ends, within 2 s, and close the connection."""
        with suppress(StoreUnavailable, psycopg.Error, TimeoutError):
            async with asyncio.timeout(_LEAVE):
                await self._link.run(_SQL["leave"], self._fields)
        await self._link.close()


def others(db: psycopg.Connection, schema: str) -> list[str]:
    """Return a line for each living daemon that knows another schema than `schema`.

    The search_path of the connection names the schema of our tables first.
    """
    known: list[str] = []
    found: list[str] = []
    new = _there(db, "daemons")
    if new:
        known = [name for (name,) in db.execute(_SQL["known"]).fetchall()]
        found = [
            f"{program} on {host}, pid {pid}, version {version} ({its})"
            for program, host, pid, version, its in db.execute(
                _SQL["others"], {"schema": schema}
            ).fetchall()
        ]
    if _there(db, "workers"):
        for (owner,) in db.execute(_SQL["silent"], {"known": known}).fetchall():
            host, _, rest = owner.partition(":")
            pid = rest.partition(":")[0]
            found.append(f"queued on {host}, pid {pid}, of an earlier version")
    if not new and (sessions := db.execute(_SQL["sessions"]).fetchall()):
        pids = ", ".join(str(pid) for (pid,) in sessions)
        found.append(f"smtpd of an earlier version, with the PostgreSQL sessions {pids}")
    return found


def _there(db: psycopg.Connection, table: str) -> bool:
    row = db.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    return bool(row and row[0])
