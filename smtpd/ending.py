"""How a session ends: what stops it, its last reply, and the closing of the connection."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

from pgmta.logs import get
from smtpd import replies
from smtpd.adapter import Adapter
from smtpd.front import Front

log = get("smtpd")

_DELAY = 1.0  # seconds until we hang up on a client that is over a limit
_LINGER = 5.0  # seconds that a client has to read our last reply and to close
_CLOSE = 30.0  # seconds that what we said has to go out, at most
_MUCH = 1 << 16  # octets of a read after our last reply, after which there is a pause
_REST = 0.05  # seconds of it
_DISCARD = 4 << 20  # octets that are read meanwhile and thrown away, at most


class Ending(Adapter):
    """A connection, as far as timeouts, limits and its end go."""

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(front, loop)
        self._limits = front.config.limits
        self._busy = False  # a command waits for something; the next ones wait for it
        self._blocked = False  # the client does not read its replies
        self._paused = False  # we do not read from the client
        self._ended = False  # the client has closed its side
        self._refused = False  # the client is over a limit: we shall close
        self._closing = False  # we have closed our side
        self._discarded = 0  # octets that came since
        self._replies: list[str]
        self._deadline = 0.0  # of the client's next command or data
        self._data_deadline = math.inf  # of the end of its content
        self.client = ""

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""
        raise NotImplementedError

    def _account(self) -> None:
        """Tell the process how much memory the session takes."""
        raise NotImplementedError

    def _read_on(self) -> None:
        if self.transport and self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def _pause(self) -> None:
        if self.transport and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def _flush(self) -> None:
        if self._replies and self.transport and not self._closing:
            self._replies.append("")
            self.transport.write("\r\n".join(self._replies).encode())
        self._replies.clear()

    def refuse(self, reply: str) -> None:
        """Hang up on a client that is over a limit.

        It waits for that: most who are hung up on come again at once.
        """
        if self._closing or self._refused:
            return
        self._refused = True
        self.abandon()
        self._pause()
        self._input, self._at = b"", 0
        self._flush()
        self.aside(self._refuse(reply))

    async def _refuse(self, reply: str) -> None:
        await asyncio.sleep(_DELAY)
        self._end(reply, linger=True)

    def _end(self, reply: str, *, linger: bool) -> None:
        text = reply.format(self.hostname)
        log.info("session ended by a limit", client=self.client, reply=text)
        self._replies.append(text)
        self.hang_up(linger=linger)

    def hang_up(self, *, linger: bool = True) -> None:
        """Send what was said and close.

        The kernel resets a socket that is closed while octets are unread, and the client may lose
        our last reply. So we close only our side, and read on until the client closes too. `linger`
        says that there may be such octets.
        """
        self._flush()
        self._input, self._at = b"", 0
        if not self.transport or self._closing:
            return
        self._closing = True
        self._data_deadline = math.inf
        self.abandon()
        self._account()
        self._deadline = self.loop.time() + min(self._timeout_duration, _CLOSE)
        self._rearm(_LINGER)
        if not linger or self._ended:
            self.transport.close()
            return
        self.transport.write_eof()
        self._read_on()

    def _discard(self, octets: int) -> None:
        """Throw away what comes after our last reply, so slowly that it costs little."""
        self._discarded += octets
        if not self.transport:
            return
        if self._discarded > _DISCARD:
            self.transport.abort()
        elif octets > _MUCH:
            self._pause()
            self.loop.call_later(_REST, self._read_on)

    def _fail(self, error: Exception) -> None:
        """Hang up after what should not happen: part of a message may have got lost by it."""
        log.error("error in a session", client=self.client, exc_info=error)
        self.say(replies.INTERNAL)
        self.hang_up()

    def _touch(self) -> None:
        if not self._closing:
            self._deadline = self.loop.time() + self._timeout_duration

    def _rearm(self, seconds: float) -> None:
        if self._timeout_handle:
            self._timeout_handle.cancel()
        self._timeout_handle = self.loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        """One timer for the whole connection: it looks how long the client has been silent."""
        if not self.transport:
            return
        now = self.loop.time()
        left = min(self._deadline, self._data_deadline) - now
        if self._closing:
            if left <= 0 or not self.transport.get_write_buffer_size():
                self.transport.abort()  # it does not read: close would wait for it for ever
                return
        elif self._busy:
            left = self._timeout_duration  # it is we who are slow; a commit has its own limit
        elif left <= 0:
            if self._blocked:
                self.transport.abort()
            else:
                late = now >= self._data_deadline
                self._end(replies.DATA_TIMEOUT if late else replies.TIMEOUT, linger=late)
            return
        self._rearm(min(left, self._limits.data_time))
