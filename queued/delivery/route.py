"""Which next hop a recipient domain goes to (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pgmta.address import normalise_domain
from pgmta.config.types import HostPort


@dataclass(frozen=True, slots=True)
class Destination:
    """Mail with equal destinations may share a transaction.

    Either a fixed `hop`, or the `domain` whose MX hosts are asked for.
    """

    hop: HostPort | None = None
    domain: str = ""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.hop, self.domain)))

    def __hash__(self) -> int:
        """Return what was computed once: every row is looked up by its destination."""
        return self._hash

    def __str__(self) -> str:
        return str(self.hop) if self.hop else f"mx:{self.domain}"


class Routes:
    """The routes of queued.yaml: an exact domain wins over the longest `*.domain`, then `*`."""

    def __init__(self, routes: Mapping[str, HostPort | Literal["mx"]]) -> None:
        self._routes = dict(routes)
        self._known: dict[str, Destination] = {}

    def find(self, domain: str) -> Destination:
        """Return the destination of a domain; without any route it is its MX.

        The domain is normalised, but for a non-ASCII one that SQL has put into the queue: the DNS
        library would write it in IDNA 2003. Raises AddressError where it can't be normalised.
        """
        destination = self._known.get(domain)
        if destination is None:
            name = domain if domain.isascii() else normalise_domain(domain)
            target = self._target(name)
            destination = Destination(domain=name) if target == "mx" else Destination(target)
            if len(self._known) >= 10_000:
                self._known.clear()
            self._known[domain] = destination
        return destination

    def _target(self, domain: str) -> HostPort | Literal["mx"]:
        if domain in self._routes:
            return self._routes[domain]
        rest = domain
        while "." in rest:
            rest = rest.partition(".")[2]
            if f"*.{rest}" in self._routes:
                return self._routes[f"*.{rest}"]
        return self._routes.get("*", "mx")
