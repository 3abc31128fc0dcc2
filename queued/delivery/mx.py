"""The hosts of a destination and their addresses (RFC 5321, section 5; RFC 7505)."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from collections.abc import Iterable

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver
from dns.rdtypes.ANY.MX import MX

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, Stage
from queued.config import Dns
from queued.delivery.route import Destination, hops_in_order

_PORT = 25
_MAX_HOSTS = 10
_NO_ANSWER = (dns.resolver.NoAnswer, dns.resolver.NXDOMAIN)


class Resolver:
    """Looks up hosts and addresses, and caches answers for their TTL."""

    def __init__(self, config: Dns, ipv6: bool) -> None:
        self._families = ("A", "AAAA") if ipv6 else ("A",)
        if config.servers:
            self._resolver = dns.asyncresolver.Resolver(configure=False)
            self._resolver.nameservers = [
                dns.nameserver.Do53Nameserver(server.host, server.port) for server in config.servers
            ]
        else:
            try:
                self._resolver = dns.asyncresolver.Resolver()
            except dns.resolver.NoResolverConfiguration:
                self._resolver = dns.asyncresolver.Resolver(configure=False)
        self._resolver.lifetime = config.timeout
        self._resolver.cache = dns.resolver.LRUCache(10_000)
        self._configured = bool(config.servers)

    async def hosts(self, destination: Destination) -> list[HostPort]:
        """Return the hosts to try, in order. Raises DeliveryError."""
        if destination.hops:
            hops = hops_in_order(destination.hops, random.random)
            return [HostPort(hop.host, hop.port) for hop in hops]
        if destination.domain.startswith("["):
            return [HostPort(destination.domain[1:-1].removeprefix("IPv6:"), _PORT)]
        return [HostPort(name, _PORT) for name in await self._mail_exchangers(destination.domain)]

    async def _mail_exchangers(self, domain: str) -> list[str]:
        try:
            answer = await self._resolver.resolve(f"{domain}.", "MX")
        except dns.resolver.NXDOMAIN:
            raise DeliveryError(
                f"5.1.2 domain {domain} does not exist", Stage.MX, permanent=True
            ) from None
        except dns.resolver.NoAnswer:
            return [domain]  # implicit MX
        except (dns.exception.DNSException, OSError) as error:
            raise DeliveryError(f"4.4.3 MX of {domain}: {error}", Stage.MX) from None
        records = [record for record in answer if isinstance(record, MX)]
        return in_order((r.preference, r.exchange.to_text(omit_final_dot=True)) for r in records)

    async def addresses(self, host: str) -> list[str]:
        """Return the IP addresses of a host, at least one. Raises DeliveryError."""
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        try:
            found = await (self._ask(host) if self._configured else self._system(host))
        except (dns.exception.DNSException, OSError) as error:
            raise DeliveryError(f"4.4.3 address of {host}: {error}", Stage.ADDRESS) from None
        if not found:
            raise DeliveryError(f"4.4.4 {host} has no address", Stage.ADDRESS)
        return found

    async def _ask(self, host: str) -> list[str]:
        found: list[str] = []
        problem: dns.exception.DNSException | OSError | None = None
        for family in self._families:
            try:
                answer = await self._resolver.resolve(f"{host}.", family)
                found += [record.to_text() for record in answer]
            except _NO_ANSWER:
                continue
            except (dns.exception.DNSException, OSError) as error:
                problem = error  # addresses of the other family will do
        if problem and not found:
            raise problem
        return found

    async def _system(self, host: str) -> list[str]:
        """Ask the system's resolver, which also reads /etc/hosts."""
        family = socket.AF_UNSPEC if "AAAA" in self._families else socket.AF_INET
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))


def in_order(records: Iterable[tuple[int, str]]) -> list[str]:
    """Return MX names by preference, equal ones in random order (RFC 5321, section 5.1).

    Raises a permanent DeliveryError for a null MX (RFC 7505).
    """
    shuffled = sorted(records, key=lambda record: (record[0], random.random()))  # noqa: S311
    if [name for _, name in shuffled] in ([""], ["."]):
        raise DeliveryError("5.1.10 domain accepts no mail (null MX)", Stage.MX, permanent=True)
    return [name for _, name in shuffled if name not in ("", ".")][:_MAX_HOSTS]
