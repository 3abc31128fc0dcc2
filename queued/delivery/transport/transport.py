"""The seam between the queues of destinations and the ways out, such as SMTP."""

from __future__ import annotations

from typing import Protocol

from pgmta.errors import DeliveryError
from pgmta.logs import get
from pgmta.model import Item
from queued.config import Delivery
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result, internal

UNLIMITED = 1 << 30
"""Stands for no limit of recipients or transactions."""

log = get("delivery")


class Channel(Protocol):
    """A connection to one place of a destination. It takes one envelope after the other.

    Its queue holds it from `Transport.open` on, and closes it.
    """

    @property
    def name(self) -> str:
        """The place, as outcomes have it: an envelope goes to each place once."""

    @property
    def best(self) -> bool:
        """Whether the destination has no better place."""

    @property
    def transactions(self) -> int:
        """The number of envelopes that it was given."""

    @property
    def most_recipients(self) -> int:
        """The number of recipients that an envelope may have."""

    @property
    def closed(self) -> bool:
        """Whether it has ended: no envelope may be given to it."""

    @property
    def spent(self) -> bool:
        """Whether it shall be closed, because it had as many envelopes as it may have."""

    @property
    def in_doubt(self) -> bool:
        """Whether the place may have an envelope whose results are not known yet."""

    @property
    def vain(self) -> bool:
        """Whether the channel ended while it had an envelope of which the place has nothing."""

    @property
    def unwelcome(self) -> bool:
        """Whether the place ended the channel because it wants no further one now."""

    async def send(self, envelope: Envelope) -> list[Result]:
        """Do one transaction, and return a result for each item, in order.

        It asks `envelope.guard` right before the place can have the message. Raises DeliveryError
        if the envelope failed as a whole; other errors are those of pgmta.
        """

    def close(self) -> None:
        """End it in an orderly way, which may go on after this call."""

    def abort(self) -> None:
        """Drop it at once."""

    async def wait_closed(self) -> None:
        """Wait for the end of a channel after `close`, for a few seconds at most."""


class Transport(Protocol):
    """A way out for mail, to the places of its destinations."""

    @property
    def sends_lines(self) -> bool:
        """Whether content goes as it is, so that bare newlines and odd trace fields do harm."""

    def configure(self, delivery: Delivery) -> None:
        """Use other settings from now on."""

    def find_unfit(self, items: list[Item]) -> dict[int, str]:
        """Return the rows that can't be sent, by id, and why; mostly there are none.

        The reasons begin with an enhanced status code (RFC 3463).
        """

    async def open(
        self, destination: Destination, tried: frozenset[str] = frozenset(), earlier: int = 0
    ) -> Channel:
        """Return a channel to a place of the destination whose name is not in `tried`.

        After this number of `earlier` attempts it begins after their places, if there are more.
        Raises DeliveryError: NoHostLeft if every place that may be tried is in `tried`. If it is
        cancelled, nothing stays open.
        """


def failed(error: Exception, channel: Channel, envelope: Envelope) -> list[Result]:
    """Return the results of an envelope that an error has ended.

    An error of pgmta is logged, and the channel is dropped.
    """
    if not isinstance(error, DeliveryError):
        log.error("delivery failed", destination=channel.name, exc_info=error,
                  message=envelope.items[0].message_id,
                  rows=[item.id for item in envelope.items])  # fmt: skip
        unknown = channel.in_doubt
        channel.abort()
        error = internal(error, unknown=unknown)
    return [Result.from_error(error, channel.name)] * len(envelope.items)
