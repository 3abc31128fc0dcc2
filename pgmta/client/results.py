"""The answers that a program gets: the result of each mail, and the state of each recipient."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple


class SendResult(NamedTuple):
    """The result of one mail of `send_many`: its message id, or the error, and the other is None.

    The error is a SubmissionError, TypeError or ValueError if the mail is bad. It is NotBegun,
    StoreUnavailable or Undecided if the mail may be good.
    """

    id: int | None
    error: Exception | None


class RecipientStatus(NamedTuple):
    """The state of one recipient of a message, as view message_status has it (docs/states.md).

    `state` is scheduled, queued, deferred, sending, held, delivered, failed, unknown, cancelled or
    expired, since the time `at`. `next_attempt` is None if it does not wait. `code` and `reply` are
    those of the last attempt.
    """

    recipient: str
    state: str
    attempts: int
    next_attempt: datetime | None
    at: datetime
    code: int | None
    reply: str | None


MOVING: Final = frozenset(("scheduled", "queued", "deferred", "sending"))
"""States that change by themselves. A row on hold waits for an operator."""

type Statuses = dict[int, list[RecipientStatus]]
"""The recipients of each message; none for an id that this login does not have."""
