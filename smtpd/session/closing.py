"""The end of a socket, from the last reply on."""

from __future__ import annotations

import asyncio

LINGER_S = 5.0  # for a client to read the last reply and to close
MAX_CLOSE_S = 30.0  # for the last replies to go out
LARGE_READ_OCTETS = 1 << 16  # such a read is followed by a pause
PAUSE_S = 0.05  # after a large read
MAX_DISCARDED_OCTETS = 4 << 20  # read after the last reply; then the connection is cut


class Closing:
    """Throws away what a client still sends, and gives it some seconds to read and to close."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._over_at = 0.0  # when the client must have read the last reply, by the loop's clock
        self._discarded = 0  # octets so far

    def begin(self, seconds: float) -> None:
        """Give the client some seconds, and at most these as long as replies wait for it."""
        self._over_at = self._loop.time() + min(seconds, MAX_CLOSE_S)
        self._timer = self._loop.call_later(LINGER_S, self._look)

    def _look(self) -> None:
        left = self._over_at - self._loop.time()
        if left <= 0 or not self._transport.get_write_buffer_size():
            # not close(), which would wait for ever for a client that does not read
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(left, self._look)

    def discard(self, octets: int) -> None:
        """Throw away what comes after the last reply, so slowly that it costs little."""
        self._discarded += octets
        if self._discarded > MAX_DISCARDED_OCTETS:
            self._transport.abort()
        elif octets > LARGE_READ_OCTETS:
            self._transport.pause_reading()
            self._loop.call_later(PAUSE_S, self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def cancel(self) -> None:
        """Stop the timer: the connection is gone."""
        if self._timer:
            self._timer.cancel()
