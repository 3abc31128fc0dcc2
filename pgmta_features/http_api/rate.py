"""Requests of each key in a second, bodies that come, and refused keys, of this process."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.problem import Problem

MAX_BODIES = 250
"""Half of the uploads of a process: a tenant, or a key without one, leaves room for others."""

_MIN_KEPT_KEYS = 1000  # so many are kept before quiet ones are looked for
_MAX_REFUSALS = 10_000  # that are remembered
_REFUSAL_S = 60.0
_RETRY_S = "5"  # after bodies that are under way


class KeyRates:
    """Admits so many requests of a key a second, and at most as many at once (GCRA)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy_until: dict[str, float] = {}
        self._max_kept = _MIN_KEPT_KEYS

    def take(self, key: str, limit: int) -> int:
        """Count a request; return how many more there may be at once, and -1 if it is too many."""
        now = self._clock()
        until = max(self._busy_until.get(key, 0.0), now) + 1.0 / limit
        if until > now + 1.0 + 1e-9:
            return -1
        self._busy_until[key] = until
        if len(self._busy_until) > self._max_kept:
            self._busy_until = {k: at for k, at in self._busy_until.items() if at > now}
            self._max_kept = max(_MIN_KEPT_KEYS, 2 * len(self._busy_until))
        return int((now + 1.0 - until) * limit + 1e-6)


class BodyPlaces:
    """Counts requests whose body was not there at once, by tenant; by key if it has none."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, caller: Caller) -> str:
        """Count a request; return for whom, as `give_back` takes it.

        Raises Problem if there are too many of them.
        """
        whose = caller.owner
        if self._taken[whose] >= MAX_BODIES:
            who = "key" if whose == caller.acting else "tenant"
            raise Problem(429, "rate", f"{MAX_BODIES} bodies of the {who} are under way.",
                          headers={"Retry-After": _RETRY_S, "Connection": "close"})  # fmt: skip
        self._taken[whose] += 1
        return whose

    def give_back(self, whose: str) -> None:
        """Count one no more."""
        self._taken[whose] -= 1
        if not self._taken[whose]:
            del self._taken[whose]


class Refusals:
    """Remembers for a minute which texts were refused as keys, and from where."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[int, float] = OrderedDict()  # by hashes: the texts are secrets

    def knows(self, client: str, text: str) -> bool:
        """Return whether a text of a client was refused within a minute."""
        return self._until.get(hash((client, text)), 0.0) > self._clock()

    def note(self, client: str, text: str) -> None:
        """Note that a text of a client is refused."""
        self._until[hash((client, text))] = self._clock() + _REFUSAL_S
        if len(self._until) > _MAX_REFUSALS:
            self._until.popitem(last=False)
