"""The transport `http`: connections to the hosts of HTTP interfaces, over TLS."""

from __future__ import annotations

import time
from collections import deque

from pgmta.config.types import is_address
from pgmta.errors import DeliveryError
from pgmta.model import Item
from pgmta_features.providers.endpoints import Endpoints
from pgmta_features.providers.http_channel import HttpChannel
from pgmta_features.providers.http_connection import HttpConnection, connect
from pgmta_features.providers.http_parameters import (
    HttpParameters,
    HttpSettings,
    parse_parameters,
)
from pgmta_features.providers.http_request import Target
from queued.config import Delivery
from queued.delivery.dns.addresses import Addresses
from queued.delivery.dns.resolver import Questions
from queued.delivery.dns.unresponsive import SLOW_S, Unresponsive
from queued.delivery.tls.tls_contexts import TlsContexts
from queued.delivery.tls.tls_memory import TlsMemory
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.transcript import MAX_ENTRIES, NOTE, Entry
from queued.delivery.transports import TransportKind

_MAX_DESTINATIONS = 1000  # whose parsed texts are in memory


class HttpTransport:
    """Opens channels of HTTP destinations. All workers of a process share it."""

    sends_lines = False

    def __init__(self, hostname: str, delivery: Delivery, memory: TlsMemory | None = None) -> None:
        self._dns = delivery.dns
        self._questions = Questions(delivery.dns)
        self._unresponsive = Unresponsive()
        self._endpoints: dict[str, Endpoints] = {}
        self.configure(delivery)

    def configure(self, delivery: Delivery) -> None:
        """Use other settings from now on."""
        if delivery.dns != self._dns:
            self._dns = delivery.dns
            self._questions.configure(delivery.dns)
        self._delivery = delivery
        self._addresses = Addresses(delivery, self._questions, self._unresponsive)
        self._contexts = TlsContexts(delivery.tls)
        self._endpoints.clear()

    def find_unfit(self, items: list[Item]) -> dict[int, str]:
        """Return no row: each value is looked at when its request is written."""
        return {}

    async def open(
        self, destination: Destination, tried: frozenset[str] = frozenset(), earlier: int = 0
    ) -> HttpChannel:
        """Return a channel with a connection to one endpoint. Raises DeliveryError."""
        parameters = destination.parameters
        assert isinstance(parameters, HttpParameters)  # noqa: S101 - for the type checker
        endpoints = self._endpoints.get(destination.key)
        if endpoints is None:
            if len(self._endpoints) >= _MAX_DESTINATIONS:
                self._endpoints.clear()
            endpoints = self._endpoints[destination.key] = Endpoints(parameters)

        async def connect_to(target: Target) -> HttpConnection:
            return await self._connect(target, parameters)

        channel = HttpChannel(connect_to, endpoints, self._delivery.transactions)
        await channel.open_first()
        return channel

    async def _connect(self, target: Target, parameters: HttpParameters) -> HttpConnection:
        """Return a connection to a target. Raises DeliveryError with what each address said.

        It is never permanent: an operator has named the host, so the mail waits for its repair.
        """
        settings = parameters.settings
        place = f"{target.host}:{target.port}"
        named = settings.private or is_address(target.host)
        began = time.monotonic()
        try:
            addresses = await self._addresses.find_addresses(target.host, listed=named)
        except DeliveryError as error:
            line = f"4{error.line[1:]}" if error.line.startswith("5.") else error.line
            raise DeliveryError(line, error.stage, host=place) from None
        context = self._contexts.pkix if target.https else None
        said: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        problems: list[DeliveryError] = []
        for address in addresses:
            begun = time.monotonic()
            said.append((begun, NOTE, f"connect to {place} at {address}"))
            facts = ConnectionFacts(place, address, dns_seconds=begun - began, dialogue=said)
            try:
                found = await connect(target.host, target.port, facts, context,
                                      settings.timeouts.connect)  # fmt: skip
            except DeliveryError as error:
                took = time.monotonic() - begun
                facts.count(error.stage, took)
                if took >= SLOW_S:
                    self._unresponsive.add(address)
                error.facts, error.address = facts, address
                said.append((time.monotonic(), NOTE, error.line))
                problems.append(error)
            else:
                self._unresponsive.remove(address)
                return found
            began = time.monotonic()
        last = problems[-1]
        last.line = "; ".join(dict.fromkeys(error.line for error in problems))
        last.host = place
        raise last


HTTP = TransportKind(
    lambda hostname, delivery, memory, _gate: HttpTransport(hostname, delivery, memory),
    parse_parameters,
    HttpSettings,
)
"""What routes name by `transport: http`."""
