"""How many failed logins an address, a network or a user may have."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pgmta.accounts.networks import Networks, address_of, network_of
from pgmta.config.authentication import Failures

_KEPT = 20_000  # units
_CLIENTS = 4096  # of which the units are kept


@dataclass(slots=True)
class _Level:
    until: float = 0.0  # when its failures are forgotten, by our clock
    tried: int = 0  # attempts under way
    read: float = float("-inf")  # when the level over all processes was read


class Throttle:
    """Counts failures by unit: `KIND NAME`, where the kind is one of those of the section.

    Each failure adds a time in which it is forgotten: the period divided by the number that the
    kind allows. A unit is full while one more failure would be ahead of the period.
    Attempts under way count as failures. So a client that tries passwords side by side gains none.
    """

    def __init__(self, limits: Failures, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.period = limits.period
        """Seconds after which all failures are forgotten."""
        self._costs = {
            "address": limits.period / limits.address,
            "network": limits.period / limits.network,
            "user": limits.period / limits.user,
            "own": limits.period / limits.own,
        }
        self._exempt = Networks(limits.exempt)
        self._levels: OrderedDict[str, _Level] = OrderedDict()
        self._waiting: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self.places = lru_cache(maxsize=_CLIENTS)(self._places)
        """The units of a client's address and network; none if it is exempt."""

    def _places(self, client: str) -> tuple[str, ...]:
        address, network = address_of(client), network_of(client)
        if not address or self._exempt.contains(client):
            return ()
        return f"address {address}", f"network {network}"

    def cost(self, unit: str) -> float:
        """Return the seconds that a failure adds."""
        return self._costs[unit.partition(" ")[0]]

    def blocked(self, units: Iterable[str]) -> bool:
        """Return whether the failures of some unit leave no room for another."""
        now = self._clock()
        for unit in units:
            level = self._levels.get(unit)
            if level and level.until - now + self.cost(unit) > self.period:
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
                if max(0.0, level.until - now) + (level.tried + 1) * cost > self.period:
                    return unit
        return ""

    def leave(self, units: Iterable[str]) -> None:
        """End an attempt."""
        for unit in units:
            self._level(unit).tried -= 1
            for turn in self._waiting.pop(unit, ()):
                if not turn.done():
                    turn.set_result(None)

    def failed(self, unit: str) -> None:
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
            if len(self._levels) > _KEPT:
                self._shrink()
        return level

    def _shrink(self) -> None:
        """Forget the oldest units without attempts under way."""
        for unit in list(self._levels)[: _KEPT // 10]:
            if not self._levels[unit].tried:
                del self._levels[unit]
