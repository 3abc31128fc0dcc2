"""Limits on the connections of a client, by address and by network."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from pgmta.accounts.networks import Networks, address_of, network_of
from pgmta.config.types import Network

_MINUTE_S = 60.0
_MIN_KEPT_NETWORKS = 1000  # so many are kept before quiet ones are looked for


class Rate:
    """Admits events of a network: at most as many at once as per minute, then one by one.

    It keeps one number per network: when its events of now are used up (GCRA, as in ATM). Networks
    that are quiet again are forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy_until: dict[Network, float] = {}
        self._max_kept = _MIN_KEPT_NETWORKS

    def exceeded(self, network: Network, limit: int) -> bool:
        """Return whether another event of the network would be over `limit` per minute."""
        return self.free_in(network, limit) > 0

    def free_in(self, network: Network, limit: int) -> float:
        """Return the seconds until another event is within `limit` per minute; 0.0 for now."""
        until = self._busy_until.get(network, 0.0)
        wait = until + _MINUTE_S / limit - _MINUTE_S - self._clock()
        return wait if wait > 1e-6 else 0.0

    def count_event(self, network: Network, limit: int) -> None:
        """Count an event."""
        now = self._clock()
        self._busy_until[network] = max(self._busy_until.get(network, 0.0), now) + _MINUTE_S / limit
        if len(self._busy_until) > self._max_kept:
            self._busy_until = {
                network: until for network, until in self._busy_until.items() if until > now
            }
            self._max_kept = max(_MIN_KEPT_NETWORKS, 2 * len(self._busy_until))


class Excess(Enum):
    """Why a connection is one too many."""

    CONNECTIONS_OF_ADDRESS = auto()
    CONNECTIONS_OF_NETWORK = auto()
    RATE_OF_ADDRESS = auto()
    RATE_OF_NETWORK = auto()


_EXCESSES = (
    (Excess.CONNECTIONS_OF_ADDRESS, Excess.RATE_OF_ADDRESS),
    (Excess.CONNECTIONS_OF_NETWORK, Excess.RATE_OF_NETWORK),
)


@dataclass(frozen=True, slots=True)
class Bound:
    """Connections at a time, and new ones per minute."""

    connections: int
    new: int


class NetworkLimits:
    """Counts connections; clients in `exempt` are only counted as a part of all."""

    def __init__(self, address: Bound, network: Bound, exempt: Iterable[Network]) -> None:
        self._bounds = (address, network)
        self.exempt = Networks(exempt).contains
        """Whether a client has no limits by address and network."""
        self._counts: Counter[Network] = Counter()
        self._rate = Rate()
        self._units = lru_cache(maxsize=4096)(self._find_units)

    def _find_units(self, client: str) -> tuple[tuple[Network, Bound], ...]:
        """Return the networks of a client, and their limits."""
        address, network = address_of(client), network_of(client)
        if not (address and network) or self.exempt(client):
            return ()
        return ((address, self._bounds[0]), (network, self._bounds[1]))

    def admit(self, client: str) -> Excess | None:
        """Count a connection; return why not, if there are too many."""
        units = self._units(client)
        for (unit, bound), (many, fast) in zip(units, _EXCESSES, strict=False):
            if self._counts[unit] >= bound.connections:
                return many
            if self._rate.exceeded(unit, bound.new):
                return fast
        for unit, bound in units:
            self._counts[unit] += 1
            self._rate.count_event(unit, bound.new)
        return None

    def release(self, client: str) -> None:
        """Forget a connection that was counted."""
        for unit, _ in self._units(client):
            self._counts[unit] -= 1
            if not self._counts[unit]:
                del self._counts[unit]
