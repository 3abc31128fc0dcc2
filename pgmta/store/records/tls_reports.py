"""Results of TLS sessions, counted for reports to the domains (RFC 8460)."""

from __future__ import annotations

from collections import Counter

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.model import TlsResult
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("tls_reports")

_MAX_RESULTS = 20_000  # different ones that wait to be written; further ones are not counted

log = get("store")


class TlsReports:
    """Counts results in memory, and adds them to the table when `write` is called.

    A process that dies loses the results since. The reports are statistics.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._counts: Counter[TlsResult] = Counter()

    def count(self, result: TlsResult) -> None:
        """Count a session."""
        if len(self._counts) < _MAX_RESULTS or result in self._counts:
            self._counts[result] += 1

    async def write_results(self) -> None:
        """Add the counts to the table. Results that can't be written now are kept."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        results = list(counts)
        params = {
            "domains": [each.domain for each in results],
            "policy_types": [each.policy_type for each in results],
            "policies": [each.policy for each in results],
            "results": [each.result for each in results],
            "hosts": [each.host for each in results],
            "addresses": [each.address for each in results],
            "reasons": [each.reason for each in results],
            "sessions": list(counts.values()),
        }
        try:
            await self._link.run(_SQL["add"], params)
        except StoreUnavailable:
            self._counts = counts + self._counts
        except psycopg.Error as error:
            # dropped, because one bad row would stop all later results
            log.warning("TLS results are lost", results=len(results), reason=faults.one_line(error))

    async def expire(self, age: float) -> int:
        """Remove results older than `age` seconds; return how many. Raises StoreUnavailable."""
        return len(await self._link.run(_SQL["expire"], {"age": age}))
