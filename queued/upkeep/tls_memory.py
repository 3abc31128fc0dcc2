"""The knowledge that all workers share about the TLS of hosts and domains."""

from __future__ import annotations

import asyncio

from pgmta.postgres.resources import Resources
from pgmta.store.records.broken_tls import BrokenTlsHosts
from pgmta.store.records.sts_policies import StsPolicies
from pgmta.store.records.tls_reports import TlsReports
from queued.config import Tls
from queued.delivery.tls.tls_memory import TlsMemory

_EVERY = 10.0  # seconds between two writes of the results


class SharedTlsMemory:
    """Policies, broken hosts and results, over one connection to PostgreSQL."""

    def __init__(self, resources: Resources, config: Tls) -> None:
        link = resources.link("queued tls")
        self._reports = TlsReports(link)
        self._broken = broken = BrokenTlsHosts(link, config.remember, config.minimum)
        policies = StsPolicies(link)
        self.memory = TlsMemory(
            policies.find,
            policies.keep,
            broken.known,
            broken.failed,
            broken.worked,
            self._reports.count,
        )
        """The functions that deliveries use."""

    def configure(self, config: Tls) -> None:
        """Keep broken hosts as these settings say, and forget those of other ones."""
        self._broken.configure(config.remember, config.minimum)

    async def run(self) -> None:
        """Write the results again and again until cancelled."""
        while True:
            await asyncio.sleep(_EVERY)
            await self._reports.write()

    async def close(self) -> None:
        """Write the last results."""
        await self._reports.write()
