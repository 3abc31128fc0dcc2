"""Keys as an operator makes, changes and lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pgmta.command import instant
from pgmta.errors import Blocked, PgmtaError
from pgmta.features import features
from pgmta.password import KEY_PREFIX
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries
from pgmta_features.http_api.token import Token, new_token

_SQL = feature_queries("http_api")
_WEBHOOKS = "webhooks"  # the feature with the endpoints


@dataclass(frozen=True, slots=True)
class KeyRights:
    """What a key may, as table api_keys has it."""

    scopes: list[str]
    tenant: str
    senders: list[str]
    networks: list[str] | None
    sees: str
    expires_at: datetime | None
    credentials: list[str]
    priority_first: int = 5
    priority_last: int = 5

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> KeyRights:
        """Return those of a row of `keys`."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


class KeyTable:
    """Each change is noted in table `audit` under `who`, the operator.

    Methods raise StoreUnavailable, psycopg.Error.
    """

    def __init__(self, db: OperatorConnection, who: str) -> None:
        self._db = db
        self._who = who

    async def keys(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return all keys, or the one of that name, with the last use of each."""
        return await self._db.rows(_SQL["keys"], {"name": name})

    async def secrets(self, name: str) -> list[dict[str, Any]]:
        """Return the secrets of a key, the newest first, without what is secret."""
        return await self._db.rows(_SQL["secrets"], {"name": name})

    async def new(self, name: str, rights: KeyRights) -> Token | None:
        """Make a key; return its token, or None if there is or was one of that name."""
        async with self._db.transaction():
            if not await self._db.row(_SQL["new"], {"name": name, **asdict(rights)}):
                return None
            await self._audit("new", name, _said(rights))
            return await self._add_secret(name)

    async def adopt(self, name: str, rights: KeyRights, token: Token) -> None:
        """Have a key with this token, and no other one, unless a key of that name was revoked."""
        async with self._db.transaction():
            await self._db.row(_SQL["new"], {"name": name, **asdict(rights)})
            if not await self._db.row(_SQL["lock"], {"name": name}):
                return
            known = [each["id"] for each in await self.secrets(name) if each["holds"]]
            if token.secret_id not in known:
                await self._db.row(_SQL["end_secrets"], {"name": name, "seconds": 0.0})
                await self._write_secret(name, token)
                await self._audit("adopt", name, _said(rights))

    async def set(self, name: str, change: Callable[[KeyRights], KeyRights]) -> bool:
        """Change what a key may; return False if there is none that is not revoked."""
        async with self._db.transaction():
            if not await self._db.row(_SQL["lock"], {"name": name}):
                return False
            [row] = await self.keys(name)  # under the lock: two changes at once both count
            rights = change(KeyRights.of_row(row))
            await self._db.execute(_SQL["set"], {"name": name, **asdict(rights)})
            await self._audit("set", name, _said(rights))
        return True

    async def rotate(
        self, name: str, overlap_s: float, *, force: bool = False
    ) -> tuple[Token, datetime | None] | None:
        """Give a key another secret; return its token, and until when the one before holds.

        Without `overlap_s` that one ends at once. Return None if there is no such key that is not
        revoked. Raises PgmtaError while two hold, unless the older one may end: by `force`, or
        without `overlap_s`.
        """
        async with self._db.transaction():
            if not await self._db.row(_SQL["lock"], {"name": name}):
                return None
            until = [row["ends_at"] for row in await self.secrets(name) if row["holds"]][1:]
            if until and overlap_s and not force:
                raise PgmtaError(
                    f"the key {name} was rotated before, and the token before that works until "
                    f"{instant(until[0])}; --force ends it now"
                )
            fields = {"name": name, "seconds": overlap_s}
            before = await self._db.row(_SQL["end_secrets"], fields)
            await self._audit("rotate", name, {"overlap_s": overlap_s})
            return await self._add_secret(name), before["ends_at"] if before else None

    async def revoke(self, name: str) -> bool:
        """End a key for ever; return False if there is none, or it was revoked before."""
        async with self._db.transaction():
            row = await self._db.row(_SQL["revoke"], {"name": name})
            if row:
                await self._db.row(_SQL["end_secrets"], {"name": name, "seconds": 0.0})
                await self._audit("revoke", name, {})
        return row is not None

    async def left_by(self, name: str) -> dict[str, Any]:
        """End the subscription of a key to events, and return what else it leaves.

        `webhooks` are its endpoints that get events, `waiting` is the number of its mails that
        wait, and `subscribed` whether its subscription could not be ended just now.
        """
        fields = {"who": f"{KEY_PREFIX}{name}"}
        subscribed = False
        try:
            await self._db.rows(_SQL["unsubscribe"], fields)
        except Blocked:
            subscribed = True
        waiting = await self._db.row(_SQL["waiting"], fields)
        webhooks = await self.webhooks(name)
        return {"webhooks": webhooks, **(waiting or {}), "subscribed": subscribed}

    async def webhooks(self, name: str) -> list[dict[str, Any]]:
        """Return the endpoints of a key that get events.

        `beyond` is whether they get more than the key may have now.
        """
        if _WEBHOOKS not in features():
            return []
        return await self._db.rows(_SQL["endpoints"], {"who": f"{KEY_PREFIX}{name}"})

    async def _add_secret(self, name: str) -> Token:
        token = new_token()
        await self._write_secret(name, token)
        return token

    async def _write_secret(self, name: str, token: Token) -> None:
        fields = {"id": token.secret_id, "name": name, "digest": token.digest}
        await self._db.execute(_SQL["add_secret"], fields)

    async def _audit(self, what: str, name: str, details: dict[str, Any]) -> None:
        await self._db.audit(self._who, f"apikey {what}", name, details, 1)


def _said(rights: KeyRights) -> dict[str, Any]:
    """Return the rights for the audit."""
    end = rights.expires_at
    return {**asdict(rights), "expires_at": end and end.isoformat()}
