"""Requests of operators: deletions, ends of holds and rules, standing rules."""

from __future__ import annotations

from functools import partial

import psycopg

from pgmta.action import Action
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.store.admin.upkeep import REQUESTS, Upkeep
from pgmta.store.admin.workers import Registry
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.conditions import release_hint, rule_holder
from pgmta.store.queue.costly import SCANNING_SETTINGS, CostlyConditions, timed_out
from pgmta.store.queue.failing_conditions import Condition
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty, Work

_ON_REQUEST = "deleted on request"

log = get("upkeep")


async def answer_requests(upkeep: Upkeep, changes: WorkerChanges, who: str) -> None:
    """Delete rows with status DELETE, release holds whose time is over, remove expired rules.

    Raises StoreUnavailable, psycopg.Error.
    """
    asked = await upkeep.asked()
    for wanted, change in (
        (asked.delete, RowChange(Action.DELETE, "status = 'DELETE'", who, _ON_REQUEST)),
        (asked.release, RowChange(Action.RELEASE, "hold_until <= now()", who)),
    ):
        done = await changes.run(change) if wanted else 0
        if done:
            log.info(change.action, rows=done)
    if asked.expire:
        for name, number, held in await upkeep.expire_rules():
            free = {"hint": release_hint(number)} if held else {}
            log.info("standing rule is over", rule=name, held=held, **free)


async def apply_rules(
    changes: WorkerChanges, registry: Registry, costly: CostlyConditions | None = None
) -> None:
    """Put rows on hold that match the standing rules of operators.

    A rule that fails stops no other rule. The claims log rules that PostgreSQL refuses. One that
    takes too long is set aside by `costly`. Raises StoreUnavailable, and psycopg.Error for the
    first other failure.
    """
    failure: psycopg.Error | None = None
    for rule in await registry.operator_rules():
        name = f"rule {rule.name}"
        change = RowChange(
            rule.action, rule.condition, name, rule.reason,
            release_after=rule.release_after, quarantine=rule.quarantine, owner=name,
            holder=rule_holder(rule.number),
        )  # fmt: skip
        try:
            done = await changes.run(change)
        except psycopg.Error as error:
            failure = failure or (None if faults.about_statement(error) else error)
            continue
        except StoreUnavailable as error:
            if not (costly and timed_out(error)):
                raise
            await costly.set_rules_aside([Condition(name, rule.condition)])
            continue
        if done:
            log.info("standing rule", rule=rule.name, rows=done)
    if failure:
        raise failure


DUTY = Duty(
    "requests",
    1.0,
    lambda process: partial(
        answer_requests, process.upkeep, process.changes, f"upkeep@{process.name}"
    ),
    in_turn=True,
    look=REQUESTS,
)


def _make_rules(process: QueuedProcess) -> Work:
    changes = WorkerChanges(process.resources.link("rules", SCANNING_SETTINGS))
    return partial(apply_rules, changes, process.registry, process.costly)


RULES = Duty(
    "rules",
    5.0,  # seconds, in which no claim takes rows that match a rule
    _make_rules,
    in_turn=True,
)
