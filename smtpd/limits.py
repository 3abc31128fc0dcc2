"""Connections of each client, at a time and per minute, by address and by network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from pgmta.config.types import Network
from smtpd import replies
from smtpd.config import Limits
from smtpd.networks import Networks, address_of, network_of
from smtpd.rate import Rate

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
