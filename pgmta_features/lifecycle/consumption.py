"""Tokens that come back by a link: the statements of `queued web`."""

from __future__ import annotations

from typing import Any, NamedTuple

from pgmta.postgres.link import Link
from pgmta.postgres.link_pool import LinkPool
from pgmta.store.queries import feature_queries

_SQL = feature_queries("lifecycle")


class Consumption(NamedTuple):
    """The outcome for a token: its account, or `why` it was refused.

    `account` is a number or a text, as in the table of the application. It takes the `proof` once,
    if there is one. `missing` counts the confirmations that a request of several still lacks.
    """

    account: int | str | None
    login: str | None
    proof: str | None
    why: str | None
    missing: int | None


async def check_login(link: Link) -> None:
    """Raise psycopg.errors.InsufficientPrivilege if the login can't consume tokens.

    It says nothing if there is no schema lifecycle. Raises StoreUnavailable and psycopg.Error.
    """
    ((found,),) = await link.run(_SQL["there"], {})
    if found:
        await link.run(_SQL["accounts"], {})


class Consumptions:
    """Consumes tokens. The methods raise StoreUnavailable and psycopg.Error."""

    def __init__(self, pool: LinkPool) -> None:
        self._pool = pool

    async def consume(self, secret: bytes, action: str) -> Consumption:
        """Consume the token of a secret whose signature is right."""
        (row,) = await self._run("consume", {"secret": secret, "action": action})
        return Consumption(*row)

    async def failed(self, secret: bytes) -> None:
        """Count a wrong code for the token with this secret, if there is one that has a code."""
        await self._run("failed", {"secret": secret})

    async def locked(self, secret: bytes) -> bool:
        """Return whether too many codes were wrong for the token with this secret."""
        ((found,),) = await self._run("locked", {"secret": secret})
        return bool(found)

    async def there(self) -> bool:
        """Return whether the schema lifecycle is installed."""
        ((found,),) = await self._run("there", {})
        return bool(found)

    async def check_accounts(self) -> None:
        """Raise psycopg.errors.InsufficientPrivilege if the login may not read accounts."""
        await self._run("accounts", {})

    async def _run(self, name: str, fields: dict[str, Any]) -> list[tuple[Any, ...]]:
        return await self._pool.run(_SQL[name], fields)
