"""The argument `server` of a hook."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from aiosmtpd.smtp import MISSING, Envelope, Session

from smtpd.protocol import replies
from smtpd.server.server import Server

_CHALLENGE = re.compile(r"[ -~]{0,12000}")  # a line has 12,288 octets (RFC 4954, section 4)
_EXTRA = ("peername", "sockname", "peercert", "cipher", "compression")

type Take = Callable[[bytes | None], None]
type Ask = Callable[[str, Take], None]
"""Sends 334 with a text; `Take` gets the octets of the answer, or None if there is none.

Both are called in the thread of the sessions.
"""


class HookTransport:
    """The connection of the session, as far as another thread may use it."""

    def __init__(
        self, current: Callable[[], asyncio.Transport | None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._current = current  # a function, because TLS changes the transport
        self._loop = loop
        self._extra: dict[str, Any] = {}
        self.read_extra_info()

    def read_extra_info(self) -> None:
        """Take the values of `get_extra_info` from the transport, in the sessions' thread."""
        if transport := self._current():
            self._extra = {name: transport.get_extra_info(name) for name in _EXTRA}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the value of `peername`, `sockname`, `peercert` or `cipher`, else the default."""
        value = self._extra.get(name)
        return default if value is None else value

    def is_closing(self) -> bool:
        """Return whether the connection is closed or will be."""
        transport = self._current()
        return not transport or transport.is_closing()

    def close(self) -> None:
        """Close the connection after the replies so far."""
        self._loop.call_soon_threadsafe(self._end)

    def abort(self) -> None:
        """Close the connection at once."""
        self._loop.call_soon_threadsafe(self._abort)

    def _end(self) -> None:
        if transport := self._current():
            transport.close()

    def _abort(self) -> None:
        if transport := self._current():
            transport.abort()


class HookServer:
    """Has the attributes of aiosmtpd's SMTP that its documentation gives to handlers.

    There is one for each connection. `push` adds a line before the reply that the hook returns.
    """

    tls_context = None
    enable_SMTPUTF8 = True  # noqa: N815 - aiosmtpd's name

    def __init__(self, server: Server, session: Session, transport: HookTransport) -> None:
        self.hostname = server.hostname
        self.__ident__ = replies.IDENT
        self.data_size_limit = server.config.limits.message_size
        self.session = session
        self.envelope = Envelope()
        """That of the command that the hook is asked about."""
        self.transport = transport
        self.pushed: list[Any] = []
        """Lines of the reply that the hook has not returned yet."""
        self.ask: Ask | None = None
        """Asks the client a question, during AUTH."""
        self._main = server.loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in which the hook runs."""
        return self.session.loop

    async def push(self, status: Any) -> None:
        """Add a line to the reply."""
        self.pushed.append(status)

    async def challenge_auth(
        self,
        challenge: str | bytes,
        encode_to_b64: bool = True,
        log_client_response: bool = False,
    ) -> Any:
        """Ask the client a question during AUTH, and return the octets of its answer.

        It returns MISSING after `*`, and if the answer is not in base64. Then the reply to AUTH is
        501 (RFC 4954, section 4). `encode_to_b64` says whether the challenge has to be encoded.
        Nothing is ever logged. Raises RuntimeError outside of AUTH, and ValueError if a line can't
        have the challenge.
        """
        ask = self.ask
        if not ask:
            raise RuntimeError("challenge_auth is for the methods of AUTH")
        octets = challenge.encode() if isinstance(challenge, str) else challenge
        text = (b64encode(octets) if encode_to_b64 else octets).decode("latin-1")
        if not _CHALLENGE.fullmatch(text):
            raise ValueError("a challenge is at most 12,000 octets of printable ASCII")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes | None] = loop.create_future()

        def take(octets: bytes | None) -> None:
            loop.call_soon_threadsafe(_settle, answer, octets)

        self._main.call_soon_threadsafe(ask, text, take)
        taken = await answer
        return MISSING if taken is None else taken


def _settle(future: asyncio.Future[bytes | None], octets: bytes | None) -> None:
    if not future.done():  # not if the call was cancelled
        future.set_result(octets)
