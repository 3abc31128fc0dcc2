"""What operators ask for by a status, and what ends by time."""

from __future__ import annotations

import psycopg

from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.store.sweep import Sweep, Sweeps
from pgmta.store.workers import Registry

EVERY = 1.0  # seconds
RULES_EVERY = 5.0  # seconds: meanwhile no claim takes what matches them
_BATCH = 1000
_ON_REQUEST = "deleted on request"

log = get("upkeep")


async def answer_requests(sweeps: Sweeps, who: str) -> None:
    """Delete rows with status DELETE, release holds whose time is over, drop expired rules."""
    asked = await sweeps.asked()
    for wanted, sweep in (
        (asked.delete, Sweep("delete", "status = 'DELETE'", who, _ON_REQUEST, batch=_BATCH)),
        (asked.release, Sweep("release", "hold_until <= now()", who, batch=_BATCH)),
    ):
        done = await sweeps.run(sweep) if wanted else 0
        if done:
            log.info(sweep.action, rows=done)
    if asked.expire:
        for name in await sweeps.expire_rules():
            log.info("standing rule is over", rule=name)


async def apply_rules(sweeps: Sweeps, registry: Registry) -> None:
    """Put on hold what matches the standing rules that operators have made.

    A rule that fails stops no other. Claims tell of those that PostgreSQL refuses. Raises
    StoreUnavailable, and psycopg.Error for the first other failure.
    """
    failure: psycopg.Error | None = None
    for rule in await registry.operator_rules():
        sweep = Sweep(
            "hold", rule.condition, f"rule {rule.name}", rule.reason,
            hold=rule.hold, quarantine=rule.quarantine, batch=_BATCH, owner=f"rule {rule.name}",
        )  # fmt: skip
        try:
            done = await sweeps.run(sweep)
        except psycopg.Error as error:
            failure = failure or (None if faults.about_statement(error) else error)
            continue
        if done:
            log.info("standing rule", rule=rule.name, rows=done)
    if failure:
        raise failure
