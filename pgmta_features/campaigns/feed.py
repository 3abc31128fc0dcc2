"""The statements by which workers feed campaigns into the queue, and end their jobs."""

from __future__ import annotations

from typing import NamedTuple

from pgmta.postgres.link import Link
from pgmta.store.admin.upkeep import Look
from pgmta.store.queries import feature_queries

_SQL = feature_queries("campaigns")

DUE = Look(_SQL["due"])
"""Whether campaigns feed the queue, or jobs have not ended."""


class ActiveCredential(NamedTuple):
    """A credential whose campaign feeds the queue; `rate` in mails per second, or None."""

    credential: str
    rate: float | None


class CampaignFeed:
    """Feeds campaigns for one process, which `worker` names.

    Each method is one transaction, and any number of processes may do the same at a time. They
    raise StoreUnavailable and psycopg.Error.
    """

    def __init__(self, link: Link, worker: str) -> None:
        self._link = link
        self._worker = worker

    async def take(self) -> int:
        """Give the oldest job that waits its credential; return how many jobs were given one."""
        ((taken,),) = await self._link.run(_SQL["take"], {})
        return int(taken)

    async def active(self) -> list[ActiveCredential]:
        """Return the credentials whose campaigns feed the queue."""
        return [ActiveCredential(*row) for row in await self._link.run(_SQL["active"], {})]

    async def feed(self, credential: str) -> tuple[int, bool]:
        """Put the next mail into the queue; return how much, and whether more may follow."""
        params = {"credential": credential, "worker": self._worker}
        ((fed, more),) = await self._link.run(_SQL["feed"], params)
        return fed, more

    async def withdraw(self, most: int) -> int:
        """Take at most `most` mails of each stopped job out of the queue; return how many."""
        return await self._number("withdraw", most)

    async def reconcile(self, most: int) -> int:
        """Write outcomes that no settlement wrote, at most `most` per job; return how many."""
        return await self._number("reconcile", most)

    async def waiting(self) -> int:
        """Return how many recipients of jobs that are not done are in the queue."""
        ((found,),) = await self._link.run(_SQL["waiting"], {})
        return int(found)

    async def finalise(self, lease: float) -> int:
        """End the jobs that have nothing in the queue; return how many.

        The credential of a campaign that has fed all is free if no mail of it is in flight, or due
        within `lease` seconds.
        """
        ((ended,),) = await self._link.run(_SQL["finalise"], {"lease": lease})
        return int(ended)

    async def halt(self) -> int:
        """Stop campaigns with too many bounces; return how many."""
        ((halted,),) = await self._link.run(_SQL["halt"], {})
        return int(halted)

    async def _number(self, name: str, most: int) -> int:
        ((found,),) = await self._link.run(_SQL[name], {"most": most})
        return int(found)
