"""Transactions that an error has ended: their results, and what the other connections do."""

from __future__ import annotations

from collections.abc import Iterable

from pgmta.errors import DeliveryError
from pgmta.logs import get
from queued.delivery.smtp.session import Session
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result, internal

log = get("delivery")


def failed(error: Exception, session: Session, envelope: Envelope) -> tuple[list[Result], bool]:
    """Return the results of a transaction, and whether it was in vain.

    In vain means that the connection ended and the server has nothing of the mail. An error of this
    program is logged.
    """
    connection = session.connection
    vain = False
    if isinstance(error, DeliveryError):
        vain = connection.closed and error.retry_elsewhere and not connection.violated
    else:
        log.error("delivery failed", destination=session.name, exc_info=error,
                  message=envelope.items[0].message_id,
                  rows=[item.id for item in envelope.items])  # fmt: skip
        connection.abort()
        error = internal(error, unknown=connection.past_dot)
    return [Result.of(error, session.name)] * len(envelope.items), vain


def others_work(session: Session, opened: Iterable[Session]) -> bool:
    """Return whether another of these connections has carried mail and is open."""
    others = (each for each in opened if each is not session)
    return any(each.transactions > 1 and not each.connection.closed for each in others)
