"""Who may send to whom (pure)."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from smtpd.config import Relay


class Policy:
    """Relay rules of smtpd.yaml."""

    def __init__(self, relay: Relay) -> None:
        self._networks = relay.networks
        self._domains = frozenset(relay.domains)
        self.trusted = lru_cache(maxsize=4096)(self._trusted)

    def _trusted(self, client: str) -> bool:
        """Whether the client's address is in one of `relay.networks`."""
        try:
            address = ipaddress.ip_address(client.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

    def accepts(self, client: str, domain: str) -> bool:
        """Whether the client may send to a recipient in this normalised domain."""
        if self.trusted(client) or domain in self._domains:
            return True
        parts = domain.split(".")
        return any("*." + ".".join(parts[i:]) in self._domains for i in range(1, len(parts)))
