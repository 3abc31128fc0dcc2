"""The hosts of a destination in the order of tries, and this host (RFC 5321, section 5.1)."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import re
import socket
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import dns.name
from dns.rdtypes.ANY.MX import MX

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, Stage
from pgmta.mail.text import printable
from queued.config import Delivery
from queued.delivery.dns.addresses import Addresses
from queued.delivery.dns.forbidden import Address, embedded
from queued.delivery.dns.hop import Hop, hops_in_order
from queued.delivery.dns.resolver import DnsAnswer, Questions
from queued.delivery.dns.unresponsive import Unresponsive

# RFC 1123, section 2.1, with the underscore that some hosts have; an address does not match.
_HOST_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*(?!\d+$)[a-z0-9_-]{1,63}")
_MAX_NAME_CHARACTERS = 253  # RFC 1035, section 2.3.4
_OWN_ADDRESSES_TIMEOUT_S = 2.0  # for the look whether hosts of one preference are this host
_MAX_HOSTS_LOOKED_UP = 10  # of one preference, for that look
_MAX_MX_RECORDS = 1000  # of a domain that count
_MAX_BEGINNINGS = 30  # hosts that may come first: to look for this host takes up to 2 s for each


# No host has these: if the system binds to them, it binds to every address (ip_nonlocal_bind).
_UNUSED_ADDRESSES = ("240.0.0.1", "100::1")


class OwnHost:
    """Knows the name of this host and the addresses of its interfaces."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname.rstrip(".").lower()
        self._binds_all = any(_binds(address) for address in _UNUSED_ADDRESSES)

    def has_name(self, name: str) -> bool:
        """Return whether a name, in lower case, is that of this host."""
        return name == self._hostname

    def has_address(self, address: Address) -> bool:
        """Return whether an interface of this host has the address, or the IPv4 address in it.

        Loopback is left out: `delivery.forbidden` has it, and tests may allow it.
        """
        return any(
            not (each.is_loopback or each.is_unspecified or each.is_multicast)
            and self._is_local(str(each))
            for each in embedded(address)
        )

    def _is_local(self, address: str) -> bool:
        return _reaches_itself(address) if self._binds_all else _binds(address)


def _socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)


def _binds(address: str) -> bool:
    """Return whether a socket can have the address; nothing is sent."""
    try:
        with _socket(address) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def _reaches_itself(address: str) -> bool:
    """Return whether datagrams to the address would come from it; nothing is sent.

    It misses further addresses of an interface in the same network.
    """
    try:
        with _socket(address) as sock:
            sock.connect((address, 9))
            return bool(sock.getsockname()[0] == address)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Host:
    """A host that may take mail.

    `secure` says that validated DNS answers led to its name: DANE needs that (RFC 7672, section
    2.2.1). `listed` says that a route names the host, so it may be in any network. No other host of
    the domain has a better preference than one that is `best`.
    """

    name: str
    port: int
    secure: bool = False
    listed: bool = False
    best: bool = field(default=True, compare=False)

    @property
    def place(self) -> HostPort:
        """The name and the port: by these a host is tried once for a message."""
        return HostPort(self.name, self.port)


type Target = tuple[Hop, ...] | str
"""The hosts that a route names, or the domain whose MX hosts get the mail."""


