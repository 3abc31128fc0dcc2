"""Which destination the mail for a recipient goes to (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pgmta.address import normalise_domain
from pgmta.config.types import HostPort
from queued.delivery.route import Destination, Hop


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
            if target == "mx":
                destination = Destination(domain=name)
            else:
                destination = Destination((Hop(target.host, target.port),))
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
