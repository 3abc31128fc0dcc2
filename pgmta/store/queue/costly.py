"""Conditions that take too long: they are found under a time limit, named and set aside.

A rule or suspension that is set aside has `slow_at`, and counts for nobody until that is null.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import errors as pg_errors

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.queue.guard import Condition

LIMITED = {"statement_timeout": "2s", "lock_timeout": "1s"}
"""Run-time parameters for a connection that tries conditions: 2,000 rows usually take 20 ms."""

CLAIMING = {"statement_timeout": "5s"}
"""Those for connections that claim: then each standing rule is tried on its own."""

SCANNING = {"statement_timeout": "60s"}
"""Those for connections on which a condition may read the whole queue."""

_BLANK = 0  # stands for a row without values
_TRIES = 2  # a host may have been busy with other work

_SQL = queries("costly")

log = get("conditions")


def timed_out(error: BaseException) -> bool:
    """Return whether PostgreSQL has cancelled the statement, most likely by its time limit."""
    return isinstance(error, StoreUnavailable) and isinstance(
        error.__cause__, pg_errors.QueryCanceled
    )


class CostlyConditions:
    """Tries conditions over a connection that has the settings LIMITED.

    Each method raises StoreUnavailable, also if the server is so slow that any condition takes too
    long, and psycopg.Error.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        """The connection."""

    async def rows(self, condition: str, ids: Sequence[int]) -> list[int] | None:
        """Return the rows of these that meet a condition; None: it takes too long.

        A row on which the condition fails meets it.
        """
        for _ in range(_TRIES):
            try:
                return await self._meeting(condition, ids)
            except StoreUnavailable as error:
                if not timed_out(error):
                    raise
            await self._meeting("true", ids)  # if that is too slow as well, it is the server
        return None

    async def _meeting(self, condition: str, ids: Sequence[int]) -> list[int]:
        params = {"condition": condition, "ids": Bigints(ids)}
        return [row for (row,) in await self.link.run(_SQL["meeting"], params)]

    async def _slow(self, condition: str) -> bool:
        """Return whether a condition takes too long for the rows that are due."""
        due = [row for (row,) in await self.link.run(_SQL["due"])]
        try:
            return await self.rows(condition, [_BLANK, *due]) is None
        except psycopg.Error:
            return False  # it is refused, which others find

    async def set_rules_aside(self, rules: Sequence[Condition]) -> bool:
        """Set those of the rules aside that take too long; return whether there are any."""
        found = False
        for rule in rules:
            if await self._slow(rule.text):
                found = True
                if await self.link.run(_SQL["rule"], {"owner": rule.owner, "text": rule.text}):
                    log.error("a standing rule is set aside: its condition takes too long",
                              condition=rule.owner, hint="queuectl rule list")  # fmt: skip
        return found

    async def set_suspension_aside(self, number: int, condition: str) -> bool:
        """Set a suspension aside if its condition takes too long; return whether it does."""
        if not await self._slow(condition):
            return False
        await self.note_suspension(number)
        return True

    async def note_suspension(self, number: int) -> None:
        """Set a suspension aside that takes too long."""
        if await self.link.run(_SQL["suspension"], {"suspension": number}):
            log.error("a suspension is set aside: its condition takes too long", suspension=number,
                      hint="queuectl suspensions")  # fmt: skip