class Hosts:
    """Finds the hosts of destinations and their addresses."""

    def __init__(
        self, hostname: str, delivery: Delivery, questions: Questions, unresponsive: Unresponsive
    ) -> None:
        self._port = delivery.port
        self._most = delivery.hosts
        self._literals = delivery.literals
        self._questions = questions
        self._own = OwnHost(hostname)
        self._unresponsive = unresponsive
        self._addresses = Addresses(delivery, questions, unresponsive)

    async def find_hosts(
        self,
        target: Target,
        port: int | None = None,
        tried: Collection[str] = (),
        earlier: int = 0,
        further: list[Host] | None = None,
    ) -> AsyncIterator[Host]:
        """Iterate over at most `delivery.hosts` hosts in order, without those in `tried`.

        `port` is that of MX hosts, by default `delivery.port`. `further` gets some of the hosts
        beyond that number, if there are any.

        The ones in `tried` count. After `earlier` attempts the order begins after their hosts, if
        there are more. Hosts that did not answer a moment ago come after the others. Raises
        DeliveryError if the domain has no host that may be used.
        """
        left = max(0, self._most - len(tried))
        late: list[Host] = []
        further = [] if further is None else further
        async for host in self._all(target, port or self._port, earlier):
            if str(host.place) in tried:
                continue
            if left <= 0:
                further.append(host)
                return
            if host.name in self._unresponsive:
                late.append(host)
            else:
                left -= 1
                yield host
        further += late[left:]
        for host in late[:left]:
            yield host

    def _all(self, target: Target, port: int, earlier: int) -> AsyncIterator[Host]:
        """Iterate over all hosts of a target, as `of` says of earlier attempts."""
        after = earlier * self._most
        if not isinstance(target, str):
            return _from(_listed(target), self._start(after, len(target)))
        if target.startswith("["):
            return self._literal(target, port)
        return self._mail_exchangers(target, port, after)

    def _start(self, after: int, number: int) -> int:
        """Return the place of the host that comes first, of this number of hosts.

        Each attempt tries all of few hosts, so there the best one comes first.
        """
        number = min(number, _MAX_BEGINNINGS)
        return after % number if number > self._most else 0

    async def addresses(self, host: Host) -> list[str]:
        """Return the addresses of a host in the order of trying, at least one.

        Raises DeliveryError, as Addresses says, and for a host from the DNS that is this one: the
        answer that says so may have come too late for the order of hosts.
        """
        found = await self._addresses.find_addresses(host.name, listed=host.listed)
        if not host.listed and any(map(self._own.has_address, map(ipaddress.ip_address, found))):
            raise DeliveryError(
                f"4.4.6 {host.name} is this host: mail would go round", Stage.ADDRESS
            )
        return found

    async def best_hosts(self, domain: str) -> list[str]:
        """Return the MX hosts of a domain with the best preference. Raises DeliveryError."""
        records = _records(await self._questions.ask(domain, "MX"), domain)
        return [name for preference, name in records if preference == records[0][0]]

    async def left_out(self, host: Host) -> list[str]:
        """Return the addresses that `addresses` leaves out because they are forbidden, and why."""
        return [] if host.listed else await self._addresses.left_out(host.name)

    async def web_addresses(self, name: str) -> list[str]:
        """Return the addresses of a web server, which may be on this host. Raises DeliveryError."""
        return await self._addresses.find_addresses(name, listed=False)

    async def _literal(self, domain: str, port: int) -> AsyncIterator[Host]:
        """Iterate over the host of an address literal (RFC 5321, section 4.1.3)."""
        text = domain[1:-1]
        text = text[5:] if text[:5].lower() == "ipv6:" else text
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise _failed(f"5.1.3 {printable(domain)} is no address") from None
        if not self._literals:
            raise _failed(f"5.1.2 {domain}: delivery.literals is off")
        if self._own.has_address(address):
            raise _failed(f"5.4.6 {domain} is this host: mail would go round")
        yield Host(str(address), port)

    async def _mail_exchangers(self, domain: str, port: int, after: int) -> AsyncIterator[Host]:
        """Iterate over the MX hosts of a domain, by preference, equal ones in random order.

        The first `after` hosts come last, as `_start` says.

        Hosts of the preference of this host, and after it, are left out: they would send the mail
        back here. Hosts of one preference are looked at together for it.
        """
        answer = await self._questions.ask(domain, "MX")
        if not answer.exists:
            raise _failed(f"5.1.2 domain {printable(domain)} does not exist")
        records = _records(answer, domain)
        own = min((preference for preference, name in records if self._own.has_name(name)),
                  default=1 << 16)  # fmt: skip
        number = sum(preference < own for preference, _ in records)
        found = self._by_preference(records, own, domain, port, secure=answer.secure)
        async for host in _from(found, self._start(after, number)):
            yield host

    async def _by_preference(
        self, records: list[tuple[int, str]], own: int, domain: str, port: int, *, secure: bool
    ) -> AsyncIterator[Host]:
        """Iterate over the MX hosts before this one, which has the preference `own`."""
        for preference, group in groupby(records, key=lambda record: record[0]):
            names = [name for _, name in group]
            random.shuffle(names)
            if preference >= own or await self._leads_here(names):
                if preference == records[0][0]:
                    raise _failed(f"5.4.6 the best MX host of {domain} is this host: a route must "
                                  "say where its mail goes")  # fmt: skip
                return
            for name in names:
                yield Host(name, port, secure=secure, best=preference == records[0][0])

    async def _leads_here(self, names: list[str]) -> bool:
        """Return whether one of the hosts has an address of this host."""
        asked = [asyncio.create_task(self._is_own(name)) for name in names[:_MAX_HOSTS_LOOKED_UP]]
        try:
            done, _ = await asyncio.wait(asked, timeout=_OWN_ADDRESSES_TIMEOUT_S)
        finally:
            for task in asked:
                task.cancel()
        return any(task.result() for task in done)

    async def _is_own(self, name: str) -> bool:
        try:
            return any(map(self._own.has_address, await self._addresses.ask(name)))
        except DeliveryError:
            return False  # without an address the host is not used


