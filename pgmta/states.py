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
    DELETE = "DELETE"  # a request to delete; never claimed
    SCHEDULED = "SCHEDULED"  # waits for send_at; never claimed


class Event(StrEnum):
    """A cause that moves a row; `Outcome.event` is one of the events that end an attempt."""

    CLAIM = "claim"  # a worker takes the row under a lease
    TAKEOVER = "takeover"  # the lease ran out: outcome unknown
    DELIVERED = "delivered"  # 2xx: the row goes
    DEFER = "deferred"  # 4xx, timeout, refused connection
    FAIL = "failed"  # 5xx, or the message is too old
    UNKNOWN = "unknown"  # connection lost after the final dot
    HAND_BACK = "handed back"  # the attempt never began (drain)


class Removal(StrEnum):
    """An event in the log of attempts that removes a row without an attempt."""

    DELETED = "deleted"  # an operator's request
    CANCELLED = "cancelled"  # the sender's request
    EXPIRED = "expired"  # too late to be sent
    SUPPRESSED = "suppressed"  # the recipient wants no mail


GONE = None
"""Target of a transition that removes the row."""

_FINAL = (Status.HOLD, GONE)
"""The end of a row that is not sent any more: `queue.on_failed` decides between them."""

TRANSITIONS: dict[tuple[Status, Event], tuple[Status | None, ...]] = {
    (Status.QUEUED, Event.CLAIM): (Status.SENDING,),
    (Status.DEFERRED, Event.CLAIM): (Status.SENDING,),
    (Status.SENDING, Event.TAKEOVER): (Status.SENDING, *_FINAL),
    (Status.SENDING, Event.DELIVERED): (GONE,),
    (Status.SENDING, Event.DEFER): (Status.DEFERRED,),
    (Status.SENDING, Event.UNKNOWN): (Status.DEFERRED, *_FINAL),
    (Status.SENDING, Event.FAIL): _FINAL,
    (Status.SENDING, Event.HAND_BACK): (Status.QUEUED,),
}
"""The targets of each transition. `queue.once` and `queue.on_failed` choose between several."""


def after(event: Event, *, once: bool, remove: bool) -> Status | None:
    """Return the status of a row in flight after an event; GONE if the row goes.

    `once` and `remove` are the row's `once`, and whether its `on_failed` is `remove`.
    """
    targets = TRANSITIONS[Status.SENDING, event]
    if targets == _FINAL or (len(targets) > 1 and once):
        return GONE if remove else Status.HOLD
    return targets[0]
