"""A kept connection to an HTTP server, by h11: whether the last octet of a request is out."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable

import h11

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.text import printable
from queued.delivery.http.answer import LARGEST, Answer
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.transcript import NOTE

_READ = 16384  # octets
_PRELIMINARY = 10  # answers of 1xx before the answer itself
_HEADER = 16384  # octets of the header of an answer
_SHOWN = 200  # characters of a reason


class HttpConnection:
    """Sends one request after the other. `place` is the host with its port.

    The server can act on a request only after `last_out`, when its last octet is handed over.
    """

    def __init__(
        self,
        place: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        facts: ConnectionFacts,
    ) -> None:
        self.place = place
        self.facts = facts
        self.last_out = False
        self.requests = 0
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=0)  # so that drain() waits for all octets
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEADER)

    @property
    def closed(self) -> bool:
        """Whether no further request can be sent."""
        return (
            self._writer.transport.is_closing()
            or self._reader.at_eof()
            or self._http.our_state is not h11.IDLE
        )

    async def send(
        self,
        request: h11.Request,
        body: bytes,
        seconds: float,
        ready: Callable[[], None],
    ) -> None:
        """Send a request; `ready` is asked before its last octet, and raises to prevent it.

        Raises DeliveryError if the server has not the whole request.
        """
        self.requests += 1
        http = self._http
        octets = http.send(request) or b""
        if body:
            octets += http.send(h11.Data(data=body)) or b""
        octets += http.send(h11.EndOfMessage()) or b""
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(octets[:-1])
                await self._writer.drain()
                await asyncio.sleep(0)  # the end of a kept connection may have come
        except TimeoutError:
            self.abort()
            raise DeliveryError("4.4.2 timeout while the request was sent", Stage.DATA) from None
        except OSError as error:
            self.abort()
            raise DeliveryError(f"4.4.2 {_why(error)}", Stage.DATA) from None
        if self._reader.at_eof():
            self.abort()
            raise DeliveryError("4.4.2 connection closed by the server", Stage.DATA)
        try:
            ready()
        except BaseException:
            self.abort()
            raise
        self.last_out = True
        self._writer.write(octets[-1:])

    async def answer(self, seconds: float) -> Answer:
        """Return the answer to the request. Raises DeliveryError without one.

        The connection ends unless the answer is whole, and both sides keep it.
        """
        try:
            async with asyncio.timeout(seconds):
                found = await self._read_answer()
        except TimeoutError:
            self.abort()
            raise DeliveryError("timeout before the answer", Stage.END_OF_DATA) from None
        except (OSError, h11.RemoteProtocolError) as error:
            self.abort()
            raise DeliveryError(_why(error), Stage.END_OF_DATA) from None
        except BaseException:
            self.abort()
            raise
        self.last_out = False
        if found.whole and self._http.their_state is h11.DONE and self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.abort()
        return found

    async def _read_answer(self) -> Answer:
        preliminary = 0
        response: h11.Response | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(_READ)
                if not data and response is None:
                    raise h11.RemoteProtocolError("connection closed before the answer")
                self._http.receive_data(data)
            elif isinstance(event, h11.InformationalResponse):
                preliminary += 1
                if preliminary > _PRELIMINARY:
                    raise h11.RemoteProtocolError("answers of 1xx without end")
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > LARGEST and response:
                    return _answer(response, bytes(body[:LARGEST]), whole=False)
            elif isinstance(event, h11.EndOfMessage) and response:
                return _answer(response, bytes(body), whole=True)
            else:
                raise h11.RemoteProtocolError("connection closed within the answer")

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._writer.transport.abort()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until the connection has ended, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self.abort()


def _answer(response: h11.Response, body: bytes, *, whole: bool) -> Answer:
    fields = {
        name.decode("ascii", "replace").lower(): value.decode("latin-1")
        for name, value in response.headers
    }
    reason = response.reason.decode("latin-1")
    return Answer(response.status_code, reason, fields, body, whole)


async def connect(
    host: str, port: int, facts: ConnectionFacts, context: ssl.SSLContext | None, seconds: float
) -> HttpConnection:
    """Open a connection to the address of `facts`, which get its times. Raises DeliveryError."""
    address = facts.address
    where = f"{host}[{address}]:{port}" if host != address else f"{host}:{port}"
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(address, port, limit=_READ)
            facts.connect_seconds = time.monotonic() - began
            if context:
                await _start_tls(writer, context, host, facts)
    except TimeoutError:
        stage = Stage.TLS if facts.connect_seconds else Stage.CONNECT
        raise DeliveryError(f"4.4.1 connect to {where}: timeout", stage) from None
    except ssl.SSLCertVerificationError as error:
        why = printable(error.verify_message)[:_SHOWN]
        raise DeliveryError(f"4.7.5 TLS with {host}: {why}", Stage.TLS) from None
    except ssl.SSLError as error:
        raise DeliveryError(f"4.7.5 TLS with {host}: {_why(error)}", Stage.TLS) from None
    except OSError as error:
        stage = Stage.TLS if facts.connect_seconds else Stage.CONNECT
        raise DeliveryError(f"4.4.1 connect to {where}: {_why(error)}", stage) from None
    return HttpConnection(f"{host}:{port}", reader, writer, facts)


async def _start_tls(
    writer: asyncio.StreamWriter, context: ssl.SSLContext, host: str, facts: ConnectionFacts
) -> None:
    began = time.monotonic()
    try:
        await writer.start_tls(context, server_hostname=host)
    except BaseException:
        writer.transport.abort()
        raise
    facts.tls_seconds = time.monotonic() - began
    found = writer.get_extra_info("ssl_object")
    facts.tls_version, facts.tls_cipher = found.version() or "", found.cipher()[0]
    facts.tls_verified = "pkix"
    note = f"{facts.tls_version} {facts.tls_cipher}, verified: {facts.tls_verified}"
    facts.dialogue.append((time.monotonic(), NOTE, note))


def _why(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return printable(text)[:_SHOWN]
