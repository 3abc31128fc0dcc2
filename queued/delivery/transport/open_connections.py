"""The open connections of a destination, as operators see and end them."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import Protocol
from weakref import WeakSet

from queued.delivery.transport.envelope import Envelope

ENDED_BY_OPERATOR = "ended by operator"
"""The reason of a connection that an operator has ended, as attempts have it."""

IDLE_PHASE = "idle"
"""The phase of a connection that waits for its next envelope."""

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """The phase of a connection, and its envelope.

    `place` is the host and its port. The `phase` is the step whose end it waits for, since `since`
    by the monotonic clock. It has carried `sent` envelopes, and `envelope` is the present one.
    """

    place: str
    address: str
    phase: str
    since: float
    tls: str
    sent: int
    envelope: Envelope | None


class OpenConnection(Protocol):
    """A connection to a next hop, from the connect to its end."""

    number: int
    """It differs from those of all other connections of the process."""
    opened: float
    """When its connect began, by the monotonic clock."""

    def state(self) -> ConnectionState | None:
        """Return what it is doing; None if it has ended."""

    def end_by_operator(self) -> None:
        """Drop it at once. Its envelope has the outcome of a connection that broke now."""


type Connections = WeakSet[OpenConnection]

OF_DESTINATION: ContextVar[Connections | None] = ContextVar("OF_DESTINATION", default=None)
"""The connections of the destination for which a task works."""


def note_connection(connection: OpenConnection) -> int:
    """Add a new connection to those of the destination for which the task works.

    Returns its number.
    """
    if (known := OF_DESTINATION.get()) is not None:
        known.add(connection)
    return next(_numbers)
