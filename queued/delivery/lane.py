"""All mail of one destination: what waits, and the connections that carry it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from pgmta.errors import DeliveryError
from pgmta.logs import get
from queued.delivery.connect import Means, connect
from queued.delivery.envelope import Envelope
from queued.delivery.reply import CUT_OFF, NOT_BEGUN, Result, internal
from queued.delivery.route import Destination
from queued.delivery.session import Session

_PAUSE = 5.0  # seconds without a further connection after a refused one: others end meanwhile
_LONGEST = 60.0  # seconds of a pause after many: by then a host's limit may have been lifted
_AT_ONCE = 4  # connections begun side by side, so that a host's limit refuses no more than these

log = get("delivery")


class Lane:
    """Deliveries to one destination, over at most `delivery.connections` connections.

    `report` gets the results of every envelope exactly once; `unreachable` is told when no host
    could be connected to, `closed` when the lane has neither mail nor connections left. Another
    kind of lane overrides `open_session`, and everything else stays as it is.

    Urgent mail goes first, and may use all connections; other mail leaves `means.reserved` of them
    free, so that urgent mail begins also while everything else hangs.

    A courier is a task that opens a connection, and then takes envelopes for it. A connection that
    can't be opened thus concerns no envelope, as long as the lane has others.
    """

    def __init__(
        self,
        destination: Destination,
        means: Means,
        report: Callable[[Envelope, list[Result]], None],
        unreachable: Callable[[Lane, Result], None],
        closed: Callable[[Lane], None],
    ) -> None:
        self.destination = destination
        self.means = means
        self._report = report
        self._on_unreachable = unreachable
        self._on_closed = closed
        self._urgent: deque[Envelope] = deque()
        self._waiting: deque[Envelope] = deque()  # what is not urgent
        self._ordinary = 0  # connections that carry such mail
        self._idle: deque[tuple[Session, asyncio.Future[Envelope | None]]] = deque()
        self._couriers: set[asyncio.Task[None]] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sessions: set[Session] = set()
        self._open: set[Session] = set()  # greeted
        self._pause = 0.0  # seconds that the last pause took; 0 if a connection succeeded since
        self._paused: asyncio.TimerHandle | None = None
        self.load = 0  # rows waiting or under way
        self.urgent = 0  # of them, those in urgent envelopes
        self.domains: Counter[str] = Counter()  # the same by recipient domain
        self._draining = False

    def put(self, envelope: Envelope) -> None:
        """Deliver the envelope as soon as a connection is free for it."""
        self._count(envelope, 1)
        self._line(envelope).append(envelope)
        self._feed()
        self._hire()

    def _line(self, envelope: Envelope) -> deque[Envelope]:
        return self._urgent if envelope.urgent else self._waiting

    def _take(self) -> Envelope | None:
        """What a free connection carries next; `_done` has to follow."""
        if self._urgent:
            return self._urgent.popleft()
        if self._waiting and self._ordinary < self._most:
            self._ordinary += 1
            return self._waiting.popleft()
        return None

    def _done(self, envelope: Envelope) -> None:
        """A connection carries the envelope no longer."""
        if not envelope.urgent:
            self._ordinary -= 1

    @property
    def _most(self) -> int:
        """How many connections mail that is not urgent may use."""
        return max(1, self.means.delivery.connections - self.means.reserved)

    def _startable(self) -> int:
        """How many of those that wait could begin if they had a connection."""
        return len(self._urgent) + min(len(self._waiting), max(0, self._most - self._ordinary))

    def _feed(self) -> None:
        """Give what waits to connections that are free."""
        while self._idle and self._startable():
            session, courier = self._idle.pop()  # the one used last: the others may time out
            if not courier.done():
                courier.set_result(self._take() if session.usable else None)

    def _hire(self) -> None:
        """Open as many connections as the mail that waits has use for."""
        while len(self._couriers) < self.means.delivery.connections and len(self._connecting) < min(
            self._startable(), self._at_once()
        ):
            task = asyncio.create_task(self._courier())
            self._couriers.add(task)
            self._connecting.add(task)
            task.add_done_callback(self._gone)

    def _at_once(self) -> int:
        """How many connections may be under way to the host."""
        if not self._couriers:
            return 1 if self._pause else _AT_ONCE
        if self._paused:
            return 0
        return 1 if self._pause else max(_AT_ONCE, len(self._open) // 2)

    def drain(self) -> list[Envelope]:
        """Begin nothing new; return what had not begun."""
        self._draining = True
        waiting = self._clear()
        for _, courier in self._idle:
            _resign(courier)
        for task in self._connecting:
            task.cancel()
        for envelope in waiting:
            self._count(envelope, -1)
        return waiting

    def _clear(self) -> list[Envelope]:
        waiting = [*self._urgent, *self._waiting]
        self._urgent.clear()
        self._waiting.clear()
        return waiting

    def abort(self) -> None:
        """Drop every connection; what was under way is reported as failed or unknown."""
        for session in list(self._sessions):
            session.abort()
        for task in self._couriers:
            task.cancel()

    async def wait(self) -> None:
        """Wait until the last connection has closed."""
        while self._couriers:
            await asyncio.wait(set(self._couriers))

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._couriers.discard(task)
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"courier of {self.destination} died", "exception": error}
            )
        if not self._draining:
            self._hire()
        if not self._couriers:
            if self._paused:
                self._paused.cancel()
                self._paused = None
            self._on_closed(self)

    async def _courier(self) -> None:
        task = asyncio.current_task()
        assert task  # noqa: S101 - for the type checker
        replaced = False
        while not self._draining:
            self._connecting.add(task)
            try:
                session, host = await self.open_session()
            except DeliveryError as error:
                self._connecting.discard(task)
                self._refused(error)
                return
            except Exception as error:
                log.error("can't connect", destination=str(self.destination), exc_info=error)
                self._connecting.discard(task)
                self._refused(internal(error))
                return
            self._connecting.discard(task)
            if not (replaced or self._paused):
                self._pause = 0.0
            try:
                await self._carry(session, host)
            finally:
                session.quit()
                self._sessions.discard(session)
                self._open.discard(session)
            self._feed()  # a connection that is free may carry what this one leaves
            if self._startable() <= len(self._connecting):
                return
            replaced = True

    def _refused(self, error: DeliveryError) -> None:
        """No connection could be opened: others carry the mail, or it waits for its next attempt.

        A host that admits only so many connections refuses further ones, and is not down.
        """
        if not self._connecting and all(session.closed for session in self._open):
            self._unreachable(error)
        elif not self._paused:
            self._pause = min(max(_PAUSE, 2 * self._pause), _LONGEST)
            self._paused = asyncio.get_running_loop().call_later(self._pause, self._resume)

    def _resume(self) -> None:
        self._paused = None
        if not self._draining:
            self._hire()

    async def _carry(self, session: Session, host: str) -> None:
        """Send envelopes over the connection, as long as there are any and it lasts."""
        self._sessions.add(session)
        self._open.add(session)
        self._hire()
        kept = not self._startable()
        while self._reusable(session) and (envelope := await self._next(session)):
            again = False
            try:
                results = await self._send(session, host, envelope)
                again = kept and session.closed and any(_hung_up(result) for result in results)
            except DeliveryError as error:
                again = kept and session.closed and error.passing and not session.violated
                results = [Result.of(error, host)] * len(envelope.items)
            except Exception as error:
                results = [self._failed(session, host, envelope, error)] * len(envelope.items)
            except BaseException:
                result = CUT_OFF if session.past_dot else NOT_BEGUN
                self._finish(envelope, [result] * len(envelope.items))
                raise
            finally:
                self._done(envelope)
            if not again:
                self._finish(envelope, results)
            elif self._draining:
                self._finish(envelope, [NOT_BEGUN] * len(envelope.items))
            else:
                # the server closed a kept connection under our hands: that is no attempt
                self._line(envelope).appendleft(envelope)
                self._feed()
            kept = True

    async def _next(self, session: Session) -> Envelope | None:
        if envelope := self._take():
            return envelope
        if self._draining:
            return None
        loop = asyncio.get_running_loop()
        wish: asyncio.Future[Envelope | None] = loop.create_future()
        place = (session, wish)
        self._idle.append(place)
        timer = loop.call_later(self.means.delivery.idle, _resign, wish)
        try:
            return await wish
        except asyncio.CancelledError:
            if not wish.cancelled() and (envelope := wish.result()):  # given a moment ago
                self._done(envelope)
                self._finish(envelope, [NOT_BEGUN] * len(envelope.items))
            raise
        finally:
            timer.cancel()
            if place in self._idle:
                self._idle.remove(place)

    def _reusable(self, session: Session) -> bool:
        return session.usable and session.transactions < self.means.delivery.transactions

    async def _send(self, session: Session, host: str, envelope: Envelope) -> list[Result]:
        answers = await session.send(envelope)
        return [Result(reply, host, command) for reply, command in answers]

    def _failed(self, session: Session, host: str, envelope: Envelope, error: Exception) -> Result:
        """Return the result of an attempt that an error of this program has ended."""
        log.error(
            "delivery failed",
            destination=str(self.destination),
            message=envelope.items[0].message_id,
            rows=[item.id for item in envelope.items],
            exc_info=error,
        )
        session.abort()
        return Result.of(internal(error, unknown=session.past_dot), host)

    def _unreachable(self, error: DeliveryError) -> None:
        """The destination can't be reached: that answers for all mail that waits for it now."""
        batch = self._clear()
        result = Result.of(error, "")
        if batch and not error.permanent:
            self._on_unreachable(self, result)
        for each in batch:
            self._finish(each, [result] * len(each.items))

    def _count(self, envelope: Envelope, sign: int) -> None:
        self.load += sign * len(envelope.items)
        if envelope.urgent:
            self.urgent += sign * len(envelope.items)
        for item in envelope.items:
            self.domains[item.domain] += sign
            if not self.domains[item.domain]:
                del self.domains[item.domain]

    def _finish(self, envelope: Envelope, results: list[Result]) -> None:
        self._count(envelope, -1)
        try:
            self._report(envelope, results)
        except Exception as error:
            log.error("result lost", message=envelope.items[0].message_id, exc_info=error)

    async def open_session(self) -> tuple[Session, str]:
        """Connect to the first host and address that answers. Raises DeliveryError."""
        return await connect(self.destination, self.means, self._sessions)


def _resign(wish: asyncio.Future[Envelope | None]) -> None:
    if not wish.done():
        wish.set_result(None)


def _hung_up(result: Result) -> bool:
    """Whether the server closed before it had anything (RFC 5321, section 3.8)."""
    return result.reply.code == 421 and result.command != "end of data"
