"""Writes outcomes in groups: while one commit is under way, the next group gathers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from queued.errors import StoreUnavailable
from queued.gather import Gather
from queued.logs import get
from queued.model import Item, Outcome
from queued.states import Event
from queued.store.settle import Settlements

_GROUP = 500  # outcomes a commit, at most
_PATIENCE = 0.002  # seconds that a group waits to grow, at most: what dies in them is sent twice
_RETRY = 0.5  # seconds

log = get("settle")


class Settler:
    """An outcome that was given to `put` is written again and again until it is durable.

    `settled` is called for every item afterwards: its place is free.
    """

    def __init__(self, settlements: Settlements, settled: Callable[[Item], None]) -> None:
        self._settlements = settlements
        self._settled = settled
        self._pending: list[Outcome] = []
        self._gather = Gather(_PATIENCE, _GROUP)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, outcome: Outcome) -> None:
        """Take an outcome."""
        self._pending.append(outcome)
        self._idle.clear()
        self._work.set()
        self._gather.come(len(self._pending))

    async def run(self) -> None:
        """Write what comes; runs until cancelled."""
        while True:
            await self._work.wait()
            await self._gather.wait(len(self._pending))
            group, self._pending = self._pending[:_GROUP], self._pending[_GROUP:]
            self._gather.gone(len(group))
            await self._write(group)
            if not self._pending:
                self._work.clear()
                self._idle.set()

    async def flush(self) -> None:
        """Wait until all that was put is durable."""
        await self._idle.wait()

    async def _write(self, group: list[Outcome], again: bool = False) -> None:
        while True:
            try:
                changed = await self._settlements.settle(group, again)
                break
            except StoreUnavailable as error:
                again = True
                log.warning("can't settle", outcomes=len(group), reason=str(error))
                await asyncio.sleep(_RETRY)
            except psycopg.Error as error:
                if len(group) == 1:
                    # its lease will run out, and the attempt be made again
                    log.error("outcome refused by the database", row=group[0].item.id,
                              message=group[0].item.message_id, reason=str(error))  # fmt: skip
                    changed = {group[0].item.id}
                    break
                for outcome in group:
                    await self._write([outcome], again)
                return
        for outcome in group:
            known = outcome.item.id in changed or again or outcome.event is Event.HAND_BACK
            if not known:
                log.warning(
                    "row had moved on",
                    row=outcome.item.id,
                    message=outcome.item.message_id,
                    outcome=outcome.event.value,
                    duplicate=outcome.event is Event.DELIVERED,
                )
            self._settled(outcome.item)
