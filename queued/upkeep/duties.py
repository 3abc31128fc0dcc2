"""The duties of queued. A new one is a file that has DUTY, and its name here."""

from __future__ import annotations

from queued.upkeep import (
    attempts,
    clock,
    dane_check,
    final_leases,
    keys,
    orphans,
    reports,
    requests,
    sts_policies,
    transcripts,
    untaken,
)
from queued.upkeep.duty import Duty

DUTIES: list[Duty] = [
    requests.DUTY,
    requests.RULES,
    final_leases.DUTY,
    attempts.DUTY,
    transcripts.DUTY,
    clock.DUTY,
    orphans.DUTY,
    keys.DUTY,
    sts_policies.DUTY,
    reports.DUTY,
    dane_check.DUTY,
    untaken.DUTY,
]
