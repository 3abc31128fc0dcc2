"""Which mail is suspended, as a process knows it (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgmta.mail.address import domain_of, lower_ascii
from pgmta.model import Item, ReasonToWait
from pgmta_features.suspensions.store import SUSPENDED, Suspension
from queued.delivery.transport.destination import Destination

_WILDCARD = "*."


def reason_of(suspension: int) -> ReasonToWait:
    """Return the reason that mail which meets a suspension has."""
    return ReasonToWait(SUSPENDED, suspension)


def host_matches(name: str, value: str) -> bool:
    """Return whether a host is the one of a suspension; `*.a.example` is every host of a.example.

    Both are in lower case.
    """
    return name.endswith(value[1:]) if value.startswith(_WILDCARD) else name == value


def leads_to(destination: Destination, value: str) -> bool:
    """Return whether a destination has the next hop of a suspension."""
    return any(host_matches(name, value) for name in destination.next_hops)


class SuspendedMail:
    """Knows the suspensions of a process, and finds the one that mail meets."""

    def __init__(self) -> None:
        self.active = False
        """Whether there is any."""
        self.conditional = False
        """Whether there is one by an SQL condition, which PostgreSQL evaluates."""
        self._by: dict[str, dict[str, ReasonToWait]] = {}
        self._hops: list[Suspension] = []
        self._hosts: list[Suspension] = []
        self._known_hops: dict[str, ReasonToWait | None] = {}  # by the key of the destination

    def set(self, suspensions: Sequence[Suspension]) -> None:
        """Use these suspensions from now on; the first one that mail meets counts."""
        by: dict[str, dict[str, ReasonToWait]] = {}
        for each in suspensions:
            reason = reason_of(each.id)
            by.setdefault(each.kind, {}).setdefault(each.value, reason)
            for domain in each.domains:
                by.setdefault("domain", {}).setdefault(domain, reason)
        self._by = by
        self._hops = [each for each in suspensions if each.kind == "next-hop"]
        self._hosts = [each for each in suspensions if each.kind == "mx"]
        self._known_hops.clear()
        self.active = bool(suspensions)
        self.conditional = "condition" in by

    def _of_row(self, item: Item) -> ReasonToWait | None:
        """Return the suspension that a row meets by itself."""
        if item.reason_to_wait:
            return item.reason_to_wait
        by = self._by
        if (domains := by.get("domain")) and (found := domains.get(item.domain)):
            return found
        if (tenants := by.get("tenant")) and (found := tenants.get(item.tenant)):
            return found
        if (senders := by.get("sender")) and (found := senders.get(lower_ascii(item.sender))):
            return found
        if names := by.get("sender-domain"):
            return names.get(domain_of(item.sender))
        return None

    def _of_destination(self, destination: Destination) -> ReasonToWait | None:
        """Return the suspension of a next hop of a destination."""
        if not self._hops:
            return None
        key = destination.key
        if key not in self._known_hops:
            matching = (each for each in self._hops if leads_to(destination, each.value))
            found = next(matching, None)
            self._known_hops[key] = reason_of(found.id) if found else None
        return self._known_hops[key]

    def find_host(self, destination: Destination, host: str) -> ReasonToWait | None:
        """Return the suspension of an MX host, which may have a port at its end."""
        if not (self._hosts and destination.domain):
            return None
        name = host.lower()
        names = {name, name.rpartition(":")[0]}
        for each in self._hosts:
            if any(host_matches(known, each.value) for known in names):
                return reason_of(each.id)
        return None

    def find_rows(
        self, items: Iterable[Item], destination: Destination, host: str = ""
    ) -> dict[int, ReasonToWait]:
        """Return the places of the rows that are suspended, each with the suspension.

        `host` is the one that a connection has.
        """
        whole = self._of_destination(destination)
        if not whole and host:
            whole = self.find_host(destination, host)
        found = ((place, whole or self._of_row(item)) for place, item in enumerate(items))
        return {place: reason for place, reason in found if reason}
