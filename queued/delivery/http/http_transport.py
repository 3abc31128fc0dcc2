"""The transport `http`: connections to the endpoints of a provider, and a request for each row."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from datetime import UTC, datetime

from pgmta.config.types import is_address
from pgmta.errors import DeliveryError, Stage
from pgmta.model import Item, Reply
from pgmta.states import Event
from queued.config import Delivery
from queued.delivery.dns.addresses import Addresses
from queued.delivery.dns.dns import Questions
from queued.delivery.dns.unresponsive import Unresponsive
from queued.delivery.http.answer import result_of
from queued.delivery.http.http_connection import HttpConnection, connect
from queued.delivery.http.http_parameters import HttpParameters
from queued.delivery.http.http_request import RequestWriter, Target
from queued.delivery.http.mail_words import MailWords
from queued.delivery.http.places import Unplaceable
from queued.delivery.tls.tls_contexts import TlsContexts
from queued.delivery.tls.tls_memory import TlsMemory
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from queued.delivery.transport.transcript import ENTRIES, NOTE, Entry

_CLOSING = 2.0  # seconds for the end of a connection
_KEPT = 1000  # destinations whose parsed texts are kept


class Endpoints:
    """The endpoints of a destination in turns by their weights, and its parsed texts."""

    def __init__(self, parameters: HttpParameters) -> None:
        settings = parameters.settings
        self.parameters = parameters
        self.writer = RequestWriter(settings)
        self.targets = [Target.of(each) for each in settings.url]
        self._weights = [each.weight for each in settings.url]
        self._credit = [0] * len(self.targets)

    def in_turn(self) -> list[int]:
        """Return the places of all endpoints: first the one whose turn it is, then by weight.

        The turns are those of the smooth weighted round robin of nginx.
        """
        if len(self.targets) == 1:
            return [0]
        self._credit = [c + w for c, w in zip(self._credit, self._weights, strict=True)]
        first = max(range(len(self.targets)), key=self._credit.__getitem__)
        self._credit[first] -= sum(self._weights)
        rest = [n for n in range(len(self.targets)) if n != first]
        return [first, *sorted(rest, key=lambda n: -self._weights[n])]


class HttpTransport:
    """Opens channels of HTTP destinations. All workers of a process share it."""

    sends_lines = False

    def __init__(self, hostname: str, delivery: Delivery, memory: TlsMemory | None = None) -> None:
        self._dns = delivery.dns
        self._questions = Questions(delivery.dns)
        self._endpoints: dict[str, Endpoints] = {}
        self.configure(delivery)

    def configure(self, delivery: Delivery) -> None:
        """Use other settings from now on."""
        if delivery.dns != self._dns:
            self._dns = delivery.dns
            self._questions.configure(delivery.dns)
        self._delivery = delivery
        self._addresses = Addresses(delivery, self._questions, Unresponsive())
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
            if len(self._endpoints) >= _KEPT:
                self._endpoints.clear()
            endpoints = self._endpoints[destination.key] = Endpoints(parameters)
        channel = HttpChannel(self, endpoints, str(parameters), self._delivery.transactions)
        await channel.reach()
        return channel

    async def connect(self, target: Target, parameters: HttpParameters) -> HttpConnection:
        """Return a connection to a target. Raises DeliveryError with what each address said."""
        named = parameters.settings.private or is_address(target.host)
        addresses = await self._addresses.find_addresses(target.host, listed=named)
        context = self._contexts.pkix if target.https else None
        seconds = parameters.settings.timeouts.connect
        problems: list[DeliveryError] = []
        for address in addresses:
            try:
                return await connect(target.host, target.port, address, context, seconds)
            except DeliveryError as error:
                problems.append(error)
        lines = "; ".join(dict.fromkeys(error.line for error in problems))
        raise DeliveryError(lines, problems[-1].stage, host=f"{target.host}:{target.port}")


class HttpChannel:
    """Connections to the endpoints of a destination, of which each request takes one in turn."""

    most_recipients = 1
    unwelcome = False

    def __init__(
        self, transport: HttpTransport, endpoints: Endpoints, name: str, most: int
    ) -> None:
        self.name = name
        self.transactions = 0
        self.vain = False
        self._transport = transport
        self._endpoints = endpoints
        self._most = most
        self._connections: dict[int, HttpConnection] = {}
        self._asked: HttpConnection | None = None
        self._dead = False

    @property
    def closed(self) -> bool:
        """Whether no connection is left."""
        return self._dead or all(each.closed for each in self._connections.values())

    @property
    def spent(self) -> bool:
        """Whether it had as many requests as a connection may have."""
        return self.transactions >= self._most

    @property
    def in_doubt(self) -> bool:
        """Whether the provider may have a request whose answer is not known."""
        return bool(self._asked and self._asked.last_out)

    async def reach(self) -> tuple[int, HttpConnection, bool]:
        """Return the endpoint whose turn it is, or another that can be reached, and its connection.

        The last value says whether the connection had a request before. Raises DeliveryError.
        """
        problem: DeliveryError | None = None
        for place in self._endpoints.in_turn():
            kept = self._connections.get(place)
            if kept and not kept.closed:
                return place, kept, kept.requests > 0
            target = self._endpoints.targets[place]
            try:
                made = await self._transport.connect(target, self._endpoints.parameters)
            except DeliveryError as error:
                problem = error
                continue
            self._connections[place] = made
            return place, made, False
        assert problem  # noqa: S101 - there is an endpoint
        raise problem

    async def send(self, envelope: Envelope) -> list[Result]:
        """Send the request of a row, and return the result of its answer.

        Raises DeliveryError if nothing of the mail can be there.
        """
        began = time.monotonic()
        self.vain = False
        self.transactions += 1
        place, connection, kept = await self.reach()
        self._asked = connection
        said: deque[Entry] = deque(maxlen=ENTRIES)
        facts = ConnectionFacts(connection.place, success_kind="relayed")
        result = await self._ask(envelope, place, connection, said, kept=kept)
        result.facts, result.said = facts, (facts.dialogue, said)
        result.seconds = time.monotonic() - began
        return [result]

    async def _ask(
        self, envelope: Envelope, place: int, connection: HttpConnection, said: deque[Entry],
        *, kept: bool,
    ) -> Result:  # fmt: skip
        endpoints, settings = self._endpoints, self._endpoints.parameters.settings
        octets = envelope.trace + await _whole(envelope)
        words = MailWords(envelope.message, octets, endpoints.parameters.secrets)
        target, item = endpoints.targets[place], envelope.items[0]
        try:
            request, body = endpoints.writer.write(target, words, item)
        except Unplaceable as error:
            return Result(Event.FAIL, Reply(0, f"5.6.0 {error}"), connection.place, Stage.DATA)
        note = f"{settings.method} to {connection.place}, {len(body)} octets"
        said.append((time.monotonic(), NOTE, note))

        def ready() -> None:
            if not envelope.guard.valid(envelope.items):
                raise DeliveryError("lease lost before the end of the request", Stage.LEASE)

        try:
            await connection.send(request, body, settings.timeouts.request, ready)
        except DeliveryError as error:
            error.host = connection.place
            self.vain = kept and error.stage is not Stage.LEASE
            self._dead = self.vain
            raise
        try:
            answer = await connection.answer(settings.timeouts.answer)
        except DeliveryError as error:
            said.append((time.monotonic(), NOTE, error.line))
            return Result(Event.UNKNOWN, Reply(0, f"4.4.2 {error.line}"), connection.place,
                          Stage.END_OF_DATA)  # fmt: skip
        said.append((time.monotonic(), NOTE, f"HTTP {answer.status}, {len(answer.body)} octets"))
        return result_of(settings, answer, connection.place, datetime.now(UTC))

    def close(self) -> None:
        """End all connections."""
        self._dead = True
        for each in self._connections.values():
            each.close()

    def abort(self) -> None:
        """Drop all connections at once."""
        self._dead = True
        for each in self._connections.values():
            each.abort()

    async def wait_closed(self) -> None:
        """Wait for the end of the connections, for a few seconds at most."""
        await asyncio.gather(*(each.wait_closed(_CLOSING) for each in self._connections.values()))


async def _whole(envelope: Envelope) -> bytes:
    """Return the content. Raises DeliveryError if it can't be read."""
    content = envelope.content
    if isinstance(content, bytes):
        return content
    return b"".join([part async for part in content])
