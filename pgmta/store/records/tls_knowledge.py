"""The knowledge of workers about the TLS of hosts and domains, as a command reads it."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pgmta.model import StsPolicy
from pgmta.postgres.operator import OperatorLink
from pgmta.store.queries import queries

_SQL = queries("tls_knowledge")


class BrokenHost(NamedTuple):
    """A host, as host:port, that gets plain text because its TLS failed."""

    host: str
    until: datetime
    reason: str


class TlsKnowledge(OperatorLink):
    """Reads it over a separate connection, and changes nothing.

    Raises StoreUnavailable when it opens, and psycopg.Error.
    """

    def policy(self, domain: str) -> StsPolicy | None:
        """Return the MTA-STS policy of a domain that counts now."""
        row = self._db.execute(_SQL["policy"], {"domain": domain}).fetchone()
        return StsPolicy(**{**row, "mx": tuple(row["mx"])}) if row else None

    def broken(self, minimum: str) -> dict[str, BrokenHost]:
        """Return the hosts whose TLS failed twice under this lowest version."""
        rows = self._db.execute(_SQL["broken"], {"minimum": minimum}).fetchall()
        return {row["host"]: BrokenHost(**row) for row in rows}
