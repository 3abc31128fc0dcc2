"""The keys that a process of the API has seen, each looked up again after half a second."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from pgmta.accounts.networks import Networks
from pgmta.config.types import is_address
from pgmta.errors import StoreUnavailable
from pgmta.postgres.binary import Texts
from pgmta.postgres.resources import Resources
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.problem import Problem, away, key_refused
from pgmta_features.http_api.token import Token, parse_token

_TRUST_S = 0.5  # a key that was looked up: so revocation holds within a second everywhere
_USE_INTERVAL_S = 60.0  # in which the use of a secret is noted once
_MAX_KNOWN, _MAX_ABSENT = 10_000, 2_000  # ids in memory: of secrets, and of nothing
_LOOK_TIMEOUT_S = 5.0
_SETTINGS = {"statement_timeout": "3s", "lock_timeout": "3s"}
_LOOK = (
    "SELECT id, digest, name, scopes, tenant, senders, networks, sees, credentials, priority_first,"
    " priority_last, expires_at, seconds, holds"
    " FROM pgmta.api_keys_look(%(ids)b::text[])"
)
_USED = "SELECT pgmta.api_key_used(%(id)s, %(client)s::inet)"


@dataclass(slots=True)
class _Known:
    """A secret as the database had it; `until` is the end of its key, by the clock of the loop."""

    digest: bytes
    caller: Caller
    allows: Callable[[str], bool]
    looked_at: float
    until: float
    holds: bool  # it was neither revoked nor ended by a rotation
    noted_at: float = float("-inf")

    def fits(self, token: Token) -> bool:
        """Return whether a token has the secret."""
        return hmac.compare_digest(self.digest, token.digest)


@dataclass(frozen=True, slots=True)
class _Look:
    """A statement that looks secrets up, which began at a time."""

    task: asyncio.Task[None]
    ids: frozenset[str]
    began: float


class KeyRing:
    """Finds keys by their tokens.

    One statement looks all tokens up that requests wait for.
    """

    def __init__(self, resources: Resources, spawn: Callable[[Coroutine[Any, Any, None]], None]):
        self._link = resources.link("keys", _SETTINGS)
        self._spawn = spawn
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._absent: OrderedDict[str, float] = OrderedDict()  # when each was looked up
        self._wanted: set[str] = set()
        self._look: _Look | None = None

    def knows(self, text: str) -> bool:
        """Return whether a text is the token of a key that was seen, and may have ended since."""
        return bool(self.name_of(text))

    def name_of(self, text: str) -> str | None:
        """Return the name of the key of such a token: also that of a revoked one."""
        token = parse_token(text)
        known = self._known.get(token.secret_id) if token else None
        return known.caller.name if token and known and known.fits(token) else None

    async def find(self, text: str, client: str) -> Caller:
        """Return the caller of a token that comes from a client.

        Raises Problem: key-refused, key-expired, network-refused, database-away.
        """
        token = parse_token(text)
        known = token and await self._fresh(token.secret_id)
        # one answer, whatever is wrong: nobody finds out ids
        if not (token and known and known.fits(token) and known.holds):
            raise key_refused("The key is unknown, wrong or revoked.")
        if time.monotonic() >= known.until:
            raise key_refused(f"The key {known.caller.name} has expired.", "key-expired")
        if not known.allows(client):
            detail = f"The key {known.caller.name} may not be used from {client}."
            raise Problem(403, "network-refused", detail)
        self._note(token, known, client)
        return known.caller

    async def _fresh(self, secret_id: str) -> _Known | None:
        """Return a secret as the database has had it at most half a second ago. Raises Problem."""
        asked = time.monotonic()
        known = self._known.get(secret_id)
        if known and asked < known.looked_at + _TRUST_S:
            return known
        if not known and asked < self._absent.get(secret_id, float("-inf")) + _TRUST_S:
            return None
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                while True:
                    look = self._look or self._begin_look(secret_id)
                    mine = secret_id in look.ids and asked < look.began + _TRUST_S
                    if not mine:
                        self._wanted.add(secret_id)
                    await asyncio.shield(look.task)
                    if mine:
                        return self._known.get(secret_id)
        except (StoreUnavailable, psycopg.Error, TimeoutError):
            raise away() from None

    def _begin_look(self, secret_id: str) -> _Look:
        ids, self._wanted = self._wanted | {secret_id}, set()
        began = time.monotonic()
        task = asyncio.create_task(self._read(ids, began))
        self._look = _Look(task, frozenset(ids), began)
        # those who wait have its error, if any do
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._look

    async def _read(self, ids: set[str], began: float) -> None:
        try:
            rows = await self._link.look(_LOOK.encode(), {"ids": Texts(sorted(ids))})
        finally:
            # not in a callback: a request that came before it would await this task for ever,
            # and as the task has ended, no other task of the process would have its turn
            self._look = None
        found = {row[0]: row for row in rows}
        for secret_id in ids:
            before = self._known.pop(secret_id, None)
            self._absent.pop(secret_id, None)
            if row := found.get(secret_id):
                known = self._known[secret_id] = _known_of(row, began)
                known.noted_at = before.noted_at if before else known.noted_at
            else:
                self._absent[secret_id] = began
        for each, most in ((self._known, _MAX_KNOWN), (self._absent, _MAX_ABSENT)):
            while len(each) > most:
                each.popitem(last=False)

    def _note(self, token: Token, known: _Known, client: str) -> None:
        """Note the use of a secret, in the background and once a minute."""
        if known.looked_at > known.noted_at + _USE_INTERVAL_S:
            known.noted_at = known.looked_at
            self._spawn(self._write_use(token.secret_id, client))

    async def _write_use(self, secret_id: str, client: str) -> None:
        fields = {"id": secret_id, "client": client if is_address(client) else None}
        with suppress(StoreUnavailable, psycopg.Error):  # no request fails for want of a note
            await self._link.run(_USED.encode(), fields)


def _known_of(row: tuple[Any, ...], now: float) -> _Known:
    (_, digest, name, scopes, tenant, senders, networks, sees, credentials, first, last, expires_at,
     seconds, holds) = row  # fmt: skip
    allows = Networks(map(ipaddress.ip_network, networks)).contains if networks else _any_client
    at: datetime | None = expires_at
    caller = Caller(
        name, tenant, frozenset(scopes), tuple(senders), sees, at, tuple(credentials), (first, last)
    )
    until = float("inf") if seconds is None else now + seconds
    return _Known(bytes(digest), caller, allows, now, until, holds)


def _any_client(_: str) -> bool:
    return True
