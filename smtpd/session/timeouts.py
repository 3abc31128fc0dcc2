"""The limits of time and pace: who is silent or slow for too long is hung up on."""

from __future__ import annotations

import asyncio
import math

from smtpd.commands.commands import Commands
from smtpd.config import Limits
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.connection import Connection
from smtpd.session.phase import Phase
from smtpd.session.session import SmtpSession

MAX_CONTENT_PAUSE_S = 180.0  # of a sender of content (RFC 5321, section 4.5.3.2.5)
HELLO_TIMEOUT_S = 60.0  # from the connection to EHLO or HELO
MAX_CONTENT_S = 1800.0  # for the whole content of a message
MAX_TRANSACTION_S = 3600.0  # from MAIL to the end of the message
MIN_OCTETS_PER_S = 100  # of content, over MAX_CONTENT_PAUSE_S
LOOKS_PER_LIMIT = 4  # in the shortest time that is limited


class Watch:
    """Looks at one connection with one timer, until its end begins."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self._connection = connection
        self._loop = server.loop
        self._limits = server.config.limits
        self._pace = Pace(self._limits, self._loop.time())
        self._session: SmtpSession
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, session: SmtpSession) -> None:
        """Look at this session from now on."""
        self._session = session

    def begin(self) -> None:
        """Begin to look how long the client is silent, and how slow it is."""
        self._look_in(min(self._limits.timeout, HELLO_TIMEOUT_S, self._pace.interval))

    def expect_hello(self) -> None:
        """Limit the time to the next EHLO anew: TLS or another client has begun."""
        self._pace = Pace(self._limits, self._loop.time())

    def cancel(self) -> None:
        """Stop the timer: the connection is gone."""
        if self._timer:
            self._timer.cancel()

    def _look_in(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        connection, now = self._connection, self._loop.time()
        if not connection.transport or connection.phase is Phase.CLOSING:
            return
        content_left = self._session.reception.began + MAX_CONTENT_S - now
        left = min(connection.last_input + self._limits.timeout - now, content_left)
        slow = self._pace.judge_client(
            self._session.commands,
            connection.content_size,
            now,
            waiting=connection.waits_for_client,
        )
        if not connection.takes_input:
            left = self._limits.timeout  # the client waits for smtpd; a commit has its own limit
        elif left <= 0 or slow:
            if connection.blocked:
                connection.transport.abort()
            else:
                reply = replies.DATA_TIMEOUT if content_left <= 0 else slow or replies.TIMEOUT
                connection.end(reply, linger=connection.message is not None)
            return
        hello = self._pace.hello_deadline - now
        left = min(left, hello if hello > 0 else left, self._pace.interval)
        self._look_in(max(0.0, left))


class Pace:
    """Judges a client by looks at its session, so that no command and no octet costs anything.

    A limit is noticed at the next look, at most `interval` seconds late.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._window = min(MAX_CONTENT_PAUSE_S, limits.timeout)
        self.interval = min(MAX_TRANSACTION_S, MAX_CONTENT_S, self._window) / LOOKS_PER_LIMIT
        """Seconds between two looks."""
        self.hello_deadline = now + HELLO_TIMEOUT_S
        """When the client must have said EHLO, by the clock of the looks."""
        self._transaction: object | None = (
            None  # the transaction at the last look, and when it was first seen
        )
        self._began = now
        # time when the window began, and the octets at that time
        self._content: tuple[float, int] | None = None

    def judge_client(
        self, commands: Commands, size: int | None, now: float, *, waiting: bool
    ) -> str:
        """Return the reply to a client that is too slow, or ''.

        `size` is that of the content under way, None without one. `waiting` says that smtpd waits
        for the client. Otherwise smtpd has not yet done all that the client has sent, and a new
        window begins.
        """
        if commands.session.host_name:
            self.hello_deadline = math.inf
        if now >= self.hello_deadline:
            return replies.TIMEOUT
        transaction = commands.transaction
        if transaction is not self._transaction:
            self._transaction, self._began, self._content = transaction, now, None
        elif transaction and now >= self._began + MAX_TRANSACTION_S:
            return replies.TRANSACTION_TIMEOUT
        if size is None or not self._content or not waiting:
            self._content = None if size is None else (now, size)
            return ""
        since, before = self._content
        if now >= since + self._window:
            if size - before < MIN_OCTETS_PER_S * (now - since):
                return replies.DATA_TOO_SLOW
            self._content = (now, size)
        return ""
