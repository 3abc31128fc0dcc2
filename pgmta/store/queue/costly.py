"""Conditions that take too long: they are found under a time limit, named and set aside.

A rule or order that is set aside has `slow_at`, and counts for nobody until that is null.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence

import psycopg
from psycopg import errors as pg_errors

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.queue.failing_conditions import Condition

TRYING_SETTINGS = {"statement_timeout": "2s", "lock_timeout": "1s"}
"""For connections that try conditions: 2,000 rows usually take 20 ms."""

CLAIMING_SETTINGS = {"statement_timeout": "5s"}
"""For connections that claim. A claim that takes longer has each standing rule tried on its own."""

SCANNING_SETTINGS = {"statement_timeout": "60s"}
"""For connections on which a condition may read the whole queue."""

MAX_TOGETHER_S = 1.0
"""What all conditions together may take beyond `true` when they are tried, in seconds."""

_BLANK_ROW_ID = 0  # stands for a row without values
_MAX_TRIES = 2  # because a host may have been busy with other work

_SQL = queries("costly")

log = get("conditions")


def timed_out(error: BaseException) -> bool:
    """Return whether PostgreSQL has cancelled the statement, most likely by its time limit."""
    return isinstance(error, StoreUnavailable) and isinstance(
        error.__cause__, pg_errors.QueryCanceled
    )


class CostlyConditions:
    """Tries conditions over a connection that has TRYING_SETTINGS.

    Each method raises StoreUnavailable, also if the server is so slow that any condition takes too
    long, and psycopg.Error.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        """The connection."""
        self.trial = asyncio.Lock()
        """Held during a trial: several workers may meet a costly condition at the same time."""

    async def rows(self, condition: str, ids: Sequence[int]) -> list[int] | None:
        """Return the rows of these that meet a condition; None: it takes too long.

        A row on which the condition fails meets it.
        """
        for _ in range(_MAX_TRIES):
            try:
                return (await self._meeting(condition, ids))[0]
            except StoreUnavailable as error:
                if not timed_out(error):
                    raise
            # raises if this is too slow as well: then the server is slow
            await self._meeting("true", ids)
        return None

    async def _meeting(self, condition: str, ids: Sequence[int]) -> tuple[list[int], float]:
        params = {"condition": condition, "ids": Bigints(ids)}
        ((rows, seconds),) = await self.link.run(_SQL["meeting"], params)
        return rows, seconds

    async def _seconds(self, condition: str, ids: Sequence[int]) -> float:
        """Return the time that a condition takes, infinite beyond the limit."""
        try:
            return (await self._meeting(condition, ids))[1]
        except StoreUnavailable as error:
            if not timed_out(error):
                raise
        except psycopg.Error:
            return 0.0  # the condition is refused; other checks report that
        # raises if this is too slow as well: then the server is slow
        await self._meeting("true", ids)
        return math.inf

    async def beyond[K](
        self, conditions: Mapping[K, str], ids: Sequence[int] | None = None
    ) -> AsyncIterator[K]:
        """Yield the costliest conditions, until the others take at most MAX_TOGETHER_S together.

        They are tried on these rows, or on those that are due.
        """
        if ids is None:
            ids = [row for (row,) in await self.link.run(_SQL["due"])] or [_BLANK_ROW_ID]
        usual = await self._seconds("true", ids)
        times = {
            key: max(0.0, await self._seconds(condition, ids) - usual)
            for key, condition in conditions.items()
        }
        sure = set()
        while sum(times.values()) > MAX_TOGETHER_S:
            worst = max(times, key=times.__getitem__)
            if worst in sure:
                del times[worst]
                yield worst
            else:  # a host may have been busy with other work
                sure.add(worst)
                again = await self._seconds(conditions[worst], ids) - usual
                times[worst] = max(0.0, min(times[worst], again))

    async def set_rules_aside(self, rules: Sequence[Condition]) -> bool:
        """Set those of the rules aside that take too long; return whether there are any.

        Rules that another trial has set aside meanwhile count.
        """
        async with self.trial:
            owners = [rule.owner for rule in rules]
            any_aside = bool(await self.link.run(_SQL["rules_aside"], {"owners": owners}))
            if any_aside:
                return True
            async for rule in self.beyond({rule: rule.text for rule in rules}):
                any_aside = True
                if await self.link.run(_SQL["rule"], {"owner": rule.owner, "text": rule.text}):
                    log.error("a standing rule is set aside: its condition takes too long",
                              condition=rule.owner, hint="queuectl rule list")  # fmt: skip
            return any_aside
