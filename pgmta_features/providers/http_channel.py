"""A channel of the transport `http`: a connection to each endpoint, and a request for each row."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.telephone import NUMBER_DOMAIN
from pgmta.model import Reply
from pgmta.states import Event
from pgmta_features.providers.endpoints import Endpoints
from pgmta_features.providers.http_answer import result_of
from pgmta_features.providers.http_connection import HttpConnection
from pgmta_features.providers.http_request import Target
from pgmta_features.providers.mail_words import MailWords
from pgmta_features.providers.places import Unplaceable
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from queued.delivery.transport.transcript import MAX_ENTRIES, NOTE, Entry

_CLOSE_TIMEOUT_S = 2.0
_LARGE_OCTETS = 1 << 18  # the parts of such a mail take 20 ms or more to read

type Connect = Callable[[Target], Awaitable[HttpConnection]]
"""Returns a connection to a target. Raises DeliveryError."""


class HttpChannel:
    """Connections to the endpoints of a destination, of which each request takes one in turn.

    No request waits for an endpoint while another one is connected.
    """

    best = True
    most_recipients = 1
    unwelcome = False

    def __init__(self, connect: Connect, endpoints: Endpoints, most: int) -> None:
        self.name = str(endpoints.parameters)
        self.transactions = 0
        self.vain = False
        self._connect = connect
        self._endpoints = endpoints
        self._most = most
        self._connections: dict[int, HttpConnection] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._asked: HttpConnection | None = None
        self._dead = False

    @property
    def closed(self) -> bool:
        """Whether no connection is left."""
        return self._dead or not self._usable()

    @property
    def spent(self) -> bool:
        """Whether it had as many requests as a connection may have."""
        return self.transactions >= self._most

    @property
    def in_doubt(self) -> bool:
        """Whether the provider may have a request whose answer is not known."""
        return bool(self._asked and self._asked.last_out)

    def _usable(self) -> list[int]:
        return [place for place, each in self._connections.items() if not each.closed]

    async def open_first(self) -> None:
        """Connect to the first endpoint that can be reached. Raises DeliveryError."""
        problems: list[DeliveryError] = []
        for place in self._endpoints.in_order():
            try:
                self._connections[place] = await self._connect(self._endpoints.targets[place])
            except DeliveryError as error:
                self._endpoints.failed(place)
                problems.append(error)
            else:
                return
        if len(problems) == 1:
            raise problems[0]
        lines = "; ".join(dict.fromkeys(error.line for error in problems))
        raise DeliveryError(lines, problems[-1].stage, host=problems[-1].host)

    def _open_others(self, usable: list[int]) -> None:
        """Begin connections to the endpoints that have none."""
        for place, target in enumerate(self._endpoints.targets):
            begun = place in usable or place in self._under_way
            if not begun and not self._endpoints.rests(place):
                self._under_way[place] = asyncio.create_task(self._open_other(place, target))

    async def _open_other(self, place: int, target: Target) -> None:
        try:
            made = self._connections[place] = await self._connect(target)
            if self._dead:  # marked while the connection was made
                made.abort()
        except DeliveryError:
            self._endpoints.failed(place)
        finally:
            del self._under_way[place]

    async def send(self, envelope: Envelope) -> list[Result]:
        """Send the request of a row, and return the result of its answer.

        Raises DeliveryError if nothing of the mail can be there.
        """
        began = time.monotonic()
        self.vain = False
        self.transactions += 1
        usable = self._usable()
        if not usable:
            self.vain = self._dead = True
            raise DeliveryError("4.4.2 connection closed by the server", Stage.DATA)
        place = usable[0]
        if len(self._endpoints.targets) > 1:
            self._open_others(usable)
            place = self._endpoints.take_turn(usable)
        connection = self._asked = self._connections[place]
        said: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        result = await self._ask(envelope, place, connection, said)
        result.facts, result.said = connection.facts, (connection.facts.dialogue, said)
        connection.facts = connection.facts.kept()
        result.seconds = time.monotonic() - began
        return [result]

    async def _ask(
        self, envelope: Envelope, place: int, connection: HttpConnection, said: deque[Entry]
    ) -> Result:
        endpoints, settings = self._endpoints, self._endpoints.parameters.settings
        kept = connection.requests > 0
        octets = envelope.trace + await _whole(envelope)
        secrets = endpoints.parameters.secrets
        words = MailWords(envelope.message, octets, secrets, envelope.template)
        target, item = endpoints.targets[place], envelope.items[0]
        try:
            number = item.domain == NUMBER_DOMAIN
            why = _unfit(words, settings.segments) if number else ""
            if why:
                request = b""
            elif len(octets) < _LARGE_OCTETS:
                request = endpoints.writer.write(target, words, item)
            else:  # in a thread, so that other mail goes on meanwhile
                request = await asyncio.to_thread(endpoints.writer.write, target, words, item)
        except Unplaceable as error:
            why = f"5.6.0 {error}"
        except RecursionError:  # by nested parts, comments of an address, or metadata
            why = "5.6.0 the mail is nested too deeply"
        if why:
            return Result(Event.FAIL, Reply(0, why), connection.place, Stage.DATA)
        note = f"{settings.method} to {connection.place}, {len(request)} octets"
        said.append((time.monotonic(), NOTE, note))
        connection.envelope = envelope

        def ready() -> None:
            if not envelope.guard.valid(envelope.items):
                raise DeliveryError("lease lost before the end of the request", Stage.LEASE)

        try:
            await connection.send(request, settings.timeouts.request, ready)
        except DeliveryError as error:
            error.host = connection.place
            said.append((time.monotonic(), NOTE, error.line))
            error.facts = connection.facts
            connection.facts.dialogue.extend(said)
            self.vain = kept and error.stage is not Stage.LEASE and not connection.ended_by_operator
            self._dead = self.vain and not self._usable()
            raise
        try:
            answer = await connection.answer(settings.timeouts.answer)
        except DeliveryError as error:
            said.append((time.monotonic(), NOTE, error.line))
            connection.settled()
            return Result(Event.UNKNOWN, Reply(0, f"4.4.2 {error.line}"), connection.place,
                          Stage.END_OF_DATA)  # fmt: skip
        said.append((time.monotonic(), NOTE, f"HTTP {answer.status}, {len(answer.body)} octets"))
        parts = endpoints.parameters.secret_parts
        result = result_of(settings, answer, connection.place, datetime.now(UTC), parts)
        connection.settled()
        return result

    def close(self) -> None:
        """End all connections."""
        self._end()
        for each in self._connections.values():
            each.close()

    def abort(self) -> None:
        """Drop all connections at once."""
        self._end()
        for each in self._connections.values():
            each.abort()

    def _end(self) -> None:
        self._dead = True
        for task in self._under_way.values():
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of the connections, for a few seconds at most."""
        await asyncio.gather(
            *(each.wait_closed(_CLOSE_TIMEOUT_S) for each in self._connections.values())
        )


def _unfit(words: MailWords, most: int) -> str:
    """Return why a telephone number can't get the text; '' if it can."""
    if not words.sms.strip():
        return "5.6.0 there is no plain text"
    number = words.segments.number
    return f"5.3.4 the text has {number} segments, at most {most}" if number > most else ""


async def _whole(envelope: Envelope) -> bytes:
    """Return the content. Raises DeliveryError if it can't be read."""
    content = envelope.content
    if isinstance(content, bytes):
        return content
    return b"".join([part async for part in content])
