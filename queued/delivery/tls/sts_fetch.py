"""Fetches MTA-STS policies from the web servers of domains (RFC 8461, section 3.3)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import h11

from pgmta.errors import DeliveryError
from pgmta.mail.text import printable
from queued.delivery.dns.query_slots import QuerySlots
from queued.delivery.tls.mtasts import LARGEST, FetchedPolicy, parse_policy

_TIME = 30.0  # seconds for one policy, all addresses together
_ADDRESS = 10.0  # seconds for one address
_ADDRESSES = 4  # addresses of a web server that are tried
_AT_ONCE = 32  # fetches side by side
_PATIENCE = 5.0  # seconds that a fetch has in any case
_READ = 4096  # octets
_RECEIVED = 2 * LARGEST  # octets of a response with all of its framing, at most
_SHOWN = 200  # characters of a reason

FindAddresses = Callable[[str], Awaitable[list[str]]]
"""Returns the IP addresses of a host that may be connected to. Raises DeliveryError."""


class StsError(Exception):
    """There is no valid policy to be had; `result` is the result type for TLSRPT (RFC 8460)."""

    def __init__(self, text: str, result: str = "sts-policy-fetch-error") -> None:
        super().__init__(printable(text)[:_SHOWN])
        self.result = result


class PolicyFetcher:
    """Fetches policies, at most 32 side by side; further ones wait, within their time.

    If some wait, the oldest ones have five seconds and no more. So web servers that drip do not
    keep the policies of other domains away, whose mail would go without.
    """

    def __init__(self, context: Callable[[], ssl.SSLContext], addresses: FindAddresses, port: int):
        self._context = context
        self._addresses = addresses
        self._port = port
        self._slots = QuerySlots(_AT_ONCE, _PATIENCE)

    async def fetch(self, domain: str) -> FetchedPolicy:
        """Return the policy of a domain. Raises StsError.

        The server needs a certificate of a trusted CA. Redirects are not followed.
        """
        host = f"mta-sts.{domain}"
        try:
            async with asyncio.timeout(_TIME), self._slots.slot(_TIME):
                body = await self._from_any(host)
        except TimeoutError:
            raise StsError(f"https://{host}: no answer in time") from None
        try:
            return parse_policy(body.decode("ascii"))
        except ValueError as error:  # UnicodeDecodeError is one
            raise StsError(f"policy of {domain}: {error}", "sts-policy-invalid") from None

    async def _from_any(self, host: str) -> bytes:
        """Return the file from the first address that answers."""
        problem = StsError(f"{host} has no address")
        try:
            addresses = await self._addresses(host)
        except DeliveryError as error:
            raise StsError(error.line) from None
        for address in addresses[:_ADDRESSES]:
            try:
                async with asyncio.timeout(_ADDRESS):
                    return await self._from(host, address)
            except ssl.SSLCertVerificationError as error:
                problem = StsError(f"https://{host}: {error.verify_message}", "sts-webpki-invalid")
            except TimeoutError:
                problem = StsError(f"https://{host}: no answer in {_ADDRESS:g} s")
            except (OSError, h11.RemoteProtocolError) as error:
                problem = StsError(f"https://{host}: {error}")
        raise problem

    async def _from(self, host: str, address: str) -> bytes:
        reader, writer = await asyncio.open_connection(
            address, self._port, ssl=self._context(), server_hostname=host
        )
        try:
            http = h11.Connection(h11.CLIENT)
            request = h11.Request(
                method="GET",
                target="/.well-known/mta-sts.txt",
                headers=[("Host", host), ("Connection", "close"), ("User-Agent", "pgmta")],
            )
            writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
            return await _body(http, reader, host)
        finally:
            writer.transport.abort()


async def _body(http: h11.Connection, reader: asyncio.StreamReader, host: str) -> bytes:
    """Return the body of a response that is a policy file. Raises StsError and h11's errors."""
    body = b""
    received = 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(_READ)
            received += len(data)
            if received > _RECEIVED:  # tiny chunks, or responses of 1xx without end
                raise StsError(f"https://{host}: over {_RECEIVED} octets")
            http.receive_data(data)
            await asyncio.sleep(0)  # a full buffer is read without a pause
        elif isinstance(event, h11.Response):
            _check(event, host)
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
            if len(body) > LARGEST:
                raise StsError(f"https://{host}: over {LARGEST} octets", "sts-policy-invalid")
        elif isinstance(event, h11.EndOfMessage):
            return body
        elif not isinstance(event, h11.InformationalResponse):
            raise StsError(f"https://{host}: connection closed")


def _check(response: h11.Response, host: str) -> None:
    if response.status_code != 200:
        raise StsError(f"https://{host}: status {response.status_code}")
    kinds = [value for name, value in response.headers if name == b"content-type"]
    kind = kinds[0].partition(b";")[0].strip().lower() if kinds else b""
    if kind != b"text/plain":
        raise StsError(
            f"https://{host}: content type {kind.decode('ascii', 'replace')!r}",
            "sts-policy-invalid",
        )
