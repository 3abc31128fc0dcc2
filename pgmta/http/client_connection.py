"""A kept connection to an HTTP server, over which requests go one after the other."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from pgmta.errors import system_reason
from pgmta.http.answer_reader import MAX_BODY_OCTETS, AnswerError, AnswerReader, HttpAnswer
from pgmta.mail.text import printable

_MAX_REASON_CHARACTERS = 200
_SMALL_REQUEST_OCTETS = 8192  # so much fits into the buffer of a socket at once
_LOOK_INTERVAL_S = 0.01  # for octets that the server has not taken yet
_CLOSED_REASON = "connection closed by the server"


class ExchangeError(Exception):
    """A request did not get out, or has no answer; the text says why."""


class ClientConnection(asyncio.Protocol):
    """Sends requests that are written already, and reads their answers, which are bounded.

    The server can act on a request only once its last octet is handed over. `max_body` and
    `max_octets` are those of `AnswerReader`.
    """

    def __init__(self, max_body: int = MAX_BODY_OCTETS, max_octets: int = 0) -> None:
        self.last_out = False
        """Whether the last octet of the latest request was handed over."""
        self.requests = 0
        self._asked = False  # a request is under way, so octets of the server are its answer
        self._reader = AnswerReader(max_body, max_octets)
        self._transport: asyncio.Transport | None = None
        self._below: asyncio.Transport | None = None  # the transport that TLS writes to
        self._over = ""  # the reason why no more octets come
        self._waiter: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._dropped = False

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of asyncio, once the connection is made."""
        assert self._transport  # noqa: S101 - for the type checker
        return self._transport

    @property
    def closed(self) -> bool:
        """Whether no further request can be sent."""
        return bool(
            self._over or self._dropped or (self._transport and self._transport.is_closing())
        )

    async def connect(self, address: str, port: int) -> None:
        """Connect. Raises OSError."""
        await asyncio.get_running_loop().create_connection(lambda: self, address, port)

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Use TLS from now on, with a server that proves to be `host`. Raises OSError.

        A certificate that is refused is an ssl.SSLCertVerificationError.
        """
        self._below = self.transport
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._below, self, context, server_hostname=host)
        self._transport = cast(asyncio.Transport, transport)

    async def send(
        self, request: bytes, seconds: float, ready: Callable[[], None] = lambda: None
    ) -> None:
        """Send a whole request; `ready` is asked before its last octet, and raises to prevent it.

        A small request goes out at once, so it is asked before the first.

        Raises ExchangeError if the server has not the whole request. A refusal that comes before
        the last octet is the answer, and prevents it too. On a kept connection it may be about its
        end instead (RFC 9112, section 9.5), so that counts as the end.
        """
        self.requests += 1
        self.last_out = False
        self._asked = True
        held = 1 if len(request) > _SMALL_REQUEST_OCTETS or self._unsent() else len(request)
        if held == 1:
            await self._send_start(request[:-1], seconds)
        else:
            await asyncio.sleep(0)  # the end of a kept connection may have come
            await asyncio.sleep(0)  # twice, because asyncio runs tasks before it reads sockets
        early = self._reader.answer
        if early and early.status >= 400 and self.requests == 1:
            return
        if self.closed or early:
            self.abort()
            why = self._over or (
                "an answer before the end of the request" if early else _CLOSED_REASON
            )
            raise ExchangeError(why)
        try:
            ready()
        except BaseException:
            self.abort()
            raise
        self.last_out = True
        self.transport.write(request[-held:])

    async def _send_start(self, octets: bytes, seconds: float) -> None:
        """Send all but the last octet until the system has it, or news come.

        Raises ExchangeError.
        """
        try:
            self.transport.write(octets)
            await asyncio.sleep(0)  # the end of a kept connection may have come
            if self._unsent():
                async with asyncio.timeout(seconds):
                    while self._unsent() and not self._over and not self._reader.answer:
                        await asyncio.wait((self._next_news(),), timeout=_LOOK_INTERVAL_S)
        except TimeoutError:
            self.abort()
            raise ExchangeError("timeout while the request was sent") from None

    async def answer(self, seconds: float) -> HttpAnswer:
        """Return the answer to the request. Raises ExchangeError without one.

        The connection ends unless the answer is whole, and both sides keep it.
        """
        reader = self._reader
        try:
            if reader.answer is None:
                async with asyncio.timeout(seconds):
                    while reader.answer is None and not self._over:
                        await self._next_news()
        except TimeoutError:
            self.abort()
            raise ExchangeError("timeout before the answer") from None
        except BaseException:
            self.abort()
            raise
        answer = reader.answer
        if answer is None:
            self.abort()
            raise ExchangeError(self._over)
        if not (answer.whole and reader.kept and self.last_out) or self._over:
            self.abort()
        reader.next()  # forgets the answer, which an idle connection would keep in memory
        self._asked = False
        return answer

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

    def abort(self, why: str = "") -> None:
        """Drop the connection at once. A request that is under way fails for the reason `why`."""
        self._dropped = True
        if why:
            self._end(why)
        if self._transport:
            self._transport.abort()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until the connection has ended, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            self.abort()

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
        self._end(_CLOSED_REASON)

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end of the connection."""
        self._reader.end()
        self._end(reason_of(error) if error else _CLOSED_REASON)
        self._ended.set()

    def _end(self, why: str) -> None:
        if why == _CLOSED_REASON and self._reader.begun:
            why = "connection closed within the answer"
        self._over = self._over or why
        self._news()

    def _news(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)


def reason_of(error: Exception) -> str:
    """Return the reason of an error of a connection, as lines of a log may have it."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        found = system_reason(error)
    else:  # the first one is that of ssl.SSLCertVerificationError
        found = getattr(error, "verify_message", "") or getattr(error, "strerror", "")
    text = found or str(error) or type(error).__name__
    return printable(text)[:_MAX_REASON_CHARACTERS]
