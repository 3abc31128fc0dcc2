"""Claims due rows: it leases them (pgmta/store/queue/lease.py) and reads their messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.mail.received_field import client_of
from pgmta.model import Item, Labelled, Message, RouteLimit
from pgmta.postgres.binary import Bigints
from pgmta.postgres.database_time import DatabaseTime
from pgmta.postgres.link import Link
from pgmta.store.mark.mark import Mark, Place
from pgmta.store.mark.mark_keeper import PAIRS_PER_STATEMENT, START, MarkKeeper, arrays
from pgmta.store.queries import Statement, bracketed, queries
from pgmta.store.queue.claim_rules import ClaimRules
from pgmta.store.queue.conditions import partition_condition
from pgmta.store.queue.costly import CostlyConditions, timed_out
from pgmta.store.queue.expired_leases import take_lost
from pgmta.store.queue.failing_conditions import ALL_ROWS, RECENT_ROWS, about_a_row
from pgmta.store.queue.labels import Labels
from pgmta.store.queue.lease import LEASE, RowLeases
from pgmta.store.schema import Schema

_SQL = queries("claim")

SESSION = {
    # The plans must stay on the indexes, even if the statistics are of a queue that was empty a
    # moment ago: otherwise a claim took 584 ms in place of 2 (docs/decisions/claim.md).
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
"""Run-time parameters for the connections that claim and settle."""

ORDINARY_PARTS = {"key": "queue.domain", "urgent": "", "seen": "seen"}
"""The parts of a claim's statements that differ, for a claim of any rows."""
URGENT_PARTS = {
    "key": "lower(queue.domain)",
    "urgent": " AND priority <= 3",
    "seen": _SQL["few"].decode(),
}
"""Parts of those that claim urgent rows, a few of each domain."""

FROM_BEGINNING = dict.fromkeys(("named", "older", "from_mark", "end", "from_floor"), b"")
FROM_BEGINNING["walk"] = _SQL["walk"]
"""The parts of a claim's statements that differ, for a claim without a mark."""
FROM_MARK = {
    "named": _SQL["named"] + b" ",
    "older": _SQL["older"],
    "from_mark": b" " + _SQL["from_mark"],
    "end": b")",
    "walk": _SQL["pairs"],
    "from_floor": b" " + _SQL["from_floor"],
}
"""The same for a claim with a mark."""

_STATEMENT_TIMEOUT = b"SELECT current_setting('statement_timeout')"
_SET_LIMIT = b"SELECT set_config('statement_timeout', %(limit)s, false)"
_EXTRA_WINDOW_ROWS = 64  # that a claim by time looks at beyond the rows that are wanted
_WIDE_WINDOW_ROWS = 2048  # after a claim by domain that met few due rows
_BACKLOG_S = 1.0  # for which a backlog is assumed to last, after the window has shown it
_MAX_SIBLINGS = 100  # further recipients of the same messages that come with a claim


# Where columns of an answer begin: the claim's own, those of the row, those of its message.
_PRESENT, _ID, _MESSAGE, _SIZE = 4, 5, 6, 21


@dataclass(slots=True)
class Claim:
    """Rows that a worker has leased, and their messages by id."""

    items: list[Item]
    messages: dict[int, Message]

    @property
    def octets(self) -> int:
        """Octets of content that came with the claim."""
        return sum(len(m.body) for m in self.messages.values() if m.body)


