"""Logins as smtpd sees them: one user at a time, and the failures over all processes."""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgmta.config.types import Network
from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("logins")


@dataclass(frozen=True, slots=True)
class Verifier:
    """A user, or a login name that no user has.

    `version` is None if there is no user of that name. `changes` is the version of all users at
    that time. `networks` None: the user may log in from any.
    """

    name: str
    changes: int
    version: int | None
    password: str = field(repr=False)
    scram: str | None = field(repr=False)
    disabled: bool
    senders: tuple[str, ...] | None
    networks: tuple[Network, ...] | None
    tenant: str
    metadata: Mapping[str, str]
    priorities: tuple[int, int]
    own_networks: frozenset[Network]


type Levels = dict[str, float]
"""Seconds until the failures of a unit are forgotten, by unit; others have none."""


def name_key(secret: bytes, name: str) -> str:
    """Return the text for a name in the units of `login_failures`."""
    return hmac.digest(secret, b"unit " + name.encode(), "sha256")[:16].hex()


class LoginStore:
    """Reads users and writes failures. Each method raises StoreUnavailable and psycopg.Error.

    `find_user` raises ValueError for a row that no program of ours has written.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def find_user(self, name: str, units: Collection[str]) -> tuple[Verifier, Levels]:
        """Return the user of a name, and the levels of some units."""
        rows = await self._link.run(_SQL["find"], {"name": name, "units": list(units)})
        *user, named, seconds = rows[0]
        return _verifier(name, user), dict(zip(named or (), seconds or (), strict=True))

    async def changes(self) -> tuple[int, bytes]:
        """Return the version of all users, and the secret for names."""
        ((changes, secret),) = await self._link.run(_SQL["changes"])
        return changes, bytes(secret)

    async def unbound(self, most: int) -> list[str]:
        """Return the names of users who may send from any address, `most` at most."""
        rows = await self._link.run(_SQL["unbound"], {"most": most})
        return [name for (name,) in rows]

    async def add_failures(self, failures: Sequence[tuple[str, int, float]], most: float) -> Levels:
        """Add failures: unit, number, and seconds until they are forgotten, `most` at most.

        Returns the levels of these units.
        """
        params = {
            "units": [unit for unit, _, _ in failures],
            "counts": [count for _, count, _ in failures],
            "added": [seconds for _, _, seconds in failures],
            "most": most,
        }
        return dict(await self._link.run(_SQL["failed"], params))

    async def forget_failures(self) -> int:
        """Remove failures that were forgotten over a day ago; return how many."""
        ((count,),) = await self._link.run(_SQL["forget"])
        return int(count)

    async def add_networks(self, logins: Collection[tuple[str, Network]]) -> None:
        """Note from which networks some users have logged in."""
        params = {
            "names": [name for name, _ in logins],
            "networks": [str(network) for _, network in logins],
        }
        await self._link.run(_SQL["seen"], params)


def _verifier(name: str, row: Sequence[Any]) -> Verifier:
    changes, version, password, scram, disabled, senders, networks, *others = row
    tenant, metadata, first, last, own = others
    values = json.loads(metadata or "{}")
    if not all(isinstance(one, str) for one in (*(senders or ()), *(networks or ()))):
        raise ValueError(f"user {name}: senders or networks is no list of texts")
    return Verifier(
        name=name,
        changes=changes,
        version=version,
        password=password or "",
        scram=scram,
        disabled=bool(disabled),
        senders=None if senders is None else tuple(senders),
        networks=None if networks is None else tuple(map(ipaddress.ip_network, networks)),
        tenant=tenant or "",
        metadata={
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in values.items()
        },
        priorities=(5 if first is None else first, 5 if last is None else last),
        own_networks=frozenset(map(ipaddress.ip_network, own or ())),
    )
