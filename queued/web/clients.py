"""Clients: their addresses, and how many tokens of each were refused."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from functools import lru_cache

from pgmta.accounts.network_limits import Rate
from pgmta.accounts.networks import Networks, address_of
from pgmta.config.types import Network, is_address
from queued.web.web_config import WebConfig

MAX_REFUSALS = 20  # tokens of a client per minute; above them it gets 429
_MAX_PROXIES = 50  # in a row
_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")
_NO_NETWORK = ipaddress.ip_network("0.0.0.0/32")


class Clients:
    """Finds the addresses of clients, and counts their refusals; all others cost them nothing."""

    def __init__(self, config: WebConfig) -> None:
        self._rate = Rate()
        self.configure(config)

    def configure(self, config: WebConfig) -> None:
        """Use other settings from now on, and keep the counts."""
        self._is_proxy = Networks(config.proxies).contains
        self._is_exempt = Networks(config.limits.exempt).contains

    def unit_of(self, peer: str) -> Network | None:
        """Return the address that counts the connections of a peer; None if none does."""
        return None if self._is_proxy(peer) or self._is_exempt(peer) else address_of(peer)

    def find_client(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the address of the client behind the proxies that are trusted.

        `forwarded` has the fields X-Forwarded-For. Each proxy adds its client at the right. So
        the client is the first address from the right that is no trusted proxy. The client may
        have forged the addresses left of it.
        """
        client = peer
        if not self._is_proxy(peer):
            return client
        entries = ",".join(forwarded).split(",")
        for entry in reversed(entries[-_MAX_PROXIES:]):
            address = entry.strip()
            if match := _PORT.fullmatch(address):
                address = match[1] or match[2]
            if not is_address(address):
                break
            client = address
            if not self._is_proxy(client):
                break
        return client

    def free_in(self, client: str) -> float:
        """Return the seconds until a token of this client is looked at; 0.0 for now."""
        return 0.0 if self._is_exempt(client) else self._rate.free_in(_unit(client), MAX_REFUSALS)

    def count_refusal(self, client: str) -> None:
        """Count a refused token."""
        if not self._is_exempt(client):
            self._rate.count_event(_unit(client), MAX_REFUSALS)


@lru_cache(maxsize=4096)
def _unit(client: str) -> Network:
    return address_of(client) or _NO_NETWORK
