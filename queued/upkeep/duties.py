"""The duties of queued: those of the core, each a file with its name here, and of features."""

from __future__ import annotations

from pgmta.features import loaded
from queued.upkeep import (
    clock,
    dane_check,
    expiry,
    final_leases,
    idempotency_keys,
    log_retention,
    orphans,
    queue_counts,
    requests,
    scheduled,
    sts_policies,
    untaken,
)
from queued.upkeep.duty import Duty

DUTIES: list[Duty] = [
    requests.DUTY,
    requests.RULES,
    final_leases.DUTY,
    scheduled.DUTY,
    *log_retention.DUTIES,
    clock.DUTY,
    orphans.DUTY,
    queue_counts.DUTY,
    idempotency_keys.DUTY,
    expiry.DUTY,
    sts_policies.DUTY,
    sts_policies.RESULTS,
    dane_check.DUTY,
    untaken.DUTY,
]


def all_duties() -> list[Duty]:
    """Return the duties of the core and of the features."""
    return [*DUTIES, *loaded("duties")]
