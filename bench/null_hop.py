"""Delivery without a network: each message is accepted at once."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Reply
from pgmta.states import Event
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from queued.delivery.transport.transport import UNLIMITED

TAKEN = Result(Event.DELIVERED, Reply(0, "2.0.0 Ok"), "nowhere")


class NullTransport(SmtpTransport):
    """Opens channels that need no network."""

    sends_lines = False

    async def open(  # type: ignore[override]
        self, destination: Destination, tried: frozenset[str] = frozenset(), earlier: int = 0
    ) -> NullChannel:
        """Return a channel."""
        return NullChannel()


class NullChannel:
    """Takes every recipient, and counts them; checks the lease as before a real final dot."""

    taken: ClassVar[Counter[int]] = Counter()
    name = "nowhere"
    best = True
    transactions = 0
    most_recipients = UNLIMITED
    closed = spent = in_doubt = vain = unwelcome = False

    async def send(self, envelope: Envelope) -> list[Result]:
        """Return a delivery for each recipient. Raises DeliveryError if the lease is lost."""
        if not envelope.guard.valid(envelope.items):
            raise DeliveryError("lease lost before the final dot", Stage.LEASE)
        self.taken.update(item.id for item in envelope.items)
        return [TAKEN] * len(envelope.items)

    def close(self) -> None:
        """Do nothing."""

    abort = close

    async def wait_closed(self) -> None:
        """Do nothing."""
