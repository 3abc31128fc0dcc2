"""Reports to senders: rows in REPORT and long delays get their DSNs, exactly once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.report_row import ReportRow
from pgmta.store.admin.upkeep import REPORTS
from pgmta.store.queue.claim import SESSION
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.enqueue import Enqueue
from pgmta.store.records.reports import Page, Place, Reports
from queued.process.queued_process import QueuedProcess
from queued.reports.report_batches import ReportBatches
from queued.reports.writer import ReportWriter

_LOOK_INTERVAL_S = 1.0  # at the rows of other processes, in our turn
_OWNER_GRACE_S = 2.0  # rows of another process wait so long for that process
_NEVER_S = 1e9
_ROWS_PER_LOOK = 500  # at the waiting messages
_MAX_BATCH_ROWS = 20_000  # a DSN has no more recipients
_ROUND_PAUSE_S = 0.01  # in which rows gather
_OLD_S = 10.0  # after `gather`; older rows come in a turn
_MAX_RETRY_PAUSE_S = 10.0  # after a failure

log = get("reports")


def report_link(process: QueuedProcess) -> Link:
    """Return the connection for reports: rows of an operator may be locked for hours, perhaps."""
    return process.resources.link("reports", SESSION | {"lock_timeout": "2s"})


class ReportDuty:
    """Reports for one process: rows that its workers have ended, and rows left by others.

    Each step is one commit, so that several processes may report at once, and any of them may die.
    Turns only spare work.
    """

    def __init__(self, process: QueuedProcess) -> None:
        self._process = process
        link = report_link(process)
        self._reports = Reports(link, f"reports@{process.name}")
        store = Enqueue(link, process.schema)
        writer = ReportWriter(store, Contents(link), process.host)
        self._round = ReportBatches(self._reports, store, writer)
        self._due = 0.0  # time of the loop's clock when the age of a waiting message makes it ready

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        process, failed = self._process, False
        looked = loop.time()
        while True:
            pause = min(looked + process.due_in(_LOOK_INTERVAL_S), self._due) - loop.time()
            if failed:
                await asyncio.sleep(min(max(pause, _LOOK_INTERVAL_S), _MAX_RETRY_PAUSE_S))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(pause, 0.0)):
                        await process.reported.wait()
            ours = process.reported.is_set()
            process.reported.clear()
            turn = loop.time() >= looked + process.due_in(_LOOK_INTERVAL_S)
            looked = loop.time() if turn else looked
            try:
                process.schema.require()
                if ours or not turn or await process.tasks_due.may(REPORTS):
                    await self._report(turn=turn)
                    if turn:
                        await self._report_delays()
                failed = False
            except (StoreUnavailable, psycopg.Error) as error:
                if not failed:
                    log.warning("can't report", reason=faults.one_line(error))
                failed = True
            await asyncio.sleep(_ROUND_PAUSE_S)

    async def _report(self, *, turn: bool) -> None:
        """Report all messages that are ready, oldest first.

        Only in a turn those of others, and old ones: rows may wait long, and each round would read
        them all.
        """
        loop = asyncio.get_running_loop()
        gather = self._process.config.bounces.gather
        self._due = loop.time() + _NEVER_S
        others, recent = (_OWNER_GRACE_S, None) if turn else (_NEVER_S, gather + _OLD_S)
        place: Place | None = None
        while page := await self._reports.waiting(
            place, _ROWS_PER_LOOK, self._process.name, others, recent
        ):
            ready = self._ready(page, gather)
            while ready:
                ready = await self._batch(ready)
            # the last page, or times beyond the calendar of Python
            if page.rows < _ROWS_PER_LOOK or (place and page.place <= place):
                break
            place = page.place

    def _ready(self, page: Page, gather: float) -> list[int]:
        """Return the messages of a page that are ready, and note when the others are."""
        ready = []
        now = asyncio.get_running_loop().time()
        for number, settled, waited in page.messages:
            if self._round.is_postponed(number):
                continue
            if settled or waited >= gather:
                ready.append(number)
            else:
                self._due = min(self._due, now + gather - waited)
        return ready

    async def _batch(self, ids: list[int]) -> list[int]:
        """Report messages as far as their rows fit into a batch; return the other messages."""
        rows = await self._reports.rows(ids, _MAX_BATCH_ROWS)
        later: list[int] = []
        if len(rows) == _MAX_BATCH_ROWS and (last := rows[-1].message_id) != rows[0].message_id:
            rows = [row for row in rows if row.message_id != last]
            later = [number for number in ids if number >= last]
        await self._end(rows)
        return later

    async def _end(self, rows: list[ReportRow]) -> None:
        """End these rows, and count and announce their DSNs."""
        if rows and (dsns := await self._round.end_batch(rows, self._process.config)):
            self._process.figures.dsns += dsns
            await self._reports.announce()

    async def _report_delays(self) -> None:
        """Report rows that are late; those of one message together."""
        number = _ROWS_PER_LOOK
        while number >= _ROWS_PER_LOOK:
            gather = self._process.config.bounces.gather
            rows, ended = await self._reports.delayed(gather, _ROWS_PER_LOOK, _MAX_BATCH_ROWS)
            if ended:
                await self._reports.forget_delays(ended)
            rows.sort(key=lambda row: (row.message_id, row.id))
            full = rows and len(rows) + len(ended) == _MAX_BATCH_ROWS
            if full and (last := rows[-1].message_id) != rows[0].message_id:
                rows = [row for row in rows if row.message_id != last]
            rows = [row for row in rows if not self._round.is_postponed(row.message_id)]
            number = len(rows) + len(ended)
            await self._end(rows)
