"""Tokens that come back by a link: the statements of `queued web`."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.postgres.resources import Resources
from pgmta.store.queries import queries

_SQL = queries("consumption")
_SETTINGS = {"statement_timeout": "5s", "lock_timeout": "3s"}
_PATIENCE = 8.0  # seconds for a connection and its statement


class Consumption(NamedTuple):
    """The outcome for a token: its account, or `why` it was refused.

    `proof` is for the application, after a recovery. It takes the proof once.
    """

    account: int | None
    login: str | None
    proof: str | None
    why: str | None


class Consumptions:
    """Consumes tokens over up to `connections` connections, which are made when needed.

    The methods raise StoreUnavailable and psycopg.Error.
    """

    def __init__(self, resources: Resources, connections: int) -> None:
        self._free: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        for number in reversed(range(connections)):
            self._free.put_nowait(resources.link(f"tokens {number}", _SETTINGS))

    async def consume(self, secret: bytes, action: str) -> Consumption:
        """Consume the token of a secret whose signature is right."""
        (row,) = await self._run("consume", {"secret": secret, "action": action})
        return Consumption(*row)

    async def failed(self, secret: bytes) -> None:
        """Count a wrong code for the token of recovery with this secret, if there is one."""
        await self._run("failed", {"secret": secret})

    async def locked(self, secret: bytes) -> bool:
        """Return whether too many codes were wrong for the token with this secret."""
        ((found,),) = await self._run("locked", {"secret": secret})
        return bool(found)

    async def there(self) -> bool:
        """Return whether the schema lifecycle is installed."""
        ((found,),) = await self._run("there", {})
        return bool(found)

    async def _run(self, name: str, fields: dict[str, Any]) -> list[tuple[Any, ...]]:
        try:
            async with asyncio.timeout(_PATIENCE):
                link = await self._free.get()
                try:
                    return await link.run(_SQL[name], fields)
                finally:
                    self._free.put_nowait(link)
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {_PATIENCE:g} s") from None
