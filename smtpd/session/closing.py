"""The end of a connection: pace and limits, the last reply and the closing of the socket."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from pgmta.logs import get
from smtpd.commands.commands import Commands
from smtpd.config import Limits
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.phase import Phase, Reading

if TYPE_CHECKING:
    from smtpd.session.connection import Connection

_DELAY = 1.0  # seconds until smtpd hangs up on a client that is over a limit
_LINGER = 5.0  # seconds that a client has to read the last reply and to close
_CLOSE = 30.0  # seconds that replies have to go out, at most
_MUCH = 1 << 16  # octets of a read after the last reply, after which there is a pause
_PAUSE = 0.05  # seconds of it
_DISCARD = 4 << 20  # octets that are read meanwhile and thrown away, at most
_WINDOW = 180.0  # seconds for which a sender of content may pause (RFC 5321, section 4.5.3.2.5)
_LOOKS = 4  # looks in the shortest time

log = get("smtpd")


class Closing:
    """Watches one connection with one timer, and brings it to its end."""

    def __init__(self, connection: Connection, server: Server) -> None:
        self._connection = connection
        self._loop = server.loop
        self._hostname = server.hostname
        self._limits = server.config.limits
        self._pace = Pace(self._limits, self._loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._over_at = 0.0  # when the client must have read the last reply, by the loop's clock
        self._discarded = 0  # octets that came after it

    def refuse(self, reply: str) -> None:
        """Hang up on a client that is over a limit.

        It waits a second for that, because most clients connect again at once.
        """
        if self._connection.begin_refusal():
            self._connection.suspend(self._refuse(reply))

    async def _refuse(self, reply: str) -> None:
        await asyncio.sleep(_DELAY)
        self._end(reply, linger=True)

    def _end(self, reply: str, *, linger: bool) -> None:
        text = reply.format(self._hostname)
        log.info("session ended by a limit", **self._connection.log_values, reply=text)
        self._connection.reply(text)
        self.hang_up(linger=linger)

    def fail(self, error: Exception) -> None:
        """Hang up after an error of this program: part of a message may have got lost by it."""
        log.error("error in a session", **self._connection.log_values, exc_info=error)
        self._connection.reply(replies.INTERNAL)
        self.hang_up()

    def stop_if_idle(self) -> None:
        """Hang up if no transaction is cut off by it: the process stops."""
        connection = self._connection
        if connection.phase is Phase.OPENING:
            self.hang_up()
        elif connection.phase not in (Phase.REFUSED, Phase.CLOSING) and (
            connection.transport and not connection.session.reception.in_content
        ):
            connection.reply(replies.SHUTTING_DOWN.format(self._hostname))
            self.hang_up(linger=connection.unread)

    def hang_up(self, *, linger: bool = True) -> None:
        """Send the replies and close the socket.

        The kernel resets a socket that is closed while octets are unread, and the client may lose
        the last reply. So only our side is closed, and reading goes on until the client closes too.
        `linger` says that there may be such octets. TLS reads on by itself until the client has
        confirmed the end. While TLS begins, nothing can be said.
        """
        connection = self._connection
        transport = connection.transport
        if connection.phase is Phase.OPENING and transport:
            transport.abort()
            return
        if not connection.begin_closing() or not transport:
            return
        self._over_at = self._loop.time() + min(self._limits.timeout, _CLOSE)
        self._look_in(_LINGER)
        if linger and connection.reading is not Reading.ENDED and transport.can_write_eof():
            transport.write_eof()
            connection.read_on()
        else:
            transport.close()

    def discard(self, octets: int) -> None:
        """Throw away what comes after the last reply, so slowly that it costs little."""
        connection = self._connection
        transport = connection.transport
        if connection.phase is not Phase.CLOSING or not transport:
            return
        self._discarded += octets
        if self._discarded > _DISCARD:
            transport.abort()
        elif octets > _MUCH:
            connection.pause_reading()
            self._loop.call_later(_PAUSE, connection.read_on)

    def cancel(self) -> None:
        """Stop the timer: the connection is gone."""
        if self._timer:
            self._timer.cancel()

    def watch(self) -> None:
        """Begin to look how long the client is silent, and how slow it is."""
        limits = self._limits
        self._look_in(min(limits.timeout, limits.hello_time, self._pace.interval))

    def expect_hello(self) -> None:
        """Limit the time to the next EHLO anew: TLS or another client has begun."""
        self._pace = Pace(self._limits, self._loop.time())

    def _look_in(self, seconds: float) -> None:
        self.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        connection, now = self._connection, self._loop.time()
        transport, reception = connection.transport, connection.session.reception
        if not transport:
            return
        content_left = reception.began + self._limits.data_time - now
        left = min(connection.last_input + self._limits.timeout - now, content_left)
        waiting = connection.takes_input and connection.share.waits_for_client
        size = reception.incoming.size if reception.incoming else None
        slow = self._pace.judge_client(connection.session.commands, size, now, waiting=waiting)
        if connection.phase is Phase.CLOSING:
            left = self._over_at - now
            if left <= 0 or not transport.get_write_buffer_size():
                transport.abort()  # it does not read: close would wait for it for ever
                return
        elif not connection.takes_input:
            left = self._limits.timeout  # smtpd is slow, not the client; a commit has its own limit
        elif left <= 0 or slow:
            if connection.blocked:
                transport.abort()
            else:
                reply = replies.DATA_TIMEOUT if content_left <= 0 else slow or replies.TIMEOUT
                self._end(reply, linger=reception.in_content)
            return
        hello = self._pace.hello_deadline - now
        left = min(left, hello if hello > 0 else left, self._pace.interval)
        self._look_in(max(0.0, left))


class Pace:
    """Judges a client by looks at its session, so that no command and no octet costs anything.

    A limit is noticed at the next look, at most `interval` seconds late.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._window = min(_WINDOW, limits.timeout)
        self.interval = min(limits.transaction_time, limits.data_time, self._window) / _LOOKS
        """Seconds between two looks."""
        self.hello_deadline = now + limits.hello_time
        """When the client must have said EHLO, by the clock of the looks."""
        self._transaction: object | None = None  # the last one seen, and when at first
        self._began = now
        self._content: tuple[float, int] | None = None  # when the window began, and its octets

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
        elif transaction and now >= self._began + self._limits.transaction_time:
            return replies.TRANSACTION_TIMEOUT
        if size is None or not self._content or not waiting:
            self._content = None if size is None else (now, size)
            return ""
        since, before = self._content
        if now >= since + self._window:
            if size - before < self._limits.data_rate * (now - since):
                return replies.DATA_TOO_SLOW
            self._content = (now, size)
        return ""
