"""Delivery without a network: each message is accepted at once."""

from collections import Counter
from typing import ClassVar

from pgmta.errors import DeliveryError
from pgmta.model import Reply
from queued.config import Timeouts
from queued.delivery.envelope import Envelope
from queued.delivery.lane import Lane
from queued.delivery.session import Answer, Session

HOST = "nowhere:25"
TAKEN: Answer = (Reply(250, "2.0.0 Ok"), "end of data")


class NullSession(Session):
    """Answer 250 for every recipient and count; check the lease as before a real final dot."""

    taken: ClassVar[Counter[int]] = Counter()

    async def send(self, envelope: Envelope) -> list[Answer]:
        """Return 250 for each recipient. Raises DeliveryError if the lease is lost."""
        self.transactions += 1
        if not envelope.guard(envelope.items):
            raise DeliveryError("lease lost before the final dot", command="lease")
        self.taken.update(item.id for item in envelope.items)
        return [TAKEN] * len(envelope.items)


class NullDestination(Lane):
    """Queue rows of a destination as the product does, with sessions that need no network."""

    async def open_session(self) -> tuple[Session, str]:
        """Return a session that needs no network."""
        return NullSession(Timeouts()), HOST
