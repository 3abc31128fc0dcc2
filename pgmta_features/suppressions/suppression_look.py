"""The list of suppressions as queued and smtpd ask it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pgmta.mail.address import with_domain
from pgmta.mail.metadata import EXEMPT_KEY, SCOPE_KEY, values_of
from pgmta.model import Item
from pgmta.postgres.binary import Texts
from pgmta.postgres.link import Link
from pgmta.store.queries import feature_queries

TRANSACTIONAL = "transactional"
"""The scope of mail that names none."""

_SQL = feature_queries("suppressions")


class Asked(NamedTuple):
    """A recipient, and the mail that it would get."""

    tenant: str
    scope: str
    address: str


def asked_for(item: Item) -> Asked | None:
    """Return what is asked for a row; None if it goes in any case."""
    scope = TRANSACTIONAL
    if item.metadata and (SCOPE_KEY in item.metadata or EXEMPT_KEY in item.metadata):
        try:
            values = values_of(item.metadata)
        except (ValueError, RecursionError):  # such metadata has no keys that count
            values = {}
        if EXEMPT_KEY in values:
            return None
        if (given := values.get(SCOPE_KEY)) is not None:
            scope = str(given)
    return Asked(item.tenant, scope, with_domain(item.recipient, item.domain))


class SuppressionLook:
    """Asks a server that takes writes: a standby may lack the latest suppressions.

    Each method raises StoreUnavailable, psycopg.Error.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def is_empty(self) -> bool:
        """Return whether there is no suppression at all."""
        ((found,),) = await self._link.look(_SQL["any"], {})
        return not found

    async def words(self, asked: Sequence[Asked]) -> list[str]:
        """Return for each why it gets no mail, as logs have it; '': it gets mail."""
        params = {
            "tenants": Texts(each.tenant for each in asked),
            "scopes": Texts(each.scope for each in asked),
            "addresses": Texts(each.address for each in asked),
        }
        ((found,),) = await self._link.look(_SQL["because"], params)
        return [words or "" for words in found]
