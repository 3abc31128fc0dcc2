"""The answers that a program gets: the result of each mail, and the state of each recipient."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pgmta.store.changes.sql_interface import MessageId, SuppressedRecipient

_UNFINISHED: Final = frozenset(("scheduled", "queued", "deferred", "sending"))


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of one of many mails: its message id, or the error, and the other is None.

    The error is a SubmissionError, TypeError or ValueError if the mail is bad. It is NotBegun,
    StoreUnavailable or Undecided if the mail may be good. `suppressed` are recipients who get
    nothing; the others get the mail.
    """

    id: int | None
    error: Exception | None
    suppressed: tuple[SuppressedRecipient, ...] = ()


def stored(id: int) -> SendResult:
    """Return the result of stored mail."""
    return SendResult(id, None, id.suppressed if isinstance(id, MessageId) else ())


@dataclass(frozen=True, slots=True)
class RecipientStatus:
    """The state of one recipient of a message, as view message_status has it.

    docs/develop/states.md has the states.
    `state` is scheduled, queued, deferred, sending, held, delivered, failed, unknown, cancelled,
    expired or suppressed, since the time `at`. `next_attempt` is None if it does not wait. `code`
    and `reply` are those of the last attempt. Of a cancelled one `reply` is the reason. `returned`
    is the failure that a DSN or a callback reported after a delivery: the state stays.
    """

    recipient: str
    state: str
    attempts: int
    next_attempt: datetime | None
    at: datetime
    code: int | None
    reply: str | None
    returned: str | None = None

    @property
    def over(self) -> bool:
        """False while it is scheduled, queued, deferred or sending: these end by themselves."""
        return self.state not in _UNFINISHED


type Statuses = dict[int, list[RecipientStatus]]
"""The recipients of each message; none for an id that this login does not have."""
