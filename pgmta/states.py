"""The statuses of a queue row and the one table of transitions between them.

A finished row is not in the queue any more: the log has its last attempt.
`tests/pgmta/test_states.py` compares this table with the SQL CHECK and with docs/states.md.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Value of `queue.status`."""

    QUEUED = "QUEUED"  # accepted, or released; waits for a worker
    DEFERRED = "DEFERRED"  # an attempt failed for now; waits for next_attempt
    SENDING = "SENDING"  # leased by a worker until lease_until
    HOLD = "HOLD"  # waits for an operator; never claimed
    DELETE = "DELETE"  # an operator's request to delete; never claimed
    SCHEDULED = "SCHEDULED"  # waits for send_at; never claimed


class Event(StrEnum):
    """A cause that moves a row; `Outcome.event` is one of the events that end an attempt."""

    CLAIM = "claim"  # a worker takes the row under a lease
    TAKEOVER = "takeover"  # the lease ran out: outcome unknown, the next attempt begins
    DELIVERED = "delivered"  # 2xx: the row goes
    DEFER = "deferred"  # 4xx, timeout, refused connection
    FAIL = "failed"  # 5xx, or the message is too old
    UNKNOWN = "unknown"  # connection lost after the final dot
    HAND_BACK = "handed back"  # the attempt never began (drain)


GONE = None
"""Target of a transition that removes the row."""

TRANSITIONS: dict[tuple[Status, Event], Status | None] = {
    (Status.QUEUED, Event.CLAIM): Status.SENDING,
    (Status.DEFERRED, Event.CLAIM): Status.SENDING,
    (Status.SENDING, Event.TAKEOVER): Status.SENDING,
    (Status.SENDING, Event.DELIVERED): GONE,
    (Status.SENDING, Event.DEFER): Status.DEFERRED,
    (Status.SENDING, Event.UNKNOWN): Status.DEFERRED,
    (Status.SENDING, Event.FAIL): Status.HOLD,
    (Status.SENDING, Event.HAND_BACK): Status.QUEUED,
}
