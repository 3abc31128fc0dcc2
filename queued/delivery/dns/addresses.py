"""The addresses of a host, in the order in which they are tried."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest

from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA

from pgmta.errors import DeliveryError, Stage
from queued.config import Delivery
from queued.delivery.dns.forbidden import Address, ForbiddenNetworks
from queued.delivery.dns.resolver import Questions
from queued.delivery.dns.unresponsive import Unresponsive

MAX_ADDRESSES = 4
"""Of a host, that are tried."""
_OTHER_FAMILY_S = 2.0  # for addresses of one family after those of the other have come


_MAX_THREADS = 8  # one look-up may hang for half a minute
_KEPT_S = 30.0  # for addresses: the system gives no TTL for them
_FAILURE_KEPT_S = 2.0


@dataclass(frozen=True, slots=True)
class _Found:
    """The addresses of a name, or the reason why there are none."""

    addresses: tuple[str, ...]
    reason: str
    until: float


class SystemNames:
    """Looks up the names that routes have, each in its own thread.

    One look-up under way serves all who want the name. No name has more than one thread, so the
    names of the configuration bound their number.
    """

    def __init__(self, timeout: float, ipv6: bool) -> None:
        self._timeout = timeout
        self._family = socket.AF_UNSPEC if ipv6 else socket.AF_INET
        self._under_way: dict[str, asyncio.Future[_Found]] = {}
        self._kept: dict[str, _Found] = {}

    @property
    def full(self) -> bool:
        """Whether 8 look-ups are under way, so that no further one may begin."""
        return len(self._under_way) >= _MAX_THREADS

    async def addresses(self, name: str) -> tuple[str, ...]:
        """Return the addresses of a name, at least one. Raises DeliveryError."""
        found = self._kept.get(name)
        if found is None or found.until <= time.monotonic():
            future = self._under_way.get(name) or self._begin(name)
            try:
                async with asyncio.timeout(self._timeout):
                    found = await asyncio.shield(future)
            except TimeoutError:
                found = _Found((), f"no answer in {self._timeout:g} s", 0.0)
        if found.addresses:
            return found.addresses
        raise DeliveryError(f"4.4.3 address of {name}: {found.reason}", Stage.ADDRESS)

    def _begin(self, name: str) -> asyncio.Future[_Found]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Found] = loop.create_future()
        self._under_way[name] = future

        def end(found: _Found) -> None:
            del self._under_way[name]
            self._kept[name] = found
            if not future.done():
                future.set_result(found)

        def ask() -> None:
            found = self._ask(name)
            try:
                loop.call_soon_threadsafe(end, found)
            except RuntimeError:  # raised if the loop has ended meanwhile
                return

        # a daemon thread, for which the end of the process does not wait
        threading.Thread(target=ask, name=f"address of {name}", daemon=True).start()
        return future

    def _ask(self, name: str) -> _Found:
        """Ask the system, in a thread."""
        try:
            infos = socket.getaddrinfo(name, None, family=self._family, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return _Found((), reason, time.monotonic() + _FAILURE_KEPT_S)
        addresses = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
        return _Found(addresses, "it has none", time.monotonic() + _KEPT_S)


class Addresses:
    """Finds addresses of hosts: by DNS, and by the system's resolver for names of routes.

    With `delivery.dns.servers` DNS alone counts.
    """

    def __init__(
        self, delivery: Delivery, questions: Questions, unresponsive: Unresponsive
    ) -> None:
        self._questions = questions
        self._unresponsive = unresponsive
        self._kinds = ("AAAA", "A") if delivery.ipv6 else ("A",)
        self._forbidden = ForbiddenNetworks(delivery.forbidden, delivery.allowed)
        self._system = (
            None if delivery.dns.servers else SystemNames(delivery.dns.timeout, delivery.ipv6)
        )

    async def find_addresses(self, name: str, *, listed: bool) -> list[str]:
        """Return at most MAX_ADDRESSES addresses of a host, at least one.

        IPv6 and IPv4 take turns. Those that did not answer a moment ago come last. A host that is
        `listed` in a route may have any address. Raises DeliveryError: it is permanent if DNS knows
        no address of another host, or only forbidden ones.
        """
        found = await self._find(name, listed)
        if not listed:
            found = self._allowed(name, found)
        ordered = in_turns(found)
        ordered.sort(key=self._unresponsive.__contains__)
        return ordered[:MAX_ADDRESSES]

    async def _find(self, name: str, listed: bool) -> list[Address]:
        """Return all addresses of the host, at least one. Raises DeliveryError."""
        try:
            return [ipaddress.ip_address(name)]
        except ValueError:
            pass
        if listed and self._system and not self._system.full:
            return [ipaddress.ip_address(each) for each in await self._system.addresses(name)]
        found = await self.ask(name)
        if not found:
            line = f"{'4' if listed else '5'}.4.4 {name} has no address"
            raise DeliveryError(line, Stage.ADDRESS, permanent=not listed)
        return found

    async def ask(self, name: str) -> list[Address]:
        """Return the addresses that DNS has for a name, maybe none.

        When addresses of one family have come, the other one has two seconds more. Raises
        DeliveryError if no address has come and one family has no answer.
        """
        asked = [asyncio.create_task(self._ask(name, kind)) for kind in self._kinds]
        try:
            _, pending = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            if pending:
                some = any(_addresses(task.result()) for task in asked if task.done())
                await asyncio.wait(pending, timeout=_OTHER_FAMILY_S if some else None)
        finally:
            for task in asked:
                task.cancel()
        answers = [task.result() for task in asked if task.done()]
        found = [each for answer in answers for each in _addresses(answer)]
        for answer in answers:
            if not found and isinstance(answer, DeliveryError):
                raise answer
        return found

    async def _ask(self, name: str, kind: str) -> list[Address] | DeliveryError:
        try:
            records = (await self._questions.ask(name, kind)).records
        except DeliveryError as error:
            return error
        return [
            ipaddress.ip_address(each.address) for each in records if isinstance(each, A | AAAA)
        ]

    async def left_out(self, name: str) -> list[str]:
        """Return the addresses of a host from DNS that are not used, with the reasons.

        Raises DeliveryError if no name server answers, or without any address.
        """
        found = [
            (each, self._forbidden.find_network(each)) for each in await self._find(name, False)
        ]
        return [f"{each}: delivery.forbidden has {network}" for each, network in found if network]

    def _allowed(self, name: str, found: list[Address]) -> list[Address]:
        """Return the addresses that are not forbidden, at least one. Raises DeliveryError."""
        allowed = [each for each in found if not self._forbidden.find_network(each)]
        if not allowed:
            network = self._forbidden.find_network(found[0])
            raise DeliveryError(
                f"5.4.4 {name} has the address {found[0]}, and delivery.forbidden has {network}",
                Stage.ADDRESS,
                permanent=True,
            )
        return allowed


def _addresses(answer: list[Address] | DeliveryError) -> list[Address]:
    return [] if isinstance(answer, DeliveryError) else answer


def in_turns(found: Iterable[Address]) -> list[str]:
    """Return the addresses in random order, IPv6 and IPv4 in turns."""
    shuffled = list(dict.fromkeys(found))
    random.shuffle(shuffled)
    families = [[str(each) for each in shuffled if each.version == v] for v in (4, 6)]
    random.shuffle(families)
    return [each for each in chain(*zip_longest(*families)) if each]
