"""From the result of an attempt to what becomes of the row (pure)."""

from __future__ import annotations

from datetime import datetime

from pgmta.model import Item, Outcome, Reply
from pgmta.states import Event
from queued.config import Retry
from queued.delivery.reply import Result, stored
from queued.worker.retry import delay


def judge(
    item: Item, result: Result, retry: Retry, *, started: datetime, now: datetime, chance: float
) -> Outcome:
    """Return the outcome to settle: a message past `retry.expire` is held instead of deferred."""
    event = result.event
    note = ""
    wait = 0.0
    if event in (Event.DEFER, Event.UNKNOWN):
        wait = delay(retry, item.attempts, chance)
        if (now - item.ts).total_seconds() + wait > retry.expire:
            why = "outcome unknown" if event is Event.UNKNOWN else "undelivered"
            note = f" (given up: {why} for too long)"
            event = Event.FAIL
    return Outcome(
        item=item,
        event=event,
        reply=Reply(result.reply.code, stored(result.reply.text, note)),
        host=result.host,
        command=result.command,
        started=started,
        ended=now,
        delay=wait,
    )
