"""One request to an endpoint: bounded in time and size, over a connection that may be kept."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from pgmta.errors import DeliveryError
from pgmta.http.answer_reader import HttpAnswer
from pgmta.http.client_connection import ClientConnection, ExchangeError, reason_of
from pgmta.logs import get
from pgmta.mail.text import printable
from pgmta_features.webhooks.endpoint import EndpointUrl
from pgmta_features.webhooks.reach import Reach, Unreachable

POST_TIMEOUT_S = 15.0
"""For a request: names, connection, TLS and answer together."""

_CONNECT_TIMEOUT_S = 5.0  # of one address, with TLS
_MAX_IDLE_S = 30.0  # afterwards a kept connection is made anew, to an address that is judged again
_MAX_BODY_OCTETS = 4096  # of an answer: nobody reads it
_MAX_REASON_CHARACTERS = 100
_DIGITS = re.compile(r"\d{1,9}", re.ASCII)

log = get("webhooks")


@dataclass(frozen=True, slots=True)
class Posted:
    """The outcome of a request: the status, 0 without an answer, and what it says.

    `retry_after` is in seconds, None if the answer does not say, or the events are accepted.
    """

    status: int
    reason: str
    retry_after: float | None = None

    @property
    def accepted(self) -> bool:
        """Whether the receiver has the events."""
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the request itself was refused, so that a part of it may be taken."""
        return 400 <= self.status < 500 and self.status not in (408, 410, 425, 429)


class EndpointConnection:
    """The connection to an endpoint, which is made when it is needed.

    `context` returns the settings of TLS. Names and addresses are those that `reach` allows.
    """

    def __init__(
        self, url: EndpointUrl, reach: Reach, context: Callable[[], ssl.SSLContext], *,
        foreign: bool,
    ) -> None:  # fmt: skip
        self._url = url
        self._reach = reach
        self._context = context
        self._foreign = foreign
        self._wire: ClientConnection | None = None
        self._used = 0.0  # the last time, by the monotonic clock

    async def post(self, fields: Mapping[str, str], body: bytes) -> Posted:
        """Send a body with these header fields, and return the outcome.

        No answer raises: it would end the loop of the endpoint, which would post the same again.
        """
        lines = [
            f"POST {self._url.target} HTTP/1.1",
            f"Host: {self._url.authority}",
            "User-Agent: pgmta",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in fields.items()),
        ]
        request = "\r\n".join([*lines, "", ""]).encode("ascii") + body
        try:
            async with asyncio.timeout(POST_TIMEOUT_S):
                return _posted(await self._exchange(request))
        except TimeoutError:
            reason = f"no answer within {POST_TIMEOUT_S:g} s"
        except DeliveryError as error:
            reason = error.line
        except (Unreachable, ExchangeError) as error:
            reason = str(error)
        except OSError as error:
            reason = reason_of(error)
        except Exception as error:  # a defect of ours: the loop goes on
            log.error("request failed unexpectedly", host=self._url.host, exc_info=True)
            reason = f"unexpected {type(error).__name__}"
        except BaseException:
            self.close()
            raise
        self.close()
        return Posted(0, printable(reason)[:_MAX_REASON_CHARACTERS])

    async def _exchange(self, request: bytes) -> HttpAnswer:
        """Return the answer. Raises what `post` handles.

        The server may end a kept connection at any time. Then the request goes over a new one: its
        id lets the receiver know it again.
        """
        wire = self._wire
        if wire and not wire.closed and time.monotonic() < self._used + _MAX_IDLE_S:
            with suppress(ExchangeError):
                return await self._send(wire, request)
        self.close()
        self._wire = wire = await self._connect()
        return await self._send(wire, request)

    async def _send(self, wire: ClientConnection, request: bytes) -> HttpAnswer:
        await wire.send(request, POST_TIMEOUT_S)
        answer = await wire.answer(POST_TIMEOUT_S)
        self._used = time.monotonic()
        return answer

    async def _connect(self) -> ClientConnection:
        """Connect to the first allowed address that answers. Raises OSError, Unreachable."""
        problem: OSError | None = None
        for address in await self._reach.find_addresses(self._url, foreign=self._foreign):
            wire = ClientConnection(_MAX_BODY_OCTETS)
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    await wire.connect(address, self._url.port)
                    if self._url.tls:
                        await wire.start_tls(self._context(), self._url.host)
            except TimeoutError:
                wire.abort()
                problem = problem or TimeoutError("no connection in time")
            except OSError as error:
                wire.abort()
                problem = problem or error
            except BaseException:
                wire.abort()
                raise
            else:
                return wire
        assert problem  # noqa: S101 - there is at least one address
        if isinstance(problem, TimeoutError):
            raise ExchangeError(f"no connection within {_CONNECT_TIMEOUT_S:g} s")
        raise problem

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._wire:
            self._wire.abort()
        self._wire = None


def _posted(answer: HttpAnswer) -> Posted:
    reason = printable(f"{answer.status} {answer.reason}".strip())[:_MAX_REASON_CHARACTERS]
    if 300 <= answer.status < 400:
        reason = f"{reason}: redirects are not followed"
    posted = Posted(answer.status, reason)
    if posted.accepted:
        return posted
    return replace(posted, retry_after=_seconds(answer.fields.get("retry-after", "")))


def _seconds(text: str) -> float | None:
    """Return the seconds of Retry-After, which may have a time (RFC 9110, section 10.2.3)."""
    text = text.strip()
    if _DIGITS.fullmatch(text):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
