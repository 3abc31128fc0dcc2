"""The answers of a process to inquiries: its destinations, and connections that operators end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from time import monotonic
from typing import Any, NamedTuple

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.store.records.inquiries import INSPECT, Inquiry, InquiryTable
from queued.config import Delivery
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.transport.destination import TlsWish
from queued.delivery.transport.open_connections import OpenConnection
from queued.routing.ceiling import ceiling
from queued.routing.routes import Routes

_DESTINATIONS = 200  # of one answer, at most
_CONNECTIONS = 2000
_ROWS = 100  # ids of rows of a connection

log = get("inquiries")


class Inspected(NamedTuple):
    """Destinations of a delivery worker with mail or connections, and its present settings."""

    queues: list[DestinationQueue]
    routes: Routes
    delivery: Delivery


class InquiryAnswers:
    """Answers for all delivery workers of the process."""

    def __init__(self, table: InquiryTable) -> None:
        self._table = table
        self._workers: list[tuple[str, Callable[[], Inspected]]] = []
        self._ended: dict[int, dict[str, Any]] = {}  # the last connection, by the inquiry

    def add(self, worker: str, inspected: Callable[[], Inspected]) -> None:
        """Answer for a worker, too."""
        self._workers.append((worker, inspected))

    async def give(self) -> None:
        """Answer all inquiries. A failure is logged, and the command gets no answer."""
        for inquiry in await self._table.open():
            try:
                await self._table.answer(inquiry, self._answer(inquiry))
            except StoreUnavailable:
                raise
            except Exception as error:  # mail goes on, and so do other inquiries
                log.error("an inquiry has no answer", id=inquiry.id, exc_info=error)

    def _answer(self, inquiry: Inquiry) -> dict[str, Any]:
        if inquiry.action == INSPECT:
            return self._inspect(inquiry.value.lower())
        ended = self._ended.get(inquiry.id)  # by an answer that could not be written
        if ended is None:
            ended = self._end(int(inquiry.value))
            if ended is None:
                return {}
            self._ended = {inquiry.id: ended}
            log.warning("an operator ends a connection", who=inquiry.who, **ended)
        return {"ended": ended}

    def _inspect(self, name: str) -> dict[str, Any]:
        """Return the destinations of this name, with their connections."""
        found: list[dict[str, Any]] = []
        left_out = room = 0
        for worker, inspect in self._workers:
            inspected = inspect()
            given = _Name(name, inspected.routes)
            for queue in filter(given.fits, inspected.queues):
                room += len(queue.connections)
                if len(found) >= _DESTINATIONS or room > _CONNECTIONS:
                    left_out += 1
                else:
                    found.append({"worker": worker, **self._shown(queue, inspected)})
        return {"destinations": found, "left_out": left_out}

    def _shown(self, queue: DestinationQueue, inspected: Inspected) -> dict[str, Any]:
        destination = queue.destination
        shown = (self._connection(each) for each in queue.connections)
        wish = "" if destination.wish is TlsWish.NONE else f" (TLS {destination.wish})"
        return {
            "destination": f"{destination.domain or destination.parameters}{wish}",
            "transport": destination.transport,
            **asdict(queue.state()),
            "ceilings": [
                ceiling(inspected.delivery, each)
                for each in inspected.routes.leading_to(destination)
            ],
            "connections": sorted(filter(None, shown), key=lambda each: -each["age"]),
        }

    def _connection(self, connection: OpenConnection) -> dict[str, Any] | None:
        state, now = connection.state(), monotonic()
        if state is None:
            return None
        items = state.envelope.items if state.envelope else []
        return {
            "id": f"{self._table.process.rpartition(':')[2]}/{connection.number}",
            "host": state.place,
            "address": state.address,
            "phase": state.phase,
            "seconds": round(now - state.since, 1),
            "age": round(now - connection.opened, 1),
            "tls": state.tls or None,
            "sent": state.sent,
            "message_id": items[0].message_id if items else None,
            "rows": len(items),
            "row_ids": [item.id for item in items[:_ROWS]],
        }

    def _end(self, number: int) -> dict[str, Any] | None:
        """End a connection, and return what it was doing; None if there is none of this number."""
        for queue in (queue for _, inspect in self._workers for queue in inspect().queues):
            for each in queue.connections:
                if each.number == number and (shown := self._connection(each)):
                    waiting = queue.state().waiting
                    each.end_by_operator()
                    return {**shown, "waiting": waiting}
        return None


class _Name:
    """A name that an operator gives, as the routes of a worker know it."""

    def __init__(self, name: str, routes: Routes) -> None:
        self._name = name
        self._routes = routes
        self._is_route = routes.has_name(name)
        self._keys = {each.destination.key for each in routes.possible(name)}

    def fits(self, queue: DestinationQueue) -> bool:
        """Return whether it names the destination.

        It may name a next hop, the host of a connection, or a route. Or it is a domain whose mail
        may go there.
        """
        name, destination = self._name, queue.destination
        if destination.key in self._keys or name in destination.next_hops:
            return True
        for state in (each.state() for each in queue.connections):
            place = state.place.lower() if state else ""
            if name in (place, place.rpartition(":")[0].strip("[]")):
                return True
        leading = self._routes.leading_to(destination) if self._is_route else []
        return any(each.route.lower() == name for each in leading)
