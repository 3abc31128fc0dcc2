"""The recipients of relay domains, as smtpd looks them up."""

from __future__ import annotations

from collections.abc import Iterable

from pgmta.postgres.binary import Texts
from pgmta.postgres.resources import Resources
from pgmta.store.queries import queries

_SQL = queries("recipients")


class Recipients:
    """Reads the table `recipients`."""

    def __init__(self, resources: Resources) -> None:
        self._link = resources.link("recipients")

    async def known(self, addresses: Iterable[str]) -> set[str]:
        """Return those of the addresses that are in the table. Raises StoreUnavailable."""
        ((found,),) = await self._link.run(_SQL["known"], {"addresses": Texts(addresses)})
        return set(found)
