"""The backlog of one destination: envelopes, and the idle connections that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.transport import Channel


class Backlog:
    """Urgent envelopes come first, and may use all connections; the others may not.

    The destination puts new envelopes into it. `hand_back` takes an envelope that an idle
    connection got in vain.
    """

    def __init__(self, hand_back: Callable[[Envelope], None]) -> None:
        self.most_ordinary = 1
        """The number of connections that other mail may use."""
        self._hand_back = hand_back
        self.load = 0
        """Rows that wait or are under way."""
        self.urgent_load = 0
        """Rows in urgent envelopes; `load` counts them too."""
        self.ordinary = 0
        """Connections that carry envelopes which are not urgent."""
        self.envelopes: set[Envelope] = set()
        """Envelopes that wait or are under way."""
        self.carried: dict[Envelope, Channel] = {}
        """Those under way, and the connections whose tasks will finish them."""
        self.urgent: deque[Envelope] = deque()
        self.waiting: deque[Envelope] = deque()
        """Envelopes that wait and are not urgent."""
        self.idle: deque[tuple[Channel, asyncio.Future[Envelope | None]]] = deque()
        """Idle connections; the one used last comes first: the others may time out."""

    def feed_idle(self) -> None:
        """Give waiting envelopes to idle connections."""
        while self.idle:
            channel, given = self.idle[-1]
            if channel.closed or given.done():
                _give_none(given)
            elif envelope := self.take_next(channel):
                given.set_result(envelope)
            else:
                return
            self.idle.pop()

    async def await_next(self, channel: Channel, seconds: float) -> Envelope | None:
        """Wait for an envelope; return None after `seconds`, or when `end_idle` is called."""
        loop = asyncio.get_running_loop()
        given: asyncio.Future[Envelope | None] = loop.create_future()
        waiting = (channel, given)
        self.idle.append(waiting)
        timer = loop.call_later(seconds, _give_none, given)
        try:
            return await given
        except asyncio.CancelledError:
            if not given.cancelled() and (envelope := given.result()):  # given a moment ago
                self._hand_back(envelope)
            raise
        finally:
            timer.cancel()
            if waiting in self.idle:
                self.idle.remove(waiting)

    def end_idle(self) -> None:
        """Let all idle connections go."""
        for _, given in self.idle:
            _give_none(given)

    def take_next(self, channel: Channel) -> Envelope | None:
        """Return the next envelope for a free connection, and count that connection."""
        envelope = None
        if self.urgent:
            envelope = self.urgent.popleft()
        elif self.waiting and self.ordinary < self.most_ordinary:
            self.ordinary += 1
            envelope = self.waiting.popleft()
        if envelope:
            self.carried[envelope] = channel
        return envelope

    @property
    def earlier(self) -> int:
        """The number of earlier attempts of the mail that a new connection gets first."""
        following = self.urgent or self.waiting
        return following[0].earlier if following else 0

    def startable(self) -> int:
        """Return how many waiting envelopes could begin if they had a connection."""
        ordinary = max(0, self.most_ordinary - self.ordinary)
        return len(self.urgent) + min(len(self.waiting), ordinary)

    def put_back(self, envelope: Envelope) -> None:
        """Take an envelope back that a connection did not carry; it is the next one."""
        self.carried.pop(envelope, None)
        if not envelope.urgent:
            self.ordinary -= 1
        self._put_first(envelope)

    def _put_first(self, envelope: Envelope) -> None:
        (self.urgent if envelope.urgent else self.waiting).appendleft(envelope)

    def split(self, envelope: Envelope, later: list[int], *, wait: bool) -> Envelope:
        """Move the items with these places into a new envelope and return it.

        If `wait`, it is the next one that a connection gets. Else the caller has it under way.
        """
        rest = envelope.split(later)
        self.envelopes.add(rest)
        if wait:
            self._put_first(rest)
            return rest
        if channel := self.carried.get(envelope):
            self.carried[rest] = channel
        if not rest.urgent:
            self.ordinary += 1
        return rest

    def give_up(self) -> list[Envelope]:
        """Remove and return the envelopes that wait, and count their rows no more."""
        waiting = self.clear()
        self.envelopes.difference_update(waiting)
        for envelope in waiting:
            self.load -= len(envelope.items)
            self.urgent_load -= len(envelope.items) if envelope.urgent else 0
        return waiting

    def cut(self, rows: int) -> list[Envelope]:
        """Take rows from the end of the envelopes that wait, and return them in envelopes."""
        taken: list[Envelope] = []
        while self.waiting and rows > 0:
            envelope = self.waiting[-1]
            if len(envelope.items) <= rows:
                taken.append(self.waiting.pop())
            else:
                part = envelope.split([*range(len(envelope.items) - rows, len(envelope.items))])
                envelope.content_octets, part.content_octets = part.content_octets, 0
                self.envelopes.add(part)
                taken.append(part)
            rows -= len(taken[-1].items)
        return taken

    def clear(self) -> list[Envelope]:
        """Remove and return the envelopes that wait; their rows count until they are finished."""
        waiting = [*self.urgent, *self.waiting]
        self.urgent.clear()
        self.waiting.clear()
        return waiting


def _give_none(given: asyncio.Future[Envelope | None]) -> None:
    if not given.done():
        given.set_result(None)
