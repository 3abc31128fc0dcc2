"""Networks of clients: sets of them, and those that count as one address or one network."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from pgmta.config.types import Network

NETWORK_FACTOR = 4
"""A network may have this many times the connections, and the failed logins, of an address."""

# By version of IP. An IPv6 host has at least a /64, which counts as one address.
_ADDRESS_PREFIX_BITS = {4: 32, 6: 64}
_NETWORK_PREFIX_BITS = {4: 24, 6: 48}


class Networks:
    """A set of networks that is asked for many addresses."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)
        self.contains = lru_cache(maxsize=4096)(self._contains)

    def _contains(self, client: str) -> bool:
        """Return whether the client's address is in one of the networks; False for no address."""
        address = _parse(client)
        return bool(address) and any(address in network for network in self._networks)


def address_of(client: str) -> Network | None:
    """Return the network that counts as one address: IPv4 /32, IPv6 /64; None for no address."""
    return _network(client, _ADDRESS_PREFIX_BITS)


def network_of(client: str) -> Network | None:
    """Return the network of a client: IPv4 /24, IPv6 /48; None for no address."""
    return _network(client, _NETWORK_PREFIX_BITS)


def _network(client: str, lengths: dict[int, int]) -> Network | None:
    address = _parse(client)
    if not address:
        return None
    return ipaddress.ip_network((address, lengths[address.version]), strict=False)


def _parse(client: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a client, without a zone; the IPv4 address if IPv6 carries one."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
