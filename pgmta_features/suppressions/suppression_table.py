"""Suppressions as an operator adds, releases, lists and imports them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from pgmta.config.types import hint
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.changes.sql_interface import refused
from pgmta.store.queries import feature_queries

_SQL = feature_queries("suppressions")
_CURSOR_ROWS = 2000
_MAX_PLACES = 20  # of an address, in one message

ALL_TENANTS = "*"
"""The tenant of a suppression that holds for all tenants."""

TRANSACTIONAL = "transactional"
"""The scope of mail that has none, which all tenants have."""

REASONS = ("unsubscribed", "complained", "bounced", "soft_bounced", "forgotten", "operator")
"""Why an address is suppressed, as the table has it."""


def named(tenant: str) -> str:
    """Return whose mail it is, as messages say it."""
    if tenant == ALL_TENANTS:
        return "all tenants"
    return f"tenant {tenant}" if tenant else "mail without a tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """An address that gets no mail; `scope` '' is every kind of mail."""

    address: str
    tenant: str = ""
    scope: str = ""
    reason: str = "operator"
    source: str = ""
    at: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WantedSuppressions:
    """Which suppressions are listed; None is any."""

    address: str | None = None
    tenant: str | None = None
    scope: str | None = None
    reason: str | None = None

    def params(self) -> dict[str, Any]:
        """Return the parameters of a statement."""
        return {"address": self.address, "tenant": self.tenant, "scope": self.scope,
                "reason": self.reason}  # fmt: skip


class Scopes:
    """The scopes that were declared, as pairs of tenant and name."""

    def __init__(self, declared: Iterable[tuple[str, str]]) -> None:
        self._declared = frozenset(declared)

    def check(self, tenant: str, name: str) -> None:
        """Raise ValueError if mail of the tenant has no such scope; '' is every scope."""
        if name in ("", TRANSACTIONAL) or {(tenant, name), (ALL_TENANTS, name)} & self._declared:
            return
        known = {n for t, n in self._declared if tenant in (t, ALL_TENANTS) or t == ALL_TENANTS}
        if name in known:
            return
        advice = hint(name, sorted({*known, TRANSACTIONAL}))
        whose = ""
        if others := sorted(t for t, n in self._declared if n == name):
            whose, advice = f" of {named(tenant)}", f"{named(others[0])} has it"
        raise ValueError(
            f"there is no scope {name[:64]!r}{whose}; {advice} "
            "(queuectl suppression scope add declares one)"
        )


def _options(row: dict[str, Any]) -> str:
    tenant = row["tenant"]
    options = [
        "--all-tenants" if tenant == ALL_TENANTS else f"--tenant {tenant}" if tenant else "",
        f"--scope {row['scope']}" if row["scope"] else "",
    ]
    return " ".join(filter(None, options)) or named("")


class SuppressionTable:
    """Table `audit` names an address by its keyed hash. `who` is the operator.

    Methods raise psycopg.Error.
    """

    def __init__(self, db: OperatorConnection, who: str) -> None:
        self._db = db
        self._who = who

    async def put(self, given: Sequence[Suppression]) -> list[str]:
        """Suppress addresses; return new, newer, older or forgotten for each, in their order."""
        params = {
            "addresses": [each.address for each in given],
            "tenants": [each.tenant for each in given],
            "scopes": [each.scope for each in given],
            "reasons": [each.reason for each in given],
            "sources": [each.source or self._who for each in given],
            "ats": [each.at for each in given],
            "untils": [each.until for each in given],
        }
        row = await self._db.row(_SQL["put"], params)
        return list(row["outcomes"]) if row else []

    async def add(self, given: Suppression) -> str:
        """Suppress one address, and note it in the audit; return what that changed."""
        async with self._db.transaction():
            (outcome,) = await self.put([given])
            details = {"tenant": given.tenant, "scope": given.scope, "outcome": outcome}
            await self._db.audit(
                self._who, "suppression add", await self._hash(given.address), details, 1
            )
        return outcome

    async def places(self, address: str) -> str:
        """Return where an address is suppressed, by the options that release it; '': nowhere."""
        rows = await self.rows(WantedSuppressions(address), _MAX_PLACES)
        return ", ".join(f"{row['reason']} ({_options(row)})" for row in rows)

    async def note_import(self, name: str, outcomes: dict[str, int]) -> None:
        """Note in the audit that a file was imported."""
        await self._db.audit(
            self._who, "suppression import", name, dict(outcomes), sum(outcomes.values())
        )

    async def release(self, address: str, tenant: str, scope: str | None) -> int:
        """End the suppressions of an address; return how many there were."""
        params = {"address": address, "tenant": tenant, "scope": scope, "who": self._who}
        row = await self._db.row(_SQL["release"], params)
        return int(row["released"]) if row else 0

    async def rows(self, wanted: WantedSuppressions, limit: int) -> list[dict[str, Any]]:
        """Return the latest suppressions that hold."""
        return await self._db.rows(_SQL["list"], {**wanted.params(), "limit": limit})

    async def page(
        self, wanted: WantedSuppressions, after: tuple[str, str], limit: int
    ) -> list[dict[str, Any]]:
        """Return suppressions of one tenant that hold, behind an address and its scope."""
        place = {"after_address": after[0], "after_scope": after[1], "limit": limit}
        return await self._db.rows(_SQL["page"], {**wanted.params(), **place})

    async def every_row(self, wanted: WantedSuppressions) -> AsyncIterator[dict[str, Any]]:
        """Return all suppressions that hold, but for hashes, as they are read."""
        async with self._db.transaction(), self._db.cursor("suppressions") as cursor:
            cursor.itersize = _CURSOR_ROWS
            await cursor.execute(_SQL["export"], wanted.params())
            async for row in cursor:
                yield row

    async def scopes(self) -> Scopes:
        """Return the scopes that were declared."""
        return Scopes((row["tenant"], row["name"]) for row in await self.scope_rows(None))

    async def scope_rows(self, tenant: str | None) -> list[dict[str, Any]]:
        """Return the scopes of a tenant, None for all, with those of campaigns."""
        return await self._db.rows(_SQL["scopes"], {"tenant": tenant})

    async def declare(self, name: str, tenant: str) -> bool:
        """Declare a scope; return whether it is new. Raises SubmissionError for a bad name."""
        try:
            async with self._db.transaction():
                row = await self._db.row(_SQL["declare"], {"name": name, "tenant": tenant})
                if is_new := bool(row and row["new"]):
                    details = {"tenant": tenant}
                    await self._db.audit(self._who, "suppression scope add", name, details, 1)
        except psycopg.Error as error:
            raise refused(error) from None
        return is_new

    async def _hash(self, address: str) -> str:
        row = await self._db.row(_SQL["hash"], {"address": address})
        return str(row["hash"]) if row else ""
