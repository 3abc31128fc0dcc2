"""The end of a connection: silence, limits, the last reply and the closing of the socket."""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import AbstractEventLoop
from collections.abc import Coroutine
from enum import Enum, auto
from typing import Any, Protocol

from pgmta.logs import get
from smtpd.config import SmtpdConfig
from smtpd.fairness.pace import Pace, Paced
from smtpd.fairness.share import Share
from smtpd.protocol import replies

log = get("smtpd")

_DELAY = 1.0  # seconds until smtpd hangs up on a client that is over a limit
_LINGER = 5.0  # seconds that a client has to read the last reply and to close
_CLOSE = 30.0  # seconds that replies have to go out, at most
_MUCH = 1 << 16  # octets of a read after the last reply, after which there is a pause
_PAUSE = 0.05  # seconds of it
_DISCARD = 4 << 20  # octets that are read meanwhile and thrown away, at most


class Phase(Enum):
    """How far a connection has come."""

    OPENING = auto()  # a PROXY header or a TLS handshake is waited for
    OPEN = auto()  # commands and content are taken
    REFUSED = auto()  # the client is over a limit; the last reply follows after a pause
    CLOSING = auto()  # our side is closed; the client's last octets are thrown away


class Reading(Enum):
    """Whether octets come from the client."""

    ON = auto()
    PAUSED = auto()  # smtpd does not read
    ENDED = auto()  # the client has closed its side


class Ending(Paced, Protocol):
    """A session, as far as its end is concerned."""

    @property
    def in_content(self) -> bool:
        """Whether a message is under way."""

    def abandon(self) -> None:
        """Forget the transaction under way."""


class Closable(Protocol):
    """A connection, as far as its end is concerned."""

    transport: asyncio.Transport | None
    client: str
    session_id: str
    listener: str
    blocked: bool
    busy: bool
    reading: Reading

    @property
    def session(self) -> Ending:
        """Return the session of the connection."""

    @property
    def share(self) -> Share:
        """Its part of the process's time and memory."""

    @property
    def unread(self) -> bool:
        """Whether there is input that has not been worked through."""

    def reply(self, reply: str) -> None:
        """Add a reply."""

    def flush(self) -> None:
        """Send the replies."""

    def forget(self) -> None:
        """Throw away what has been read."""

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""

    def pause_reading(self) -> None:
        """Read no more from the client."""

    def read_on(self) -> None:
        """Read from the client again."""


class Closing:
    """Watches one connection with one timer, and brings it to its end."""

    def __init__(self, connection: Closable, config: SmtpdConfig, loop: AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._hostname = config.environment.hostname
        self._limits = config.limits
        self._pace = Pace(config.limits, loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._discarded = 0  # octets that came after the last reply
        self.phase = Phase.OPEN
        self.timeout = config.limits.timeout
        """Seconds that a client may be silent."""
        self.deadline = loop.time() + self.timeout
        """When the client's next command or data has to be here, by the loop's clock."""
        self.data_deadline = math.inf
        """When the content under way has to be complete."""

    def watch(self) -> None:
        """Begin to look how long the client is silent, and how slow it is."""
        self._look_again(min(self.deadline, self._pace.hello_deadline) - self._loop.time())

    def expect_hello(self) -> None:
        """Limit the time to the next EHLO anew: TLS has begun."""
        self._pace = Pace(self._limits, self._loop.time())

    def content_begins(self) -> None:
        """Limit the time for the whole content."""
        self.data_deadline = self._loop.time() + self._limits.data_time

    def content_ends(self) -> None:
        """Forget that limit: the content is not under way any more."""
        self.data_deadline = math.inf

    def refuse(self, reply: str) -> None:
        """Hang up on a client that is over a limit.

        It waits a second for that, because most clients connect again at once.
        """
        if self.phase is not Phase.OPEN:
            return
        connection = self._connection
        connection.pause_reading()
        self.phase = Phase.REFUSED
        connection.session.abandon()
        connection.forget()
        connection.flush()
        connection.suspend(self._refuse(reply))

    async def _refuse(self, reply: str) -> None:
        await asyncio.sleep(_DELAY)
        self._end(reply, linger=True)

    def _end(self, reply: str, *, linger: bool) -> None:
        text = reply.format(self._hostname)
        self._log(logging.INFO, "session ended by a limit", reply=text)
        self._connection.reply(text)
        self.hang_up(linger=linger)

    def _log(self, level: int, event: str, **values: Any) -> None:
        connection = self._connection
        log.log(level, event, client=connection.client, listener=connection.listener,
                session=connection.session_id, **values)  # fmt: skip

    def fail(self, error: Exception) -> None:
        """Hang up after an error of this program: part of a message may have got lost by it."""
        self._log(logging.ERROR, "error in a session", exc_info=error)
        self._connection.reply(replies.INTERNAL)
        self.hang_up()

    def stop(self) -> None:
        """Hang up if no transaction is cut off by it: the process stops."""
        connection = self._connection
        if self.phase is Phase.OPENING:
            self.hang_up()
        elif (
            not connection.session.in_content and connection.transport and self.phase is Phase.OPEN
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
        if self.phase is Phase.OPENING and connection.transport:
            connection.transport.abort()
            return
        connection.flush()
        connection.forget()
        if not connection.transport or self.phase is Phase.CLOSING:
            return
        self.phase = Phase.CLOSING
        self.data_deadline = math.inf
        connection.session.abandon()
        connection.share.account()
        self.deadline = self._loop.time() + min(self.timeout, _CLOSE)
        self._rearm(_LINGER)
        transport = connection.transport
        if linger and connection.reading is not Reading.ENDED and transport.can_write_eof():
            transport.write_eof()
            connection.read_on()
        else:
            transport.close()

    def discard(self, octets: int) -> None:
        """Throw away what comes after the last reply, so slowly that it costs little."""
        if self.phase is not Phase.CLOSING:
            return
        self._discarded += octets
        transport = self._connection.transport
        if not transport:
            return
        if self._discarded > _DISCARD:
            transport.abort()
        elif octets > _MUCH:
            self._connection.pause_reading()
            self._loop.call_later(_PAUSE, self._connection.read_on)

    def cancel(self) -> None:
        """Stop the timer: the connection is gone."""
        if self._timer:
            self._timer.cancel()

    def _rearm(self, seconds: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        """Look how long the client has been silent."""
        connection = self._connection
        if not connection.transport:
            return
        now = self._loop.time()
        left = min(self.deadline, self.data_deadline) - now
        waiting = not connection.busy and connection.share.waits_for_client
        slow = self._pace.look(connection.session, now, waiting=waiting)
        if self.phase is Phase.CLOSING:
            if left <= 0 or not connection.transport.get_write_buffer_size():
                connection.transport.abort()  # it does not read: close would wait for it for ever
                return
        elif connection.busy:
            left = self.timeout  # smtpd is slow, not the client; a commit has its own limit
        elif left <= 0 or slow:
            if connection.blocked:
                connection.transport.abort()
            else:
                late = now >= self.data_deadline
                reply = replies.DATA_TIMEOUT if late else slow or replies.TIMEOUT
                self._end(reply, linger=connection.session.in_content)
            return
        hello = self._pace.hello_deadline - now
        self._look_again(min(left, hello) if hello > 0 else left)

    def _look_again(self, seconds: float) -> None:
        """Look after these seconds, or earlier if the pace asks for it."""
        self._rearm(max(0.0, min(seconds, self._pace.interval)))
