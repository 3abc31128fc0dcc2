"""Verdicts: the outcome of an attempt for a row, and the time of the next attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pgmta.logs import get
from pgmta.mail.answer_class import AnswerClass
from pgmta.mail.metadata import DEADLINE_KEY, deadline_of
from pgmta.model import Item, Outcome, ReasonToWait, Reply
from pgmta.states import NOT_BEGUN_EVENTS, Event
from queued.answers.answer_rules import AnswerRules
from queued.config import QueuedConfig, Retry
from queued.config.answer_index import Answer
from queued.delivery.transport.result import (
    DEADLINE_OVER,
    MAX_SHORT_CHARACTERS,
    Result,
    kept_too_long,
    stored,
)
from queued.routing.retry_until import look_again
from queued.routing.routes import Routes

_MAX_KNOWN_ROWS = 50_000


def delay(
    retry: Retry, attempts: int, chance: float, answer_class: str = "", *, first: bool = False
) -> float:
    """Return the seconds to wait after the given number of attempts.

    `chance` in [0, 1) shortens the wait by up to the jitter and never lengthens it: mail goes out
    within one interval after the next hop is back. A full jitter draws the wait from 0 to its
    whole length. `first` says that no earlier answer had this
    class. The wait after the first greylisted answer is not shortened: the host would refuse the
    mail again.
    """
    if first and (wait := retry.first_wait(answer_class)):
        return wait
    own = retry.of_class(answer_class)
    return (own if own.has_waits else retry).after(attempts) * (1 - retry.jitter * chance)


class FirstAnswers:
    """Knows which rows had an answer of a class with a first wait.

    It forgets after a restart, or after many other rows. A row then waits once more for the time
    of a first answer, which does no harm.
    """

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}  # in the order of insertion, so that the oldest can go

    def first(self, row_id: int, answer_class: str) -> bool:
        """Note the answer, and return whether the row had none of this class before."""
        before = self._seen.pop(row_id, None)
        if before is None and len(self._seen) >= _MAX_KNOWN_ROWS:
            del self._seen[next(iter(self._seen))]
        self._seen[row_id] = answer_class
        return before != answer_class


def success_notice(item: Item, result: Result) -> str:
    """Return `relayed` or `delivered` if the sender wants to know of a success; '' if not.

    A next hop that knows DSN got NOTIFY, and notifies the sender itself.
    """
    if not (item.notify and item.on_failed == "bounce" and item.sender):
        return ""
    if "SUCCESS" not in item.notify.upper() or result.facts is None:
        return ""
    return result.facts.success_kind


def overdue(outcome: Outcome, delays: Sequence[float]) -> float:
    """Return the last of these ages in seconds that mail which waits has passed; 0.0 if none."""
    item = outcome.item
    if item.on_failed != "bounce" or not item.sender:
        return 0.0
    age = (outcome.ended - item.ts).total_seconds()
    passed = [delay for delay in delays if delay <= age]
    return passed[-1] if passed else 0.0


_OVERRIDES = {
    (Event.FAIL, "temporary"): Event.DEFER,
    (Event.DEFER, "permanent"): Event.FAIL,
}
"""The events where an answer rule says that the code lies."""


def settled(item: Item, event: Event, result: Result, started: datetime, now: datetime) -> Outcome:
    """Return the outcome of an attempt that needs no policy: a delivery, or none that began."""
    reply = result.reply
    text = reply.text
    if len(text) >= MAX_SHORT_CHARACTERS or not (text.isascii() and text.isprintable()):
        reply = Reply(reply.code, stored(text))
    return Outcome(
        item=item,
        event=event,
        reply=reply,
        host=result.host,
        stage=result.stage,
        shared=result.shared,
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
    wait, so that the row expires then. `first` says that no earlier answer had the class. An
    unknown outcome never becomes a failure, because the next hop may have the mail. It is final at
    the bounds, if no attempt can follow before the deadline, and for rows with `once` anyway.
    """
    event = result.event
    item = replace(item, on_failed="hold") if result.hold else item
    if event is Event.DELIVERED or event in NOT_BEGUN_EVENTS:
        outcome = settled(item, event, result, started, now)
        if result.wait is not None:
            wait = max(result.wait, 0.0)
            # only the stage of deadlines ends a row whose deadline is over
            outcome.delay = _until_deadline(item, wait, now)[0] or wait
        return outcome
    answer_class = answer.answer_class
    if result is DEADLINE_OVER:
        answer_class = AnswerClass.EXPIRED
    else:
        event = _OVERRIDES.get((event, answer.lasting), event)
    if event is Event.UNKNOWN and not item.once and retry.unknown != "retry":
        # the end of the row, whatever `on_failed` says
        end = "remove" if retry.unknown == "delivered" else "hold"
        item = replace(item, once=True, on_failed=end)
    note, wait, expired_class = "", 0.0, ""
    if event is Event.DEFER or (event is Event.UNKNOWN and not item.once):
        own = retry.of_class(answer_class)
        expire, most = own.expire or retry.expire, own.attempts or retry.attempts
        left = expire - (now - item.ts).total_seconds()
        wait = delay(retry, item.attempts, chance, answer_class, first=first)
        if first and wait > left:  # the usual wait may still leave time for an attempt
            wait = delay(retry, item.attempts, chance, answer_class)
        wanted = max(wait, result.wait or 0.0)
        wait, problem = _until_deadline(item, wanted, now)
        note = f" ({problem})" if problem else ""
        given_up = True
        if most and item.attempts >= most:
            note = f" (given up after {item.attempts} attempts)"
        elif wait > left:
            why = "outcome unknown" if event is Event.UNKNOWN else "undelivered"
            note = f" (given up: {why} for too long)"
        elif event is Event.UNKNOWN and wait < wanted:
            note = " (given up: outcome unknown, and no attempt may follow before the deadline)"
        else:
            given_up = False
        if given_up and event is Event.UNKNOWN:
            item, wait = replace(item, once=True), 0.0
        elif given_up:
            event, wait, expired_class = Event.FAIL, 0.0, answer_class
            answer_class = AnswerClass.EXPIRED
    outcome = settled(item, event, result, started, now)
    if note:
        outcome.reply = Reply(result.reply.code, stored(result.reply.text, note))
    outcome.delay = wait
    outcome.answer_class, outcome.expired_class = answer_class, expired_class
    return outcome


