"""Hosts and addresses that did not answer a moment ago (RFC 5321, section 4.5.4.1)."""

from __future__ import annotations

import time

SLOW_S = 5.0
"""A failure without a reply after this time counts as no answer."""

_KEPT_S = 300.0
_MAX_NAMES = 10_000  # of them, at most


class Unresponsive:
    """Remembers for five minutes which hosts and addresses have made a connection wait.

    They are tried after the others, so that not every connection waits for them again.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, name: str) -> None:
        """Remember a host or address."""
        self._until.pop(name, None)  # inserted again, so that it is the last one
        self._until[name] = time.monotonic() + _KEPT_S
        if len(self._until) > _MAX_NAMES:
            del self._until[next(iter(self._until))]

    def remove(self, name: str) -> None:
        """Forget a host or address that has answered."""
        self._until.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return bool(self._until) and self._until.get(name, 0.0) > time.monotonic()
