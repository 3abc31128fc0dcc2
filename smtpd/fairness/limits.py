"""Events per minute by network, such as new connections."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

from pgmta.accounts.networks import Networks, address_of, network_of
from pgmta.config.types import Network
from smtpd.config import Limits
from smtpd.protocol import replies

_MINUTE = 60.0
_FEW = 1000  # networks that are kept without a look at which are over


class Rate:
    """Admits events of a network: at most as many at once as per minute, then one by one.

    It keeps one number per network: when its events of now are used up (GCRA, as in ATM). Networks
    that are quiet again are forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy_until: dict[Network, float] = {}
        self._most = _FEW

    def exceeded(self, network: Network, limit: int) -> bool:
        """Return whether another event of the network would be over `limit` per minute."""
        until = self._busy_until.get(network, 0.0)
        return until + _MINUTE / limit > self._clock() + _MINUTE + 1e-6

    def count(self, network: Network, limit: int) -> None:
        """Count an event."""
        now = self._clock()
        self._busy_until[network] = max(self._busy_until.get(network, 0.0), now) + _MINUTE / limit
        if len(self._busy_until) > self._most:
            self._busy_until = {
                network: until for network, until in self._busy_until.items() if until > now
            }
            self._most = max(_FEW, 2 * len(self._busy_until))


_REPLIES = (
    (replies.TOO_MANY_OF_ADDRESS, replies.TOO_FAST_OF_ADDRESS),
    (replies.TOO_MANY_OF_NETWORK, replies.TOO_FAST_OF_NETWORK),
)


class ConnectionLimits:
    """Counts connections; clients in `exempt` are only counted as a part of all."""

    def __init__(self, limits: Limits, exempt: Iterable[Network]) -> None:
        self._limits = limits
        self.exempt = Networks(exempt).contains
        """Whether a client has no limits by address and network."""
        self._counts: Counter[Network] = Counter()
        self._rate = Rate()
        self._units = lru_cache(maxsize=4096)(self._find_units)

    def _find_units(self, client: str) -> tuple[tuple[Network, int, int], ...]:
        """Return the networks of a client, and their limits: at a time, per minute."""
        address, network = address_of(client), network_of(client)
        if not address or not network or self.exempt(client):
            return ()
        limits = self._limits
        return (
            (address, limits.connections_per_address, limits.new_connections_per_address),
            (network, limits.connections_per_network, limits.new_connections_per_network),
        )

    def admit(self, client: str) -> str:
        """Count a connection; return the reply of a refusal if there are too many, or ''."""
        units = self._units(client)
        for (unit, most, new), (many, fast) in zip(units, _REPLIES, strict=False):
            if self._counts[unit] >= most:
                return many
            if self._rate.exceeded(unit, new):
                return fast
        for unit, _, new in units:
            self._counts[unit] += 1
            self._rate.count(unit, new)
        return ""

    def release(self, client: str) -> None:
        """Forget a connection that was counted."""
        for unit, _, _ in self._units(client):
            self._counts[unit] -= 1
            if not self._counts[unit]:
                del self._counts[unit]
