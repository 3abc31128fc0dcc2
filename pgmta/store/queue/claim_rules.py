"""The conditions of a claim: the worker's own, and the standing rules that hold rows."""

from __future__ import annotations

import time

import psycopg

from pgmta.action import IS_ACTIVE
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.queue.conditions import rule_takes
from pgmta.store.queue.costly import CostlyConditions
from pgmta.store.queue.failing_conditions import Condition, Guard, about_a_row
from pgmta.store.queue.refused import refused
from pgmta.store.schema import Schema

_SQL = queries("claim_rules")
_ASIDE_S = 60.0  # in which a refused rule is passed over, before it is tried again

log = get("conditions")


class ClaimRules:
    """Knows which conditions count for one worker, and which of them fail or are refused.

    `name` is the worker's in the log. A rule that PostgreSQL refuses is passed over for a while. If
    a condition fails on some rows, `guarded` statements pass over these rows.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        where: str | None,
        schema: Schema,
        costly: CostlyConditions | None = None,
    ) -> None:
        self.own = Condition(name, where) if where else None
        self.standing: list[Condition] = []
        """Rules that count and are not passed over."""
        self.version = 0
        """Of the rules in `standing`."""
        self.current = -1
        """Version of the rules that the last claim found."""
        self.revision = 0
        """Rises whenever statements have to be composed again."""
        self.guard = Guard(link, IS_ACTIVE)
        self.guarded = False
        self.quiet = False
        """Whether `prepare` need not be called as long as the version is current."""
        self.refused: dict[Condition, str] = {}
        """Rules that were refused, each with the error that was logged."""
        self._link = link
        self._name = name
        self._schema = schema
        self._costly = costly
        self._aside: set[Condition] = set()  # rules that are passed over for now
        self._aside_until = 0.0

    async def prepare(self) -> None:
        """Learn the rules that count, and which rows to pass over.

        Raises StoreUnavailable, SchemaMismatch, psycopg.Error.
        """
        over = self._aside and time.monotonic() >= self._aside_until
        if over:
            self._aside.clear()
        if over or self.version != self.current:
            await self._learn()
        if await self.guard.prepare(self._all) != self.guarded:
            self._change()
        self.quiet = not (self._aside or self.guarded)

    @property
    def _all(self) -> list[Condition]:
        return [self.own, *self.standing] if self.own else self.standing

    def _change(self) -> None:
        self.guarded = self.guard.active
        self.revision += 1

    async def _learn(self) -> None:
        found = await self._link.run(_SQL["rules"])
        self._schema.learn(found[0][3])
        self._schema.require()
        self.version = self.current = found[0][0]
        judged = {
            Condition(f"rule {name}", rule_takes(number, text)): fault
            for _, name, text, _, fault, number in found
            if name
        }
        rules = list(judged)
        self.refused = {rule: why for rule, why in self.refused.items() if rule in rules}
        self._pass_over({rule: fault for rule, fault in judged.items() if fault})
        self.standing = [rule for rule in rules if rule not in self._aside]
        self._change()

    async def recover(self, error: psycopg.Error, again: int) -> None:
        """Find the condition on which a claim failed, so that the next claim does not.

        `again` is the number of rows that are tried again. Raises the error if it stays.
        """
        self.quiet = False
        refusal = faults.about_statement(error)
        if refusal and await self._set_aside():
            return
        if not (refusal or about_a_row(error)):
            raise error
        await self._learn()  # because the rule may be gone
        try:
            await self.guard.find(self._all, again)
        except psycopg.Error as other:
            if refusal or not faults.about_statement(other) or not await self._set_aside():
                raise other from error

    async def set_costly_aside(self) -> bool:
        """Set the rules aside that take too long, for all workers; return whether there are any.

        Raises StoreUnavailable, psycopg.Error.
        """
        if not (self._costly and await self._costly.set_rules_aside(self.standing)):
            return False
        await self._learn()
        return True

    async def _set_aside(self) -> bool:
        """Pass over the rules that are refused, for a while; return whether there are any."""
        found = await refused(self._link, self.standing)
        self._pass_over(found)
        self.standing = [rule for rule in self.standing if rule not in found]
        self._change()
        return bool(found)

    def _pass_over(self, found: dict[Condition, str]) -> None:
        if not found:
            return
        for rule, reason in found.items():
            if self.refused.get(rule) != reason:
                log.error("a standing rule is passed over", condition=rule.owner, worker=self._name,
                          reason=reason)  # fmt: skip
        self.refused.update(found)
        self._aside.update(found)
        self._aside_until = time.monotonic() + _ASIDE_S

    def claimed(self) -> None:
        """Note a claim that succeeded while there are refused rules."""
        if not self._aside:
            log.info("standing rules that were passed over are asked again", worker=self._name,
                     conditions=[rule.owner for rule in self.refused])  # fmt: skip
            self.refused = {}
