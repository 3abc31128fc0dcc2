"""Fetches MTA-STS policies from the web servers of domains (RFC 8461, section 3.3)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pgmta.errors import DeliveryError
from pgmta.mail.text import printable
from queued.delivery.dns.query_slots import QuerySlots
from queued.delivery.tls.mta_sts import MAX_POLICY_OCTETS, FetchedPolicy, parse_policy

if TYPE_CHECKING:
    from pgmta.http.answer_reader import HttpAnswer

_FETCH_TIMEOUT_S = 30.0  # for one policy, all addresses together
_ADDRESS_TIMEOUT_S = 10.0
_MAX_ADDRESSES = 4  # of a web server that are tried
_MAX_FETCHES = 32  # side by side
_MIN_FETCH_S = 5.0  # that a fetch has in any case
_MAX_ANSWER_OCTETS = 2 * MAX_POLICY_OCTETS  # with header and frames
_SHOWN_CHARACTERS = 200  # of a reason

FindAddresses = Callable[[str], Awaitable[list[str]]]
"""Returns the IP addresses of a host that may be connected to. Raises DeliveryError."""


class StsError(Exception):
    """There is no valid policy to be had; `result` is the result type for TLSRPT (RFC 8460)."""

    def __init__(self, text: str, result: str = "sts-policy-fetch-error") -> None:
        super().__init__(printable(text)[:_SHOWN_CHARACTERS])
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
        self._slots = QuerySlots(_MAX_FETCHES, _MIN_FETCH_S)

    async def fetch(self, domain: str) -> FetchedPolicy:
        """Return the policy of a domain. Raises StsError.

        The server needs a certificate of a trusted CA. Redirects are not followed.
        """
        host = f"mta-sts.{domain}"
        try:
            async with asyncio.timeout(_FETCH_TIMEOUT_S), self._slots.slot(_FETCH_TIMEOUT_S):
                body = await self._from_any(host)
        except TimeoutError:
            raise StsError(f"https://{host}: no answer in time") from None
        try:
            return parse_policy(body.decode("ascii"))
        except ValueError as error:  # for example UnicodeDecodeError
            raise StsError(f"policy of {domain}: {error}", "sts-policy-invalid") from None

    async def _from_any(self, host: str) -> bytes:
        """Return the file from the first address that answers."""
        from pgmta.http.client_connection import (  # here, because it takes 0.4 MB of memory
            ExchangeError,
            reason_of,
        )

        problem = StsError(f"{host} has no address")
        try:
            addresses = await self._addresses(host)
        except DeliveryError as error:
            raise StsError(error.line) from None
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                async with asyncio.timeout(_ADDRESS_TIMEOUT_S):
                    answer = await self._from(host, address)
            except ssl.SSLCertVerificationError as error:
                problem = StsError(f"https://{host}: {reason_of(error)}", "sts-webpki-invalid")
            except TimeoutError:
                problem = StsError(f"https://{host}: no answer in {_ADDRESS_TIMEOUT_S:g} s")
            except (OSError, ExchangeError) as error:
                problem = StsError(f"https://{host}: {reason_of(error)}")
            else:
                return _body(answer, host)
        raise problem

    async def _from(self, host: str, address: str) -> HttpAnswer:
        from pgmta.http.client_connection import ClientConnection

        wire = ClientConnection(MAX_POLICY_OCTETS, _MAX_ANSWER_OCTETS)
        try:
            await wire.connect(address, self._port)
            await wire.start_tls(self._context(), host)
            request = (
                f"GET /.well-known/mta-sts.txt HTTP/1.1\r\nHost: {host}\r\n"
                "Connection: close\r\nUser-Agent: pgmta\r\n\r\n"
            )
            await wire.send(request.encode("ascii"), _ADDRESS_TIMEOUT_S)
            return await wire.answer(_ADDRESS_TIMEOUT_S)
        finally:
            wire.abort()


def _body(answer: HttpAnswer, host: str) -> bytes:
    """Return the body of an answer that is a policy file. Raises StsError."""
    if answer.status != 200:
        raise StsError(f"https://{host}: status {answer.status}")
    kind = answer.fields.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "text/plain":
        raise StsError(f"https://{host}: content type {kind!r}", "sts-policy-invalid")
    if len(answer.body) == MAX_POLICY_OCTETS and not answer.whole:
        raise StsError(f"https://{host}: over {MAX_POLICY_OCTETS} octets", "sts-policy-invalid")
    if not answer.whole:  # the frames of many tiny chunks are over the limit
        raise StsError(f"https://{host}: over {_MAX_ANSWER_OCTETS} octets")
    return answer.body
