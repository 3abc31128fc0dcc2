"""The daemons that run, and their versions: every process has a heartbeat."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors as pg_errors

from pgmta.errors import LoginRefused, StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.fit_session import refuse_former
from pgmta.postgres.link import Link
from pgmta.postgres.link_pool import LinkPool
from pgmta.postgres.role import GRANTS, ROLE_QUESTION, group_of, lacking
from pgmta.store.queries import queries
from pgmta.store.schema import Schema, migrations, mismatch, program_version
from pgmta.waiting import Waiting

HEARTBEAT_INTERVAL_S = 10.0

_ANSWER_TIMEOUT_S = 20.0
"""For a heartbeat. A server may hang while its host answers for it: the next one may find another.
"""
_LEAVE_TIMEOUT_S = 2.0
_RETRY_PAUSE_S = 1.0  # while PostgreSQL refuses the login

_SQL = queries("daemons")

log = get("schema")


async def takes_changes(pool: LinkPool) -> bool:
    """Return whether the database takes changes. Raises StoreUnavailable, psycopg.Error."""
    ((read_only,),) = await pool.run(_SQL["read_only"], {})
    return not read_only


class Heartbeat:
    """The heartbeat of one `process` of the program queued or smtpd on `host`."""

    def __init__(self, link: Link, schema: Schema, process: str, program: str, host: str) -> None:
        self._link = link
        self._schema = schema
        self._role = group_of(program)
        self._fields: dict[str, Any] = {
            "process": process,
            "program": program,
            "host": host,
            "pid": os.getpid(),
            "version": program_version(),
            "schema": schema.name,
        }
        self._known = False  # whether the database has an entry of this process

    async def learn_schema(self) -> None:
        """Learn which schema the database has.

        Raises LoginRefused if the login lacks its role; FormerDatabase, which ends the process;
        StoreUnavailable; psycopg.Error.
        """
        names = await _names(self._link, self._role)
        refuse_former(names)
        self._schema.learn(names)

    async def look(self) -> None:
        """Learn the schema, and look whether the database takes changes.

        Raises the same as `learn_schema`, and StoreUnavailable if the database is read-only.
        """
        await self.learn_schema()
        ((read_only,),) = await self._link.run(_SQL["read_only"], {})
        if read_only:
            raise StoreUnavailable("the database is read-only")

    async def beat(self) -> None:
        """Learn the schema and say that the process lives.

        Raises StoreUnavailable, FormerDatabase, psycopg.Error.
        """
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await self._beat()
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {_ANSWER_TIMEOUT_S:g} s") from None

    async def _beat(self) -> None:
        await self.learn_schema()
        if not self._known:
            await _require_login(self._link, self._role)
        try:
            await self._announce()
            # before the answer, because the process may end until it comes
            known, self._known = self._known, True
            if not known and (lost := await _lost_rights(self._link, self._role)):
                log.warning("the login can't do all of its work", reason=lost)
        except psycopg.Error:
            if not self._schema.problem:
                raise

    async def _announce(self) -> None:
        try:
            await self._link.run(_SQL["beat"], self._fields)
        except pg_errors.InsufficientPrivilege:
            await _require_role(self._link, self._role)
            try:  # because the role was granted after the refusal
                await self._link.run(_SQL["beat"], self._fields)
            except pg_errors.InsufficientPrivilege:
                raise LoginRefused(f"the role {self._role} lacks rights: {GRANTS}") from None

    async def run(self, shut: Callable[[], None], answered: asyncio.Event) -> None:
        """Beat until cancelled, also while PostgreSQL is away. Raises FormerDatabase.

        Sets `answered` after the first beat, unless PostgreSQL refuses the login. Logs why there is
        none yet, and calls `shut` then: no mail can be stored.
        """
        waiting, there = Waiting(self._fields["program"]), False
        while True:
            try:
                await self.beat()
            except (StoreUnavailable, psycopg.Error) as error:
                refused = isinstance(error, LoginRefused)
                if refused or not there:
                    waiting.tell(error)
                    shut()
                if refused:
                    answered.clear()
                else:
                    answered.set()
            else:
                waiting.over()
                there = True
                answered.set()
            await asyncio.sleep(HEARTBEAT_INTERVAL_S if answered.is_set() else _RETRY_PAUSE_S)

    async def leave(self) -> None:
        """Say that the process ends, within 2 s, and close the connection."""
        with suppress(StoreUnavailable, psycopg.Error, TimeoutError):
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                if self._known:
                    await self._link.run(_SQL["leave"], self._fields)
        await self._link.close()


async def misfit(link: Link, program: str) -> str:
    """Return why a program can't work on the schema of a database, '' if it can; change nothing.

    Raises LoginRefused, also if the login lacks its role; FormerDatabase; StoreUnavailable;
    psycopg.Error.
    """
    role = group_of(program)
    problem = mismatch(list(migrations()), await _names(link, role))
    if not problem:
        await _require_login(link, role)
        if lost := await _lost_rights(link, role):
            raise LoginRefused(lost)
    return problem


async def _names(link: Link, role: str) -> set[str]:
    """Return the migrations that the database has. Raises LoginRefused if the login lacks `role`.

    A new database has none.
    """
    try:
        return {name for (name,) in await link.run(_SQL["schema"])}
    except (pg_errors.InsufficientPrivilege, pg_errors.UndefinedTable) as error:
        try:
            await _require_role(link, role)
            if isinstance(error, pg_errors.InsufficientPrivilege):
                raise LoginRefused(f"the role {role} lacks rights: {GRANTS}") from None
        finally:  # up to PostgreSQL 16 a session does not notice a later GRANT on a schema
            await link.close()
        return set()


async def _require_login(link: Link, role: str) -> None:
    """Raise LoginRefused if the login is another daemon's: neither in `role` nor the owner.

    Before there is a schema it has no owner, and any login waits for it.
    """
    if await link.run(_SQL["owner"]) == [(False,)]:
        await _require_role(link, role)


async def _require_role(link: Link, role: str) -> None:
    (answer,) = await link.run(ROLE_QUESTION, {"role": role})
    if reason := lacking(role, answer):
        raise LoginRefused(reason)


async def _lost_rights(link: Link, role: str) -> str:
    """Return which rights the role should have and lacks, with the remedy; '' if it has all."""
    try:
        missing = await link.run(_SQL["missing_rights"], {"role": role})
    except pg_errors.InsufficientPrivilege:
        return f"the role {role} lacks rights: {GRANTS}"
    if not missing:
        return ""
    (privilege, thing), *more = missing
    others_too = f" and {len(more)} more rights" if more else ""
    return f"the role {role} lacks {privilege} on {thing}{others_too}: {GRANTS}"


def others(db: psycopg.Connection, schema: str) -> list[str]:
    """Return a line for each living daemon that knows another schema than `schema`.

    The search_path of the connection names the schema of our tables first.
    """
    return [
        f"{program} on {host}, pid {pid}, version {version} ({its})"
        for program, host, pid, version, its in db.execute(_SQL["others"], {"schema": schema})
    ]
