"""A daemon, as its command, its log and the database know it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgmta.config.environment import Environment
from pgmta.config.loader import mistakes
from pgmta.errors import LoginRefused, StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.link import Link
from pgmta.postgres.locate import absence, resolve
from pgmta.postgres.role import group_of
from pgmta.store.admin.daemons import Heartbeat, misfit
from pgmta.store.schema import Schema

_CHECK_TIMEOUT_S = 3.0  # for PostgreSQL to answer
NO_QUEUE = "the database has no queue yet: run `queuectl database migrate`"
_URI_KEY = ("environment", "database", "uri")


@dataclass(frozen=True, slots=True)
class DaemonRole:
    """A kind of daemon. `name` is the program in the table daemons; its logins are in `group`.

    The rights of the group are rows of the table rights.
    """

    name: str

    @property
    def group(self) -> str:
        """The group role in PostgreSQL."""
        return group_of(self.name)

    def resolve(self, environment: Environment) -> str:
        """Return the URI of the database, for which the daemon may have to wait.

        The log says how to start an embedded server that does not run. Raises ConfigError;
        ServerRefused if the server is another user's.
        """
        if reason := absence(environment):
            get(self.name).warning("no database yet", reason=reason)
        return resolve(environment, self.group)

    def heartbeat(self, link: Link, schema: Schema, host: str) -> Heartbeat:
        """Return the heartbeat of this process, with a name that no other process has."""
        return Heartbeat(link, schema, process_name(host), self.name, host)

    async def unchecked(
        self,
        path: Path,
        environment: Environment,
        check: Callable[[Link, str], Awaitable[Any]],
        patience: float | None = None,
        *,
        any_login: bool = False,
    ) -> str:
        """Check login, role and schema, then `check`; return the reason if that can't be done now.

        `check` gets a link and the URI. With `any_login` an operator asks, and it is all that runs.
        Raises ConfigError if PostgreSQL refuses the login, or if the login lacks the role.
        """
        try:
            if absence(environment):
                return "the embedded PostgreSQL does not run"
        except StoreUnavailable as error:
            return str(error)
        uri = resolve(environment, self.group)
        link = Link(uri, "check", {"lock_timeout": f"{_CHECK_TIMEOUT_S:.0f}s"})
        try:
            async with asyncio.timeout(patience):
                async with asyncio.timeout(_CHECK_TIMEOUT_S):
                    reason = "" if any_login else await misfit(link, self.name)
                if not reason:
                    await check(link, uri)
                return reason
        except LoginRefused as error:
            raise mistakes(path, [(_URI_KEY, " ".join(str(error).split()))]) from None
        except psycopg.errors.UndefinedTable:
            return NO_QUEUE
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            return " ".join(str(error).split()) or "PostgreSQL does not answer"
        finally:
            await link.close()


def process_name(host: str) -> str:
    """Return a new name: containers may share host names, and each of them begins at one pid."""
    return f"{host}:{os.getpid()}:{secrets.token_hex(3)}"


SMTPD = DaemonRole("smtpd")
QUEUED = DaemonRole("queued")
WEB = DaemonRole("web")
API = DaemonRole("api")
