"""Where events may be posted: an endpoint can't have us ask hosts that only we can reach.

The addresses of a host are found and judged for each connection, which is made to that address. So
a name that leads elsewhere a moment later changes nothing (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network

from pgmta_features.webhooks.config import WebhookSettings
from pgmta_features.webhooks.endpoint import EndpointUrl
from queued.config import QueuedConfig
from queued.delivery.dns.addresses import Addresses
from queued.delivery.dns.forbidden import Address, Network, embedded
from queued.delivery.dns.resolver import Questions
from queued.delivery.dns.unresponsive import Unresponsive

_UNICAST = IPv6Network("2000::/3")  # all global unicast addresses allocated by IANA
_NAT64 = IPv6Network("64:ff9b::/96")  # leads to the IPv4 address in it (RFC 6052)
# special in the registries of IANA (RFC 6890), though Python counts them as global, or some of them
_SPECIAL = (
    IPv4Network("192.0.0.0/24"),  # IETF protocol assignments
    IPv4Network("192.31.196.0/24"),  # AS112 (RFC 7535)
    IPv4Network("192.52.193.0/24"),  # AMT (RFC 7450)
    IPv4Network("192.88.99.0/24"),  # anycast of 6to4 (RFC 7526)
    IPv4Network("192.175.48.0/24"),  # AS112 (RFC 7534)
    IPv4Network("168.63.129.16/32"),  # the host of a virtual machine, in Azure
    IPv6Network("2001::/23"),  # IETF protocol assignments
    IPv6Network("2620:4f:8000::/48"),  # AS112 (RFC 7534)
    IPv6Network("3fff::/20"),  # documentation (RFC 9637)
)
_NOT_PUBLIC = "the host has no public address"

type FindAddresses = Callable[[str], Awaitable[list[str]]]
"""Returns the IP addresses of a host, at least one. Raises DeliveryError."""


class Unreachable(Exception):
    """Nothing may be posted to an endpoint; the text says why."""


def is_public(address: Address) -> bool:
    """Return whether an address is one of the public Internet (RFC 6890).

    An address that contains one of IPv4, for a translator or a tunnel, has to be public twice.
    """
    if any(each.version == address.version and address in each for each in _SPECIAL):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = [each for each in embedded(address) if isinstance(each, ipaddress.IPv4Address)]
        outer = address in _NAT64 or (address in _UNICAST and address.is_global)
        return outer and not address.is_multicast and all(map(is_public, inner))
    return address.is_global and not (address.is_multicast or address.is_reserved)


def check_public(url: EndpointUrl) -> None:
    """Raise ValueError for a URL that no foreign endpoint can have, wherever its name leads."""
    try:
        public = is_public(ipaddress.ip_address(url.host))
    except ValueError:  # a name, whose addresses are judged for each connection
        public = url.host.rpartition(".")[2] != "localhost"
    if not public:
        raise ValueError(_NOT_PUBLIC)
    if refusal := _refusal_of_public(url):
        raise ValueError(refusal)


def refusal_of(url: EndpointUrl, networks: Sequence[Network]) -> str:
    """Return why the address in a URL is not asked; '' if it is, or if it is a name."""
    try:
        address = ipaddress.ip_address(url.host)
    except ValueError:
        return ""
    if _listed(address, networks):
        return ""
    if not is_public(address):
        return f"{_NOT_PUBLIC} {address}, which webhooks.networks lacks"
    return _refusal_of_public(url)


def _refusal_of_public(url: EndpointUrl) -> str:
    """Return why a public host is not asked; '' if it is."""
    if not url.tls:
        return "a public host is asked by https alone"
    if not url.usual_port:
        return f"a public host is not asked at port {url.port}"
    return ""


def find_reach(config: QueuedConfig) -> Reach:
    """Return where endpoints may be by a configuration.

    Its look-ups of names are its own, because names that hang would use up those of routes.
    """
    delivery = config.delivery
    addresses = Addresses(delivery, Questions(delivery.dns), Unresponsive())
    find = partial(addresses.find_addresses, listed=True)
    return Reach(config.section(WebhookSettings).networks, find)


class Reach:
    """The addresses at which endpoints are asked; `networks` are those beside public ones."""

    def __init__(self, networks: Sequence[Network], find: FindAddresses) -> None:
        self._networks = networks
        self._find = find

    async def find_addresses(self, url: EndpointUrl, *, foreign: bool) -> list[str]:
        """Return the addresses to which a connection may be made, at least one.

        A foreign endpoint, of a tenant or a key, has public ones alone. Raises Unreachable,
        DeliveryError.
        """
        found = await self._find(url.host)
        allowed = []
        reason = ""
        for text in found:
            if refusal := self._refusal(ipaddress.ip_address(text), url, foreign):
                reason = reason or refusal
            else:
                allowed.append(text)
        if not allowed:
            raise Unreachable(reason)
        return allowed

    def _refusal(self, address: Address, url: EndpointUrl, foreign: bool) -> str:
        """Return why an address is not asked; '' if it is."""
        if not foreign and _listed(address, self._networks):
            return ""
        if not is_public(address):
            # a tenant learns nothing of a network that it does not see
            shown = "" if foreign else f" {address}, which webhooks.networks lacks"
            return f"{_NOT_PUBLIC}{shown}"
        return _refusal_of_public(url)


def _listed(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether all networks that the address may lead to are allowed."""
    return all(
        any(n.version == each.version and each in n for n in networks)
        for each in (embedded(address)[1:] or [address])
    )
