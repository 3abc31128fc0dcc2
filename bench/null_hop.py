"""Delivery without a network: each message is accepted at once."""

from collections import Counter
from typing import ClassVar

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, Stage
from pgmta.model import Reply
from pgmta.states import Event
from queued.config import Timeouts
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp.protocol import ClientProtocol
from queued.delivery.smtp.session import Session
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result

TAKEN = Result(Event.DELIVERED, Reply(0, "2.0.0 Ok"), "nowhere")


class NullSession(Session):
    """Answer 250 for every recipient and count; check the lease as before a real final dot."""

    taken: ClassVar[Counter[int]] = Counter()

    async def send(self, envelope: Envelope) -> list[Result]:
        """Return 250 for each recipient. Raises DeliveryError if the lease is lost."""
        self.transactions += 1
        if not envelope.guard.valid(envelope.items):
            raise DeliveryError("lease lost before the final dot", Stage.LEASE)
        self.taken.update(item.id for item in envelope.items)
        return [TAKEN] * len(envelope.items)


class NullOpener:
    """Open sessions that need no network."""

    async def open(
        self,
        destination: Destination,
        sessions: set[Session],
        tried: frozenset[HostPort] = frozenset(),
        earlier: int = 0,
    ) -> Session:
        """Return a session."""
        return NullSession(ClientProtocol(Timeouts()), Host("nowhere", 25))
