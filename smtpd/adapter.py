"""What a connection has from aiosmtpd, and what it expects from the dialogue."""

from __future__ import annotations

import asyncio
from typing import Any

from aiosmtpd.smtp import SMTP, Session

from smtpd.front import Front


class Adapter(SMTP):
    """aiosmtpd's server without its task, its timer and its hooks."""

    command_size_limit = 2048  # room for parameters (RFC 5321, section 4.5.3.1.4 allows more)

    session: Session
    transport: asyncio.Transport | None

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        limits = front.config.limits
        super().__init__(
            _NoHooks,
            hostname=front.config.environment.hostname,
            ident="ESMTP pgmta",
            data_size_limit=limits.message_size,
            enable_SMTPUTF8=True,
            timeout=limits.timeout,
            loop=loop,
        )
        self._input = b""  # read, and not yet worked through from _at on
        self._at = 0

    def rest(self, data: bytes) -> None:
        """Give back what follows the end of data."""
        self._input, self._at = data, 0

    def take(self) -> bytes:
        """Return all that has been read and not yet worked through."""
        data = self._input[self._at :] if self._at else self._input
        self._input, self._at = b"", 0
        return data

    def say(self, reply: str) -> None:
        """Reply; it leaves with the others as soon as there is nothing else to do."""
        raise NotImplementedError

    async def push(self, status: Any) -> None:
        """Reply (for commands of aiosmtpd)."""
        self.say(status)

    # -- what the dialogue adds --

    def command(self, word: bytes, argument: str | None) -> bool:
        """Do one command; False if there is none of that name."""
        raise NotImplementedError

    def content(self) -> bool:
        """Take the content that has come after DATA; False where commands are expected."""
        raise NotImplementedError

    def octets(self) -> int:
        """Content of the transaction under way that is in memory."""
        raise NotImplementedError

    def wanted(self) -> bool:
        """Whether the client sends content that may still become a message."""
        raise NotImplementedError

    def write_ahead(self) -> bool:
        """Begin to write content in memory into the database; False where there is too little."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The connection is gone: forget the transaction under way."""
        raise NotImplementedError

    def end(self) -> None:
        """The process stops: close when no transaction is cut off by it."""
        raise NotImplementedError


class _NoHooks:
    """aiosmtpd looks for handler hooks here; the dialogue needs none."""
