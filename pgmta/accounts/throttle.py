"""How many failed logins an address, a network or a user may have, over all processes."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache

import psycopg
from structlog.contextvars import unbind_contextvars

from pgmta.accounts.networks import NETWORK_FACTOR, Networks, address_of, network_of
from pgmta.config.authentication import Failures
from pgmta.config.types import Network
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.store.accounts.logins import LoginStore

PERIOD_S = 600.0
"""All failures of a unit are forgotten after this time."""
_MAX_UNITS = 20_000  # whose failures are known; a unit is a user, an address or a network
_CACHED_CLIENTS = 4096  # whose units need not be computed again
_WRITE_INTERVAL_S = 1.0
_UNITS_PER_WRITE = 64
_MAX_DUE = 10_000  # units, and logins, that wait to be written
_LOGINS_PER_WRITE = 64
_WRITES_PER_CLEANING = 3600  # each removes old failures
_WRITE_TIMEOUT_S = 5.0
_LOG_INTERVAL_S = 60.0  # for lines about writes that fail

log = get("auth")


@dataclass(slots=True)
class _Level:
    until: float = 0.0  # when its failures are forgotten, by our clock
    tried: int = 0  # attempts under way
    read: float = float("-inf")  # when the level over all processes was read


class Throttle:
    """Counts failures by unit: `KIND NAME`. The kind is address, network, user, or own: a user
    from a network where the user has logged in.

    Each failure adds a time in which it is forgotten: the period divided by the number that the
    kind allows. A unit is full while one more failure would be ahead of the period.
    Attempts under way count as failures. So a client that tries passwords side by side gains none.
    """

    def __init__(self, limits: Failures, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits = {
            "address": limits.address,
            "network": NETWORK_FACTOR * limits.address,
            "user": limits.user,
            "own": limits.address,
        }
        self._exempt = Networks(limits.exempt)
        self._levels: OrderedDict[str, _Level] = OrderedDict()
        self._waiting: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self.places = lru_cache(maxsize=_CACHED_CLIENTS)(self._places)
        """The units of a client's address and network; none if it is exempt."""

    def _places(self, client: str) -> tuple[str, ...]:
        address, network = address_of(client), network_of(client)
        if not address or self._exempt.contains(client):
            return ()
        return f"address {address}", f"network {network}"

    def cost(self, unit: str) -> float:
        """Return the seconds that a failure adds."""
        return PERIOD_S / self._limits[unit.partition(" ")[0]]

    def blocked(self, units: Iterable[str]) -> bool:
        """Return whether the failures of some unit leave no room for another."""
        now = self._clock()
        for unit in units:
            level = self._levels.get(unit)
            if level and level.until - now + self.cost(unit) > PERIOD_S:
                return True
        return False

    async def enter(self, units: Sequence[str]) -> bool:
        """Begin an attempt; return False if some unit is blocked.

        It waits if attempts under way may fill a unit. `leave` ends the attempt.
        """
        while True:
            if self.blocked(units):
                return False
            full = self._full(units)
            if not full:
                break
            turn = asyncio.get_running_loop().create_future()
            self._waiting[full].append(turn)
            try:
                await turn
            finally:
                if turn in self._waiting.get(full, ()):
                    self._waiting[full].remove(turn)
        for unit in units:
            self._level(unit).tried += 1
        return True

    def _full(self, units: Iterable[str]) -> str:
        now = self._clock()
        for unit in units:
            level = self._levels.get(unit)
            if level and level.tried:
                cost = self.cost(unit)
                if max(0.0, level.until - now) + (level.tried + 1) * cost > PERIOD_S:
                    return unit
        return ""

    def leave(self, units: Iterable[str]) -> None:
        """End an attempt."""
        for unit in units:
            self._level(unit).tried -= 1
            for turn in self._waiting.pop(unit, ()):
                if not turn.done():
                    turn.set_result(None)

    def add_failure(self, unit: str) -> None:
        """Count a failure."""
        level = self._level(unit)
        level.until = max(level.until, self._clock()) + self.cost(unit)

    def unread(self, units: Iterable[str], age: float) -> list[str]:
        """Return the units whose level over all processes is older than `age` seconds."""
        oldest = self._clock() - age
        return [
            unit for unit in units if not (level := self._levels.get(unit)) or level.read < oldest
        ]

    def learn(
        self, units: Iterable[str], levels: Mapping[str, float], unwritten: Mapping[str, int]
    ) -> None:
        """Take over the levels over all processes, and add our failures that are not in them."""
        now = self._clock()
        for unit in units:
            level = self._level(unit)
            own = unwritten.get(unit, 0) * self.cost(unit)
            level.until = now + levels.get(unit, 0.0) + own
            level.read = now

    def _level(self, unit: str) -> _Level:
        level = self._levels.get(unit)
        if level is None:
            level = self._levels[unit] = _Level()
            if len(self._levels) > _MAX_UNITS:
                self._shrink()
        return level

    def _shrink(self) -> None:
        """Forget the oldest units without attempts under way."""
        for unit in list(self._levels)[: _MAX_UNITS // 10]:
            if not self._levels[unit].tried:
                del self._levels[unit]


class Notes:
    """Writes failures and logins into the database once per second, while there are some.

    The units with the most failures come first. Each write returns the failures of other processes.
    """

    def __init__(self, store: LoginStore, throttle: Throttle) -> None:
        self._store = store
        self._throttle = throttle
        self.failures: Counter[str] = Counter()
        """Failures that are not in the database yet, by unit."""
        self._seen: set[tuple[str, Network]] = set()
        self._task: asyncio.Task[None] | None = None
        self._writes = 0
        self._logged = -_LOG_INTERVAL_S

    def add_failure(self, unit: str) -> None:
        """Count a failure, here and soon over all processes."""
        self._throttle.add_failure(unit)
        if unit in self.failures or len(self.failures) < _MAX_DUE:
            self.failures[unit] += 1
            self._begin()

    def add_network(self, name: str, network: Network) -> None:
        """Note that a user logged in from a network, if not too much else is to be noted."""
        if len(self._seen) < _MAX_DUE:
            self._seen.add((name, network))
            self._begin()

    def _begin(self) -> None:
        if not self._task or self._task.done():
            loop = asyncio.get_running_loop()
            apart = copy_context()
            # the lines of this task are about all sessions
            apart.run(unbind_contextvars, "session", "listener")
            self._task = loop.create_task(self._run(), context=apart)

    async def _run(self) -> None:
        while self.failures or self._seen:
            await asyncio.sleep(_WRITE_INTERVAL_S)
            await self.write_due()

    async def write_due(self) -> None:
        """Write the first of the failures and logins that are due."""
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await self._write_failures()
                await self._write_seen()
                if not self._writes % _WRITES_PER_CLEANING:
                    await self._store.forget_failures()
                self._writes += 1
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            now = time.monotonic()
            if now >= self._logged + _LOG_INTERVAL_S:
                self._logged = now
                log.warning("failed logins are not written", reason=str(error) or "timeout")

    async def _write_failures(self) -> None:
        throttle = self._throttle
        most = heapq.nlargest(_UNITS_PER_WRITE, self.failures.items(), key=lambda item: item[1])
        if not most:
            return
        rows = [(unit, count, count * throttle.cost(unit)) for unit, count in most]
        levels = await self._store.add_failures(rows, 2 * PERIOD_S)
        for unit, count in most:
            self.failures[unit] -= count
            if not self.failures[unit]:
                del self.failures[unit]
        throttle.learn([unit for unit, _ in most], levels, self.failures)

    async def _write_seen(self) -> None:
        some = list(self._seen)[:_LOGINS_PER_WRITE]
        if some:
            await self._store.add_networks(some)
            self._seen.difference_update(some)

    async def close(self) -> None:
        """Write once more, and stop."""
        if self._task and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        if self.failures or self._seen:
            await self.write_due()
