"""Which mail the claims leave out, because its next hop is full or can't be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from queued.delivery.destination import DestinationQueue
from queued.delivery.reply import Result
from queued.delivery.route import Destination

_KNOWN = 1000  # domains of a crowded next hop that are left out of claims, at most

_PATIENCE = 2.0  # seconds that a destination has for its first connection before it hands back mail
_KEPT = 5  # rows that it keeps: they show as well as a thousand that it can't be reached


@dataclass(slots=True)
class _Down:
    """A destination that could not be reached a moment ago."""

    until: float
    result: Result
    domains: set[str]


class LeftOut:
    """Knows the domains, or labels of mail, that the next claim leaves out.

    A domain whose mail goes to several destinations is never left out. Labels name the mail for one
    of them (pgmta/store/labels.py), so that a dead next hop does not stop the others.

    `queues` are those of the destinations with mail, by their keys. `bound` is `urgent.bound`. A
    destination that could not be reached is left out for `pause` seconds.
    """

    def __init__(self, queues: Mapping[str, DestinationQueue]) -> None:
        self.bound = 1
        self.pause = 0.0
        self._queues = queues
        self._down: dict[str, _Down] = {}
        self._crowded: dict[str, set[str]] = {}  # domains of rows that found no room
        self.stalled: set[str] = set()
        """Keys of destinations that may have no connection yet; `still_stalled` knows."""

    def watch(self, destination: Destination) -> None:
        """See whether a destination has a connection in a while; it hands mail back otherwise.

        Name servers and hosts that never answer take long to fail. Meanwhile the slots are for
        other mail. A domain of MX hosts has a name that claims can leave out.
        """
        if destination.domain:
            asyncio.get_running_loop().call_later(_PATIENCE, self._look_at, destination.key)

    def _look_at(self, key: str) -> None:
        queue = self._queues.get(key)
        if queue and queue.release(_KEPT):
            self.stalled.add(key)

    def still_stalled(self, key: str) -> bool:
        """Return whether a destination gets no mail because it waits for its first connection."""
        if key not in self.stalled:
            return False
        queue = self._queues.get(key)
        if queue is None or not queue.release(_KEPT):  # it has ended, or it delivers
            self.stalled.discard(key)
            return False
        return True

    def busy(self, free: int) -> tuple[list[str], int]:
        """Return domains that the next claim leaves out, and how many rows they have.

        A destination that has as many rows as there are free slots gets no further ones: each next
        hop that hangs takes at most half of the slots that are left. A destination that has no
        connection yet, or could not be reached, is left out for a while.
        """
        stalled = [key for key in list(self.stalled) if self.still_stalled(key)]
        loaded = [
            queue
            for key, queue in self._queues.items()
            if queue.load >= free or (stalled and key in stalled)
        ]
        domains = {domain for queue in loaded for domain in queue.domains}
        if self._down:
            domains.update(*(down.domains for down in self._still_down()))
        return sorted(domains), sum(queue.load for queue in loaded)

    def crowded(self, free: int) -> list[str]:
        """Return domains that get no reserved slot for now, if `free` of these are free.

        A next hop gets at most `urgent.bound` of them, and at most half of those that are left.
        """
        most = min(self.bound, free)
        full = {key: queue for key, queue in self._queues.items() if queue.urgent >= most}
        self._crowded = {key: names for key, names in self._crowded.items() if key in full}
        domains = {domain for queue in full.values() for domain in queue.domains}
        domains.update(*self._crowded.values(), *(down.domains for down in self._still_down()))
        return sorted(domains)

    def _still_down(self) -> Iterable[_Down]:
        now = time.monotonic()
        for key in [key for key, down in self._down.items() if down.until <= now]:
            del self._down[key]
        return self._down.values()

    def full(self, key: str) -> bool:
        """Return whether the next hop has its share of reserved slots."""
        queue = self._queues.get(key)
        return queue is not None and queue.urgent >= self.bound

    def crowd(self, key: str, domains: set[str]) -> None:
        """Note domains of rows that found no room at the next hop."""
        known = self._crowded.setdefault(key, set())
        if len(known) < _KNOWN:
            known.update(domains)

    def down(self, key: str) -> _Down | None:
        """Return the failure of a destination that could not be reached a moment ago."""
        return self._down.get(key)

    def unreachable(self, key: str, domains: set[str], result: Result) -> None:
        """Leave a destination out for a while."""
        down = self._down.setdefault(key, _Down(0.0, result, set()))
        down.until = time.monotonic() + self.pause
        down.result = result
        down.domains.update(domains)

    def forget(self) -> None:
        """Leave no destination out for an earlier failure: its route may have changed."""
        self._down.clear()
        self._crowded.clear()
