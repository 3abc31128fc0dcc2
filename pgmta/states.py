"""The statuses of a queue row, and the table of their transitions.

A finished row is not in the queue any more: the log has its last attempt.
`tests/pgmta/test_states.py` compares rows with the SQL CHECK and docs/develop/states.md.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Value of `queue.status`."""

    QUEUED = "QUEUED"  # accepted, released or put off; waits for a worker
    DEFERRED = "DEFERRED"  # an attempt failed for now; waits for next_attempt
    SENDING = "SENDING"  # leased by a worker until lease_until
    HOLD = "HOLD"  # waits for an operator; never claimed
    DELETE = "DELETE"  # a request to delete; never claimed
    SCHEDULED = "SCHEDULED"  # waits for send_at; never claimed
    REPORT = "REPORT"  # ended; a DSN for its sender is still due; never claimed


WAITING = (Status.QUEUED, Status.DEFERRED, Status.SCHEDULED)
"""The statuses of rows that wait for their next attempt."""


class Event(StrEnum):
    """A cause that moves a row; `Outcome.event` is one of the events that end an attempt."""

    DUE = "due"  # the send_at of a scheduled row is near
    CLAIM = "claim"  # a worker takes the row under a lease
    TAKEOVER = "takeover"  # the lease ran out: outcome unknown
    DELIVERED = "delivered"  # 2xx: the row is removed, or its success is reported
    DEFER = "deferred"  # 4xx, timeout, refused connection
    FAIL = "failed"  # 5xx, or the message is too old
    UNKNOWN = "unknown"  # connection lost after the final dot
    HAND_BACK = "handed back"  # the attempt never began (drain)
    POSTPONE = "postponed"  # the row may not go yet: it waits until a time, and no attempt counts
    SUPPRESS = "suppressed"  # the recipient wants no mail: the row ends, and no attempt counts
    REPORT = "reported"  # its DSN is in the queue, or none is due


LOGGED_EVENTS = (
    *(each.value for each in (Event.DELIVERED, Event.DEFER, Event.FAIL, Event.UNKNOWN)),
    *("deleted", "cancelled", "expired", Event.SUPPRESS.value),
)
"""The events of the log: ends of attempts, and ends of rows without one."""

NOT_BEGUN_EVENTS = (Event.HAND_BACK, Event.POSTPONE, Event.SUPPRESS)
"""The events of a leased row without an attempt."""


GONE = None
"""Target of a transition that removes the row."""

_FINAL = (Status.HOLD, GONE)
"""The end of a row that may not be sent again: `queue.on_failed` decides between them."""

TRANSITIONS: dict[tuple[Status, Event], tuple[Status | None, ...]] = {
    (Status.SCHEDULED, Event.DUE): (Status.QUEUED,),
    (Status.QUEUED, Event.CLAIM): (Status.SENDING,),
    (Status.DEFERRED, Event.CLAIM): (Status.SENDING,),
    (Status.SENDING, Event.TAKEOVER): (Status.SENDING, *_FINAL),
    (Status.SENDING, Event.DELIVERED): (GONE, Status.REPORT),
    (Status.SENDING, Event.DEFER): (Status.DEFERRED,),
    (Status.SENDING, Event.UNKNOWN): (Status.DEFERRED, *_FINAL),
    (Status.SENDING, Event.FAIL): (*_FINAL, Status.REPORT),
    (Status.SENDING, Event.HAND_BACK): (Status.QUEUED,),
    (Status.SENDING, Event.POSTPONE): (Status.QUEUED,),
    (Status.SENDING, Event.SUPPRESS): (GONE, Status.REPORT),
    (Status.REPORT, Event.REPORT): (GONE, Status.HOLD),
}
"""The targets of each transition. `queue.once` and `queue.on_failed` choose between several."""


def after(event: Event, *, once: bool, on_failed: str, report: str = "") -> Status | None:
    """Return the status of a row in flight after an event; GONE if the row goes.

    `once` and `on_failed` are those of the row. With `report`, its sender wants to know of the
    success. An unknown outcome is not reported: it is held, unless `on_failed` is `remove`.
    """
    if event is Event.DELIVERED:
        return Status.REPORT if report else GONE
    if event in (Event.FAIL, Event.SUPPRESS) and on_failed == "bounce":
        return Status.REPORT
    if event is Event.FAIL or (once and event in (Event.UNKNOWN, Event.TAKEOVER)):
        return GONE if on_failed == "remove" else Status.HOLD
    return TRANSITIONS[Status.SENDING, event][0]
