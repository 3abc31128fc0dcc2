"""Which next hop a recipient domain goes to (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pgmta.address import normalise_domain
from pgmta.config.types import HostPort


@dataclass(frozen=True, slots=True)
class Destination:
    """A fixed `hop`, or the `domain` whose MX hosts are looked up.

    Mail of equal destinations may share a transaction. `key` is equal only for them.
    """

    hop: HostPort | None = None
    domain: str = ""
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # a hop has no space in it
        object.__setattr__(self, "key", str(self.hop) if self.hop else f"mx {self.domain}")

    def __str__(self) -> str:
        return str(self.hop) if self.hop else f"mx:{self.domain}"


class Routes:
    """The routes of queued.yaml: an exact domain wins over the longest `*.domain`, then `*`."""

    def __init__(self, routes: Mapping[str, HostPort | Literal["mx"]]) -> None:
        self._routes = dict(routes)
        self.known: dict[str, Destination] = {}
        """Destinations that `find` has returned, by domain."""

    def find(self, domain: str) -> Destination:
        """Return the destination of a domain; without any route it is the domain's MX.

        smtpd has normalised the domain. A non-ASCII one comes by SQL and is normalised here,
        because the DNS library would encode it by IDNA 2003. Raises AddressError if that fails.
        """
        destination = self.known.get(domain)
        if destination is None:
            name = domain if domain.isascii() else normalise_domain(domain)
            target = self._target(name)
            destination = Destination(domain=name) if target == "mx" else Destination(target)
            if len(self.known) >= 10_000:
                self.known.clear()
            self.known[domain] = destination
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
