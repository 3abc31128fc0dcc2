"""A worker as stages see it, which keeps what they end and what they send on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from pgmta.model import Item, Message
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.result import Result
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import Means, StageContext
from queued.routing.routes import Routed
from tests.support.leases import ALWAYS


class RecordingDispatcher:
    """Its destinations have a connection, and no mail waits there."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, Result]] = []
        self.sent: list[Item] = []
        self.has_connections = True
        self.is_jammed = False

    def end(self, items: list[Item], result: Result, started: datetime | None = None) -> None:
        self.ended += [(item.id, result) for item in items]

    def end_unowned(
        self, items: list[Item], result: Result, started: datetime | None = None
    ) -> None:
        self.end(items, result)

    def dispatch(self, items: list[Item], messages: dict[int, Message]) -> None:
        self.sent += items

    def route(self, item: Item, message: Message) -> Routed:
        raise NotImplementedError

    def connected(self, destination: Destination) -> bool:
        return self.has_connections

    def jammed(self, destination: Destination) -> bool:
        return self.is_jammed


def outgoing(
    row: Item, message: Message, content: Any = b"", routed: Routed | None = None
) -> Outgoing:
    """A row on its way through the stages, to MX hosts if it is routed nowhere else."""
    routed = routed or Routed(Destination("smtp", SmtpParameters()), "*")
    return Outgoing(
        [row], message, routed, row.sender, b"", content, 10, False, False, datetime.now(UTC)
    )


def stage_context(
    dispatcher: RecordingDispatcher, free_octets: int = 0, **means: object
) -> StageContext:
    """The context of a stage, with some of the means of a worker."""
    every = {"contents": None, "transports": None, **means}
    found = Means(**cast(Any, every))
    return StageContext(means=found, guard=ALWAYS, dispatcher=dispatcher, free_octets=free_octets)
