"""Statements of the duties beside delivery: requests by status, orphans, the clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from pgmta.features import loaded
from pgmta.postgres.link import Link
from pgmta.store.queries import Statement, queries

_SQL = queries("upkeep")


@dataclass(frozen=True, slots=True)
class Asked:
    """Whether there are rows to delete, holds to release, rules to remove."""

    delete: bool
    release: bool
    expire: bool


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A condition that an idle process looks at, before a duty or loop works.

    It is an expression of SQL: whether there may be something to do now or within a second. Each
    of its parts has to be a step in an index, whatever the statistics say.
    """

    condition: Statement


ORPHAN_AGE_S = 86400.0
"""Bodies without a row are deleted at this age."""
REQUESTS = Look(_SQL["requests"])
SCHEDULED = Look(_SQL["scheduled"])
REPORTS = Look(_SQL["reports"])


@cache
def _looks() -> tuple[Look, ...]:
    return (REQUESTS, SCHEDULED, REPORTS, *loaded("looks"))


@cache
def _look() -> Statement:
    conditions = b",\n".join(b"(\n" + look.condition + b"\n)" for look in _looks())
    return _SQL["look"].fill(conditions=conditions)


class Upkeep:
    """Runs the statements of these duties. Each method raises StoreUnavailable."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def look(self) -> frozenset[Look]:
        """Return the looks whose conditions hold, of the core and of the features.

        Raises StoreUnavailable, psycopg.Error.
        """
        (found,) = await self._link.run(_look())
        return frozenset(look for look, holds in zip(_looks(), found, strict=True) if holds)

    async def asked(self) -> Asked:
        """Find out by one cheap statement which requests there are now."""
        ((delete, release, expire),) = await self._link.run(_SQL["asked"])
        return Asked(delete, release, expire)

    async def orphans(self, age: float, batch: int) -> int:
        """Delete one batch of bodies and chunks, `age` seconds old, that nothing refers to.

        Returns the number of deleted rows.
        """
        params = {"age": age, "batch": batch}
        bodies = await self._link.run(_SQL["orphans"], params)
        return len(bodies) + len(await self._link.run(_SQL["orphan_chunks"], params))

    async def expire_keys(self, age: float, batch: int) -> int:
        """Remove one batch of keys of submissions older than `age` seconds; return how many."""
        return len(await self._link.run(_SQL["expire_keys"], {"age": age, "batch": batch}))

    async def expire_calls(self, age: float, batch: int) -> int:
        """Remove one batch of calls of submit_mails() older than `age` seconds; return how many."""
        return len(await self._link.run(_SQL["expire_calls"], {"age": age, "batch": batch}))

    async def introduce(self, hostname: str) -> None:
        """Give submissions by SQL a host name for their trace field, if they have none."""
        await self._link.run(_SQL["introduce"], {"hostname": hostname})

    async def expire_rules(self) -> list[tuple[str, int, int]]:
        """Remove standing rules whose time is over.

        Returns name and number of each, and how many rows it leaves on hold.
        """
        return [(row[0], row[1], row[2]) for row in await self._link.run(_SQL["expire_rules"])]


class ClockLook(NamedTuple):
    """The database's time, the seconds of a step back, and the rows whose waits are shorter now."""

    seen: float
    back: float | None
    rows: int | None


class DatabaseClock:
    """Looks at the clock of the database: a step back shortens waits.

    A step of at most `least` seconds is none, and a lease has `lease`.
    """

    def __init__(self, link: Link, least: float, lease: float) -> None:
        self._link = link
        self._params = {"least": least, "lease": lease}

    async def look(self) -> ClockLook:
        """Note the time, and shorten waits if the clock was set back since another look.

        Of several processes one does so. Raises StoreUnavailable, psycopg.Error.
        """
        (row,) = await self._link.run(_SQL["clock"], self._params)
        return ClockLook(*row)
