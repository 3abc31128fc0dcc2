"""Judges results by the retry policy of each row's route, and by the class of its answer."""

from __future__ import annotations

from datetime import datetime

from pgmta.logs import get
from pgmta.mail.answer_class import AnswerClass
from pgmta.model import Item, Outcome
from pgmta.states import Event
from queued.answers.rules import AnswerRules
from queued.config import QueuedConfig
from queued.config.answer_index import Answer
from queued.delivery.transport.result import Result
from queued.routing.routes import Routes
from queued.worker.verdict import FirstAnswers, judge, overdue

_UNREAD = Answer(AnswerClass.OTHER, "", "")
_NOT_BEGUN = (Event.HAND_BACK, Event.POSTPONE)

# odd multipliers spread ids that follow each other evenly (Knuth, The Art, vol. 3, section 6.4)
_MESSAGE, _ATTEMPT = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
_BITS, _MASK = 53, (1 << 64) - 1

log = get("worker")


def jitter_of(message_id: int, attempts: int) -> float:
    """Return a number in [0, 1) that shortens the wait after an attempt, in any process the same.

    Rows of one message stay together: they expire in one DSN, and share transactions. Those of
    different messages are spread.
    """
    mixed = (message_id * _MESSAGE + attempts * _ATTEMPT) & _MASK
    return (mixed >> 64 - _BITS) / (1 << _BITS)


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
        answer = _UNREAD if result.event in _NOT_BEGUN else self._read(result)
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

    def _read(self, result: Result) -> Answer:
        try:
            permanent = result.event is Event.FAIL
            return self._answers.read(result.reply, result.host, result.stage, permanent=permanent)
        except Exception as error:  # the outcome counts more than its class
            log.error("an answer has no class", reply=str(result.reply), exc_info=error)
            return _UNREAD
