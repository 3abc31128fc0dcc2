"""The networks to which DNS must not lead mail (pure)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_EMBEDDING = {
    IPv6Network("::/96"): 96,  # IPv4-compatible (RFC 4291, section 2.5.5.1)
    IPv6Network("::ffff:0:0/96"): 96,  # IPv4-mapped (RFC 4291, section 2.5.5.2)
    IPv6Network("::ffff:0:0:0/96"): 96,  # IPv4-translated (RFC 2765)
    IPv6Network("64:ff9b::/96"): 96,  # NAT64 (RFC 6052)
    IPv6Network("64:ff9b:1::/48"): 96,  # local NAT64 (RFC 8215)
    IPv6Network("2002::/16"): 16,  # 6to4 (RFC 3056)
}
"""IPv6 networks whose addresses contain an IPv4 address, and the bit where that begins."""

_TEREDO = IPv6Network("2001::/32")  # the last 32 bits are the complement of an address (RFC 4380)
_ISATAP = (0x00005EFE, 0x02005EFE)  # these stand before the last 32 bits (RFC 5214)
_LOW_32_BITS = 0xFFFFFFFF


class ForbiddenNetworks:
    """The networks of `delivery.forbidden`, but for those of `delivery.allowed`."""

    def __init__(self, networks: Iterable[Network], allowed: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)
        self._allowed = tuple(allowed)

    def find_network(self, address: Address) -> Network | None:
        """Return the network that has the address, or the IPv4 address in it; None without any."""
        for each in embedded(address):
            network = _first(self._networks, each)
            if network and not _first(self._allowed, each):
                return network
        return None


def _first(networks: Iterable[Network], address: Address) -> Network | None:
    return next((n for n in networks if n.version == address.version and address in n), None)


def embedded(address: Address) -> list[Address]:
    """Return the address, and the IPv4 addresses that a translator or tunnel may find in it."""
    if isinstance(address, IPv4Address):
        return [address]
    number = int(address)
    found: list[Address] = [ipaddress.IPv6Address(number)]  # without a scope
    for network, start in _EMBEDDING.items():
        if address in network and number > 1:  # :: and ::1 have no IPv4 address in them
            found.append(IPv4Address((number >> (96 - start)) & _LOW_32_BITS))
    if address in _TEREDO:
        found.append(IPv4Address(~number & _LOW_32_BITS))
    if (number >> 32) & _LOW_32_BITS in _ISATAP:
        found.append(IPv4Address(number & _LOW_32_BITS))
    return found
