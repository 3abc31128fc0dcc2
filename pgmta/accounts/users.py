"""The table of users: remembered users, and the few threads that check passwords.

The threads are few so that memory and processors are left for mail.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import threading
import time
from base64 import b64encode
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psycopg

from pgmta.accounts.login import AuthUnavailable, Login
from pgmta.accounts.networks import Networks, address_of
from pgmta.accounts.scram import Keys, keys_of
from pgmta.config.types import Network
from pgmta.errors import StoreUnavailable
from pgmta.password import matches
from pgmta.postgres.outage import Outage
from pgmta.store.accounts.logins import Levels, LoginStore, Verifier, name_key

_REMEMBER_S = 600.0  # a right password; a change of the user ends it within a second
_THREADS = 2  # that check passwords; each takes 19 MB
_VERSION_AGE_S = 0.5  # afterwards smtpd asks whether a user has changed
_ANSWER_TIMEOUT_S = 5.0  # for the database, because a client waits meanwhile
_MAX_USERS, _MAX_ABSENT = 10_000, 2_000  # names in memory: of users, and of nobody
# So many are remembered of a user, because a client with an old password tries it again and again.
_MAX_WRONG_PASSWORDS = 8
# An unknown user's password is checked against it, with the parameters of pgmta.password, so that
# the time of the check does not say whether there is such a user.
_NOBODY_HASH = "$argon2id$v=19$m=19456,t=2,p=1$"
_MAX_WAITING_PASSWORDS = 500  # for a thread; separately of own networks and of others
_BUSY = "too many logins wait for their password to be checked"
_THREAD_NICENESS = 15  # below the sessions: an attack costs their mail little


@dataclass(slots=True)
class Entry:
    """A user, or a name that no user has, with the passwords that were checked."""

    verifier: Verifier
    own: set[Network]
    """Networks from which the user has logged in."""
    noted: dict[Network, float] = field(default_factory=dict)
    """When a login from such a network was noted."""
    _right: tuple[bytes, float] = (b"", 0.0)
    _wrong: dict[bytes, float] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Whether there is such a user."""
        return self.verifier.version is not None

    @property
    def user(self) -> str:
        """The name of the user for the log, '' if there is none: it may be a password."""
        return self.verifier.name if self.exists else ""

    def remembered_verdict(self, digest: bytes, now: float) -> bool | None:
        """Return whether a password is right; None if that is not remembered."""
        right, until = self._right
        if now < until and hmac.compare_digest(right, digest):
            return True
        return False if now < self._wrong.get(digest, 0.0) else None

    def remember(self, digest: bytes, until: float, *, right: bool) -> None:
        """Remember a password for a while."""
        if right:
            self._right = digest, until
            self._wrong.pop(digest, None)
        else:
            self._wrong[digest] = until
            if len(self._wrong) > _MAX_WRONG_PASSWORDS:
                del self._wrong[next(iter(self._wrong))]

    def listed(self, client: str) -> bool:
        """Return whether the operator named a network of the client for the user."""
        networks = self.verifier.networks
        return networks is not None and Networks(networks).contains(client)

    def objection(self, client: str) -> str:
        """Return why the user may not log in from there, or ''."""
        user = self.verifier
        if not self.exists:
            return "no such user"
        if user.disabled:
            return "the user is disabled"
        if user.networks is not None and not self.listed(client):
            return "the client is outside of the user's networks"
        return ""

    def login(self, mechanism: str) -> Login:
        """Return the user for a session."""
        user = self.verifier
        return Login(
            user=user.name,
            mechanism=mechanism,
            tenant=user.tenant,
            senders=user.senders,
            priorities=user.priorities,
            metadata=user.metadata,
            version=user.version or 0,
        )


