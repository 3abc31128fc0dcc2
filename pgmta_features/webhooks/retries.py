"""When a request that failed is repeated, and which event of a refused batch is to blame (pure)."""

from __future__ import annotations

import random
from dataclasses import dataclass

GIVE_UP_S = 3 * 86400.0
"""After so long a time of failures an endpoint is suspended."""
MAX_WAIT_S = 7200.0
"""Between two requests, also if the endpoint asks for more."""

_WAITS_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)  # then MAX_WAIT_S
_SPREAD = 0.1


def wait_after(failures: int, retry_after: float | None) -> float:
    """Return the seconds until the next request, after so many failures in a row, from 1.

    `retry_after` is what the endpoint asks for, None: nothing. It makes no wait shorter.
    """
    wait = _WAITS_S[failures - 1] if failures <= len(_WAITS_S) else MAX_WAIT_S
    wait *= random.uniform(1 - _SPREAD, 1 + _SPREAD)  # noqa: S311 - no secret
    return max(wait, min(retry_after or 0.0, MAX_WAIT_S))


@dataclass(slots=True)
class Halving:
    """Finds the event for which an endpoint refuses batches.

    A refused batch is halved until one event is left. This event is to blame if the endpoint has
    taken others meanwhile. Otherwise the endpoint may refuse everything, such as one with a wrong
    path, and then no event must be lost.
    """

    size: int
    proven: bool = False
    """Whether the endpoint has taken events since the current halving began."""
    _narrow: bool = False

    def accepted(self) -> None:
        """Note that it took a batch."""
        self.proven = True
        self.size *= 2

    def refused(self, number: int) -> bool:
        """Note that it refused a batch of so many events; return whether a smaller one follows."""
        if not self._narrow:
            self._narrow, self.proven = True, False
        self.size = max(number // 2, 1)
        return number > 1

    def set_aside(self) -> None:
        """Note that the event was set aside: the next one needs a proof of its own."""
        self._narrow = self.proven = False
