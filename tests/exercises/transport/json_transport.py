"""Posts each message as JSON: the recipients are tokens, such as those of a push service."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from urllib.parse import urlsplit

from pydantic import Field

from pgmta.config.types import Period, Section
from pgmta.errors import DeliveryError, Stage
from pgmta.http.client_connection import ClientConnection, ExchangeError
from pgmta.model import Item, Reply
from pgmta.states import Event
from queued.config import Delivery
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from queued.delivery.transports import TransportKind

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LATER = (408, 425, 429)  # statuses of the client's class that may pass


class JsonParameters(Section):
    """The parameters of a route."""

    url: str = Field(pattern=r"^http://[a-z0-9.-]+:\d+/")
    timeout: Period = 10.0

    @property
    def key(self) -> str:
        """A text that differs between parameters."""
        return f"{self.url} {self.timeout}"

    def __str__(self) -> str:
        return self.url


class JsonChannel:
    """One connection to the server, for one message."""

    best, most_recipients, unwelcome, vain = True, 1, False, False

    def __init__(self, to: JsonParameters, connection: ClientConnection) -> None:
        self.name = urlsplit(to.url).netloc
        self.transactions = 0
        self._to = to
        self._connection = connection

    @property
    def spent(self) -> bool:
        """Whether it has had its message."""
        return self.transactions > 0

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.closed

    @property
    def in_doubt(self) -> bool:
        """Whether the server may have a message whose outcome is not known."""
        return self._connection.last_out

    async def send(self, envelope: Envelope) -> list[Result]:
        """Post one message. Raises DeliveryError before its body is out."""
        self.transactions += 1
        (item,) = envelope.items
        octets = envelope.content
        if not isinstance(octets, bytes):
            octets = b"".join([part async for part in octets])
        message = base64.b64encode(octets).decode()
        body = json.dumps({"to": item.recipient, "message": message}).encode()
        head = f"POST {urlsplit(self._to.url).path} HTTP/1.1\r\nHost: {self.name}\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"

        def ready() -> None:
            if not envelope.guard.valid(envelope.items):
                raise DeliveryError("lease lost before the request", Stage.LEASE)

        try:
            await self._connection.send(head.encode() + body, self._to.timeout, ready)
        except ExchangeError as error:
            raise DeliveryError(f"4.4.2 {error}", Stage.DATA) from None
        try:
            answer = await self._connection.answer(self._to.timeout)
        except ExchangeError:
            event, text = Event.UNKNOWN, "no answer to the whole request"
        else:
            code = answer.status
            text = f"HTTP {code} {answer.reason}"
            if 200 <= code < 300:
                event, text = Event.DELIVERED, f"2.0.0 {text}"
            elif code >= 500 or code in _LATER:
                event, text = Event.DEFER, f"4.0.0 {text}"
            else:
                event, text = Event.FAIL, f"5.1.1 {text}"
        self._connection.last_out = False
        return [Result(event, Reply(0, text), self.name, Stage.END_OF_DATA)]

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def abort(self) -> None:
        """Drop the connection."""
        self._connection.abort()

    async def wait_closed(self) -> None:
        """Do not wait: no limit of the server counts it any more."""


class JsonTransport:
    """Connects to the server of a destination."""

    sends_lines = False

    def __init__(self, *_: object) -> None: ...

    def configure(self, delivery: Delivery) -> None:
        """Do nothing: the routes have all settings."""

    def find_unfit(self, items: list[Item]) -> dict[int, str]:
        """Return the rows whose recipient is no token."""
        unfit = (item for item in items if not _TOKEN.fullmatch(item.recipient))
        return {item.id: "5.1.3 the recipient is no token" for item in unfit}

    async def open(
        self, destination: Destination, tried: frozenset[str] = frozenset(), earlier: int = 0
    ) -> JsonChannel:
        """Return a connection. Raises DeliveryError."""
        to = destination.parameters
        assert isinstance(to, JsonParameters)
        at = urlsplit(to.url)
        connection = ClientConnection()
        try:
            async with asyncio.timeout(to.timeout):
                await connection.connect(str(at.hostname), int(at.port or 80))
        except (OSError, TimeoutError) as error:
            raise DeliveryError(f"4.4.1 {at.netloc}: {error}", Stage.CONNECT) from None
        return JsonChannel(to, connection)


JSON = TransportKind(JsonTransport, JsonParameters.model_validate, JsonParameters)
"""What routes name by `transport: json`."""
