"""The keys that sign mail, as queued reads them and as an operator adds and lists them."""

from __future__ import annotations

from typing import Any

import psycopg

from pgmta.model import DkimKey
from pgmta.postgres.link import Link
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import queries

_SQL = queries("dkim_keys")


class DkimKeys:
    """Reads the table with the private parts. Each method raises StoreUnavailable."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def version(self) -> int:
        """Return a number that changes with every change of the table."""
        ((version,),) = await self._link.run(_SQL["version"])
        return int(version)

    async def keys(self) -> list[DkimKey]:
        """Return all keys."""
        return [DkimKey(*row) for row in await self._link.run(_SQL["keys"])]


class KeyTable:
    """Each change is noted in table `audit` under `who`, the operator, without the key.

    Methods raise psycopg.Error.
    """

    def __init__(self, db: OperatorConnection, who: str) -> None:
        self._db = db
        self._who = who

    async def rows(self) -> list[dict[str, Any]]:
        """Return all keys without their private parts."""
        return await self._db.rows(_SQL["list"])

    async def private(self, domain: str, selector: str) -> str | None:
        """Return the private part in PEM; None if the role may not read it, or without the key."""
        try:
            row = await self._db.row(_SQL["private"], {"domain": domain, "selector": selector})
        except psycopg.errors.InsufficientPrivilege:
            return None
        return row["private_key"] if row else None

    async def add(
        self, key: DkimKey, public_key: str, *, at_once: bool, unpublished: bool = False
    ) -> bool:
        """Add a key; return False if there is one of that name.

        `at_once`: its time is now. An `unpublished` one signs nothing before `publish`.
        """
        params = {
            "domain": key.domain,
            "selector": key.selector,
            "type": key.type,
            "private_key": key.private_key,
            "public_key": public_key,
            "active_from": None if at_once else key.active_from,
            "unpublished": unpublished,
        }
        details = {name: params[name] for name in ("type", "active_from", "unpublished")}
        return await self._change("add", params, details)

    async def publish(self, domain: str, selector: str, public_key: str) -> bool:
        """Let a key sign whose record is in DNS; return False if it is gone, or signs already.

        Raises InsufficientPrivilege for a role that may only look.
        """
        params = {"domain": domain, "selector": selector, "public_key": public_key}
        return await self._change("publish", params, {})

    async def remove(self, domain: str, selector: str) -> bool:
        """Remove a key; return False if there is none of that name."""
        return await self._change("remove", {"domain": domain, "selector": selector}, {})

    async def _change(
        self, statement: str, params: dict[str, Any], details: dict[str, Any]
    ) -> bool:
        name = f"{params['domain']}/{params['selector']}"
        async with self._db.transaction():
            row = await self._db.row(_SQL[statement], params)
            if row:
                await self._db.audit(self._who, f"dkim {statement}", name, details, 1)
        return row is not None
