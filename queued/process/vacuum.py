"""Vacuums the room of delivered mail soon, so that new mail uses the same memory."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.service import rest_after, together
from pgmta.store.admin.vacuum import NotAllowed, Space
from queued.process.delivery_figures import DeliveryFigures

_STEP_OCTETS = 32 << 20  # of delivered content that are worth a vacuum
# a step is a sixteenth of the file if that is more: each vacuum reads the whole index
_FILE_DIVISOR = 16
_REST_FACTOR = 4  # the pause after a vacuum lasts so many times as long as it
# a longer vacuum met rows that it may not remove, because of a backup for example
_LONG_VACUUM_S = 2.0
_QUIET_S = 60.0  # after so long with less than a step the file is shortened
_MAX_UNSHORTENED_S = 3600.0  # afterwards the file is shortened in any case
_LOOK_INTERVAL_S = 1.0  # for dead rows
_MAX_REST_S = 5.0  # after a vacuum of rows that a snapshot had kept: the next one is short
_MIN_CLAIMED_ROWS = 500  # between two looks for dead rows; one after fewer costs too much
_REFUSED_PAUSE_S = 600.0  # before the next try, if the role may not vacuum

log = get("upkeep")


class Reclaimer:
    """Counts delivered octets, vacuums when they are enough, and shortens the file afterwards."""

    def __init__(self, space: Space, step: int = _STEP_OCTETS, quiet: float = _QUIET_S) -> None:
        self._space = space
        self._least = self._step = step
        self._quiet = quiet
        self._octets = 0
        self._last = 0
        self._enough = asyncio.Event()
        self._busy = True  # content was delivered since the file was shortened
        self._reported = False
        self._shortened = time.monotonic()

    def freed(self, message_id: int, octets: int) -> None:
        """Count a delivered message whose content is in chunks; its recipients may come singly."""
        if message_id == self._last:
            return
        self._last = message_id
        self._octets += octets
        if self._octets >= self._step:
            self._enough.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._quiet if self._busy else _MAX_UNSHORTENED_S):
                    await self._enough.wait()
            began = time.monotonic()
            shorten = not self._enough.is_set() or began > self._shortened + _MAX_UNSHORTENED_S
            self._enough.clear()
            self._octets = 0
            try:
                octets = await self._space.reclaim(shorten=shorten)
                if octets is not None:
                    self._step = max(self._least, octets // _FILE_DIVISOR)
                    self._busy = not shorten
                    if shorten:
                        self._shortened = began
            except NotAllowed:
                if not self._reported:
                    hint = "call pgmta.grants() (PostgreSQL 17), or VACUUM (TRUNCATE) it at times"
                    log.warning("may not vacuum message_chunks, autovacuum is slower", hint=hint)
                self._reported = True
                await asyncio.sleep(_REFUSED_PAUSE_S)
            except (StoreUnavailable, psycopg.Error) as error:
                log.warning("upkeep failed", duty="space", reason=faults.one_line(error))
            await asyncio.sleep(_rest_since(began))


def _rest_since(began: float) -> float:
    """Return the pause after a vacuum that began then."""
    took = time.monotonic() - began
    return took * _REST_FACTOR if took < _LONG_VACUUM_S else rest_after(took)


class RowVacuum:
    """Looks for tables with many dead rows while mail flows, after each 500 claimed rows.

    Rows live for less than a second. Without mail it does not look, and autovacuum
    does so once per minute.
    """

    def __init__(self, space: Space, figures: DeliveryFigures) -> None:
        self._space = space
        self._figures = figures
        self._looked = 0  # number of claimed rows at the last look
        self._failed = False

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            took = time.monotonic() - began
            rest = min(took * _REST_FACTOR, _MAX_REST_S)
            await asyncio.sleep(max(together(_LOOK_INTERVAL_S), rest))

    async def look(self) -> None:
        """Vacuum what needs it, if enough rows were claimed since the last time."""
        claimed = self._figures.claimed
        if claimed < self._looked + _MIN_CLAIMED_ROWS:
            return
        self._looked = claimed
        try:
            await self._space.vacuum_crowded()
            self._failed = False
        except (StoreUnavailable, psycopg.Error) as error:
            if not self._failed:
                log.warning("upkeep failed", duty="row vacuum", reason=faults.one_line(error))
            self._failed = True
