"""All mail of one destination: the envelopes that wait, and the connections that carry them."""

from __future__ import annotations

import asyncio
from collections import deque

from pgmta.errors import DeliveryError
from pgmta.logs import get
from queued.delivery.connect import DeliveryContext
from queued.delivery.envelope import Envelope, cut
from queued.delivery.pacing import ConnectionPacing
from queued.delivery.reply import CUT_OFF, NOT_BEGUN, Reporter, Result, hung_up, internal
from queued.delivery.route import Destination
from queued.delivery.session import Session

log = get("delivery")


class DestinationQueue:
    """Deliveries to one destination, over at most `delivery.connections` connections.

    Urgent mail goes first, and may use all connections. Other mail leaves `context.reserved` of
    them free, so that urgent mail begins even while all other mail hangs.

    Each connection has a task, which opens the connection first and takes envelopes for it
    afterwards. A connection that can't be opened thus concerns no envelope, as long as the
    queue has other connections.
    """

    def __init__(
        self, destination: Destination, context: DeliveryContext, reporter: Reporter
    ) -> None:
        self.destination = destination
        self.context = context
        self.load = 0
        """Rows that wait or are under way."""
        self.urgent = 0
        """Rows in urgent envelopes; `load` counts them too."""
        self._reporter = reporter
        self._envelopes: set[Envelope] = set()  # that wait or are under way
        self._urgent: deque[Envelope] = deque()
        self._waiting: deque[Envelope] = deque()  # envelopes that are not urgent
        self._ordinary = 0  # connections that carry such envelopes
        self._idle: deque[tuple[Session, asyncio.Future[Envelope | None]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()  # one per connection
        self._connecting: set[asyncio.Task[None]] = set()
        self._sessions: set[Session] = set()
        self._open: set[Session] = set()  # greeted
        self._pacing = ConnectionPacing(self)
        self._draining = False

    @property
    def domains(self) -> set[str]:
        """The domains, or labels, of the rows that wait or are under way."""
        return {domain for envelope in self._envelopes for domain in envelope.domains}

    def put(self, envelope: Envelope) -> None:
        """Deliver the envelope as soon as a connection is free for it."""
        self._envelopes.add(envelope)
        self.load += len(envelope.items)
        if envelope.urgent:
            self.urgent += len(envelope.items)
            self._urgent.append(envelope)
        else:
            self._waiting.append(envelope)
        if self._idle:
            self._feed()
        if self._urgent or self._waiting:
            self.grow()

    def _take(self) -> Envelope | None:
        """Return the next envelope for a free connection, and count that connection."""
        if self._urgent:
            return self._urgent.popleft()
        if self._waiting and self._ordinary < self.context.most_ordinary:
            self._ordinary += 1
            return self._waiting.popleft()
        return None

    def _startable(self) -> int:
        """Return how many waiting envelopes could begin if they had a connection."""
        ordinary = max(0, self.context.most_ordinary - self._ordinary)
        return len(self._urgent) + min(len(self._waiting), ordinary)

    def _feed(self) -> None:
        """Give waiting envelopes to idle connections."""
        while self._idle:
            session, idle = self._idle[-1]  # the one used last: the others may time out
            if not session.connection.closed and not idle.done():
                envelope = self._take()
                if envelope is None:
                    return
                idle.set_result(envelope)
            else:
                _end_idle(idle)
            self._idle.pop()

    def grow(self) -> None:
        """Open as many connections as the waiting mail has use for."""
        most = self.context.delivery.connections
        while not self._draining and len(self._tasks) < most:
            under_way = self._pacing.at_once(len(self._tasks), len(self._open))
            if len(self._connecting) >= min(self._startable(), under_way):
                return
            task = asyncio.create_task(self._serve_connection())
            task.add_done_callback(self._ended)
            self._tasks.add(task)
            self._connecting.add(task)

    def release(self, keep: int) -> bool:
        """Hand back rows that wait, except `keep`; return False if a connection is open."""
        for envelope in [] if self._open else cut(self._waiting, self.load - keep):
            self._finish(envelope, [NOT_BEGUN] * len(envelope.items))
        return not self._open

    def drain(self) -> list[Envelope]:
        """Begin nothing new; return the envelopes that had not begun."""
        self._draining = True
        for _, idle in self._idle:
            _end_idle(idle)
        for task in self._connecting:
            task.cancel()
        waiting = self._clear()
        for envelope in waiting:
            self._envelopes.discard(envelope)
            self.load -= len(envelope.items)
            self.urgent -= len(envelope.items) if envelope.urgent else 0
        return waiting

    def _clear(self) -> list[Envelope]:
        waiting = [*self._urgent, *self._waiting]
        self._urgent.clear()
        self._waiting.clear()
        return waiting

    def abort(self) -> None:
        """Drop every connection; envelopes under way are reported as not begun or unknown."""
        for session in list(self._sessions):
            session.connection.abort()
        for task in self._tasks:
            task.cancel()

    async def wait(self) -> None:
        """Wait until the last connection has closed."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

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
            self._pacing.end()
            self._reporter.closed(self.destination)

    async def _serve_connection(self) -> None:
        """Open a connection and carry envelopes over it; replace it while mail waits."""
        replaced = False
        while not self._draining:
            session = await self._open_session()
            if session is None:
                return
            if not replaced:
                self._pacing.succeeded()
            try:
                await self._carry(session)
            finally:
                session.connection.quit()
                self._sessions.discard(session)
                self._open.discard(session)
            self._feed()  # an idle connection may carry the mail that this one leaves
            if self._startable() <= len(self._connecting):
                return
            replaced = True

    async def _open_session(self) -> Session | None:
        """Return a new session; None if none can be opened, and then its consequences are done."""
        task = asyncio.current_task()
        assert task  # noqa: S101 - for the type checker
        self._connecting.add(task)
        try:
            return await self.context.opener.open(self.destination, self._sessions)
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
        if self._connecting or not all(session.connection.closed for session in self._open):
            self._pacing.refused()
            return
        batch = self._clear()
        result = Result.of(error, "")
        if batch and not error.permanent:
            self._reporter.unreachable(self.destination, self.domains, result)
        for each in batch:
            self._finish(each, [result] * len(each.items))

    async def _carry(self, session: Session) -> None:
        """Send envelopes over the connection, as long as there are any and it lasts."""
        connection = session.connection
        self._sessions.add(session)
        self._open.add(session)
        self.grow()
        kept = not self._startable()
        while not session.connection.closed:
            if session.transactions >= self.context.delivery.transactions:
                return
            envelope = self._take() or await self._next(session)
            if envelope is None:
                return
            again = False
            try:
                results = await session.send(envelope)
                again = kept and connection.closed and any(hung_up(result) for result in results)
            except DeliveryError as error:
                again = kept and error.retry_elsewhere and connection.closed
                again = again and not connection.violated
                results = [Result.of(error, session.name)] * len(envelope.items)
            except Exception as error:
                results = [self._failed(session, envelope, error)] * len(envelope.items)
            except BaseException:
                result = CUT_OFF if connection.past_dot else NOT_BEGUN
                self._finish(envelope, [result] * len(envelope.items), carried=True)
                raise
            if again and not self._draining:
                self._put_back(envelope)  # it closed before it had anything: that is no attempt
            else:
                results = [NOT_BEGUN] * len(envelope.items) if again else results
                self._finish(envelope, results, carried=True)
            kept = True

    def _put_back(self, envelope: Envelope) -> None:
        if envelope.urgent:
            self._urgent.appendleft(envelope)
        else:
            self._ordinary -= 1
            self._waiting.appendleft(envelope)
        self._feed()

    async def _next(self, session: Session) -> Envelope | None:
        """Wait for an envelope; return None after `delivery.idle` seconds and when draining."""
        if self._draining:
            return None
        loop = asyncio.get_running_loop()
        idle: asyncio.Future[Envelope | None] = loop.create_future()
        place = (session, idle)
        self._idle.append(place)
        timer = loop.call_later(self.context.delivery.idle, _end_idle, idle)
        try:
            return await idle
        except asyncio.CancelledError:
            if not idle.cancelled() and (envelope := idle.result()):  # given a moment ago
                self._finish(envelope, [NOT_BEGUN] * len(envelope.items), carried=True)
            raise
        finally:
            timer.cancel()
            if place in self._idle:
                self._idle.remove(place)

    def _failed(self, session: Session, envelope: Envelope, error: Exception) -> Result:
        """Return the result of an attempt that an error of this program has ended."""
        log.error("delivery failed", destination=str(self.destination), exc_info=error,
                  message=envelope.items[0].message_id,
                  rows=[item.id for item in envelope.items])  # fmt: skip
        session.connection.abort()
        return Result.of(internal(error, unknown=session.connection.past_dot), session.name)

    def _finish(self, envelope: Envelope, results: list[Result], carried: bool = False) -> None:
        """Report the results of an envelope, which a connection has carried or which has waited."""
        self._envelopes.discard(envelope)
        self.load -= len(envelope.items)
        if envelope.urgent:
            self.urgent -= len(envelope.items)
        elif carried:
            self._ordinary -= 1
        try:
            self._reporter.report(envelope, results)
        except Exception as error:
            log.error("result lost", message=envelope.items[0].message_id, exc_info=error)


def _end_idle(idle: asyncio.Future[Envelope | None]) -> None:
    if not idle.done():
        idle.set_result(None)
