"""The figures and the health of one process of queued."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version

from pgmta.daemon_role import QUEUED
from pgmta.metrics.database_look import DatabaseLook
from pgmta.metrics.exposition import build_values, page, process_values
from pgmta.metrics.series import Values
from pgmta_features.metrics.queued_series import QUEUED_SERIES as CATALOGUE
from queued.daemon.presence import Presence
from queued.process.delivery_figures import MAX_NEXT_HOPS
from queued.process.queue_figures import QueueFigures
from queued.process.queued_process import QueuedProcess
from queued.worker.delivery_worker import DeliveryWorker
from queued.worker.kinds import Runner

_QUEUE_PREFIX, _DAEMON_PREFIX = "pgmta_queue_", "pgmta_queued_"
_MAX_TENANTS = 20
_COMPARE_INTERVAL_S = 600.0  # of next hops


class QueuedPage:
    """Reads plain numbers of the process; it asks the database only whether it answers."""

    def __init__(
        self,
        process: QueuedProcess,
        presence: Presence,
        runners: Sequence[Runner],
    ) -> None:
        self._process = process
        self._runners = runners
        self._look = DatabaseLook(presence.look)
        self._compared = time.monotonic()
        process.queue_figures.wanted = True

    async def problem(self) -> str:
        """Return why the process delivers nothing now; '' if it does."""
        return self._process.schema.problem or await self._look.problem()

    async def scrape(self, ready: bool) -> bytes:
        """Return the page for Prometheus."""
        if time.monotonic() > self._compared + _COMPARE_INTERVAL_S:
            self._compared = time.monotonic()
            self._process.figures.next_hops.compare()
        values = process_values() | build_values(QUEUED.name, version("pgmta"), ready=ready)
        values |= self._delivery() | self._workers() | queue_values(self._process.queue_figures)
        states = self._process.resources.states()
        values["pgmta_database_connections"] = {(n,): float(v) for n, v in states.items()}
        catalogue = list(CATALOGUE)
        for more in self._process.more_figures:
            catalogue += more.series
            values |= more.read()
        return page(catalogue, values)

    def _delivery(self) -> Values:
        seen = self._process.figures
        numbers = {
            "claims_total": seen.claims,
            "claimed_rows_total": seen.claimed,
            "claim_failures_total": seen.failed_claims,
            "late_outcomes_total": seen.late,
            "dsns_total": seen.dsns,
        }
        values: Values = {
            _DAEMON_PREFIX + name: {(): float(number)} for name, number in numbers.items()
        }
        for name, histogram in (
            ("claim_seconds", seen.claim_seconds), ("first_attempt_seconds", seen.first_attempt),
            ("connect_seconds", seen.connect), ("transaction_seconds", seen.transaction),
            ("settle_seconds", seen.settle_seconds), ("settle_outcomes", seen.settle_outcomes),
        ):  # fmt: skip
            values[_DAEMON_PREFIX + name] = {(): histogram.value}
        values[_DAEMON_PREFIX + "attempts_total"] = {
            key: float(n) for key, n in seen.attempts.items()
        }
        values[_DAEMON_PREFIX + "next_hop_attempts_total"] = {
            (hop, *key): float(number)
            for hop, counts in seen.next_hops.shown.items()
            for key, number in counts.items()
        }
        values[_DAEMON_PREFIX + "returned_rows_total"] = {
            (e,): float(n) for e, n in seen.returned.items()
        }
        return values

    def _workers(self) -> Values:
        values: Values = {
            _DAEMON_PREFIX + "handled_rows_total": {
                (each.name,): float(each.handled) for each in self._runners
            }
        }
        delivering = [each for each in self._runners if isinstance(each, DeliveryWorker)]
        values[_DAEMON_PREFIX + "leased_rows"] = {
            (each.name,): float(each.leased) for each in delivering
        }
        values[_DAEMON_PREFIX + "slots"] = {(each.name,): float(each.slots) for each in delivering}
        for name, number in (
            ("unsettled_outcomes", sum(each.unsettled for each in delivering)),
            ("destinations", sum(each.destinations for each in delivering)),
        ):
            values[_DAEMON_PREFIX + name] = {(): float(number)}
        return values


def queue_values(figures: QueueFigures, most: int = MAX_NEXT_HOPS) -> Values:
    """Return the values of the last count; none if there is none yet."""
    count = figures.count
    if not count:
        return {}
    later, by_status = figures.later, figures.by_status()
    hops = figures.by_next_hop(most)
    oldest = 0.0 if count.oldest_due is None else count.oldest_due + later
    return {
        _QUEUE_PREFIX + "rows": {(status,): float(rows) for status, (rows, _) in by_status.items()},
        _QUEUE_PREFIX + "oldest_seconds": {
            (status,): age + later if rows else 0.0 for status, (rows, age) in by_status.items()
        },
        _QUEUE_PREFIX + "due_rows": {(): float(sum(hop.due for hop in hops.values()))},
        _QUEUE_PREFIX + "oldest_due_seconds": {(): oldest},
        _QUEUE_PREFIX + "next_hop_rows": {
            (name, status): float(rows)
            for name, hop in hops.items()
            for status, rows in hop.rows.items()
        },
        _QUEUE_PREFIX + "next_hop_due_rows": {
            (name,): float(hop.due) for name, hop in hops.items()
        },
        _QUEUE_PREFIX + "next_hop_oldest_due_seconds": {
            (name,): hop.oldest_due + later
            for name, hop in hops.items()
            if hop.oldest_due is not None
        },
        _QUEUE_PREFIX + "tenant_rows": {
            (name,): float(rows) for name, rows in figures.by_tenant(_MAX_TENANTS).items()
        },
        _QUEUE_PREFIX + "count_age_seconds": {(): count.age + later},
        _QUEUE_PREFIX + "count_seconds": {(): count.seconds},
        _QUEUE_PREFIX + "count_share": {(): count.share},
        _QUEUE_PREFIX + "dead_rows": {(): float(count.dead_rows)},
        _QUEUE_PREFIX + "horizon_transactions": {
            (kind,): float(transactions) for kind, transactions in count.holders.items()
        },
    }
