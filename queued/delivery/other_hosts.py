"""Further hosts of a destination, for mail that its first host does not take for now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from pgmta.errors import DeliveryError, NoHostLeft
from pgmta.logs import get
from pgmta.model import Reply
from queued.config import Delivery
from queued.delivery.backlog import Backlog
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.gate import Gate
from queued.delivery.transport.result import CUT_OFF, Again, Result, stored
from queued.delivery.transport.transport import Channel, Transport, failed

_MAX_NOTE_CHARACTERS = 400  # about what earlier hosts said

log = get("delivery")


type Finish = Callable[[Envelope, list[Result]], None]
"""Reports the results of an envelope that was under way."""


class _HostAttempt:
    """The recipients of an envelope for which further hosts are tried.

    `last` has the last result of each, `said` what the hosts before said.
    """

    def __init__(
        self, backlog: Backlog, finish: Finish, envelope: Envelope, results: list[Result]
    ) -> None:
        self._backlog = backlog
        self._finish = finish
        self.envelope = envelope
        self.last = list(results)
        self.said: list[list[str]] = [[] for _ in results]
        self.tried: frozenset[str] = frozenset()

    @property
    def may_go(self) -> bool:
        """Whether there are recipients left, and time for them."""
        return bool(self.last) and not self.envelope.late

    def settle(self, left: list[int]) -> None:
        """Finish the recipients but those at these places."""
        if len(left) < len(self.last):
            envelope = self.envelope
            if left:
                self.envelope = self._backlog.split(envelope, left, wait=False)
            kept = set(left)
            pairs = zip(self.last, self.said, strict=True)
            results = [_after(*pair) for n, pair in enumerate(pairs) if n not in kept]
            self.last = [self.last[n] for n in left]
            self.said = [self.said[n] for n in left]
            self._finish(envelope, results)

    def note(self, text: str = "") -> None:
        """Keep the last replies, which the next ones replace, or else this text."""
        for result, said in zip(self.last, self.said, strict=True):
            said.append(text or f"{result.host} {result.reply}")


class OtherHosts:
    """Sends to further hosts, one after the other, over channels that it keeps for a while.

    `backlog` and `finish` are those of the destination, which knows all envelopes.
    """

    def __init__(
        self,
        destination: Destination,
        transport: Transport,
        delivery: Delivery,
        backlog: Backlog,
        finish: Finish,
        gate: Gate,
    ) -> None:
        self._gate = gate
        self.delivery = delivery
        self.ending = False
        """Whether nothing new may begin."""
        self._destination = destination
        self._transport = transport
        self._backlog = backlog
        self._finish = finish
        self._idle: dict[Channel, asyncio.TimerHandle] = {}

    async def try_all(
        self, first: Channel, envelope: Envelope, results: list[Result], elsewhere: list[int]
    ) -> None:
        """Send to the recipients at these places what `first` did not take, and finish all.

        A result that may pass counts only after the last host (RFC 5321, section 5.1). The results
        of the other recipients count at once.
        """
        attempt = _HostAttempt(self._backlog, self._finish, envelope, results)
        attempt.tried = frozenset((first.name,))
        try:
            attempt.settle(elsewhere)
            while attempt.may_go and not self.ending and len(attempt.tried) < self.delivery.hosts:
                channel = await self._open(attempt)
                if channel is None or not await self._send(channel, attempt):
                    break
        finally:
            attempt.settle([])

    async def _open(self, attempt: _HostAttempt) -> Channel | None:
        """Return a channel to a host that was not tried; None if there is none."""
        for channel, timer in list(self._idle.items()):
            if channel.closed or self._gate.find_host(self._destination, channel.name):
                self._end(channel)
            elif channel.name not in attempt.tried:
                timer.cancel()
                del self._idle[channel]
                return channel
        try:
            earlier = attempt.envelope.earlier
            return await self._transport.open(self._destination, attempt.tried, earlier)
        except NoHostLeft:
            return None
        except DeliveryError as error:
            attempt.note(error.line)
        except Exception as error:
            log.error("can't connect", destination=str(self._destination), exc_info=error)
        return None

    async def _send(self, channel: Channel, attempt: _HostAttempt) -> bool:
        """Send to all that are left, in as many transactions as the host needs.

        Returns False if the host gets no mail by now: no host after it is tried.
        """
        envelope = attempt.envelope
        kept = channel.transactions > 0
        waiting = list(range(len(envelope.items)))
        elsewhere: list[int] = []
        indices: list[int] = []
        noted, bare = False, envelope.bare
        try:
            while waiting and not (channel.closed or envelope.late):
                if self._gate.find_host(self._destination, channel.name):
                    attempt.settle(sorted(elsewhere + waiting))
                    return False
                most = channel.most_recipients
                indices, waiting = waiting[:most], waiting[most:]
                items = [envelope.items[index] for index in indices]
                part = replace(envelope, items=items, bare=bare)
                try:
                    results = await channel.send(part)
                except Exception as error:
                    results = failed(error, channel, part)
                if kept and channel.vain:
                    return True  # an idle channel was closed, so this host is not tried yet
                kept = False
                if not noted:
                    attempt.note()
                    noted = True
                later: list[int] = []
                for index, result in zip(indices, results, strict=True):
                    if result.again in (Again.NEXT, Again.BARE):
                        bare = bare or result.again is Again.BARE
                        later.append(index)
                        continue
                    attempt.last[index] = result
                    if result.again is Again.ELSEWHERE:
                        elsewhere.append(index)
                waiting[:0] = later
                indices = []
        except BaseException:
            if channel.in_doubt:
                for index in indices:
                    attempt.last[index] = CUT_OFF
            channel.abort()
            raise
        finally:
            self._keep(channel)
        attempt.tried |= {channel.name}
        attempt.settle(sorted(elsewhere + waiting))
        return True

    def _keep(self, channel: Channel) -> None:
        """Keep the channel for the next envelope, for `delivery.idle` seconds."""
        if self.ending or channel.closed or channel.spent:
            self._end(channel)
        else:
            loop = asyncio.get_running_loop()
            self._idle[channel] = loop.call_later(self.delivery.idle, self._end, channel)

    def _end(self, channel: Channel) -> None:
        if timer := self._idle.pop(channel, None):
            timer.cancel()
        channel.close()

    def end(self) -> None:
        """Begin nothing new."""
        self.ending = True
        self.end_idle()

    def end_idle(self) -> None:
        """End the channels that are idle."""
        for channel in list(self._idle):
            self._end(channel)


def _after(result: Result, said: list[str]) -> Result:
    """Return the result with what other hosts said to the recipient."""
    if not said:
        return result
    note = "; ".join(said)
    if len(note) > _MAX_NOTE_CHARACTERS:
        note = note[: _MAX_NOTE_CHARACTERS - 3] + "..."
    note = f" (other hosts: {note})"
    note = note.encode("ascii", "replace").decode()  # `stored` counts its characters as octets
    return replace(result, reply=Reply(result.reply.code, stored(result.reply.text, note)))
