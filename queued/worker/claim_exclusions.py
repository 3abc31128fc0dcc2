"""Which mail the claims leave out, because its next hop is full or can't be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.result import NOT_BEGUN, Result, postponed
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stages import Stages

MAX_URGENT = 5
"""Reserved slots that mail of one next hop may use."""
_MAX_DOMAINS = 1000  # of a crowded next hop that claims leave out

_FIRST_CONNECTION_S = 2.0  # for a destination, before it hands back mail
# the same for a destination, if less than half of the slots are free
_FIRST_CONNECTION_BUSY_S = 0.1
_KEPT_ROWS = 5  # of such a destination: few rows show as well that it can't be reached


@dataclass(slots=True)
class _Down:
    """A destination that could not be reached a moment ago."""

    until: float
    result: Result
    domains: set[str]


class ClaimExclusions:
    """Knows the domains, or labels of mail, that the next claim leaves out.

    A domain whose mail goes to several destinations is never left out. Labels name the mail for one
    of them (pgmta/store/queue/labels.py), so that a dead next hop does not stop the others.

    `queues` are those of the destinations with mail, by their keys. `stages` have the mail before
    it comes to them. A destination that could not be reached is left
    out for `pause` seconds.
    """

    def __init__(self, queues: Mapping[str, DestinationQueue], stages: Stages) -> None:
        self.pause = 0.0
        self._stages = stages
        self._queues = queues
        self.returned = 0
        """Rows of the claim that found no reserved slot at their next hop."""
        self._down: dict[str, _Down] = {}  # by the key of the destination
        self._crowded: dict[str, set[str]] = {}  # domains of rows that found no room, by next hop
        self._free = self._most = 0  # free slots at the last claim, and the largest number so far
        # Names of mail for destinations that have no connection, by the key of the destination.
        self._stalled: dict[str, set[str]] = {}

    def watch(self, destination: Destination) -> None:
        """See whether a destination gets a connection; it hands mail back otherwise.

        Name servers and hosts that never answer take long to fail. Meanwhile the slots are for
        other mail. The hosts of a route have longer: to leave out many domains costs more.
        """
        if destination.domain:
            self._look_later(destination.key, _FIRST_CONNECTION_S)
        else:
            asyncio.get_running_loop().call_later(
                _FIRST_CONNECTION_S, self._look_at, destination.key, 0.0
            )

    def _look_later(self, key: str, patience: float) -> None:
        asyncio.get_running_loop().call_later(
            _FIRST_CONNECTION_BUSY_S, self._look_at, key, patience - _FIRST_CONNECTION_BUSY_S
        )

    def _look_at(self, key: str, patience: float) -> None:
        """Let a destination hand mail back if it has no connection, and slots or time run out."""
        queue = self._queues.get(key)
        if queue is None:
            return
        if patience > 0 and self._free > self._most // 2:
            if queue.release(queue.backlog.load):
                self._look_later(key, patience)
            return
        names = queue.domains
        if len(names) <= _MAX_DOMAINS and queue.release(_KEPT_ROWS):
            self._stalled[key] = names

    def _still_stalled(self, key: str) -> bool:
        """Return whether a destination waits for its first connection, and hand its mail back."""
        queue = self._queues.get(key)
        if queue is None or not queue.release(
            _KEPT_ROWS
        ):  # the destination has ended, or it delivers
            del self._stalled[key]
            return False
        return True

    def admit(self, outgoing: Outgoing) -> Outgoing | Result:
        """Return the message if its destination has room for it, else the result of its rows.

        Claims can't name more than 1,000 domains: the mail of further ones gets slots. Mail whose
        destination could not be reached a moment ago waits until it is tried again: that is no
        attempt.
        """
        destination = outgoing.routed.destination
        key = destination.key
        down, now = self._down.get(key), time.monotonic()
        if down and down.until > now:  # nobody knew that the domain goes there
            if not destination.wish:
                down.domains.update(outgoing.names)
            return postponed(down.until - now, f"next hop can't be reached: {down.result.reply}")
        if outgoing.reserved:
            queue = self._queues.get(key)
            if queue is None or queue.backlog.urgent_load < MAX_URGENT:
                return outgoing
            known = self._crowded.setdefault(key, set())
            if len(known) < _MAX_DOMAINS:
                known |= outgoing.names
            self.returned += len(outgoing.items)
            return NOT_BEGUN
        if key in self._stalled and self._still_stalled(key):
            known = self._stalled[key]
            if outgoing.names <= known or len(known) < _MAX_DOMAINS:
                known |= outgoing.names  # which later claims leave out
                return NOT_BEGUN
        return outgoing

    def busy(self, free: int) -> tuple[list[str], int]:
        """Return domains that the next claim leaves out, and how many rows they have.

        A destination that has as many rows as there are free slots gets no further ones: each next
        hop that hangs takes at most half of the slots that are left. A destination that has no
        connection yet, or could not be reached, is left out for a while.
        """
        self._free = free
        self._most = max(self._most, free)
        stalled = [key for key in list(self._stalled) if self._still_stalled(key)]
        loaded = [
            queue
            for key, queue in self._queues.items()
            if queue.backlog.load >= free or (stalled and key in stalled)
        ]
        domains = {domain for queue in loaded for domain in queue.domains}
        for key in stalled:
            domains |= self._stalled[key]
        if self._down:
            domains.update(*(down.domains for down in self._still_down()))
        load = sum(queue.backlog.load for queue in loaded)
        if (waiting := self._stages.context.load) and waiting >= free:  # signing is slow
            domains |= self._stages.names
            load += waiting
        timed = self._stages.context.timed
        if timed.load or timed.left_out:
            domains.update(timed.left_out)
            load += timed.load
        return sorted(domains), load

    def crowded(self, free: int) -> list[str]:
        """Return domains that get no reserved slot for now, if `free` of these are free.

        A next hop gets at most MAX_URGENT of them, and at most half of those that are left.
        """
        most = min(MAX_URGENT, free)
        full = {
            key: queue for key, queue in self._queues.items() if queue.backlog.urgent_load >= most
        }
        self._crowded = {key: names for key, names in self._crowded.items() if key in full}
        domains = {domain for queue in full.values() for domain in queue.domains}
        domains.update(*self._crowded.values(), *(down.domains for down in self._still_down()))
        domains.update(self._stages.context.timed.left_out)
        return sorted(domains)

    def _still_down(self) -> Iterable[_Down]:
        now = time.monotonic()
        for key in [key for key, down in self._down.items() if down.until <= now]:
            del self._down[key]
        return self._down.values()

    def unreachable(self, destination: Destination, domains: set[str], result: Result) -> None:
        """Leave a destination out for a while, and the mail of these domains with it."""
        down = self._down.setdefault(destination.key, _Down(0.0, result, set()))
        down.until = time.monotonic() + self.pause
        down.result = result
        # hosts that are no good for REQUIRETLS may do for other mail of the domain
        if not destination.wish:
            down.domains.update(domains)

    def forget_places(self) -> None:
        """Leave no destination out for an earlier failure: its route may have changed."""
        self._down.clear()
        self._crowded.clear()
