"""MTA-STS policies of recipient domains, for all workers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.model import StsPolicy
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("sts_policies")


class StsPolicies:
    """Reads and writes the policies. Each method raises StoreUnavailable.

    `due` and `expire` raise psycopg.Error as well.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def find(self, domain: str) -> StsPolicy | None:
        """Return the policy of a domain that counts now, and note that mail goes there."""
        rows = await self._run("find", {"domain": domain})
        if not rows:
            return None
        *policy, unused = rows[0]
        if unused:
            with suppress(StoreUnavailable):  # the policy counts even if it can't be stored
                await self._run("used", {"domain": domain})
        return _policy(*policy)

    async def _run(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement for a delivery, which knows no errors of psycopg."""
        try:
            return await self._link.run(_SQL[name], params)
        except psycopg.Error as error:
            raise StoreUnavailable(faults.one_line(error)) from error

    async def keep(self, policy: StsPolicy) -> None:
        """Write a policy that was fetched now; it counts for its `max_age`."""
        params = {
            "domain": policy.domain,
            "id": policy.id,
            "mode": policy.mode,
            "mx": list(policy.mx),
            "max_age": policy.max_age,
        }
        await self._run("keep", params)

    async def due(self, batch: int) -> list[StsPolicy]:
        """Return at most `batch` policies that have to be fetched again.

        Other processes do not get the same ones for ten minutes.
        """
        return [_policy(*row) for row in await self._link.run(_SQL["due"], {"batch": batch})]

    async def expire(self) -> int:
        """Remove policies whose time is over; return how many."""
        return len(await self._link.run(_SQL["expire"]))


def _policy(
    domain: str, number: str, mode: str, mx: list[str], max_age: int, left: float
) -> StsPolicy:
    return StsPolicy(domain, number, mode, tuple(mx), max_age, left)
