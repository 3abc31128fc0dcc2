"""A kept connection to an HTTP server: whether the last octet of a request is out."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.text import printable
from queued.delivery.http.answer_reader import AnswerError, AnswerReader
from queued.delivery.http.http_answer import HttpAnswer
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.open_connections import (
    BY_OPERATOR,
    IDLE,
    ConnectionState,
    note_connection,
)
from queued.delivery.transport.transcript import NOTE

_SHOWN = 200  # characters of a reason
_SMALL = 8192  # octets that a socket takes at once
_LOOK = 0.01  # seconds between looks at octets that wait for the server
_CLOSED = "connection closed by the server"


class HttpConnection(asyncio.Protocol):
    """Sends one request after the other. `place` is the host with its port.

    The server can act on a request only after `last_out`, when its last octet is handed over.
    """

    def __init__(self, place: str, facts: ConnectionFacts) -> None:
        self.place = place
        self.facts = facts
        self.last_out = False
        """Whether the server may act on a request whose result is not known yet."""
        self.requests = 0
        self._asked = False  # a request is under way, so that octets may come
        self._reader = AnswerReader()
        self._transport: asyncio.Transport | None = None
        self._below: asyncio.Transport | None = None  # the transport that TLS writes to
        self._over = ""  # why no octets come any more
        self._waiter: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._dropped = False
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
    def transport(self) -> asyncio.Transport:
        """The transport of asyncio, once the connection is made."""
        assert self._transport  # noqa: S101 - for the type checker
        return self._transport

    @property
    def closed(self) -> bool:
        """Whether no further request can be sent."""
        return bool(self._over) or self.transport.is_closing()

    async def send(self, request: bytes, seconds: float, ready: Callable[[], None]) -> None:
        """Send a whole request; `ready` is asked before its last octet, and raises to prevent it.

        A small request goes out at once, so it is asked before the first.

        Raises DeliveryError if the server has not the whole request. A refusal that comes before
        the last octet is the answer, and prevents it too. On a kept connection it may be about its
        end instead (RFC 9112, section 9.5), so that counts as the end.
        """
        self.requests += 1
        self.phase, self.phase_since = "request", time.monotonic()
        self._asked = True
        held = 1 if len(request) > _SMALL or self._unsent() else len(request)
        if held == 1:
            await self._send_start(request[:-1], seconds)
        else:
            await asyncio.sleep(0)  # the end of a kept connection may have come
            await asyncio.sleep(0)  # asyncio calls tasks before sockets
        early = self._reader.answer
        if early and early.status >= 400 and self.requests == 1:
            return
        if self.closed or early:
            self.abort()
            why = self._over or ("an answer before the end of the request" if early else _CLOSED)
            raise DeliveryError(f"4.4.2 {why}", Stage.DATA)
        try:
            ready()
        except BaseException:
            self.abort()
            raise
        self.last_out = True
        self.transport.write(request[-held:])
        self.phase, self.phase_since = "answer", time.monotonic()

    async def _send_start(self, octets: bytes, seconds: float) -> None:
        """Send all but the last octet until the system has it, or news come.

        Raises DeliveryError.
        """
        try:
            self.transport.write(octets)
            await asyncio.sleep(0)  # the end of a kept connection may have come
            if self._unsent():
                async with asyncio.timeout(seconds):
                    while self._unsent() and not self._over and not self._reader.answer:
                        await asyncio.wait((self._next_news(),), timeout=_LOOK)
        except TimeoutError:
            self.abort()
            raise DeliveryError("4.4.2 timeout while the request was sent", Stage.DATA) from None

    async def answer(self, seconds: float) -> HttpAnswer:
        """Return the answer to the request. Raises DeliveryError without one.

        The connection ends unless the answer is whole, and both sides keep it. `settled` follows.
        """
        reader = self._reader
        try:
            if reader.answer is None:
                async with asyncio.timeout(seconds):
                    while reader.answer is None and not self._over:
                        await self._next_news()
        except TimeoutError:
            self.abort()
            raise DeliveryError("timeout before the answer", Stage.END_OF_DATA) from None
        except BaseException:
            self.abort()
            raise
        found = reader.answer
        if found is None:
            self.abort()
            raise DeliveryError(self._over, Stage.END_OF_DATA)
        if not (found.whole and reader.kept and self.last_out) or self._over:
            self.abort()
        reader.next()  # so that a connection in a cycle keeps no answer
        self._asked = False
        return found

    def settled(self) -> None:
        """Note that the result of the request is known."""
        self.last_out = False
        self.be_idle()

    def be_idle(self) -> None:
        """Note that no request is under way."""
        self.envelope = None
        self.phase, self.phase_since = IDLE, time.monotonic()

    # -- for operators: OpenConnection --

    def state(self) -> ConnectionState | None:
        """Return what the connection is doing; None if it has ended."""
        if self._dropped or self._over or (self._transport and self.closed):
            return None
        facts, envelope = self.facts, self.envelope
        tls = f"{facts.tls_version} {facts.tls_cipher}".strip()
        return ConnectionState(self.place, facts.address, self.phase, self.phase_since, tls,
                               self.requests - (envelope is not None), envelope)  # fmt: skip

    def end_by_operator(self) -> None:
        """Drop the connection; a request that it carries has the outcome of one that broke."""
        self.ended_by_operator = True
        self._end(BY_OPERATOR)
        self.abort()
        if self.connect_limit and self.phase in (Stage.CONNECT, "TLS"):
            with suppress(RuntimeError):  # it has ended a moment ago
                self.connect_limit.reschedule(asyncio.get_running_loop().time())

    def _unsent(self) -> int:
        """Return the number of octets that the system does not have yet.

        With TLS, asyncio and uvloop call `resume_writing` while the transport below still holds
        octets. So the sizes of both buffers decide.
        """
        below = self._below.get_write_buffer_size() if self._below else 0
        return self.transport.get_write_buffer_size() + below

    def _next_news(self) -> asyncio.Future[None]:
        """Return a future that is done once the protocol has news."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def close(self) -> None:
        """End the connection."""
        self.transport.close()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._dropped = True
        if self._transport:
            self._transport.abort()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until the connection has ended, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            self.abort()

    def use_tls(self, transport: asyncio.Transport) -> None:
        """Use this transport from now on, which writes to the one so far."""
        self._below, self._transport = self._transport, transport

    # -- callbacks of asyncio --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read a part of an answer."""
        if self.closed:
            return
        if not self._asked:
            self._end("octets without a request")
            return
        try:
            self._reader.feed(data)
        except AnswerError as error:
            self._end(str(error))
        else:
            if self._reader.answer:
                self._news()

    def eof_received(self) -> None:
        """Note the end of the octets."""
        self._reader.end()
        self._end(_CLOSED)

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end of the connection."""
        self._reader.end()
        self._end(_why(error) if error else _CLOSED)
        self._ended.set()

    def _end(self, why: str) -> None:
        if why == _CLOSED and self._reader.begun:
            why = "connection closed within the answer"
        self._over = self._over or why
        self._news()

    def _news(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)


async def connect(
    host: str, port: int, facts: ConnectionFacts, context: ssl.SSLContext | None, seconds: float
) -> HttpConnection:
    """Open a connection to the address of `facts`, which get its times. Raises DeliveryError."""
    address = facts.address
    where = f"{host}[{address}]:{port}" if host != address else f"{host}:{port}"
    began = time.monotonic()
    made = HttpConnection(f"{host}:{port}", facts)
    try:
        async with asyncio.timeout(seconds) as made.connect_limit:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: made, address, port)
            facts.connect_seconds = time.monotonic() - began
            if context:
                await _start_tls(made, context, host)
    except TimeoutError:
        stage = Stage.TLS if facts.connect_seconds else Stage.CONNECT
        problem = DeliveryError(f"4.4.1 connect to {where}: timeout", stage)
    except ssl.SSLCertVerificationError as error:
        why = printable(error.verify_message)[:_SHOWN]
        problem = DeliveryError(f"4.7.5 TLS with {host}: {why}", Stage.TLS)
    except ssl.SSLError as error:
        problem = DeliveryError(f"4.7.5 TLS with {host}: {_why(error)}", Stage.TLS)
    except OSError as error:
        stage = Stage.TLS if facts.connect_seconds else Stage.CONNECT
        problem = DeliveryError(f"4.4.1 connect to {where}: {_why(error)}", stage)
    except BaseException:
        made.abort()
        raise
    else:
        made.be_idle()
        return made
    made.abort()
    if made.ended_by_operator:
        problem.line = f"4.4.1 connect to {where}: {BY_OPERATOR}"
    raise problem from None


async def _start_tls(made: HttpConnection, context: ssl.SSLContext, host: str) -> None:
    facts = made.facts
    began = time.monotonic()
    made.phase, made.phase_since = "TLS", began
    plain = made.transport
    found = await asyncio.get_running_loop().start_tls(plain, made, context, server_hostname=host)
    made.use_tls(cast(asyncio.Transport, found))
    facts.tls_seconds = time.monotonic() - began
    session = made.transport.get_extra_info("ssl_object")
    facts.tls_version, facts.tls_cipher = session.version() or "", session.cipher()[0]
    facts.tls_verified = "pkix"
    note = f"{facts.tls_version} {facts.tls_cipher}, verified: {facts.tls_verified}"
    facts.dialogue.append((time.monotonic(), NOTE, note))


def _why(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return printable(text)[:_SHOWN]
