"""Rows in REPORT: which are ready, what a DSN says of them, and their end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any

import psycopg

from pgmta.mail.address import mailbox_key
from pgmta.model import CHUNK_OCTETS, MAX_INDEXED_CHARACTERS
from pgmta.postgres.binary import Bigints, Integers, Texts
from pgmta.postgres.link import Link
from pgmta.postgres.notify import NOTIFY
from pgmta.report_row import ReportedMessage, ReportRow
from pgmta.states import Event
from pgmta.store.queries import queries
from pgmta.store.queue.enqueue import Companion

HEADER_CHUNKS = 9
"""The first chunks of content, which have the whole header."""

_SQL = queries("reports")
_MOVED_CODE, _LIMIT_CODE = "PM001", "PM002"  # SQLSTATEs of the function that writes DSNs
_ROWS_PER_TIDYING = 1000  # of `delays`, by one statement

type Place = tuple[datetime, int]
"""Where a page ends: `held_at` and id of a row."""


def moved(error: BaseException) -> bool:
    """Return whether rows are not in REPORT any more, or are locked by another transaction."""
    return isinstance(error, psycopg.Error) and error.sqlstate == _MOVED_CODE


def limited(error: BaseException) -> bool:
    """Return whether the DSNs of other processes have reached a limit meanwhile."""
    return isinstance(error, psycopg.Error) and error.sqlstate == _LIMIT_CODE


def counted(address: str) -> str:
    """Return the form in which the DSNs to an address are counted."""
    return mailbox_key(address)[:MAX_INDEXED_CHARACTERS]


@dataclass(slots=True)
class Page:
    """A page of messages with rows in REPORT: whether each is settled, and how long it waits."""

    messages: list[tuple[int, bool, float]]
    rows: int
    place: Place


@dataclass(slots=True, frozen=True)
class ReportEntry:
    """A line for table `reports`; without a DSN `report_id` is 0 and `sent_to` is empty."""

    row: ReportRow
    reason: str = ""
    report_id: int = 0
    sent_to: str = ""


@dataclass(slots=True)
class ReportClosing:
    """The end of rows: `gone` are logged and leave REPORT, `held` stay with a reason.

    Rows of a delay notice stay in the queue.
    """

    gone: list[ReportEntry] = field(default_factory=list)
    held: list[tuple[ReportRow, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.gone or self.held)

    def halves(self) -> tuple[ReportClosing, ReportClosing]:
        """Return two parts of it, neither empty if it has more than one row."""
        if self.gone and self.held:
            return ReportClosing(self.gone), ReportClosing(held=self.held)
        gone, held = len(self.gone) // 2, len(self.held) // 2
        return (
            ReportClosing(self.gone[:gone], self.held[:held]),
            ReportClosing(self.gone[gone:], self.held[held:]),
        )


@dataclass(slots=True, frozen=True)
class ReportLimits:
    """DSNs per hour, over all processes: to one address, and in all."""

    one: int
    all: int


class Reports:
    """Reads and ends rows in REPORT; `who` is written into holds."""

    def __init__(self, link: Link, who: str) -> None:
        self._link = link
        self._who = who

    async def waiting(
        self,
        place: Place | None,
        limit: int,
        process: str,
        others: float,
        recent: float | None = None,
    ) -> Page | None:
        """Return the first page, or the next one after a place; None if there is none.

        Rows that another process put there count after `others` seconds. Rows that are older than
        `recent` seconds do not count. Raises StoreUnavailable.
        """
        since, after = place or (None, 0)
        params: dict[str, Any] = {"since": since, "after": after, "limit": limit}
        params |= {"process": process, "others": others, "recent": recent}
        found = await self._link.run(_SQL["waiting"], params)
        if not found:
            return None
        *messages, last = found
        return Page([(row[0], row[1], row[2]) for row in messages], int(last[2]), last[3:])

    async def rows(self, ids: Iterable[int], limit: int) -> list[ReportRow]:
        """Return the rows in REPORT of these messages, at most `limit`, in their order.

        Raises StoreUnavailable.
        """
        params = {"ids": Bigints(ids), "limit": limit}
        rows = [ReportRow(*row) for row in await self._link.run(_SQL["rows"], params)]
        await self._add_facts(rows, ["failed", "delivered", "suppressed"])
        return rows

    async def delayed(
        self, gather: float, limit: int, most: int
    ) -> tuple[list[ReportRow], list[int]]:
        """Return rows whose delay is to be reported, and those that have ended: `most` together.

        `limit` bounds the messages. At `most` the last message may lack rows. Raises
        StoreUnavailable.
        """
        params = {"gather": gather, "limit": limit, "rows": most}
        found = await self._link.run(_SQL["delayed"], params)
        rows = [ReportRow(*row) for row in found if row[1] is not None]
        await self._add_facts(rows, ["deferred", "unknown"])
        return rows, [row[0] for row in found if row[1] is None]

    async def _add_facts(self, rows: list[ReportRow], events: list[str]) -> None:
        if not rows:
            return
        since = [row.since for row in rows]
        params = {
            "ids": Bigints({row.message_id for row in rows}),
            "events": Texts(events),
            "since": min(since),
            "until": max(since),
        }
        last: dict[int, tuple[Any, ...]] = {}
        for found in await self._link.run(_SQL["facts"], params):
            if found[0] not in last or last[found[0]][1:3] < found[1:3]:
                last[found[0]] = found
        for row in rows:
            if (fact := last.get(row.id)) and (row.refusal or not row.bounced):
                row.answer_class = fact[4] or ""
                if row.answer_class != Event.SUPPRESS:  # which is no attempt
                    row.attempted, row.host = fact[2], fact[3]

    async def messages(self, ids: Iterable[int]) -> dict[int, ReportedMessage]:
        """Return these messages without content; one may be gone. Raises StoreUnavailable."""
        rows = await self._link.run(_SQL["messages"], {"ids": Bigints(ids)})
        return {row[0]: ReportedMessage(*row) for row in rows}

    async def fill(
        self, whole: list[ReportedMessage], heads: list[ReportedMessage], number: int
    ) -> None:
        """Read the whole content of some messages, and `number` chunks of others.

        Raises StoreUnavailable.
        """
        params = {
            "whole": Bigints(message.id for message in whole),
            "heads": Bigints(message.id for message in heads),
            "octets": number * CHUNK_OCTETS,
            "chunks": number,
        }
        parts: dict[int, dict[int, bytes]] = {}
        for message_id, position, data in await self._link.run(_SQL["contents"], params):
            parts.setdefault(message_id, {})[position] = data
        for message in (*whole, *heads):
            found = parts.get(message.id, {})
            places = [-1] if message.chunks == 0 else range(message.chunks)
            there = list(takewhile(found.__contains__, places))
            message.content = b"".join(bytes(found[place]) for place in there)
        for message in whole:
            message.torn = len(parts.get(message.id, ())) != (message.chunks or 1)

    async def used(self, addresses: Iterable[str]) -> dict[str, int]:
        """Return how many DSNs went to these addresses in the last hour, and in all under ''.

        The addresses are in the form of `counted`. Raises StoreUnavailable.
        """
        params = {"addresses": Texts({*addresses, ""})}
        return {row[0]: row[1] for row in await self._link.run(_SQL["used"], params)}

    def closing(self, closing: ReportClosing, limits: ReportLimits) -> Companion:
        """Return the statement that ends rows, for the transaction that queues their DSNs."""
        sent: dict[int, str] = {e.report_id: e.sent_to for e in closing.gone if e.report_id}
        numbers: dict[str, int] = {}
        for address in sent.values():
            numbers[counted(address)] = numbers.get(counted(address), 0) + 1
        if sent:
            numbers[""] = len(sent)
        entries = closing.gone
        leaving = [e.row for e in entries if e.row.kind != "delayed"]
        params = {
            "ids": Bigints(sorted(row.id for row in leaving)),
            "bounced": Bigints(row.id for row in leaving if row.bounced),
            "held": json.dumps({str(row.id): reason for row, reason in closing.held}),
            "who": self._who,
            "delayed": Bigints({e.row.id for e in entries if e.row.kind == "delayed"}),
            "counted": Texts(numbers),
            "numbers": Integers(numbers.values()),
            "limit_of_one": limits.one,
            "limit_of_all": limits.all,
            "report_ids": Bigints(e.report_id for e in entries),
            "message_ids": Bigints(e.row.message_id for e in entries),
            "row_ids": Bigints(e.row.id for e in entries),
            "recipients": Texts(e.row.recipient for e in entries),
            "senders": Texts(e.row.sender for e in entries),
            "sent_tos": Texts(e.sent_to for e in entries),
            "kinds": Texts(e.row.kind for e in entries),
            "classes": Texts(e.row.answer_class for e in entries),
            "reasons": Texts(e.reason for e in entries),
        }
        return Companion(_SQL["close"], params)

    async def close(self, closing: ReportClosing, limits: ReportLimits) -> None:
        """End rows without a DSN, in one commit.

        Raises StoreUnavailable, psycopg.Error: nothing is done then, or after an AnswerLost
        perhaps all of it.
        """
        companion = self.closing(closing, limits)
        await self._link.run(companion.statement, companion.params)

    async def free(self, ids: Iterable[int]) -> set[int]:
        """Return those rows that are in REPORT still, and not locked. Raises StoreUnavailable."""
        return {row[0] for row in await self._link.run(_SQL["free"], {"ids": Bigints(ids)})}

    async def announce(self) -> None:
        """Wake the workers for DSNs that are in the queue. Raises StoreUnavailable."""
        await self._link.run(NOTIFY)

    async def forget_delays(self, ids: Sequence[int]) -> None:
        """Remove delays of rows that have ended. Raises StoreUnavailable."""
        await self._link.run(_SQL["ended"], {"ids": Bigints(ids)})

    async def tidy(self) -> None:
        """Remove delays and counts that are over. Raises StoreUnavailable, psycopg.Error."""
        await self._link.run(_SQL["tidy_counts"])
        after, number = 0, _ROWS_PER_TIDYING
        while number == _ROWS_PER_TIDYING:
            params = {"after": after, "batch": _ROWS_PER_TIDYING}
            ((after, number),) = await self._link.run(_SQL["tidy_delays"], params)
