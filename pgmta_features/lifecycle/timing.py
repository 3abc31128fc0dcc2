"""When a batch of tokens is due (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable

_REST_PER_COST = 4.0  # so a collector has its connection busy for a fifth of the time at most
_MAX_REST_S = 0.25


class Timing:
    """Knows since when each token waits: `limit` tokens are due at once, fewer after a timeout.

    With a `timeout` it counts since the first token came. Without one it adapts: a token is due at
    once, unless a batch just ended. New tokens then gather for four times what that batch cost, at
    most 0.25 s, so batches grow with load. After a full batch the next one is due at once.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self, limit: int, timeout: float | None) -> None:
        self._limit = limit
        self._fixed = timeout
        self._rests_until = -math.inf
        self._since: dict[int, float] = {}
        self.timeout = timeout or 0.0
        """The timeout that is in force."""

    def see(self, tokens: Iterable[int], now: float) -> None:
        """Note which tokens wait now; the others are forgotten."""
        self._since = {token: self._since.get(token, now) for token in tokens}

    def end(self, *, cost: float, full: bool, now: float) -> None:
        """Note that a batch ended, which took `cost` seconds, and whether it was full."""
        if self._fixed is None:
            self.timeout = 0.0 if full else min(_REST_PER_COST * cost, _MAX_REST_S)
            self._rests_until = now + self.timeout

    @property
    def due(self) -> float:
        """When the tokens are due that wait now; infinite if there are none."""
        if not self._since:
            return math.inf
        if len(self._since) >= self._limit:
            return -math.inf
        if self._fixed is None:
            return self._rests_until
        return min(self._since.values()) + self._fixed

    def reason(self, now: float) -> str:
        """Return why a batch is due: `limit` or `timeout`; '' if none is."""
        if now < self.due:
            return ""
        return "limit" if len(self._since) >= self._limit else "timeout"