class Users:
    """Reads users one by one, and remembers them until some user changes.

    Passwords are remembered as hashes with a key of the process.
    """

    def __init__(self, store: LoginStore, outage: Outage) -> None:
        self._store = store
        self._outage = outage
        self._passwords = Passwords(_THREADS)
        self._key = secrets.token_bytes(32)
        self._nobody = _NOBODY_HASH + "$".join(
            b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (16, 32)
        )
        self._known: OrderedDict[str, Entry] = OrderedDict()
        self._absent: OrderedDict[str, Entry] = OrderedDict()
        self._lock = asyncio.Lock()
        self._secret = b""
        self._asked = float("-inf")  # when the version was asked for last
        self.changes = 0
        """The version of all users."""

    # -- what the database says --

    @property
    def fresh(self) -> bool:
        """Whether `changes` is of the last half second."""
        return time.monotonic() < self._asked + _VERSION_AGE_S

    async def refresh(self) -> None:
        """Make `changes` fresh. Raises AuthUnavailable."""
        async with self._lock:
            if not self.fresh:
                began = time.monotonic()
                self.changes, self._secret = await self._answer(self._store.changes)
                self._asked = began

    def remembered(self, name: str) -> Entry | None:
        """Return the remembered user of a name, which may have changed since."""
        for entries in (self._known, self._absent):
            if entry := entries.get(name):
                entries.move_to_end(name)
                return entry
        return None

    def as_of(self, login: Login) -> int:
        """Return the version of all users as of which the user of a session is known to hold."""
        entry = self._known.get(login.user)
        same = entry and entry.verifier.version == login.version
        return entry.verifier.changes if entry and same else 0

    def current(self, entry: Entry) -> bool:
        """Return whether no user has changed since; `changes` has to be fresh."""
        return entry.verifier.changes == self.changes

    async def find_user(self, name: str, units: Collection[str] = ()) -> tuple[Entry, Levels]:
        """Return a name as the database has it now, and the levels of some units.

        Passwords that were checked stay remembered if the user is the same. Raises AuthUnavailable.
        """
        before, began = self.remembered(name), time.monotonic()
        verifier, levels = await self._answer(partial(self._store.find_user, name, units))
        if began > self._asked:
            self.changes, self._asked = verifier.changes, began
        if before and before.verifier.version == verifier.version:
            before.verifier = verifier
            before.own |= verifier.own_networks
            return before, levels
        entry = Entry(verifier, set(verifier.own_networks))
        entries, others, most = self._absent, self._known, _MAX_ABSENT
        if entry.exists:
            entries, others, most = self._known, self._absent, _MAX_USERS
        others.pop(name, None)
        entries[name] = entry
        if len(entries) > most:
            entries.popitem(last=False)
        return entry, levels

    # -- names and passwords --

    async def key(self, name: str) -> str:
        """Return a text for a name that is the same in all processes. Raises AuthUnavailable."""
        if not self._secret:
            await self.refresh()
        return name_key(self._secret, name)

    def scram_keys(self, entry: Entry) -> Keys:
        """Return the keys of a user; for others such that no password has. `key` was asked before.

        Raises AuthUnavailable if the keys in the database are malformed.
        """
        try:
            return keys_of(entry.verifier.scram, entry.verifier.name, self._secret)
        except ValueError as error:
            raise AuthUnavailable(f"user {entry.verifier.name}: {error}") from None

    def digest(self, name: str, password: bytes) -> bytes:
        """Return the keyed hash of a name and a prepared password."""
        text = name.encode() + b"\0" + password
        return hashlib.blake2b(text, key=self._key, digest_size=32).digest()

    async def check(
        self, entry: Entry, password: bytes, digest: bytes, client: str, *, first: bool
    ) -> bool:
        """Return whether a prepared password is right, and remember it.

        It takes as long for a name that no user has. `first` has it checked before those of others.
        Addresses of clients take turns. Raises AuthUnavailable.
        """
        known = entry.verifier.password or self._nobody
        try:
            right = await self._passwords.match(
                known, password, str(address_of(client)), first=first
            )
        except ValueError as error:
            raise AuthUnavailable(f"user {entry.verifier.name}: {error}") from None
        right = right and entry.exists
        entry.remember(digest, time.monotonic() + _REMEMBER_S, right=right)
        return right

    async def _answer[T](self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of the database, after a short outage. Raises AuthUnavailable."""

        async def in_time() -> T:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await ask()

        try:
            return await self._outage.outlast(in_time)
        except (StoreUnavailable, psycopg.Error, TimeoutError, ValueError) as error:
            raise AuthUnavailable(str(error) or "the database does not answer") from error

    def close(self) -> None:
        """End the threads."""
        self._passwords.close()


class Turns:
    """Logins that wait for a thread. The addresses take turns, however many wait of each."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._count = 0

    def queue(self, address: str) -> asyncio.Future[None]:
        """Return the turn of a login from an address.

        If too many wait, the address with the most of them loses its last one.
        Raises AuthUnavailable if that is this one.
        """
        if self._count >= _MAX_WAITING_PASSWORDS:
            most = max(self._waiting.values(), key=len)
            if len(most) <= len(self._waiting.get(address, ())) + 1:
                raise AuthUnavailable(_BUSY)
            self._count -= 1
            lost = most.pop()
            if not lost.done():
                lost.set_exception(AuthUnavailable(_BUSY))
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        self._count += 1
        return turn

    def give(self) -> bool:
        """Give the thread that became free to the next in turn; return whether one waited."""
        while self._waiting:
            address, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            self._count -= 1
            if turns:
                self._waiting[address] = turns  # behind the other addresses
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class Passwords:
    """Checks a few passwords at a time; users from own networks come first."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "password", initializer=_give_way)
        self._free = threads
        self._first, self._others = Turns(), Turns()

    async def match(self, known: str, password: bytes, address: str, *, first: bool) -> bool:
        """Return whether a prepared password has a hash. `address` is that of the client.

        `first` has it checked before others. Raises AuthUnavailable if too many wait, and
        ValueError for a hash that is malformed or costs too much.
        """
        await self._turn(self._first if first else self._others, address)
        loop = asyncio.get_running_loop()
        check = loop.run_in_executor(self._pool, matches, known, password)
        check.add_done_callback(self._next)
        return await asyncio.shield(check)  # the thread goes on without the session

    async def _turn(self, turns: Turns, address: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = turns.queue(address)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and not turn.exception():
                self._next()
            raise

    def _next(self, ended: asyncio.Future[bool] | None = None) -> None:
        """Give the thread that became free to the next in turn."""
        if ended and not ended.cancelled():
            ended.exception()  # the session gets it, if it still waits
        if not (self._first.give() or self._others.give()):
            self._free += 1

    def close(self) -> None:
        """End the threads, without waiting for them."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    """Make the thread nice. Only Linux has this for single threads."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _THREAD_NICENESS)
