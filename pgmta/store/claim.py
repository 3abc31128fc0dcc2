"""Lease due rows, fetch what is to be sent, prolong leases."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from pgmta.logs import get
from pgmta.model import Item, Message
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.priority import PriorityLock
from pgmta.store.conditions import reach
from pgmta.store.guard import ACTIVE, ALL, RECENT, Condition, Guard, about_a_row
from pgmta.store.lost import take_lost
from pgmta.store.queries import Statement, bracketed, queries
from pgmta.store.refused import refused
from pgmta.store.schema import Schema

_SQL = queries("claim")

log = get("conditions")

SESSION = {
    # The plans must stay on the indexes whatever the statistics say of a queue that was empty a
    # moment ago: measured 584 ms a claim instead of 2 (docs/decisions/0005).
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
"""Run-time parameters for the connections that claim and settle."""


_WINDOW = 64  # rows seen beyond those that are wanted
_BACKLOG = 1.0  # seconds in which a backlog is taken to last, after the window has shown it
_STEPS = 64  # destinations that one walk visits
_ASIDE = 60.0  # seconds for which a refused rule is passed over, before it is asked again
_SIBLINGS = 100  # further recipients of the same messages that come with a claim, at most


@dataclass(slots=True)
class Claim:
    """Rows that are ours for the time of a lease, and their messages by id."""

    items: list[Item]
    messages: dict[int, Message]

    @property
    def octets(self) -> int:
        """Content that came with it."""
        return sum(len(m.body) for m in self.messages.values() if m.body)


class Claims:
    """Claims of one worker: `owner` names it, `where` chooses its rows.

    While all that is due fits into a window, rows are taken in order of priority and time. With a
    backlog the claims walk from destination to destination instead, until nothing is left that the
    window would not show.

    Rows of the priority `urgent` or a lower number are marked as urgent. With `each` only these are
    claimed: at most so many of a domain at a time, and the walk is over an index of their own.
    """

    def __init__(
        self,
        link: Link,
        owner: str,
        lease: float,
        where: str | None = None,
        priority: int = 9,
        siblings: int = _SIBLINGS,
        schema: Schema | None = None,
        urgent: int = -1,
        each: int = 0,
    ) -> None:
        self._link = link
        self._schema = schema or Schema()
        self._where = where
        self._version = 0  # of the rules in the statements
        self._current = -1  # of the rules that the last claim found
        self._statements: dict[str, Statement] = {}
        self._siblings = 0 if each else siblings
        self._name = f"worker {owner.partition('@')[0]}"
        self._guard = Guard(link, ACTIVE)
        self._guarded = False  # whether the statements pass over rows on which a condition fails
        self._conditions: list[Condition] = []
        self._refused: dict[Condition, str] = {}  # rules, each with the error that was logged
        self._aside: set[Condition] = set()  # rules that are passed over now
        self._aside_until = 0.0
        self._fixed = {
            "owner": owner,
            "lease": lease,
            "priority": min(priority, urgent) if each else priority,
            "urgent": urgent,
            "each": each,
        }
        self._cursor: str | None = None  # where the walk has come to; None: to its end
        self._backlog_until = 0.0  # until then the window would show what it showed before
        self.lease = lease
        self.saw_all = 0.0
        """When the last look began that saw all that was due, by the monotonic clock."""

    async def claim(
        self,
        limit: int,
        busy: list[str],
        inline: int = 0,
        budget: int = 0,
        overdue: float = 0.0,
    ) -> Claim:
        """Lease up to `limit` due rows whose domain is not in `busy`, and half as many more.

        The further ones are recipients of the same messages, so that they share a transaction.
        Fewer than `limit` rows mean that no more are due; with `each`, only no row at all does.
        Messages of at most `inline` octets come with their content, as long as that makes at most
        `budget` octets together. Only what has been due for `overdue` seconds is looked for. A row
        on which a condition fails is left, and named in the log; a rule that PostgreSQL refuses is
        passed over; a row whose lost attempt can't be logged is put on hold.
        Raises StoreUnavailable, and SchemaMismatch where the schema is of another version: nothing
        is claimed then.
        """
        self._schema.require()
        size = {"inline": inline, "budget": budget, "overdue": overdue}
        claim = Claim([], {})
        for again in (RECENT, ALL, ALL, 0, None):
            try:
                await self._prepare()
                await self._search(claim, limit, busy, size)
                if not claim.items and self._version != self._current:
                    # a change of the rules empties every claim
                    await self._prepare()
                    await self._search(claim, limit, busy, size)
                break
            except psycopg.Error as error:
                if again:
                    await self._recover(error, again)
                elif again is None or not await self._take_lost(error):
                    raise
        if self._refused and not self._aside:
            log.info("standing rules that were passed over are asked again", worker=self._name,
                     conditions=[rule.owner for rule in self._refused])  # fmt: skip
            self._refused = {}
        return claim

    async def _take_lost(self, error: psycopg.Error) -> bool:
        """What no condition fails on may be the log of a lost attempt; whether that was mended."""
        return about_a_row(error) and await take_lost(self._link, str(self._fixed["owner"]))

    async def _recover(self, error: psycopg.Error, again: int) -> None:
        """Find what a claim failed on, so that the next one does not. Raises what stays."""
        refusal = faults.about_statement(error)
        if refusal and await self._set_aside():
            return
        if not (refusal or about_a_row(error)):
            raise error
        await self._learn_rules()  # the rule may be gone
        try:
            await self._guard.find(self._conditions, again)
        except psycopg.Error as other:
            if refusal or not faults.about_statement(other) or not await self._set_aside():
                raise other from error

    async def _set_aside(self) -> bool:
        """Pass over the rules that are refused, for a while. Says whether there are any."""
        found = await refused(self._link, [c for c in self._conditions if c.owner != self._name])
        for rule, reason in found.items():
            if self._refused.get(rule) != reason:
                log.error("a standing rule is passed over", condition=rule.owner, worker=self._name,
                          reason=reason)  # fmt: skip
        self._refused.update(found)
        self._aside.update(found)
        self._aside_until = time.monotonic() + _ASIDE
        self._conditions = [c for c in self._conditions if c not in found]
        self._compose()
        return bool(found)

    async def _prepare(self) -> None:
        """Have statements with the rules that count, that pass over rows where it is needed."""
        over = self._aside and time.monotonic() >= self._aside_until
        if over:
            self._aside.clear()
        if over or self._version != self._current:
            await self._learn_rules()
        if await self._guard.prepare(self._conditions) != self._guarded:
            self._compose()

    async def _search(
        self, claim: Claim, limit: int, busy: list[str], size: dict[str, Any]
    ) -> None:
        began = time.monotonic()
        few = self._fixed["each"]  # no domain may come twice
        if self._cursor is None and began >= self._backlog_until:
            more, _ = await self._run(claim, "front", limit, busy, window=limit + _WINDOW, **size)
            if not more:
                self.saw_all = self.saw_all if busy else began
                return
            self._backlog_until = time.monotonic() + _BACKLOG
            if few and claim.items:
                return
        cursor = self._cursor or ""
        whole = not cursor  # whether this round of the walk began at the first destination
        while len(claim.items) < limit:
            wanted = limit - len(claim.items)
            left = max(0, size["budget"] - claim.octets)
            more, last = await self._run(
                claim, "walk", wanted, busy, cursor=cursor, steps=_STEPS, **size | {"budget": left}
            )
            if more:
                cursor = last
            elif few and claim.items:
                cursor = ""
            elif whole:
                self._cursor = None  # every destination was asked, and nothing more is due
                return
            else:
                cursor, whole = "", True
            if few and claim.items:
                break
        self._cursor = cursor

    async def _run(
        self, claim: Claim, name: str, limit: int, busy: list[str], **more: Any
    ) -> tuple[bool, str]:
        rows = await self._link.run(
            self._statements[name],
            {
                "limit": limit,
                "siblings": min(self._siblings, limit // 2),
                "busy": busy,
                "version": self._version,
                **self._fixed,
                **self._guard.params,
                **more,
            },
        )
        pieces: dict[int, dict[int, bytes]] = {}
        for row in rows[1:]:
            if row[2]:
                item = Item(*row[2:10])
                item.urgent = row[0]
                claim.items.append(item)
                continue
            utf8, trace, _, message_id, _, _, _, number, _, size, content = row
            if utf8 is None:
                pieces.setdefault(message_id, {})[number] = content
            else:
                message = Message(message_id, size, utf8, trace, number, content)
                claim.messages[message_id] = message
        for message_id, found in pieces.items():
            message = claim.messages[message_id]
            if sorted(found) == list(range(message.chunks)):
                message.body = b"".join(found[position] for position in range(message.chunks))
        remains, last, self._current = rows[0][:3]
        return remains, last

    async def _learn_rules(self) -> None:
        """Compose the statements with the standing rules that count now."""
        found = await self._link.run(_SQL["rules"])
        self._schema.learn(found[0][3])
        self._schema.require()
        self._version = self._current = found[0][0]
        self._conditions = [Condition(self._name, self._where)] if self._where else []
        rules = [Condition(f"rule {name}", text) for _, name, text, _ in found if name]
        self._refused = {rule: why for rule, why in self._refused.items() if rule in rules}
        self._conditions += [rule for rule in rules if rule not in self._aside]
        self._compose()

    def _compose(self) -> None:
        self._guarded = self._guard.active
        conditions = self._conditions
        own, rules = (conditions[:1], conditions[1:]) if self._where else ([], conditions)
        near = bracketed(reach(self._where))
        if self._guarded:
            # what is not known yet waits for the next claim, which tries it first
            where = "".join(
                f"{near} AND {self._guard.passing(c, failing='false', untried='false')}"
                for c in own
            )
            excluded = "".join(
                f" AND ({self._guard.passing(c, failing='true', untried='true')}) IS NOT TRUE"
                for c in rules
            )
        else:
            where = "".join(bracketed(c.text) for c in own)
            excluded = "".join(f" AND {bracketed(c.text)} IS NOT TRUE" for c in rules)
        parts = {"where": where or "true", "reach": near, "rules": excluded}
        few = self._fixed["each"]
        for name, text in (("front", _SQL["front"]), ("walk", _SQL["urgent" if few else "walk"])):
            text = text.fill(seen=_SQL["few"] if few else "seen", lease=_SQL["lease"],
                             result=_SQL["result"])  # fmt: skip
            self._statements[name] = text.fill(**parts)

    async def abandon(self, known: list[int]) -> int:
        """Give back rows under our name other than those known; return how many.

        Right after a claim that broke off: it may have been committed. Raises StoreUnavailable.
        """
        self._schema.require()
        params = {"owner": self._fixed["owner"], "ids": known}
        return len(await self._link.run(_SQL["abandon"], params))

    async def renew(self, items: list[Item]) -> dict[int, bool]:
        """Prolong the leases and return the ids of the rows that are still ours.

        The value is False where somebody else has locked the row: its lease ends when it did.
        Raises StoreUnavailable.
        """
        rows = await self._link.run(
            _SQL["renew"],
            {"ids": [i.id for i in items], "tokens": [i.token for i in items], "lease": self.lease},
        )
        return {row[0]: row[1] for row in rows}


class Contents:
    """Reads the content of messages that did not come with their claim.

    Urgent messages go first, then the oldest, so that it is done with and its room free; whoever
    has waited for a second goes before it. One whose next hop is slow asks for nothing.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._turns = PriorityLock()

    async def body(self, message_id: int) -> bytes | None:
        """The whole content, None if the message is gone."""
        rows = await self._link.run(_SQL["body"], {"id": message_id})
        return bytes(rows[0][0]) if rows else None

    async def chunks(
        self, message_id: int, first: int, number: int, urgent: bool = False
    ) -> bytes | None:
        """So many pieces of the content from the first one on, None if one of them is gone."""
        params = {"id": message_id, "first": first, "number": number}
        async with self._turns.of(-1 if urgent else message_id):
            rows = await self._link.run(_SQL["chunks"], params)
        return b"".join(row[0] for row in rows) if len(rows) == number else None
