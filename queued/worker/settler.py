"""Writes outcomes in groups: while one commit is under way, the next group gathers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from pgmta.errors import AnswerLost, Backend, StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item, Outcome
from pgmta.postgres import faults
from pgmta.states import Event
from pgmta.store.settle import Settlements
from queued.worker.gather import Gather

_GROUP = 500  # outcomes a commit, at most
_PATIENCE = 0.002  # seconds that a group waits to grow, at most: what dies in them is sent twice
_RETRY = 0.5  # seconds
_LOCKED = 5.0  # seconds until a row that somebody else holds is tried again
_TRIES = 3  # outcomes refused one after the other, after which the others are not tried now

log = get("settle")


class Settler:
    """An outcome that was given to `put` is written again and again until it is durable.

    One that the database refuses for its row's sake puts the row on hold, with the reason.
    `settled` is called for every item afterwards: its place is free. Until then its lease is
    prolonged.
    """

    def __init__(self, settlements: Settlements, settled: Callable[[Item], None]) -> None:
        self._settlements = settlements
        self._settled = settled
        self._pending: list[Outcome] = []
        self._writing: list[Outcome] = []
        self._kept: list[Outcome] = []  # refused, and not for their rows' sake
        self._kept_until = 0.0  # when they are tried again
        self._named: set[int] = set()  # rows of them that the log has named
        self._gather = Gather(_PATIENCE, _GROUP)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._away = False
        self._again = False  # some of it may be written already

    @property
    def open(self) -> list[Outcome]:
        """Outcomes that may not be durable."""
        outcomes = (*self._writing, *self._kept, *self._pending)
        return list({id(outcome): outcome for outcome in outcomes}.values())

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
            if self._pending:
                await self._gather.wait(len(self._pending))
                group, self._pending = self._pending[:_GROUP], self._pending[_GROUP:]
                self._gather.gone(len(group))
                await self._write(group)
            if self._kept and time.monotonic() > self._kept_until:
                kept, self._kept = self._kept[:_GROUP], self._kept[_GROUP:]
                await self._write(kept)
            if not self._pending and self._kept:
                self._work.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY):
                        await self._work.wait()
                self._work.set()
            elif not self._pending:
                self._work.clear()
                self._idle.set()

    async def flush(self) -> None:
        """Wait until all that was put is durable."""
        await self._idle.wait()

    async def _write(self, group: list[Outcome]) -> None:
        """Write a group; what is refused keeps none of the others."""
        self._writing = group
        try:
            await self._settle(group)
        except Exception as error:
            if not self._named:  # else the log has it
                log.warning("can't settle a group", outcomes=len(group), reason=faults.words(error))
            if len(group) > 1:
                await self._write_singly(group)
            elif not await self._set_aside(group[0], error):
                self._keep(group[0], error)
        self._writing = []
        if not self._kept:
            self._again = False
            self._named.clear()

    async def _write_singly(self, group: list[Outcome]) -> None:
        refused = 0
        for number, outcome in enumerate(group):
            self._writing = group[number:]
            try:
                await self._settle([outcome])
                refused = 0
            except Exception as error:
                if await self._set_aside(outcome, error):
                    refused = 0
                    continue
                self._keep(outcome, error)
                refused += 1
            if refused == _TRIES:  # it is not about them, but about the statement or the schema
                self._kept[:0] = group[number + 1 :]  # and so they are the first the next time
                return

    def _keep(self, outcome: Outcome, error: Exception) -> None:
        """Try it again later, for as long as we live."""
        self._kept.append(outcome)
        self._kept_until = time.monotonic() + (_LOCKED if faults.locked(error) else _RETRY)
        if outcome.item.id not in self._named:
            self._named.add(outcome.item.id)
            log.error("outcome is kept until the database takes it", reason=faults.words(error),
                      **_facts(outcome))  # fmt: skip

    async def _set_aside(self, outcome: Outcome, error: Exception) -> bool:
        """Put the row of a refused outcome on hold, if it is about that row; False if it is not."""
        if not faults.about_row(error):
            return False
        try:
            await self._settlements.set_aside(outcome, faults.words(error))
        except Exception as problem:
            log.warning("can't put a row on hold", reason=faults.words(problem), **_facts(outcome))
            return False
        log.error("outcome refused by the database: the row is on hold", reason=faults.words(error),
                  **_facts(outcome))  # fmt: skip
        self._settled(outcome.item)
        return True

    async def _settle(self, group: list[Outcome]) -> None:
        """Write them as soon as PostgreSQL can. Raises what it refuses them with."""
        lost: list[Backend] = []
        while True:
            sent = False
            try:
                await self._settlements.end(lost)
                sent = True
                changed = await self._settlements.settle(group, self._again)
                break
            except StoreUnavailable as error:
                if sent and isinstance(error, AnswerLost):
                    lost.append(error.backend)
                    self._again = True
                if not self._away:
                    log.warning("can't settle", outcomes=len(group), reason=str(error))
                self._away = True
                await asyncio.sleep(_RETRY)
        if self._away:
            log.info("database is back")
        self._away = False
        for outcome in group:
            known = outcome.item.id in changed or self._again or outcome.event is Event.HAND_BACK
            if not known:
                duplicate = outcome.event is Event.DELIVERED
                log.warning("row had moved on", duplicate=duplicate, **_facts(outcome))
            self._settled(outcome.item)


def _facts(outcome: Outcome) -> dict[str, object]:
    item = outcome.item
    return {"row": item.id, "message": item.message_id, "outcome": outcome.event.value}
