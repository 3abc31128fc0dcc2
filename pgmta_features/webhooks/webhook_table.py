"""The endpoints as operators and the HTTP API see and change them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from pgmta.store.queries import feature_queries

_SQL = feature_queries("webhooks")

OF_OPERATOR, NO_EVENT = "PG403", "PG404"
"""SQLSTATEs: a key may not change the endpoint; there is no such event."""
DEFAULT_BATCH = 100
"""Events of a request."""
MAX_BATCH = 1000


class Session(Protocol):
    """A connection to PostgreSQL, of an operator or of the API."""

    async def rows(self, query: Any, params: Any = None) -> list[dict[str, Any]]:
        """Run a statement and return its rows. Raises psycopg.Error."""


class WebhookTable:
    """The endpoints that a session sees: all, or those of the key for which it acts.

    Each method raises psycopg.Error; those that change one raise NoDataFound if there is none of
    this id, or OF_OPERATOR. `who` is noted in audit; None: for whom the session acts.
    """

    def __init__(self, session: Session, who: str | None = None) -> None:
        self._session = session
        self._who = who

    async def add(
        self, name: str, url: str, secret: str, *, kinds: Sequence[str] | None,
        condition: Mapping[str, Any], owner: str | None, batch: int, tenant: str | None,
    ) -> int:  # fmt: skip
        """Make an endpoint, and return its id. It gets events of mail of `tenant`; None: of any.

        Raises UniqueViolation if the name is there, ProgramLimitExceeded, and LockNotAvailable if
        the first subscription to events has to be repeated.
        """
        fields = {"name": name, "url": url, "kinds": kinds and list(kinds), "secret": secret,
                  "condition": json.dumps(condition), "owner": owner, "batch": batch,
                  "tenant": tenant}  # fmt: skip
        [row] = await self._run("add", **fields)
        return int(row["id"])

    async def endpoints(
        self, *, number: int | None = None, after: int = 0, most: int = 1000
    ) -> list[dict[str, Any]]:
        """Return the endpoints in the order of their ids, or the one of this id."""
        return await self._run("list", id=number, after=after, most=most)

    async def ids(self, name: str) -> list[int]:
        """Return the ids of endpoints of this name or id, for operators."""
        return [row["id"] for row in await self._run("ids", name=name)]

    async def names(self) -> list[str]:
        """Return the names of all endpoints, for operators."""
        return [row["name"] for row in await self._run("names")]

    async def change(self, number: int, changes: Mapping[str, Any]) -> None:
        """Change url, kinds, condition, owner or batch."""
        await self._run("change", id=number, changes=json.dumps(changes))

    async def enable(self, number: int, *, enabled: bool, reason: str = "") -> None:
        """Have an endpoint get events again, from where it stopped; or disable it."""
        await self._run("enable", id=number, enabled=enabled, reason=reason)

    async def rotate(self, number: int, secret: str, *, force: bool = False) -> datetime:
        """Give it another secret; return until when the earlier one signs, too.

        Raises ObjectNotInPrerequisiteState while one from before that signs; `force` ends it.
        """
        [row] = await self._run("rotate", id=number, secret=secret, force=force)
        until: datetime = row["until"]
        return until

    async def remove(self, number: int) -> None:
        """Remove it. Raises LockNotAvailable as `add` does."""
        await self._run("remove", id=number)

    async def replay(
        self, number: int, *, since: datetime | None = None, events: Sequence[str] | None = None
    ) -> int:
        """Post events again: all since a time, those of these ids, or those that were set aside.

        Returns how many the latter are. Raises NO_EVENT for an id that is not kept.
        """
        [row] = await self._run(
            "replay", id=number, since=since, events=None if events is None else list(events)
        )
        return int(row["asked"])

    async def failures(
        self, number: int, *, after: str = "", most: int = 1000
    ) -> list[dict[str, Any]]:
        """Return the events that were set aside, and those whose replay was asked for."""
        return await self._run("failures", id=number, after=after, most=most)

    async def _run(self, statement: str, /, **fields: Any) -> list[dict[str, Any]]:
        return await self._session.rows(_SQL[statement], {"who": self._who, **fields})
