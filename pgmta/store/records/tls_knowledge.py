"""The knowledge of workers about the TLS of hosts and domains, as a command reads it."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pgmta.model import StsPolicy
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import queries

_SQL = queries("tls_knowledge")


class BrokenHost(NamedTuple):
    """A host, as host:port, that gets plain text because its TLS failed."""

    host: str
    until: datetime
    reason: str


class TlsKnowledge:
    """Reads it, and changes nothing. Methods raise psycopg.Error."""

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db

    async def policy(self, domain: str) -> StsPolicy | None:
        """Return the MTA-STS policy of a domain that counts now."""
        row = await self._db.row(_SQL["policy"], {"domain": domain})
        return StsPolicy(**{**row, "mx": tuple(row["mx"])}) if row else None

    async def broken(self, minimum: str) -> dict[str, BrokenHost]:
        """Return the hosts whose TLS failed twice under this lowest version."""
        rows = await self._db.rows(_SQL["broken"], {"minimum": minimum})
        return {row["host"]: BrokenHost(**row) for row in rows}
