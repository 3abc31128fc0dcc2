"""From the result of an attempt to what becomes of the row (pure)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pgmta.answer_class import AnswerClass
from pgmta.deadline import KEY, deadline_of
from pgmta.model import Item, Outcome, Reply
from pgmta.states import Event
from queued.config import Retry
from queued.config.answer_index import Answer
from queued.delivery.reply import DEADLINE_OVER, SHORT, Result, event_of, stored
from queued.worker.retry import delay

_LIES = {
    (Event.FAIL, "temporary"): Event.DEFER,
    (Event.DEFER, "permanent"): Event.FAIL,
}
"""The events where an answer rule says that the code lies."""


def settled(item: Item, event: Event, result: Result, started: datetime, now: datetime) -> Outcome:
    """Return the outcome of an attempt that needs no policy: a delivery, or a hand back."""
    reply = result.reply
    text = reply.text
    if len(text) >= SHORT or not (text.isascii() and text.isprintable()):
        reply = Reply(reply.code, stored(text))
    return Outcome(
        item=item,
        event=event,
        reply=reply,
        host=result.host,
        stage=result.stage,
        started=started,
        ended=now,
        facts=result.facts,
        seconds=result.seconds,
    )


def judge(
    item: Item,
    result: Result,
    answer: Answer,
    retry: Retry,
    *,
    started: datetime,
    now: datetime,
    chance: float,
    first: bool = False,
) -> Outcome:
    """Return the outcome to settle.

    A deferral becomes a failure of class expired at the bounds of `retry`. A deadline shortens its
    wait, so that the row expires then. `first` says that no earlier answer had the class. The
    unknown outcome of a row with `once` stays unknown, because it is final anyway.
    """
    event = event_of(result)
    if event in (Event.DELIVERED, Event.HAND_BACK):
        return settled(item, event, result, started, now)
    answer_class = answer.answer_class
    if result is DEADLINE_OVER:
        answer_class = AnswerClass.EXPIRED
    else:
        event = _LIES.get((event, answer.lasting), event)
    if event is Event.UNKNOWN and not item.once and retry.unknown != "retry":
        item = _final(item, delivered=retry.unknown == "delivered")
    note, wait = "", 0.0
    if event is Event.DEFER or (event is Event.UNKNOWN and not item.once):
        wait, note = _wait(item, event, answer_class, retry, now, chance, first=first)
        if wait < 0:
            event, wait, answer_class = Event.FAIL, 0.0, AnswerClass.EXPIRED
    outcome = settled(item, event, result, started, now)
    if note:
        outcome.reply = Reply(result.reply.code, stored(result.reply.text, note))
    outcome.delay = wait
    outcome.answer_class = answer_class
    return outcome


def _wait(
    item: Item,
    event: Event,
    answer_class: str,
    retry: Retry,
    now: datetime,
    chance: float,
    *,
    first: bool,
) -> tuple[float, str]:
    """Return the seconds to the next attempt and a note for the reply; negative: there is none."""
    own = retry.of_class(answer_class)
    expire, most = own.expire or retry.expire, own.attempts or retry.attempts
    left = expire - (now - item.ts).total_seconds()
    wait = delay(retry, item.attempts, chance, answer_class, first=first)
    if first and wait > left:  # the usual wait may leave time for an attempt
        wait = delay(retry, item.attempts, chance, answer_class)
    note = ""
    if item.metadata and KEY in item.metadata:
        deadline, problem = deadline_of(item.metadata)
        if deadline:
            wait = min(wait, max((deadline - now).total_seconds(), 0.0))
        note = f" ({problem})" if problem else ""
    if most and item.attempts >= most:
        return -1.0, f" (given up after {item.attempts} attempts)"
    if wait > left:
        why = "outcome unknown" if event is Event.UNKNOWN else "undelivered"
        return -1.0, f" (given up: {why} for too long)"
    return wait, note


def _final(item: Item, *, delivered: bool) -> Item:
    """Return the row as one whose unknown outcome is final: held as with `once`, or gone."""
    return replace(item, once=True, on_failed="remove" if delivered else item.on_failed)
