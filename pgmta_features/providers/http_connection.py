"""A kept connection to an HTTP interface: its facts, and what operators see of it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress

from pgmta.errors import DeliveryError, Stage
from pgmta.http.answer_reader import HttpAnswer
from pgmta.http.client_connection import ClientConnection, ExchangeError, reason_of
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.open_connections import (
    ENDED_BY_OPERATOR,
    IDLE_PHASE,
    ConnectionState,
    note_connection,
)
from queued.delivery.transport.transcript import NOTE


class HttpConnection:
    """Sends one request after the other. `place` is the host with its port."""

    def __init__(self, place: str, facts: ConnectionFacts) -> None:
        self.place = place
        self.facts = facts
        self._wire = ClientConnection()
        self.envelope: Envelope | None = None
        """The envelope whose request it carries."""
        self.phase: str = Stage.CONNECT
        self.phase_since = time.monotonic()
        self.connect_limit: asyncio.Timeout | None = None
        """The time limit of the connect and the TLS handshake."""
        self.ended_by_operator = False
        self.number = note_connection(self)
        self.opened = self.phase_since

    @property
    def last_out(self) -> bool:
        """Whether the server may act on a request whose result is not known yet."""
        return self._wire.last_out

    @property
    def requests(self) -> int:
        """The requests that were begun."""
        return self._wire.requests

    @property
    def closed(self) -> bool:
        """Whether no further request can be sent."""
        return self._wire.closed

    async def connect(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Connect to the address of the facts, which get the times. Raises OSError."""
        facts = self.facts
        await self._wire.connect(facts.address, port)
        facts.connect_seconds = time.monotonic() - self.opened
        if context is None:
            return
        self._begin("TLS")
        await self._wire.start_tls(context, host)
        facts.tls_seconds = time.monotonic() - self.phase_since
        session = self._wire.transport.get_extra_info("ssl_object")
        facts.tls_version, facts.tls_cipher = session.version() or "", session.cipher()[0]
        facts.tls_verified = "pkix"
        note = f"{facts.tls_version} {facts.tls_cipher}, verified: {facts.tls_verified}"
        facts.dialogue.append((time.monotonic(), NOTE, note))

    async def send(self, request: bytes, seconds: float, ready: Callable[[], None]) -> None:
        """Send a whole request, unless `ready` raises before its last octet.

        Raises DeliveryError if the server has not the whole request.
        """
        self._begin("request")
        try:
            await self._wire.send(request, seconds, ready)
        except ExchangeError as error:
            raise DeliveryError(f"4.4.2 {error}", Stage.DATA) from None
        self._begin("answer")

    async def answer(self, seconds: float) -> HttpAnswer:
        """Return the answer to the request. Raises DeliveryError without one.

        `settled` follows.
        """
        try:
            return await self._wire.answer(seconds)
        except ExchangeError as error:
            raise DeliveryError(str(error), Stage.END_OF_DATA) from None

    def settled(self) -> None:
        """Note that the result of the request is known."""
        self._wire.last_out = False
        self.be_idle()

    def be_idle(self) -> None:
        """Note that no request is under way."""
        self.envelope = None
        self._begin(IDLE_PHASE)

    def _begin(self, phase: str) -> None:
        self.phase, self.phase_since = phase, time.monotonic()

    def close(self) -> None:
        """End the connection."""
        self._wire.close()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._wire.abort()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until the connection has ended, for at most `seconds`."""
        await self._wire.wait_closed(seconds)

    # -- for operators: OpenConnection --

    def state(self) -> ConnectionState | None:
        """Return what the connection is doing; None if it has ended."""
        if self.closed:
            return None
        facts, envelope = self.facts, self.envelope
        tls = f"{facts.tls_version} {facts.tls_cipher}".strip()
        return ConnectionState(self.place, facts.address, self.phase, self.phase_since, tls,
                               self.requests - (envelope is not None), envelope)  # fmt: skip

    def end_by_operator(self) -> None:
        """Drop the connection; a request that it carries has the outcome of one that broke."""
        self.ended_by_operator = True
        self._wire.abort(ENDED_BY_OPERATOR)
        if self.connect_limit and self.phase in (Stage.CONNECT, "TLS"):
            with suppress(RuntimeError):  # raised if the connection ended a moment ago
                self.connect_limit.reschedule(asyncio.get_running_loop().time())


async def connect(
    host: str, port: int, facts: ConnectionFacts, context: ssl.SSLContext | None, seconds: float
) -> HttpConnection:
    """Open a connection to the address of `facts`, which get its times. Raises DeliveryError."""
    address = facts.address
    where = f"{host}[{address}]:{port}" if host != address else f"{host}:{port}"
    made = HttpConnection(f"{host}:{port}", facts)
    try:
        async with asyncio.timeout(seconds) as made.connect_limit:
            await made.connect(host, port, context)
    except TimeoutError:
        stage = Stage.TLS if facts.connect_seconds else Stage.CONNECT
        problem = DeliveryError(f"4.4.1 connect to {where}: timeout", stage)
    except ssl.SSLError as error:
        problem = DeliveryError(f"4.7.5 TLS with {host}: {reason_of(error)}", Stage.TLS)
    except OSError as error:
        stage = Stage.TLS if facts.connect_seconds else Stage.CONNECT
        problem = DeliveryError(f"4.4.1 connect to {where}: {reason_of(error)}", stage)
    except BaseException:
        made.abort()
        raise
    else:
        made.be_idle()
        return made
    made.abort()
    if made.ended_by_operator:
        problem.line = f"4.4.1 connect to {where}: {ENDED_BY_OPERATOR}"
    raise problem from None
