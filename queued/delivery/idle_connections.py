"""The connections of a destination that wait for mail."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from queued.delivery.backlog import Backlog
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.transport import Channel


class IdleConnections:
    """Gives envelopes of the backlog to connections that wait; `hand_back` takes one given in vain.

    The connection used last comes first: the others may time out.
    """

    def __init__(self, backlog: Backlog, hand_back: Callable[[Envelope], None]) -> None:
        self._backlog = backlog
        self._hand_back = hand_back
        self.places: deque[tuple[Channel, asyncio.Future[Envelope | None]]] = deque()

    def feed(self) -> None:
        """Give waiting envelopes to idle connections."""
        while self.places:
            channel, idle = self.places[-1]
            if not channel.closed and not idle.done():
                envelope = self._backlog.take()
                if envelope is None:
                    return
                idle.set_result(envelope)
            else:
                _end(idle)
            self.places.pop()

    async def next(self, channel: Channel, seconds: float) -> Envelope | None:
        """Wait for an envelope; return None after `seconds`, or when `end` is called."""
        loop = asyncio.get_running_loop()
        idle: asyncio.Future[Envelope | None] = loop.create_future()
        place = (channel, idle)
        self.places.append(place)
        timer = loop.call_later(seconds, _end, idle)
        try:
            return await idle
        except asyncio.CancelledError:
            if not idle.cancelled() and (envelope := idle.result()):  # given a moment ago
                self._hand_back(envelope)
            raise
        finally:
            timer.cancel()
            if place in self.places:
                self.places.remove(place)

    def end(self) -> None:
        """Let all idle connections go."""
        for _, idle in self.places:
            _end(idle)


def _end(idle: asyncio.Future[Envelope | None]) -> None:
    if not idle.done():
        idle.set_result(None)