def _until_deadline(item: Item, wait: float, now: datetime) -> tuple[float, str]:
    """Return the seconds to wait, at most until the deadline; and why a bad one is ignored."""
    if not (item.metadata and DEADLINE_KEY in item.metadata):
        return wait, ""
    deadline, problem = deadline_of(item.metadata)
    if deadline:
        wait = min(wait, max((deadline - now).total_seconds(), 0.0))
    return wait, problem


_UNREAD_ANSWER = Answer(AnswerClass.OTHER, "", "")

# Multiplicative hashing (Knuth, The Art, vol. 3, section 6.4) spreads consecutive ids evenly.
_MESSAGE_MULTIPLIER, _ATTEMPT_MULTIPLIER = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
_FRACTION_BITS, _MASK_64_BITS = 53, (1 << 64) - 1

log = get("worker")


def jitter_of(message_id: int, attempts: int) -> float:
    """Return a number in [0, 1) that shortens the wait after an attempt, in any process the same.

    Rows of one message stay together: they expire in one DSN, and share transactions. Those of
    different messages are spread.
    """
    mixed = (message_id * _MESSAGE_MULTIPLIER + attempts * _ATTEMPT_MULTIPLIER) & _MASK_64_BITS
    return (mixed >> 64 - _FRACTION_BITS) / (1 << _FRACTION_BITS)


class Judge:
    """Judges all but deliveries, which need neither class nor policy."""

    def __init__(self) -> None:
        self._first = FirstAnswers()

    def configure(self, config: QueuedConfig, routes: Routes, answers: AnswerRules) -> None:
        """Use new policies and rules from now on."""
        self._retry = config.retry
        self._delays = config.bounces.delay
        self._answers = answers
        self._routes = routes
        self.shortest = min(retry.shortest for retry in (config.retry, *routes.retries))
        """Seconds of the shortest wait after a first attempt."""

    def judge(self, item: Item, result: Result, started: datetime, now: datetime) -> Outcome:
        """Return the outcome of an attempt."""
        if reason := result.reason_to_wait:
            return self._put_off(item, result, reason, started, now)
        answer = _UNREAD_ANSWER
        if result.event not in NOT_BEGUN_EVENTS:
            try:
                permanent = result.event is Event.FAIL
                answer = self._answers.read_reply(
                    result.reply, result.host, result.stage, permanent=permanent
                )
            except Exception as error:  # without its class the outcome still has to be stored
                log.error("an answer has no class", reply=str(result.reply), exc_info=error)
        own = self._routes.retry(item)
        retry = own or self._retry
        first = False
        if retry.first_wait(answer.answer_class):
            first = self._first.first(item.id, answer.answer_class)
        chance = jitter_of(item.message_id, item.attempts)
        outcome = judge(
            item, result, answer, retry, started=started, now=now, chance=chance, first=first
        )
        if outcome.delay or outcome.event is Event.DEFER:
            outcome.overdue = overdue(outcome, self._delays)
        return outcome

    def _put_off(
        self, item: Item, result: Result, reason: ReasonToWait, started: datetime, now: datetime
    ) -> Outcome:
        """Return the outcome of a row that the gate keeps back, until it needs something.

        It has expired if it waits for too long.
        """
        retry = self._routes.retry(item) or self._retry
        wait = look_again(item, retry, self._delays, now)
        if wait is None:
            outcome = settled(item, Event.FAIL, kept_too_long(reason), started, now)
            outcome.answer_class = AnswerClass.EXPIRED
            return outcome
        outcome = settled(item, Event.POSTPONE, result, started, now)
        outcome.delay, outcome.reason_to_wait = wait, reason
        outcome.overdue = overdue(outcome, self._delays)
        return outcome
