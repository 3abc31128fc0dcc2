"""The last count of the queue, as this process has read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgmta.states import WAITING, Status
from pgmta.store.admin.queue_counts import GroupCount, QueueCount
from queued.process.next_hop_figures import OTHER

_STATUSES = tuple(status.value for status in Status)


@dataclass(slots=True)
class HopRows:
    """The rows of one next hop."""

    rows: dict[str, int] = field(default_factory=dict)
    due: int = 0
    oldest_due: float | None = None

    def take(self, group: GroupCount) -> None:
        """Add a group."""
        self.rows[group.status] = self.rows.get(group.status, 0) + group.rows
        self.due += group.due
        ages = [age for age in (self.oldest_due, group.oldest_due) if age is not None]
        self.oldest_due = max(ages, default=None)


class QueueFigures:
    """Keeps a count until the next one; ages grow meanwhile."""

    def __init__(self) -> None:
        self.wanted = False
        """Whether anybody shows them."""
        self._count: QueueCount | None = None
        self._since = 0.0

    def keep(self, count: QueueCount | None) -> None:
        """Keep a count that was read now."""
        self._count, self._since = count, time.monotonic()

    @property
    def count(self) -> QueueCount | None:
        """The last count."""
        return self._count

    @property
    def later(self) -> float:
        """Seconds since it was read."""
        return time.monotonic() - self._since

    def by_status(self) -> dict[str, tuple[int, float]]:
        """Return the rows of each status and the age of the oldest one, in seconds."""
        found = dict.fromkeys(_STATUSES, (0, 0.0))
        for group in self._groups():
            rows, oldest = found.get(group.status, (0, 0.0))
            found[group.status] = rows + group.rows, max(oldest, group.oldest)
        return found

    def by_next_hop(self, most: int) -> dict[str, HopRows]:
        """Return the rows of the next hops with most rows, and of all others as OTHER."""
        hops: dict[str, HopRows] = {}
        rest = HopRows()
        for group in self._groups():
            if (
                group.next_hop is None or group.next_hop == OTHER
            ):  # because a domain may have the name `other`
                rest.take(group)
            else:
                hops.setdefault(group.next_hop, HopRows()).take(group)
        largest = sorted(hops, key=lambda name: sum(hops[name].rows.values()), reverse=True)[:most]
        found = {name: hops[name] for name in largest}
        for group in self._groups():
            if group.next_hop not in (None, OTHER) and group.next_hop not in found:
                rest.take(group)
        return {**found, OTHER: rest} if rest.rows else found

    def by_tenant(self, most: int) -> dict[str, int]:
        """Return the rows that wait of the tenants with most, and of all others as OTHER."""
        found: dict[str, int] = {}
        for group in self._groups():
            if group.status in WAITING:
                name = OTHER if group.tenant is None else group.tenant
                found[name] = found.get(name, 0) + group.rows
        largest = sorted(found, key=found.__getitem__, reverse=True)[:most]
        shown = {name: found[name] for name in largest}
        if others := sum(rows for name, rows in found.items() if name not in shown):
            shown[OTHER] = shown.get(OTHER, 0) + others
        return shown

    def _groups(self) -> Iterator[GroupCount]:
        yield from self._count.groups if self._count else ()