async def _from(hosts: AsyncIterator[Host], start: int) -> AsyncIterator[Host]:
    """Iterate over the hosts from a place on, and then over those before it."""
    before: list[Host] = []
    async for host in hosts:
        if len(before) < start:
            before.append(host)
        else:
            yield host
    for host in before:
        yield host


async def _listed(hops: tuple[Hop, ...]) -> AsyncIterator[Host]:
    """Iterate over the hosts that a route gives."""
    for hop in hops_in_order(hops, random.random):
        yield Host(hop.host, hop.port, listed=True)


def _records(answer: DnsAnswer, domain: str) -> list[tuple[int, str]]:
    """Return preferences and host names of MX records, the best first, at least one.

    Without records the domain itself is the host (RFC 5321, section 5.1). Names that are none of
    hosts are left out. Raises DeliveryError for a null MX (RFC 7505) and without any host name.
    """
    if not answer.records:
        if host_name(domain) is None:
            raise _failed(f"5.1.2 {printable(domain)} has no MX and is no host name")
        return [(0, domain.lower())]
    found = [(each.preference, each.exchange) for each in answer.records if isinstance(each, MX)]
    if all(name == dns.name.root for _, name in found):
        raise _failed("5.1.10 domain accepts no mail (null MX)")
    best: dict[str, int] = {}  # a host may be in several records; the best preference counts
    for preference, name in sorted(_named(found[:_MAX_MX_RECORDS])):
        best.setdefault(name, preference)
    if not best:
        shown = ", ".join(str(exchange)[:80] for _, exchange in found[:3])
        raise _failed(f"5.4.4 MX of {domain}: no host names: {printable(shown)}")
    return [(preference, name) for name, preference in best.items()]


def _named(found: list[tuple[int, dns.name.Name]]) -> Iterator[tuple[int, str]]:
    for preference, name in found:
        # octets as they are: to_text() would escape a dot within a label
        if all(b"." not in label for label in name.labels):
            text = b".".join(name.labels[:-1]).decode("latin-1")
            if valid := host_name(text):
                yield preference, valid


def host_name(text: str) -> str | None:
    """Return the name in lower case if it can be that of a host, None otherwise (pure)."""
    name = text.lower()
    return name if len(name) <= _MAX_NAME_CHARACTERS and _HOST_NAME.fullmatch(name) else None


def _failed(line: str) -> DeliveryError:
    return DeliveryError(line, Stage.MX, permanent=True)