class Claims:
    """Claims rows for one worker: `owner` names it, `where` chooses its rows.

    While all due rows fit into a window, rows are claimed in order of priority and time. With a
    backlog they are claimed domain by domain instead, until nothing is left that the window would
    not show.

    Rows of the priority `urgent` or a lower number are marked as urgent. With `each` only these are
    claimed: at most `each` of a domain at a time, and by a separate index. `clock` learns the time
    of each claim. `looks` is a connection for statements that may take seconds.
    """

    def __init__(
        self,
        link: Link,
        owner: str,
        lease: float,
        where: str | None = None,
        priority: int = 9,
        siblings: int = _MAX_SIBLINGS,
        schema: Schema | None = None,
        urgent: int = -1,
        each: int = 0,
        costly: CostlyConditions | None = None,
        clock: DatabaseTime | None = None,
        looks: Link | None = None,
    ) -> None:
        self._link = link
        self._clock = clock or DatabaseTime()
        self._schema = schema or Schema()
        name = f"worker {owner.partition('@')[0]}"
        self._rules = ClaimRules(link, name, where, self._schema, costly)
        self._revision = -1  # number of the rules that the statements have
        self._statements: dict[str, Statement] = {}
        self._labelled: Sequence[Labelled] = ()
        self._limits: Sequence[RouteLimit] = ()
        self._siblings = 0 if each else siblings
        self._fixed = {
            "owner": owner,
            "lease": lease,
            "priority": min(priority, urgent) if each else priority,
            "urgent": urgent,
        }
        self._each = each
        self._cursor: Place | None = None  # where the last claim by domain ended; None: all seen
        self._backlog_until = 0.0  # time until which the window would show the same again
        self._keeper = MarkKeeper(link, name, min(priority, urgent) if each else priority, looks)
        self._lifted = ""  # the time limit of the connection, while it has none for one claim
        self.leases = RowLeases(link, owner, lease, self._schema)
        """The leases of the claimed rows."""
        self.leases.returned = self._keeper.give_back
        self.saw_all = 0.0
        """When the last claim began that saw all due rows, by the monotonic clock."""

    def take_turns(self, turn: Callable[[], tuple[int, int]]) -> None:
        """Take turns with whole looks: `turn` returns our place, and how many claim these rows."""
        self._keeper.turn = turn

    def give_back(self, ids: Iterable[int]) -> None:
        """Note rows of ours that others may lease again, and that keep their time."""
        self._keeper.give_back(ids)

    def label(self, labelled: Sequence[Labelled], limits: Sequence[RouteLimit] = ()) -> None:
        """Know mail by labels from the next claim on; `busy` may have these beside domains."""
        self._labelled = labelled
        self._limits = limits
        self._revision = -1

    async def claim(
        self,
        limit: int,
        busy: list[str],
        inline: int = 0,
        budget: int = 0,
        overdue: float = 0.0,
    ) -> Claim:
        """Lease up to `limit` due rows, and up to half as many more.

        No row has its domain or label in `busy`. The further rows are recipients of the same
        messages, so that they share a transaction. Fewer than `limit` rows mean that no more are
        due; with `each`, only no row at all does. Messages of at most `inline` octets come with
        their content, up to `budget` octets together.
        Only rows that have been due for `overdue` seconds are claimed. A row on which a condition
        fails is left, and named in the log. A rule that PostgreSQL refuses is passed over, and one
        that takes too long is set aside, if the link has a time limit; without one the
        next claim takes any time. A row
        whose lost attempt can't be logged is put on hold.
        Raises StoreUnavailable, and SchemaMismatch if the schema is of another version: nothing is
        claimed then.
        """
        if self._schema.problem:
            self._schema.require()
        if self._keeper.due:
            await self._keeper.attend()
        size = {"inline": inline, "budget": budget, "overdue": overdue}
        rules = self._rules
        claim = Claim([], {})
        for again in (RECENT_ROWS, ALL_ROWS, ALL_ROWS, 0, None):
            try:
                for _ in range(2):
                    if not rules.quiet or rules.version != rules.current:
                        await rules.prepare()
                    if rules.revision != self._revision:
                        self._compose()
                    await self._search(claim, limit, busy, size)
                    if claim.items or rules.version == rules.current:
                        break  # otherwise the rules changed, which empties a claim
                break
            except psycopg.Error as error:
                if again:
                    await rules.recover(error, again)
                elif again is None or not await self._take_lost(error):
                    raise
            except StoreUnavailable as error:
                if not timed_out(error):
                    raise
                if not await rules.set_costly_aside():
                    await self._lift_limit()  # because the queue is large, or the server busy
                    raise
        if self._lifted:
            with suppress(StoreUnavailable):  # a new connection has the limit anyway
                await self._link.run(_SET_LIMIT, {"limit": self._lifted})
            self._lifted = ""
        if rules.refused:
            rules.claimed()
        return claim

    async def next_due(self, since: float, window: float) -> float | None:
        """Return the seconds until the next row becomes due that this worker may claim.

        Rows that became due in the last `since` seconds count too, and the number is negative then.
        Returns None if no row becomes due within `window` seconds. Standing rules do not count, nor
        does the worker's condition while it fails on a row.
        Raises StoreUnavailable, SchemaMismatch, psycopg.Error.
        """
        self._schema.require()
        if not self._statements:
            return None
        params = {"priority": self._fixed["priority"], "since": since, "window": window}
        ((seconds,),) = await self._link.run(self._statements["next_due"], params)
        return seconds if seconds is None else float(seconds)

    async def _lift_limit(self) -> None:
        """Let the next claim take any time."""
        ((self._lifted,),) = await self._link.run(_STATEMENT_TIMEOUT)
        await self._link.run(_SET_LIMIT, {"limit": "0"})

    async def _take_lost(self, error: psycopg.Error) -> bool:
        """Hold rows whose lost attempt can't be logged, and return whether there was one."""
        return about_a_row(error) and await take_lost(self._link, str(self._fixed["owner"]))

    async def _search(
        self, claim: Claim, limit: int, busy: list[str], size: dict[str, Any]
    ) -> None:
        """Claim by time, or by domain while there is a backlog.

        With a backlog, domains without due rows may lie between those with some. So a claim asks
        some domains, and then takes the rows that have been due the longest. The rest follows.
        """
        began = time.monotonic()
        few = self._each  # no domain may come twice
        if self._keeper.has_pairs:
            await self._search_pairs(claim, limit, busy, size)
            return
        mark = self._keeper.mark
        if mark or (self._cursor is None and began >= self._backlog_until):
            more, _ = await self._run(
                claim,
                "claim_by_time",
                limit,
                busy,
                size,
                mark,
                window=limit + _EXTRA_WINDOW_ROWS,
                wide=False,
            )
            if not more:
                self.saw_all = self.saw_all if busy else began
                return
            self._backlog_until = time.monotonic() + _BACKLOG_S
            if few and claim.items:
                return
            if await self._keeper.spread():
                await self._search_pairs(claim, limit, busy, size)
                return
        cursor = self._cursor or START
        whole = cursor == START  # whether this round began at the first domain
        wide = not few  # whether the claim by time is still to come
        while len(claim.items) < limit:
            left = {**size, "budget": max(0, size["budget"] - claim.octets)}
            more, last = await self._run(
                claim, "claim_by_domain", limit - len(claim.items), busy, left, None,
                cursor=cursor[0], level=cursor[1], steps=PAIRS_PER_STATEMENT,
            )  # fmt: skip
            if more:
                cursor = last
            elif few and claim.items:
                cursor = START
            elif whole:
                self._cursor = None  # every domain was visited, and nothing more is due
                return
            else:
                cursor, whole = START, True
            if few and claim.items:
                break
            if wide and len(claim.items) < limit:
                wide = False
                left = {**size, "budget": max(0, size["budget"] - claim.octets)}
                more, _ = await self._run(
                    claim, "claim_by_time", limit - len(claim.items), busy, left, None,
                    window=_WIDE_WINDOW_ROWS, wide=True,
                )  # fmt: skip
                if not more:
                    self._cursor = None
                    self.saw_all = self.saw_all if busy else began
                    return
        self._cursor = cursor

    async def _search_pairs(
        self, claim: Claim, limit: int, busy: list[str], size: dict[str, Any]
    ) -> None:
        """Claim by domain while the pairs are known, then by time what came since the mark."""
        began = time.monotonic()
        few, keeper = self._each, self._keeper
        cursor: Place | None = self._cursor or START
        whole = cursor == START
        while cursor and len(claim.items) < limit and (mark := keeper.mark):
            pairs = mark.after(cursor, PAIRS_PER_STATEMENT)
            left = {**size, "budget": max(0, size["budget"] - claim.octets)}
            more, last = await self._run(
                claim, "claim_by_domain", limit - len(claim.items), busy, left, mark,
                steps=PAIRS_PER_STATEMENT, **arrays(pairs),
            )  # fmt: skip
            if more:
                cursor = last
            elif few and claim.items:
                cursor = START
            else:
                cursor, whole = (None if whole else START), True
            if few and claim.items:
                self._cursor = cursor
                return
        self._cursor = cursor
        if cursor is None:
            await keeper.gather()
        if len(claim.items) < limit:
            left = {**size, "budget": max(0, size["budget"] - claim.octets)}
            more, _ = await self._run(
                claim, "claim_by_time", limit - len(claim.items), busy, left, keeper.mark,
                window=_WIDE_WINDOW_ROWS, wide=True,
            )  # fmt: skip
            if not (more or busy or keeper.has_pairs):
                self.saw_all = began

    async def _run(
        self,
        claim: Claim,
        name: str,
        limit: int,
        busy: list[str],
        size: dict[str, Any],
        mark: Mark | None,
        **more: Any,
    ) -> tuple[bool, Place]:
        """Run a claim's statement and add its rows to `claim`.

        Returns whether more may be due, and the last place that was asked.
        """
        rules = self._rules
        params = {
            "limit": limit,
            "each": self._each or limit,
            "siblings": min(self._siblings, limit // 2),
            "busy": busy,
            "version": rules.version,
            **(rules.guard.params if rules.guarded else {}),
            **self._fixed,
            **size,
            **more,
        }
        if mark:
            statement = self._statements[f"{name} from mark"]
            params |= {"mark": mark.moment, "ids": Bigints(mark.ids)}
        else:
            statement = self._statements[name]
        found = False, START
        messages = claim.messages
        asked = time.monotonic()
        rows = await self._link.run(statement, params)
        answered = time.monotonic()
        self._clock.see(asked, answered, rows[0][_PRESENT])
        self._keeper.claimed(answered - asked, by_domain=name == "claim_by_domain")
        for row in rows:
            rules.current = row[0]
            found = row[1], (row[2], START[1] if row[3] is None else row[3])
            number = row[_MESSAGE]
            if number is None:
                break  # nothing was claimed
            if number not in messages and row[_SIZE] is not None:
                messages[number] = Message(number, *row[_SIZE:])
            claim.items.append(item := Item(*row[_ID:_SIZE]))
            if message := messages.get(number):
                item.message_id_header = message.message_id_header
                item.submitted_by = message.submitted_by
                item.origin = message.origin
                client = client_of(message.trace)
                item.client = "|".join(client) if client else ""
        return found

    def _compose(self) -> None:
        """Compose the statements with the conditions that count."""
        rules, guard = self._rules, self._rules.guard
        self._revision = rules.revision
        own = rules.own
        near = bracketed(partition_condition(own.text if own else None))
        where = "true"
        if rules.guarded:
            # rows that no guard has tried yet wait for the next claim, which tries them first
            if own:
                passing = guard.skipping_marked(own, failing="false", untried="false")
                where = f"{near} AND {passing}"
            excluded = "".join(
                f" AND ({guard.skipping_marked(rule, failing='true', untried='true')}) IS NOT TRUE"
                for rule in rules.standing
            )
        else:
            if own:
                where = bracketed(own.text)
            excluded = "".join(
                f" AND {bracketed(rule.text)} IS NOT TRUE" for rule in rules.standing
            )
        labels = Labels(self._labelled, self._limits).parts()
        parts = {"where": where, "partition": near, "rules": excluded, **labels}
        parts |= URGENT_PARTS if self._each else ORDINARY_PARTS
        for name in ("claim_by_time", "claim_by_domain"):
            result = _SQL["result"].fill(fits=_SQL["fits"])
            text = _SQL[name].fill(lease=LEASE, result=result, seen=parts["seen"])
            self._statements[name] = text.fill(**FROM_BEGINNING).fill(free="").fill(**parts)
            self._statements[f"{name} from mark"] = text.fill(**FROM_MARK).fill(**parts)
        self._keeper.compose(parts, _SQL["walk"])
        where = near if rules.guarded else parts["where"]
        self._statements["next_due"] = _SQL["next_due"].fill(where=where)
