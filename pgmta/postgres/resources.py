"""The connections of one daemon process to PostgreSQL: made, named and counted here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgmta.postgres import primary
from pgmta.postgres.link import Link, connect
from pgmta.postgres.link_connection import LinkConnection

_CLOSE_UNUSED_INTERVAL_S = 60.0  # in which each link that was not used is closed


class Resources:
    """The connections to the database at `uri`: `pgmta DAEMON NAME` in pg_stat_activity."""

    def __init__(self, uri: str, daemon: str) -> None:
        self._uri = uri
        self._daemon = daemon
        self._links: dict[str, Link] = {}
        self._settings: dict[str, dict[str, str | float]] = {}
        self._others: set[str] = set()

    @property
    def uri(self) -> str:
        """The database, for connections of another kind."""
        return self._uri

    def link(self, name: str, settings: dict[str, str] | None = None, **more: float) -> Link:
        """Return the link of that name, which all callers share; `more` is as of Link.

        Raises ValueError if another caller has it with other settings: they would not count.
        """
        asked = (settings or {}) | more
        if name not in self._links:
            self._links[name] = Link(self._uri, f"{self._daemon} {name}", settings, **more)
            self._settings[name] = asked
        if (before := self._settings[name]) != asked:
            raise ValueError(f"the link {name!r} has the settings {before}, not {asked}")
        return self._links[name]

    async def connect(self, name: str, settings: dict[str, str] | None = None) -> LinkConnection:
        """Open a connection that its user closes. Raises psycopg.Error."""
        self._others.add(name)
        return await connect(self._uri, f"{self._daemon} {name}", settings)

    async def connect_as(self, login: str, name: str) -> psycopg.AsyncConnection[Any]:
        """Open a plain connection of another login, in autocommit, that its user closes.

        Nothing of ours is set in it. A password of our own login is not sent: libpq finds that of
        the other one in ~/.pgpass, unless the server wants none. Raises psycopg.Error.
        """
        given: dict[str, Any] = conninfo_to_dict(primary.writable(self._uri))
        if given.get("user") != login:
            given |= {"user": login, "password": None}
        self._others.add(name)
        return await psycopg.AsyncConnection.connect(
            make_conninfo(**given),
            autocommit=True,
            application_name=f"pgmta {self._daemon} {name}",
        )

    @property
    def names(self) -> set[str]:
        """The uses of the connections that are open, once each has been needed."""
        return self._links.keys() | self._others

    def states(self) -> dict[str, int]:
        """Return how many links are open, and how many of these are busy with a statement."""
        links = [link for link in self._links.values() if link.connected]
        return {"open": len(links), "busy": sum(link.busy for link in links)}

    async def close_unused_links(self, needed: Callable[[], bool] = bool) -> None:
        """Close links that were not used for one to two minutes. Runs until cancelled.

        Each has a process of PostgreSQL with 2 to 6 MB. The next use connects again. While
        `needed` says so, as for outcomes that are not written yet, none is closed.
        """
        while True:
            await asyncio.sleep(_CLOSE_UNUSED_INTERVAL_S)
            if needed():
                continue
            for link in [*self._links.values()]:
                await link.close_unused()

    async def close(self) -> None:
        """Close the links."""
        for link in self._links.values():
            await link.close()
