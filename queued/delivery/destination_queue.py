"""All mail of one destination, and the connections that carry it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakSet

from pgmta.errors import DeliveryError
from pgmta.logs import get
from pgmta.model import Item, ReasonToWait
from pgmta.states import Event
from queued.config import Delivery
from queued.delivery.backlog import Backlog
from queued.delivery.connection_pacing import ConnectionPacing
from queued.delivery.other_hosts import OtherHosts
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.gate import Gate, HostClosed
from queued.delivery.transport.open_connections import OF_DESTINATION, Connections
from queued.delivery.transport.result import (
    CUT_OFF,
    DEADLINE_OVER,
    NOT_BEGUN,
    Again,
    Reporter,
    Result,
    gate_result,
    internal,
)
from queued.delivery.transport.transport import Channel, Transport, failed

log = get("delivery")


@dataclass(frozen=True, slots=True)
class QueueState:
    """The connections and rows of a destination of one worker.

    It may have `limit` connections now, and `most` ever; `reserved` of these are for urgent mail.
    After a refused connection no other one begins for `pause` seconds. `opening` connections are
    not open yet. `waiting` and `under_way` count rows.
    """

    limit: int
    most: int
    reserved: int
    pause: float
    open: int
    opening: int
    waiting: int
    under_way: int


class DestinationQueue:
    """Deliveries to one destination, over at most `delivery.connections` connections.

    Urgent mail goes first, and may use all connections. Other mail leaves `reserved` of them
    free, so that urgent mail begins even while all other mail hangs.

    Each connection has a task, which opens the connection first and takes envelopes for it
    afterwards. A connection that can't be opened thus concerns no envelope, as long as the
    queue has other connections. Mail that one host refuses for now goes to the others.
    """

    def __init__(
        self,
        destination: Destination,
        transport: Transport,
        reporter: Reporter,
        delivery: Delivery,
        reserved: int = 0,
        gate: Gate | None = None,
    ) -> None:
        self.destination = destination
        self._gate = gate or Gate()
        self._transport = transport
        self.backlog = Backlog(self._hand_back)
        self._reporter = reporter
        self._tasks: set[asyncio.Task[None]] = set()  # one for each connection
        self._connecting: set[asyncio.Task[None]] = set()
        self._open: set[Channel] = set()
        self.connections: Connections = WeakSet()
        """The connections, from their connect to their end, and some that have ended."""
        self._pacing = ConnectionPacing(self.grow, delivery.start)
        self._others = OtherHosts(
            destination, transport, delivery, self.backlog, self._finish, self._gate
        )
        self._draining = False
        self.configure(delivery, reserved)

    def configure(self, delivery: Delivery, reserved: int) -> None:
        """Use other limits from now on."""
        self._delivery = self._others.delivery = delivery
        self._reserved = reserved
        self.backlog.most_ordinary = max(1, delivery.connections - reserved)

    @property
    def connected(self) -> bool:
        """Whether it has a connection."""
        return bool(self._open)

    @property
    def jammed(self) -> bool:
        """Whether more mail waits for a connection than there are connections."""
        return len(self.backlog.urgent) + len(self.backlog.waiting) > len(self._open)

    def state(self) -> QueueState:
        """Return what it has and may have, for operators."""
        backlog, most = self.backlog, self._delivery.connections
        waiting = sum(len(each.items) for each in (*backlog.urgent, *backlog.waiting))
        return QueueState(
            min(self._pacing.limit, most),
            most,
            self._reserved,
            self._pacing.pause_left,
            len(self._open),
            len(self._connecting),
            waiting,
            backlog.load - waiting,
        )

    @property
    def domains(self) -> set[str]:
        """The domains, or labels, of the rows that wait or are under way."""
        return {name for envelope in self.backlog.envelopes for name in envelope.domains}

    def rows(self) -> Iterable[Item]:
        """Return the rows that wait or are under way, as long as there is a connection for them."""
        if not self._tasks:
            return ()
        return [item for envelope in self.backlog.envelopes for item in envelope.items]

    def put_envelope(self, envelope: Envelope) -> None:
        """Deliver the envelope as soon as a connection is free for it."""
        backlog = self.backlog
        backlog.envelopes.add(envelope)
        backlog.load += len(envelope.items)
        if envelope.urgent:
            backlog.urgent_load += len(envelope.items)
            backlog.urgent.append(envelope)
        else:
            backlog.waiting.append(envelope)
        if backlog.idle:
            backlog.feed_idle()
        if backlog.urgent or backlog.waiting:
            self.grow()

    def grow(self) -> None:
        """Open as many connections as the waiting mail has use for."""
        # urgent mail begins even while all connections that the host has admitted hang
        most = self._pacing.limit + (self._reserved if self.backlog.urgent else 0)
        most = min(most, self._delivery.connections)
        while not self._draining and len(self._tasks) < most:
            under_way = self._pacing.at_once(len(self._tasks), len(self._open))
            if len(self._connecting) >= min(self.backlog.startable(), under_way):
                return
            task = asyncio.create_task(self._serve_connection())
            task.add_done_callback(self._ended)
            self._tasks.add(task)
            self._connecting.add(task)

    def release(self, keep: int) -> bool:
        """Hand back rows that wait, except `keep`; return False if a connection is open."""
        for envelope in [] if self._open else self.backlog.cut(self.backlog.load - keep):
            self._finish_all(envelope, NOT_BEGUN, carried=False)
        return not self._open

    def drain(self) -> list[Envelope]:
        """Begin nothing new; return the envelopes that had not begun."""
        self._draining = True
        self._others.end()
        self.backlog.end_idle()
        for task in self._connecting:
            task.cancel()
        return self.backlog.give_up()

    def abort(self) -> None:
        """Drop every connection; envelopes under way are reported as not begun or unknown."""
        for channel in list(self._open):
            channel.abort()
        for task in self._tasks:
            task.cancel()

    async def wait(self) -> None:
        """Wait until the last connection has closed."""
        while tasks := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Forget the task of a connection; others may start in its place."""
        self._tasks.discard(task)
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a connection task of {self.destination} died", "exception": error}
            )
        self.grow()
        if not self._tasks:
            self._pacing.end_pause()
            self._others.end_idle()
            self._reporter.closed(self.destination)

    async def _serve_connection(self) -> None:
        """Open a connection and carry envelopes over it; replace it while mail waits."""
        OF_DESTINATION.set(self.connections)
        replaced = False
        while not self._draining:
            channel = await self._open_channel()
            if channel is None:
                return
            if not replaced:
                self._pacing.succeeded()
            try:
                welcome = await self._carry(channel)
            finally:
                channel.close()
                self._open.discard(channel)
                self._drop_carried(channel)
            self.backlog.feed_idle()  # an idle connection may carry the mail that this one leaves
            if not welcome or self.backlog.startable() <= len(self._connecting):
                return
            # the host counts the connection until it is closed
            await channel.wait_closed()
            replaced = True

    async def _open_channel(self) -> Channel | None:
        """Return a new channel; None if none can be opened, and then its consequences are done."""
        task = asyncio.current_task()
        assert task  # noqa: S101 - for the type checker
        self._connecting.add(task)
        try:
            return await self._transport.open(self.destination, earlier=self.backlog.earlier)
        except DeliveryError as error:
            problem = error
        except Exception as error:
            log.error("can't connect", destination=str(self.destination), exc_info=error)
            problem = internal(error)
        finally:
            self._connecting.discard(task)
        self._refused(problem)
        return None

    def _refused(self, error: DeliveryError) -> None:
        """Leave the mail to other connections or, without any, to its next attempt.

        A host with a limit of connections refuses further ones, and is not down.
        """
        if self._connecting or not all(channel.closed for channel in self._open):
            self._pacing.refused(len(self._open))
            return
        batch = self.backlog.clear()
        result = Result.from_error(error, "")
        if isinstance(error, HostClosed):
            result = gate_result(error.reason)
        try:
            if batch and not (error.permanent or result.reason_to_wait):
                self._reporter.unreachable(self.destination, self.domains, result)
        finally:
            for each in batch:
                self._finish_all(each, result, carried=False)

    async def _carry(self, channel: Channel) -> bool:
        """Send envelopes over the connection, as long as there are any and it lasts.

        Returns False if the host did not want this connection beside the others.
        """
        backlog = self.backlog
        self._open.add(channel)
        # the idle channel takes mail before new connections are opened for it
        envelope = None if channel.closed else backlog.take_next(channel)
        kept = envelope is None
        self.grow()
        while not (channel.closed or channel.spent):
            envelope = envelope or backlog.take_next(channel)
            if envelope is None and not self._draining:
                envelope = await backlog.await_next(channel, self._delivery.idle)
            if envelope is None:
                break
            if envelope.deadline and envelope.late:
                self._finish_all(envelope, DEADLINE_OVER)
                envelope = None
                continue
            if self._gate.active and self._keep_back(channel, envelope):
                envelope = None
                continue
            begin = envelope.begin
            if begin and not begin.arrive():
                self._give_back(envelope)
                envelope = None
                continue
            if len(envelope.items) > channel.most_recipients:
                self._leave(envelope, [*range(channel.most_recipients, len(envelope.items))])
            late = False
            try:
                once = not begin and any(item.once for item in envelope.items)
                begun = not once or await envelope.guard.begin(envelope.items)
                # by an order that came while the beginning was noted
                if once and begun and self._gate.active:
                    late = bool(self._reasons_to_wait(channel, envelope))
                came = not (begin and begun) or await begin.come()
                results = await channel.send(envelope) if begun and came and not late else []
                if once and (late or channel.vain):
                    # the envelope waits again: if we die meanwhile, its outcome may not be unknown
                    await envelope.guard.withdraw(envelope.items)
            except Exception as error:
                results = failed(error, channel, envelope)
            except BaseException:
                self._finish_all(envelope, CUT_OFF if channel.in_doubt else NOT_BEGUN)
                raise
            if late:
                self._put_back(envelope)
                envelope = None
                continue
            if not results:
                (self._hand_back if came else self._give_back)(envelope)
                envelope = None
                continue
            if channel.vain and (kept or (channel.unwelcome and self._others_work(channel))):
                # no attempt was made, because the host closed before it had anything of the message
                self._put_back(envelope)
                if not kept:
                    self._pacing.refused(len(self._open) - 1)
                return kept
            if results[0].event is Event.DELIVERED and results.count(results[0]) == len(results):
                self._finish(envelope, results)
            else:
                await self._go_on(channel, envelope, results)
            kept, envelope = True, None
            if self._pacing.limit <= len(self._tasks):
                self._pacing.took_mail()
        return True

    def _others_work(self, channel: Channel) -> bool:
        """Return whether another connection has carried mail and is open."""
        others = (each for each in self._open if each is not channel)
        return any(each.transactions > 1 and not each.closed for each in others)

    async def _go_on(self, channel: Channel, envelope: Envelope, results: list[Result]) -> None:
        """Finish the recipients whose results count; the others are tried again at once."""
        later = [n for n, each in enumerate(results) if each.again in (Again.NEXT, Again.BARE)]
        if later:
            bare = any(result.again is Again.BARE for result in results)
            if len(later) == len(results):
                envelope.bare = bare
                self._put_back(envelope)
                return
            left = set(later)
            results = [result for n, result in enumerate(results) if n not in left]
            self._leave(envelope, later, bare=bare)
        elsewhere = [n for n, each in enumerate(results) if each.again is Again.ELSEWHERE]
        if elsewhere and not envelope.begin:  # another host would be another transaction
            await self._others.try_all(channel, envelope, results, elsewhere)
        else:
            self._finish(envelope, results)

    def _leave(self, envelope: Envelope, places: list[int], *, bare: bool = False) -> None:
        """Leave the recipients at these places to the next transaction, maybe without parameters.

        It begins in any case after this call.
        """
        rest = self.backlog.split(envelope, places, wait=not self._draining)
        rest.bare |= bare
        if self._draining:
            self._hand_back(rest)

    def _keep_back(self, channel: Channel, envelope: Envelope) -> bool:
        """Keep back the recipients that may not go by now; return whether none is left.

        A host that gets no mail, and is not the best one, keeps none back: another connection takes
        it.
        """
        items = envelope.items
        if not channel.best and self._gate.find_host(self.destination, channel.name):
            channel.close()
            self._put_back(envelope)
            return True
        reasons = self._reasons_to_wait(channel, envelope)
        if not reasons:
            return False
        whole = len(reasons) == len(items)
        rest = envelope if whole else self.backlog.split(envelope, [*reasons], wait=False)
        self._finish(rest, [gate_result(reason) for reason in reasons.values()])
        return whole

    def _reasons_to_wait(self, channel: Channel, envelope: Envelope) -> dict[int, ReasonToWait]:
        """Return the places of the recipients that may not go by now, each with the reason."""
        return self._gate.find_rows(envelope.items, self.destination, channel.name)

    def _hand_back(self, envelope: Envelope) -> None:
        self._finish_all(envelope, NOT_BEGUN)

    def _give_back(self, envelope: Envelope) -> None:
        """Let an envelope wait for its time, or for another one."""
        assert envelope.begin  # noqa: S101 - for the type checker
        self._finish(envelope, None)
        envelope.begin.give_back()

    def _put_back(self, envelope: Envelope) -> None:
        if self._draining:
            self._hand_back(envelope)
        elif envelope.begin and envelope.begin.used:
            self._give_back(envelope)
        else:
            self.backlog.put_back(envelope)
            self.backlog.feed_idle()

    def _drop_carried(self, channel: Channel) -> None:
        """Give up what an error has left with a connection that has ended."""
        for envelope in [each for each, by in self.backlog.carried.items() if by is channel]:
            self._finish(envelope, None)
            self._reporter.dropped(envelope)

    def _finish_all(self, envelope: Envelope, result: Result, *, carried: bool = True) -> None:
        """Report the same result for all recipients of an envelope, as `_finish` does."""
        self._finish(envelope, [result] * len(envelope.items), carried=carried)

    def _finish(
        self, envelope: Envelope, results: list[Result] | None, *, carried: bool = True
    ) -> None:
        """Report the results of an envelope, which a connection has carried or which has waited.

        Without results it is only counted no more.
        """
        backlog = self.backlog
        backlog.envelopes.discard(envelope)
        backlog.carried.pop(envelope, None)
        backlog.load -= len(envelope.items)
        if envelope.urgent:
            backlog.urgent_load -= len(envelope.items)
        elif carried:
            backlog.ordinary -= 1
        if results is None:
            return
        try:
            self._reporter.report(envelope, results)
        except Exception as error:
            log.error("result lost", message=envelope.items[0].message_id, exc_info=error)
