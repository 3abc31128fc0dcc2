"""Users as an operator adds, changes and lists them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgmta.config.types import Network
from pgmta.model import ANY_SENDER
from pgmta.password import hashed, prepared, scram_keys
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.accounts.logins import name_key
from pgmta.store.queries import queries

_SQL = queries("user_accounts")
_SALT_OCTETS = 16


@dataclass(frozen=True, slots=True)
class Secret:
    """The hash of a password, and the keys for SCRAM, as table `users` has them."""

    password: str = field(repr=False)
    scram: str | None = field(repr=False)

    @classmethod
    def of_password(cls, password: str, *, scram: bool = True) -> Secret:
        """Return that of a password, with new salts. It takes some ten milliseconds."""
        keys = scram_keys(password, secrets.token_bytes(_SALT_OCTETS)) if scram else None
        return cls(hashed(prepared(password.encode()), secrets.token_bytes(_SALT_OCTETS)), keys)


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of a user; None: as before, or the default for a new user.

    `any_sender` and `any_network` remove these limits. A user without senders has the login name.
    """

    senders: Sequence[str] | None = None
    any_sender: bool = False
    networks: Sequence[Network] | None = None
    any_network: bool = False
    tenant: str | None = None
    metadata: Mapping[str, str] | None = None
    priorities: tuple[int, int] | None = None

    def params(self) -> dict[str, Any]:
        """Return the parameters of a statement."""
        first, last = self.priorities or (None, None)
        senders = None if self.senders is None else list(self.senders)
        if self.any_sender:
            senders = [ANY_SENDER]
        networks = None if self.networks is None else [str(each) for each in self.networks]
        return {
            "senders": senders,
            "networks": networks,
            "any_network": self.any_network,
            "tenant": self.tenant,
            "metadata": None if self.metadata is None else json.dumps(dict(self.metadata)),
            "first": first,
            "last": last,
        }


class UserAccounts:
    """Each change is noted in table `audit` under `who`, the operator.

    Methods raise psycopg.Error.
    """

    def __init__(self, db: OperatorConnection, who: str) -> None:
        self._db = db
        self._who = who

    async def add_user(self, name: str, secret: Secret, rights: Rights) -> bool:
        """Add a user; return False if there is one of that name."""
        params = {
            **rights.params(),
            "tenant": rights.tenant or "",
            "metadata": json.dumps(dict(rights.metadata or {})),
            "first": (rights.priorities or (5, 5))[0],
            "last": (rights.priorities or (5, 5))[1],
            "password": secret.password,
            "scram": secret.scram,
        }
        return await self._change("add", name, params, _said(rights))

    async def passwd(self, name: str, secret: Secret) -> bool:
        """Change the password; return False if there is no such user."""
        params = {"password": secret.password, "scram": secret.scram}
        return await self._change("password", name, params, {"scram": secret.scram is not None})

    async def disable(self, name: str, *, disabled: bool) -> bool:
        """Disable or enable a user; return False if there is none."""
        return await self._change("disable", name, {"disabled": disabled}, {"disabled": disabled})

    async def set(self, name: str, rights: Rights) -> bool:
        """Change the rights; return False if there is no such user."""
        return await self._change("set", name, rights.params(), _said(rights))

    async def delete(self, name: str) -> bool:
        """Remove a user; return False if there is none."""
        return await self._change("delete", name, {}, {})

    async def unlock(self, name: str) -> int:
        """Forget the failures of a user; return the number of units that had some."""
        key = await self._key(name)
        async with self._db.transaction():
            units = await self._db.rows(_SQL["unlock"], {"key": key})
            await self._db.audit(self._who, "user unlock", name, {"units": len(units)}, 1)
        return len(units)

    async def users(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return all users, or the one of that name, without passwords."""
        return await self._db.rows(_SQL["list"], {"name": name})

    async def networks(self, name: str) -> list[dict[str, Any]]:
        """Return the networks from which a user logged in, the last one first."""
        return await self._db.rows(_SQL["networks"], {"name": name})

    async def failures(self, name: str) -> list[dict[str, Any]]:
        """Return the failures of a user that are not forgotten yet."""
        return await self._db.rows(_SQL["failures"], {"key": await self._key(name)})

    async def all_failures(self, limit: int) -> list[dict[str, Any]]:
        """Return the failures that are not forgotten yet, the most first, each with its `name`.

        That is an address, a network or a user; None for a login name that no user has.
        """
        secret = await self._secret()
        names = {name_key(secret, user["name"]): user["name"] for user in await self.users()}
        found = await self._db.rows(_SQL["all_failures"], {"limit": limit})
        for each in found:
            kind, name, *_ = each["unit"].split(" ")
            each["name"] = name if kind in ("address", "network") else names.get(name)
        return found

    async def _key(self, name: str) -> str:
        return name_key(await self._secret(), name)

    async def _secret(self) -> bytes:
        row = await self._db.row(_SQL["secret"]) or {}
        return bytes(row["secret"])

    async def _change(
        self, statement: str, name: str, params: dict[str, Any], details: dict[str, Any]
    ) -> bool:
        async with self._db.transaction():
            row = await self._db.row(_SQL[statement], {**params, "name": name})
            if row:
                await self._db.audit(self._who, f"user {statement}", name, details, 1)
        return row is not None


def _said(rights: Rights) -> dict[str, Any]:
    """Return the rights that were given, for the audit."""
    return {key: value for key, value in rights.params().items() if value not in (None, False)}
