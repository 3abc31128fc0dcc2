"""One batch of rows that have ended: its DSNs are decided, written and queued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.intake.ids import Ids
from pgmta.logs import get
from pgmta.model import CHUNK_OCTETS, NewMessage
from pgmta.postgres import faults
from pgmta.report_row import ReportedMessage, ReportRow
from pgmta.store.queue.enqueue import Enqueue
from pgmta.store.records.reports import (
    HEADER_CHUNKS,
    ReportClosing,
    ReportEntry,
    ReportLimits,
    Reports,
    counted,
    limited,
    moved,
)
from queued.config import QueuedConfig
from queued.reports.report_policy import LIMIT_REASON, Decision, Plan, decide, keep_to_limits
from queued.reports.writer import (
    MAX_IN_MEMORY_OCTETS,
    Letter,
    ReportWriter,
    groups,
    returns_content,
)

_MAX_ORIGINAL_OCTETS = 8 << 20  # in memory at once, unless one original has more
_MAX_TRIES = 5  # to write a batch of DSNs: those of other processes may use up a limit meanwhile
_LEFT_OUT_S = 5.0  # for a message whose rows are locked, or can't be held
_DSNS_WITHOUT_PAUSE = 20  # so many are composed before other tasks have their turn
_LOG_INTERVAL_S = 60.0  # for lines about the limits
_MAX_REASON_CHARACTERS = 500

log = get("reports")


class ReportBatches:
    """Ends batches of rows for one process, one after the other.

    `_left` has messages that are not tried now, and until when.
    """

    # those of the present batch:
    _config: QueuedConfig
    _messages: dict[int, ReportedMessage]

    def __init__(self, reports: Reports, store: Enqueue, writer: ReportWriter) -> None:
        self._reports = reports
        self._store = store
        self._writer = writer
        self._ids = Ids(store)
        self._warned = float("-inf")
        self._left: dict[int, float] = {}

    def is_postponed(self, message_id: int) -> bool:
        """Return whether a message is not tried now, because its rows could not be ended."""
        until = self._left.get(message_id)
        if until is None:
            return False
        if time.monotonic() < until:
            return True
        del self._left[message_id]
        return False

    async def end_batch(self, rows: Sequence[ReportRow], config: QueuedConfig) -> int:
        """End all rows of some messages, and return how many DSNs were queued.

        Rows that the database refuses go on hold with the reason, and the others go on. Raises
        StoreUnavailable, and psycopg.Error if the reason is not the rows.
        """
        self._config = config
        self._messages = await self._reports.messages({row.message_id for row in rows})
        for chance in range(_MAX_TRIES):
            decision = await self._decide(rows)
            try:
                return await self._close(decision)
            except psycopg.Error as error:
                if not limited(error) or chance == _MAX_TRIES - 1:
                    raise
                # without rows that this batch has closed already
                rows = await self._again(rows)
        return 0

    async def _again(self, rows: Sequence[ReportRow]) -> list[ReportRow]:
        delays = [row for row in rows if row.kind == "delayed"]
        others = {row.message_id for row in rows} - {row.message_id for row in delays}
        return delays + (await self._reports.rows(others, len(rows)) if others else [])

    async def _decide(self, rows: Sequence[ReportRow]) -> Decision:
        bounces = self._config.bounces
        decision = decide(rows, bounces.postmaster)
        if decision.plans:
            used = await self._reports.used(counted(plan.sent_to) for plan in decision.plans)
            surplus = keep_to_limits(decision, bounces.limits, used)
            if surplus and time.monotonic() > self._warned + _LOG_INTERVAL_S:
                self._warned = time.monotonic()
                log.warning("DSNs are over a limit: rows are on hold", reason=LIMIT_REASON)
        return decision

    async def _close(self, decision: Decision) -> int:
        """Queue the DSNs of a decision, and end its rows. Return the number of DSNs."""
        if decision.closing:
            await self._end_without(decision.closing)
        messages = self._messages
        sizes: dict[int, int] = {}
        for plan in decision.plans:
            if found := messages.get(plan.message_id):
                whole = returns_content(plan, found, self._config)
                octets = found.size if whole else min(found.size, HEADER_CHUNKS * CHUNK_OCTETS)
                sizes[plan.message_id] = max(octets, sizes.get(plan.message_id, 0))
        number = 0
        for group in groups(decision.plans, sizes, _MAX_ORIGINAL_OCTETS):
            await self._read(group)
            letters = await self._write(group)
            stored = await self._stored([each for each in letters if not each.streams])
            for letter in letters:
                if letter.streams:
                    stored += await self._stored([letter])
            number += await self._insert(stored)
            for plan in group:
                if found := messages.get(plan.message_id):
                    found.content = b""
        return number

    async def _end_without(self, closing: ReportClosing) -> None:
        """End rows without a DSN; if the database refuses some, the others go on."""
        try:
            await self._commit([], closing)
        except psycopg.Error as error:
            if not (moved(error) or faults.locked(error) or faults.about_row(error)):
                raise
            gone, held = closing.gone, closing.held
            if len(gone) + len(held) > 1:
                for part in closing.halves():
                    await self._end_without(part)
                return
            row = gone[0].row if gone else held[0][0]
            self._leave(row.message_id)
            if not moved(error):
                log.error("can't end a row", message=row.message_id, row=row.id,
                          reason=faults.one_line(error))  # fmt: skip

    async def _read(self, group: list[Plan]) -> None:
        """Read what the DSNs return; large content is read while it is written."""
        whole: dict[int, ReportedMessage] = {}
        heads: dict[int, ReportedMessage] = {}
        for plan in group:
            if message := self._messages.get(plan.message_id):
                streams = message.chunks and message.size > MAX_IN_MEMORY_OCTETS
                returns = returns_content(plan, message, self._config)
                part = whole if returns and not streams else heads
                part[message.id] = message
        await self._reports.fill(
            list(whole.values()),
            [each for each in heads.values() if each.id not in whole],
            HEADER_CHUNKS,
        )

    async def _write(self, group: list[Plan]) -> list[Letter]:
        """Compose the DSNs. One that can't be composed puts its rows on hold."""
        letters: list[Letter] = []
        now = datetime.now(UTC)
        for place, plan in enumerate(group, 1):
            number = await self._ids.take_id()
            try:
                original = self._messages.get(plan.message_id)
                letters.append(
                    self._writer.write_reports(plan, original, number, self._config, now)
                )
            except Exception as error:
                log.error("can't compose a DSN", message=plan.message_id, exc_info=error)
                await self._hold(plan, f"its DSN can't be composed: {faults.one_line(error)}")
            if place % _DSNS_WITHOUT_PAUSE == 0:
                await asyncio.sleep(0)
        return letters

    async def _stored(self, letters: list[Letter]) -> list[Letter]:
        """Store the chunks of DSNs, and return those that can be queued now.

        A content may be gone or not fit to be sent: then its DSN returns the header alone. The
        database may refuse chunks. Nothing is stored twice.
        """
        try:
            await self._writer.store(letters)
        except LookupError:  # raised for a stream, which is stored by itself
            await self._drop(letters)
            for letter in letters:
                if letter.original:
                    letter.original.torn = True
            return await self._stored(await self._write([letter.plan for letter in letters]))
        except psycopg.Error as error:
            if not faults.about_row(error):
                await self._drop(letters)
                raise
            if len(letters) > 1:
                half = len(letters) // 2
                return await self._stored(letters[:half]) + await self._stored(letters[half:])
            await self._refused(letters[0], error)
            return []
        return letters

    async def _insert(self, letters: list[Letter]) -> int:
        """Queue DSNs; if the database refuses some, the others go on. Return their number."""
        if not letters:
            return 0
        entries = [
            ReportEntry(row, row.reason(), letter.message.id, letter.plan.sent_to)
            for letter in letters
            for row in letter.plan.rows
        ]
        try:
            await self._commit([letter.message for letter in letters], ReportClosing(entries))
        except psycopg.Error as error:
            if not (moved(error) or faults.locked(error) or faults.about_row(error)):
                raise
            if limited(error):
                await self._drop(letters)
                raise
            free = await self._free(letters) if moved(error) and len(letters) > 1 else letters
            if len(free) < len(letters):
                return await self._insert(free)
            if len(letters) > 1:
                half = len(letters) // 2
                return await self._insert(letters[:half]) + await self._insert(letters[half:])
            await self._refused(letters[0], error)
            return 0
        return len(letters)

    async def _free(self, letters: list[Letter]) -> list[Letter]:
        """Return the DSNs whose rows can be ended now, and leave the messages of the others."""
        rows = {each.message.id: _in_report(each.plan) for each in letters}
        free = await self._reports.free(chain.from_iterable(rows.values()))
        left = [each for each in letters if not free.issuperset(rows[each.message.id])]
        await self._drop(left)
        for letter in left:
            self._leave(letter.plan.message_id)
        return [each for each in letters if free.issuperset(rows[each.message.id])]

    async def _commit(self, group: list[NewMessage], closing: ReportClosing) -> None:
        bounces = self._config.bounces
        limits = ReportLimits(bounces.limits.sender, bounces.limits.all)
        if group:
            await self._store.commit(group, beside=self._reports.closing(closing, limits))
        else:
            await self._reports.close(closing, limits)

    async def _refused(self, letter: Letter, error: Exception) -> None:
        """Leave the rows of a DSN that are not ours now, and hold those that are refused."""
        await self._drop([letter])
        if moved(error) or faults.locked(error):
            self._leave(letter.plan.message_id)
            return
        words = faults.one_line(error)
        log.error("a DSN is refused", message=letter.plan.message_id, reason=words)
        await self._hold(letter.plan, f"its DSN is refused: {words}")

    async def _hold(self, plan: Plan, reason: str) -> None:
        decision = Decision()
        decision.refuse(plan.rows, reason[:_MAX_REASON_CHARACTERS])
        await self._end_without(decision.closing)

    def _leave(self, message_id: int) -> None:
        """Leave a message for a while; forget those whose time is over, which may be gone."""
        now = time.monotonic()
        self._left.pop(message_id, None)
        self._left[message_id] = now + _LEFT_OUT_S
        while (first := next(iter(self._left))) != message_id and self._left[first] < now:
            del self._left[first]

    async def _drop(self, letters: Iterable[Letter]) -> None:
        """Remove chunks of DSNs that are not queued; what stays goes as orphans."""
        if ids := [letter.message.id for letter in letters if letter.message.chunks]:
            try:
                await self._store.drop_chunks(ids)
            except (StoreUnavailable, psycopg.Error) as error:
                log.warning("chunks of DSNs stay behind", reason=faults.one_line(error))


def _in_report(plan: Plan) -> list[int]:
    """Return the rows of a plan that its DSN removes from REPORT; a delay notice has none."""
    return [row.id for row in plan.rows if row.kind != "delayed"]
