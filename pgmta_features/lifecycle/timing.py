"""When a batch of tokens is due (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Timing:
    """Knows since when each token waits: `limit` tokens are due at once, fewer after `timeout`.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        self._since: dict[int, float] = {}

    def see(self, tokens: Iterable[int], now: float) -> None:
        """Note which tokens wait now; the others are forgotten."""
        self._since = {token: self._since.get(token, now) for token in tokens}

    @property
    def due(self) -> float:
        """When the tokens are due that wait now; infinite if there are none."""
        if len(self._since) >= self._limit:
            return -math.inf
        return min(self._since.values(), default=math.inf) + self._timeout

    def reason(self, now: float) -> str:
        """Return why a batch is due: `limit` or `timeout`; '' if none is."""
        if now < self.due:
            return ""
        return "limit" if len(self._since) >= self._limit else "timeout"
