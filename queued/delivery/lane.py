"""All mail of one destination: what waits, and the connections that carry it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from queued.config.queued import Delivery
from queued.config.types import HostPort
from queued.delivery.envelope import Envelope
from queued.delivery.mx import Resolver
from queued.delivery.reply import CUT_OFF, NOT_BEGUN, Result
from queued.delivery.route import Destination
from queued.delivery.session import Session
from queued.errors import DeliveryError


@dataclass(frozen=True, slots=True)
class Means:
    """What every lane delivers with."""

    hostname: str
    delivery: Delivery
    resolver: Resolver


class Lane:
    """Deliveries to one destination, over at most `delivery.connections` connections.

    `report` gets the results of every envelope exactly once; `unreachable` is told when no host
    could be connected to, `closed` when the lane has neither mail nor connections left. Another
    kind of lane overrides `open_session`, and everything else stays as it is.
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
        self._waiting: deque[Envelope] = deque()
        self._idle: deque[asyncio.Future[Envelope | None]] = deque()
        self._couriers: set[asyncio.Task[None]] = set()
        self._sessions: set[Session] = set()
        self.load = 0  # rows waiting or under way
        self.domains: Counter[str] = Counter()  # the same by recipient domain
        self._draining = False

    def put(self, envelope: Envelope) -> None:
        """Deliver the envelope as soon as a connection is free for it."""
        self._count(envelope, 1)
        while self._idle:
            courier = self._idle.pop()  # the one used last: the others may time out
            if not courier.done():
                courier.set_result(envelope)
                return
        self._waiting.append(envelope)
        if len(self._couriers) < self.means.delivery.connections:
            self._hire()

    def _hire(self) -> None:
        task = asyncio.create_task(self._courier())
        self._couriers.add(task)
        task.add_done_callback(self._gone)

    def drain(self) -> list[Envelope]:
        """Begin nothing new; return what had not begun."""
        self._draining = True
        waiting = list(self._waiting)
        self._waiting.clear()
        for courier in self._idle:
            if not courier.done():
                courier.set_result(None)
        for envelope in waiting:
            self._count(envelope, -1)
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
        if not task.cancelled() and (error := task.exception()):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"courier of {self.destination} died", "exception": error}
            )
        if self._waiting and not self._draining:
            self._hire()
        elif not self._couriers:
            self._on_closed(self)

    async def _next(self) -> Envelope | None:
        if self._waiting:
            return self._waiting.popleft()
        if self._draining:
            return None
        loop = asyncio.get_running_loop()
        wish: asyncio.Future[Envelope | None] = loop.create_future()
        self._idle.append(wish)
        timer = loop.call_later(self.means.delivery.idle, _resign, wish)
        try:
            return await wish
        finally:
            timer.cancel()
            if wish in self._idle:
                self._idle.remove(wish)

    async def _courier(self) -> None:
        session: Session | None = None
        host = ""
        try:
            while envelope := await self._next():
                fresh = session is None or not self._reusable(session)
                try:
                    if session is None or fresh:
                        self._end(session)
                        session = None
                        session, host = await self.open_session()
                    results = await self._send(session, host, envelope)
                except DeliveryError as error:
                    if session is None:
                        self._unreachable(envelope, error)
                        return
                    if not fresh and session.closed and error.passing:
                        # the server closed a kept connection under our hands: that is no attempt
                        self._waiting.appendleft(envelope)
                        continue
                    results = [Result.of(error, host)] * len(envelope.items)
                except BaseException:
                    result = CUT_OFF if session and session.past_dot else NOT_BEGUN
                    self._finish(envelope, [result] * len(envelope.items))
                    raise
                self._finish(envelope, results)
        finally:
            self._end(session)

    def _reusable(self, session: Session) -> bool:
        return session.usable and session.transactions < self.means.delivery.transactions

    def _end(self, session: Session | None) -> None:
        if session:
            session.quit()
            self._sessions.discard(session)

    async def _send(self, session: Session, host: str, envelope: Envelope) -> list[Result]:
        answers = await session.send(envelope)
        return [Result(reply, host, command) for reply, command in answers]

    def _unreachable(self, envelope: Envelope, error: DeliveryError) -> None:
        """The destination can't be reached: that answers for all mail that waits for it now."""
        batch = [envelope]
        if len(self._sessions) == 0:
            batch += self._waiting
            self._waiting.clear()
        result = Result.of(error, "")
        if not error.permanent:
            self._on_unreachable(self, result)
        for each in batch:
            self._finish(each, [result] * len(each.items))

    def _count(self, envelope: Envelope, sign: int) -> None:
        self.load += sign * len(envelope.items)
        for item in envelope.items:
            self.domains[item.domain] += sign
            if not self.domains[item.domain]:
                del self.domains[item.domain]

    def _finish(self, envelope: Envelope, results: list[Result]) -> None:
        self._count(envelope, -1)
        self._report(envelope, results)

    async def open_session(self) -> tuple[Session, str]:
        """Connect to the first host and address that answers. Raises DeliveryError."""
        problem: DeliveryError | None = None
        for host in await self.means.resolver.hosts(self.destination):
            try:
                addresses = await self.means.resolver.addresses(host.host)
            except DeliveryError as error:
                problem = error
                continue
            for address in addresses:
                try:
                    return await self._connect(HostPort(address, host.port)), str(host)
                except DeliveryError as error:
                    problem = error
        raise problem or DeliveryError(f"4.4.4 no host for {self.destination}", command="MX")

    async def _connect(self, at: HostPort) -> Session:
        delivery = self.means.delivery
        session = Session(delivery.timeouts)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(delivery.timeouts.connect):
                await loop.create_connection(lambda: session, at.host, at.port)
        except TimeoutError:
            raise DeliveryError(f"4.4.1 connect to {at}: timeout", command="connect") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise DeliveryError(f"4.4.1 connect to {at}: {reason}", command="connect") from None
        self._sessions.add(session)
        try:
            await session.open(self.means.hostname)
        except BaseException:
            session.abort()
            self._sessions.discard(session)
            raise
        return session


def _resign(wish: asyncio.Future[Envelope | None]) -> None:
    if not wish.done():
        wish.set_result(None)
