"""The addresses of a host, in the order in which they are tried."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections.abc import Iterable
from itertools import chain, zip_longest

from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA

from pgmta.errors import DeliveryError, Stage
from queued.config import Delivery
from queued.delivery.dns.dns import Questions
from queued.delivery.dns.forbidden import Address, ForbiddenNetworks
from queued.delivery.dns.system_names import SystemNames
from queued.delivery.dns.unresponsive import Unresponsive

_PATIENCE = 2.0  # seconds for the addresses of one family after those of the other have come


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
        self._most = delivery.addresses
        self._forbidden = ForbiddenNetworks(delivery.forbidden, delivery.allowed)
        self._system = (
            None if delivery.dns.servers else SystemNames(delivery.dns.timeout, delivery.ipv6)
        )

    async def of(self, name: str, *, listed: bool) -> list[str]:
        """Return at most `delivery.addresses` addresses of a host, at least one.

        IPv6 and IPv4 take turns. Those that did not answer a moment ago come last. A host that is
        `listed` in a route may have any address. Raises DeliveryError: it is permanent if DNS knows
        no address of another host, or only forbidden ones.
        """
        found = await self._find(name, listed)
        if not listed:
            found = self._allowed(name, found)
        ordered = in_turns(found)
        ordered.sort(key=self._unresponsive.__contains__)
        return ordered[: self._most]

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
                await asyncio.wait(pending, timeout=_PATIENCE if some else None)
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
        found = [(each, self._forbidden.find(each)) for each in await self._find(name, False)]
        return [f"{each}: delivery.forbidden has {network}" for each, network in found if network]

    def _allowed(self, name: str, found: list[Address]) -> list[Address]:
        """Return the addresses that are not forbidden, at least one. Raises DeliveryError."""
        allowed = [each for each in found if not self._forbidden.find(each)]
        if not allowed:
            network = self._forbidden.find(found[0])
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
