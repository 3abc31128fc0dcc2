"""The argument `server` of a hook."""

from __future__ import annotations

import asyncio
from typing import Any

from aiosmtpd.smtp import Envelope, Session


class HookTransport:
    """The connection of the session, as far as another thread may use it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        names = ("peername", "sockname")
        self._extra = {name: transport.get_extra_info(name) for name in names}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the value of `peername` or `sockname`, else the default."""
        return self._extra.get(name, default)

    def is_closing(self) -> bool:
        """Return whether the connection is closed or will be."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection after the replies so far."""
        self._loop.call_soon_threadsafe(self._transport.close)

    def abort(self) -> None:
        """Close the connection at once."""
        self._loop.call_soon_threadsafe(self._transport.abort)


class HookServer:
    """Has the attributes of aiosmtpd's SMTP that its documentation gives to handlers.

    There is one for each connection. `push` adds a line before the reply that the hook returns.
    """

    tls_context = None
    enable_SMTPUTF8 = True  # noqa: N815 - aiosmtpd's name

    def __init__(
        self,
        *,
        hostname: str,
        ident: str,
        message_size: int,
        session: Session,
        transport: HookTransport,
    ) -> None:
        self.hostname = hostname
        self.__ident__ = ident
        self.data_size_limit = message_size
        self.session = session
        self.envelope = Envelope()
        """That of the command that the hook is asked about."""
        self.transport = transport
        self.pushed: list[Any] = []
        """Lines of the reply that the hook has not returned yet."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in which the hook runs."""
        return self.session.loop

    async def push(self, status: Any) -> None:
        """Add a line to the reply."""
        self.pushed.append(status)
