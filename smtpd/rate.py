"""Events per minute by network, such as new connections."""

from __future__ import annotations

import time
from collections.abc import Callable

from pgmta.config.types import Network

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
