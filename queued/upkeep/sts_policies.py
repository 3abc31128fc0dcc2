"""MTA-STS policies are fetched before they end (RFC 8461, section 5.1), TLS results are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from pgmta.logs import get
from pgmta.model import StsPolicy
from pgmta.store.records.broken_tls import BrokenTlsHosts
from pgmta.store.records.sts_policies import StsPolicies
from pgmta.store.records.tls_reports import TlsReports
from queued.delivery.tls.sts_fetch import PolicyFetcher, StsError
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty, Work

_POLICIES_PER_ROUND = 100  # 144,000 per day
_RESULTS_KEPT_S = 35 * 86400.0  # reports are about a day

log = get("upkeep")


@dataclass(frozen=True, slots=True)
class StsPolicyDuty:
    """Fetches the policies that are due. One that can't be fetched is kept until its end.

    `fetcher` returns None while MTA-STS is off.
    """

    policies: StsPolicies
    broken: BrokenTlsHosts
    reports: TlsReports
    fetcher: Callable[[], PolicyFetcher | None]

    async def do(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error."""
        await self.policies.expire()
        await self.broken.expire()
        await self.reports.expire(_RESULTS_KEPT_S)
        if fetcher := self.fetcher():
            due = await self.policies.due(_POLICIES_PER_ROUND)
            found = await asyncio.gather(*(self._fetch(fetcher, each) for each in due))
            for policy in found:
                if policy:
                    await self.policies.keep(policy)

    async def _fetch(self, fetcher: PolicyFetcher, policy: StsPolicy) -> StsPolicy | None:
        try:
            found = await fetcher.fetch(policy.domain)
        except StsError as error:
            log.warning("MTA-STS policy not fetched again", domain=policy.domain,
                        reason=str(error), hours_left=round(policy.left / 3600))  # fmt: skip
            return None
        return replace(policy, mode=found.mode, mx=found.mx, max_age=found.max_age)


def _make(process: QueuedProcess) -> Work:
    link, tls = process.link, process.config.delivery.tls
    return StsPolicyDuty(
        StsPolicies(link),
        BrokenTlsHosts(link, tls.minimum),
        TlsReports(link),
        lambda: process.smtp.security.fetcher,
    ).do


DUTY = Duty("TLS policies", 60.0, _make, in_turn=True)
RESULTS = Duty("TLS results", 10.0, lambda process: process.tls.write_results, first=10.0)
