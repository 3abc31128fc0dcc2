"""A keeper of the gate that closes hosts."""

from __future__ import annotations

from collections.abc import Sequence

from pgmta.model import Item, ReasonToWait
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.gate import Keeper

CLOSED = ReasonToWait("closed", 7)


class HostKeeper(Keeper):
    """Keeps the mail to some hosts back; `told` are the domains that lead to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self._closed: tuple[str, ...] = ()
        self.told: list[tuple[str, ReasonToWait]] = []

    def close(self, *hosts: str) -> None:
        """Close these hosts, and no others."""
        self._closed, self.active = hosts, bool(hosts)
        self.changed()

    def find_rows(
        self, items: Sequence[Item], destination: Destination, host: str = ""
    ) -> dict[int, ReasonToWait]:
        found = self.find_host(destination, host)
        return dict.fromkeys(range(len(items)), found) if found else {}

    def find_host(self, destination: Destination, host: str) -> ReasonToWait | None:
        return CLOSED if host.partition(":")[0] in self._closed else None

    def was_closed(self, destination: Destination, reason: ReasonToWait) -> None:
        self.told.append((destination.domain, reason))
