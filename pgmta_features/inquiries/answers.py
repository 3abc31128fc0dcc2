"""The answers of a process to inquiries: its destinations, and connections that operators end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from time import monotonic
from typing import Any

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta_features.inquiries.store import INSPECT, Inquiry, InquiryTable
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.transport.destination import TlsWish
from queued.delivery.transport.open_connections import OpenConnection
from queued.process.queued_process import Destinations, QueuedProcess, WorkerMail
from queued.routing.ceiling import ceiling
from queued.routing.routes import Routes

MAX_DESTINATIONS = 200
"""The destinations of one answer."""
MAX_CONNECTIONS = 2000
"""The connections of one answer."""
MAX_ROWS = 100
"""The rows of one connection that an answer names."""

log = get("inquiries")


class InquiryAnswers:
    """Answers for all delivery workers of the process."""

    def __init__(self, table: InquiryTable, mail: Sequence[WorkerMail]) -> None:
        self._table = table
        self._mail = mail
        self._ended: dict[int, dict[str, Any]] = {}  # the connection that was ended, by inquiry

    async def answer_all(self) -> None:
        """Answer all inquiries. A failure is logged, and the command gets no answer.

        Raises StoreUnavailable, psycopg.Error if they can't be read.
        """
        for inquiry in await self._table.open():
            try:
                await self._table.answer(inquiry, self._answer(inquiry))
            except StoreUnavailable:
                raise
            except Exception as error:  # whatever it is: mail and other inquiries go on
                log.error("an inquiry has no answer", id=inquiry.id, exc_info=error)

    def _answer(self, inquiry: Inquiry) -> dict[str, Any]:
        if inquiry.action == INSPECT:
            return self._inspect(inquiry.value.lower())
        ended = self._ended.get(inquiry.id)  # set if an earlier answer could not be written
        if ended is None:
            ended = self._end(int(inquiry.value))
            if ended is None:
                return {}
            self._ended = {inquiry.id: ended}
            log.warning("an operator ends a connection", who=inquiry.who, **ended)
        return {"ended": ended}

    def _inspect(self, name: str) -> dict[str, Any]:
        """Return the destinations of this name, with their connections."""
        destinations: list[dict[str, Any]] = []
        left_out = connections = 0
        for mail in self._mail:
            inspected = mail.find_destinations()
            given = _Name(name, inspected.routes)
            for queue in filter(given.fits, inspected.queues):
                connections += len(queue.connections)
                if len(destinations) >= MAX_DESTINATIONS or connections > MAX_CONNECTIONS:
                    left_out += 1
                else:
                    destinations.append({"worker": mail.worker, **self._shown(queue, inspected)})
        return {"destinations": destinations, "left_out": left_out}

    def _shown(self, queue: DestinationQueue, inspected: Destinations) -> dict[str, Any]:
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
            "row_ids": [item.id for item in items[:MAX_ROWS]],
        }

    def _end(self, number: int) -> dict[str, Any] | None:
        """End a connection, and return what it was doing; None if there is none of this number."""
        for queue in (queue for mail in self._mail for queue in mail.find_destinations().queues):
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


def add_answers(process: QueuedProcess) -> None:
    """Have a process answer inquiries."""
    table = InquiryTable(process.orders.link, process.name)
    process.orders.add_reader("inquiries", InquiryAnswers(table, process.mail).answer_all)
