"""From the result of an attempt to what becomes of the row (pure)."""

from __future__ import annotations

from datetime import datetime

from pgmta.errors import Stage
from pgmta.model import Item, Outcome, Reply
from pgmta.states import Event
from queued.config import Retry
from queued.delivery.reply import SHORT, Result, stored
from queued.worker.retry import delay

_OK = 2  # first digit of a positive reply
_ABOUT_THE_MAIL = (Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA)
"""Stages in which a 5xx concerns this mail; before them it concerns the host, and may pass."""


def event_of(result: Result) -> Event:
    """Return the event of a result (RFC 5321, section 4.2.1).

    Only 2xx to the end of data is a delivery. After the final dot any reply but 2xx, 4xx and 5xx
    leaves open whether the server has the message. Before it, any reply but 5xx is a failure for
    now: a server that breaks the protocol gets another chance.
    """
    if not result.begun:
        return Event.HAND_BACK
    if result.unknown:
        return Event.UNKNOWN
    first = result.reply.code // 100
    if result.stage is Stage.END_OF_DATA and first not in (4, 5):
        return Event.DELIVERED if first == _OK else Event.UNKNOWN
    if result.permanent or (first == 5 and result.stage in _ABOUT_THE_MAIL):
        return Event.FAIL
    return Event.DEFER


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
