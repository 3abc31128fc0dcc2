"""From the result of an attempt to what becomes of the row (pure)."""

from __future__ import annotations

from datetime import datetime

from pgmta.model import Item, Outcome, Reply
from pgmta.states import Event
from queued.config import Retry
from queued.delivery.reply import SHORT, Result, event_of, stored
from queued.worker.retry import delay


def judge(
    item: Item, result: Result, retry: Retry, *, started: datetime, now: datetime, chance: float
) -> Outcome:
    """Return the outcome to settle: a message past `retry.expire` fails instead of being deferred.

    The unknown outcome of a row with `once` stays unknown, because it is final anyway.
    """
    event = event_of(result)
    note = ""
    wait = 0.0
    if event is Event.DEFER or (event is Event.UNKNOWN and not item.once):
        wait = delay(retry, item.attempts, chance)
        if (now - item.ts).total_seconds() + wait > retry.expire:
            why = "outcome unknown" if event is Event.UNKNOWN else "undelivered"
            note = f" (given up: {why} for too long)"
            event = Event.FAIL
    reply = result.reply
    text = reply.text
    if note or len(text) >= SHORT or not (text.isascii() and text.isprintable()):
        reply = Reply(reply.code, stored(text, note))
    return Outcome(
        item=item,
        event=event,
        reply=reply,
        host=result.host,
        stage=result.stage,
        started=started,
        ended=now,
        delay=wait,
        facts=result.facts,
        seconds=result.seconds,
    )
