"""Which mail is suspended, as a process knows it (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pgmta.mail.address import domain_of, lower_ascii
from pgmta.model import Item, Suspension
from queued.delivery.transport.destination import Destination

_ANY = "*."


def host_matches(name: str, value: str) -> bool:
    """Return whether a host is the one of a suspension; `*.a.example` is every host of a.example.

    Both are in lower case.
    """
    return name.endswith(value[1:]) if value.startswith(_ANY) else name == value


def next_hops(destination: Destination) -> set[str]:
    """Return the names of the next hops of a destination: hosts with and without port, or a domain.

    A destination by MX has the domain of the recipient.
    """
    if destination.domain:
        return {destination.domain}
    hops = str(destination.parameters).lower().split(",")
    return {*hops, *(hop.rpartition(":")[0].strip("[]") for hop in hops)}


def leads_to(destination: Destination, value: str) -> bool:
    """Return whether a destination has the next hop of a suspension."""
    return any(host_matches(name, value) for name in next_hops(destination))


class SuspendedMail:
    """Knows the suspensions of a process, and finds the one that mail meets.

    `learn` gets a suspension and a domain whose mail would go to its MX host.
    """

    def __init__(self) -> None:
        self.active = False
        """Whether there is any."""
        self.conditional = False
        """Whether there is one by an SQL condition, which PostgreSQL evaluates."""
        self.learn: Callable[[int, str], object] = lambda suspension, domain: None
        self._by: dict[str, dict[str, int]] = {}
        self._hops: list[Suspension] = []
        self._hosts: list[Suspension] = []
        self._known_hops: dict[str, int] = {}  # by the key of the destination

    def set(self, suspensions: Sequence[Suspension]) -> None:
        """Use these suspensions from now on; the first one that mail meets counts."""
        by: dict[str, dict[str, int]] = {}
        for each in suspensions:
            by.setdefault(each.kind, {}).setdefault(each.value, each.id)
            for domain in each.domains:
                by.setdefault("domain", {}).setdefault(domain, each.id)
        self._by = by
        self._hops = [each for each in suspensions if each.kind == "next-hop"]
        self._hosts = [each for each in suspensions if each.kind == "mx"]
        self._known_hops.clear()
        self.active = bool(suspensions)
        self.conditional = "condition" in by

    def find_of_row(self, item: Item) -> int:
        """Return the suspension that a row meets by itself, 0 for none."""
        if item.suspension:
            return item.suspension
        by = self._by
        if (domains := by.get("domain")) and (found := domains.get(item.domain)):
            return found
        if (tenants := by.get("tenant")) and (found := tenants.get(item.tenant)):
            return found
        if (senders := by.get("sender")) and (found := senders.get(lower_ascii(item.sender))):
            return found
        if names := by.get("sender-domain"):
            return names.get(domain_of(item.sender), 0)
        return 0

    def find_of_destination(self, destination: Destination) -> int:
        """Return the suspension of a next hop of a destination, 0 for none."""
        if not self._hops:
            return 0
        found = self._known_hops.get(destination.key)
        if found is None:
            matching = (each.id for each in self._hops if leads_to(destination, each.value))
            found = self._known_hops[destination.key] = next(matching, 0)
        return found

    def find_of_host(self, destination: Destination, name: str) -> int:
        """Return the suspension of an MX host, 0 for none; `name` may have a port at its end."""
        if not (self._hosts and destination.domain):
            return 0
        name = name.lower()
        names = {name, name.rpartition(":")[0]}
        for each in self._hosts:
            if any(host_matches(known, each.value) for known in names):
                return each.id
        return 0

    def find_places(
        self, items: Iterable[Item], destination: Destination, host: str = ""
    ) -> dict[int, int]:
        """Return the places of the rows that are suspended, each with the suspension.

        `host` is the one that a connection has.
        """
        whole = self.find_of_destination(destination)
        if not whole and host:
            whole = self.find_of_host(destination, host)
        found = {place: whole or self.find_of_row(item) for place, item in enumerate(items)}
        return {place: number for place, number in found.items() if number}
