"""Verdicts: age, attempts, deadline, class, unknown outcomes (all pure)."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.answer_class import AnswerClass
from pgmta.mail.metadata import deadline_of, parse_time
from pgmta.model import Item, Outcome, Reply
from pgmta.states import TRANSITIONS, Event, Status, after
from queued.config import Retry
from queued.config.answer_index import Answer
from queued.config.retry import GREYLISTED_WAIT_S, Exponential
from queued.delivery.smtp.exchange import result_of
from queued.delivery.transport.result import (
    CUT_OFF,
    DEADLINE_OVER,
    NOT_BEGUN,
    Result,
    postponed,
)
from queued.worker.verdict import FirstAnswers, delay, jitter_of, judge

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MAIL = (Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA)
HOST = tuple(stage for stage in Stage if stage not in MAIL)
SESSION = (500, 501, 502, 503, 504, 530, 538)  # about the session, without 5.1.x in the text
CLASSES = [each for each in AnswerClass if each is not AnswerClass.EXPIRED]
LATER = result_of(Reply(451, "4.3.0 Later"), "h:25", Stage.RCPT)
NO = result_of(Reply(550, "5.7.1 No"), "h:25", Stage.RCPT)

seconds = st.floats(min_value=0.001, max_value=1e7)
periods = seconds.map(lambda number: f"{number:f}s")
lists = st.lists(periods, min_size=1, max_size=6)
exponentials = st.builds(
    lambda first, factor, more: {
        "first": f"{first:f}s", "factor": factor, "most": f"{first + more:f}s",
    },
    seconds, st.floats(1, 100), st.floats(0, 1e7),
)  # fmt: skip
waits = st.one_of(
    st.builds(lambda each: {"intervals": each}, lists),
    st.builds(lambda each: {"exponential": each}, exponentials),
)
bounds = st.fixed_dictionaries({}, optional={"expire": periods, "attempts": st.integers(2, 30)})
classes = st.dictionaries(
    st.sampled_from([each.value for each in CLASSES]),
    st.builds(
        lambda some, bound, first: some | bound | first,
        st.one_of(st.just({}), waits), bounds,
        st.fixed_dictionaries({}, optional={"first": periods}),
    ),
    max_size=3,
)  # fmt: skip
retries = st.builds(
    lambda some, bound, classes, jitter, unknown: Retry.model_validate(
        some | bound | {"classes": classes, "jitter": jitter, "unknown": unknown}
    ),
    waits, bounds, classes, st.floats(0, 1) | st.just("full"),
    st.sampled_from(["retry", "hold", "delivered"]),
)  # fmt: skip
chances = st.floats(min_value=0, max_value=1, exclude_max=True)
answers = st.builds(
    Answer, st.sampled_from(CLASSES), st.sampled_from(["", "temporary", "permanent"])
)
results = st.builds(
    lambda code, stage, event: Result(
        event if not code and stage is not Stage.END_OF_DATA
        else result_of(Reply(code, ""), "", stage).event,
        Reply(code, "a\nb\x1b" + "é" * 2000), "h:25", stage,
    ),
    st.sampled_from([0, *range(200, 600), 999]), st.sampled_from(HOST + MAIL),
    st.sampled_from([Event.DEFER, Event.FAIL, Event.UNKNOWN]),
)  # fmt: skip


def item(age: float = 0.0, attempts: int = 1, **more: Any) -> Item:
    born = NOW - timedelta(seconds=age)
    return Item(1, 2, "s@a.example", "r@b.example", "b.example", attempts, born, 3, **more)


def judged(
    row: Item, result: Result, retry: Retry | None = None, answer: str = "other", **more: Any
) -> Outcome:
    lasting = more.pop("lasting", "")
    given: dict[str, Any] = {"started": NOW, "now": NOW, "chance": 0.0} | more
    return judge(row, result, Answer(AnswerClass(answer), lasting), retry or Retry(), **given)


def until(seconds: float) -> str:
    return json.dumps({"_deadline": (NOW + timedelta(seconds=seconds)).isoformat()})


@given(retries, st.sampled_from(CLASSES), st.integers(0, 2**31), chances)
def test_waits_are_within_the_jitter_below_those_of_the_class(
    retry: Retry, answer_class: str, attempts: int, chance: float
) -> None:
    own = retry.classes.get(answer_class)
    source = own if own and own.has_waits else retry
    full = delay(retry, attempts, 0.0, answer_class)
    if source.exponential:
        grows = source.exponential
        assert grows.first <= full <= grows.most
        assert delay(retry, 1, 0.0, answer_class) == grows.first
        assert full <= delay(retry, attempts + 1, 0.0, answer_class)
    else:
        intervals = source.intervals or []
        assert full == intervals[min(max(attempts - 1, 0), len(intervals) - 1)]
    assert full * (1 - retry.jitter) <= delay(retry, attempts, chance, answer_class) <= full
    first = retry.first_wait(answer_class)
    assert delay(retry, attempts, chance, answer_class, first=True) == (
        first or delay(retry, attempts, chance, answer_class)
    )


@pytest.mark.parametrize("step", [1, 2, 7, 10, 64, 100, 1000, 1 << 20])
def test_jitter_spreads_messages_and_attempts(step: int) -> None:
    for share in (
        [jitter_of(10**6 + n * step, 3) for n in range(1000)],
        [jitter_of(-step, attempt) for attempt in range(1, 1001)],
    ):
        assert all(0 <= each < 1 for each in share)
        tenths = [sum(int(each * 10) == tenth for each in share) for tenth in range(10)]
        assert min(tenths) > 50
        assert max(tenths) < 200
    assert jitter_of(1, 1) == jitter_of(1, 1) != jitter_of(2**63 - 1, 2**31 - 1) < 1


def test_a_full_jitter_draws_each_wait_from_its_whole_length() -> None:
    retry = Retry.model_validate({"intervals": ["1m", "1h"], "jitter": "full"})
    for attempt, whole in ((1, 60.0), (2, 3600.0)):
        waits = [delay(retry, attempt, jitter_of(10**6 + n, attempt)) for n in range(10_000)]
        tenths = Counter(int(wait / whole * 10) for wait in waits)
        assert set(tenths) == set(range(10))
        assert max(tenths.values()) - min(tenths.values()) < 100
        assert 0 < min(waits) < max(waits) <= whole
    # the first wait of greylisted mail stays whole, and bounds count the wait as drawn
    assert delay(retry, 1, 0.99, "greylisted", first=True) == 300.0
    short = Retry.model_validate({"intervals": ["2h"], "expire": "1h", "jitter": "full"})
    assert [*short.problems()] == []
    busy = Result(Event.DEFER, Reply(450, "Busy"))
    assert judged(item(), busy, short, chance=0.75).delay == 1800.0
    assert judged(item(), busy, short, chance=0.25).event is Event.FAIL


def test_exponential_waits() -> None:
    grows = Exponential.model_validate({"first": "60s", "factor": 2, "most": "1000s"})
    assert [grows.after(n) for n in (0, 1, 2, 3, 5, 6, 10**9)] == [
        60,
        60,
        120,
        240,
        960,
        1000,
        1000,
    ]
    assert Exponential.model_validate({"first": "1s", "factor": 1, "most": "9s"}).after(10**9) == 1


@given(results, answers, retries, chances, st.floats(0, 1e7), st.integers(1, 40), st.booleans(),
       st.sampled_from([None, *range(-10, 10_000_000, 1000)]), st.booleans())  # fmt: skip
def test_every_result_has_its_verdict(
    result: Result, answer: Answer, retry: Retry, chance: float, age: float, attempts: int,
    once: bool, left: int | None, first: bool,
) -> None:  # fmt: skip
    code, stage = result.reply.code, result.stage
    metadata = None if left is None else until(left)
    row = item(age, attempts, once=once, on_failed="bounce", metadata=metadata)
    outcome = judge(
        row, result, answer, retry, started=NOW, now=NOW, chance=chance, first=first
    )  # fmt: skip
    own = retry.of_class(answer.answer_class)
    unknown = result.event is Event.UNKNOWN
    assert unknown or stage is not Stage.END_OF_DATA or code // 100 in (2, 4, 5)
    final = once or retry.unknown != "retry"
    permanent = result.event is Event.FAIL
    assert permanent == (500 <= code < 600 and code not in SESSION and stage in MAIL) or not code
    permanent = {"": permanent, "temporary": False, "permanent": True}[answer.lasting]
    said = outcome.reply.text
    if not unknown and 200 <= code < 300 and stage is Stage.END_OF_DATA:
        expected: tuple[Event, str] = Event.DELIVERED, ""
    elif unknown and final:
        expected = Event.UNKNOWN, answer.answer_class
    elif permanent and not unknown:
        expected = Event.FAIL, answer.answer_class
    elif "given up" in said:
        expected = (Event.UNKNOWN, answer.answer_class) if unknown else (Event.FAIL, "expired")
        late = age + outcome.delay + delay(retry, attempts, chance, answer.answer_class)
        most = own.attempts or retry.attempts
        early = unknown and left is not None and "before the deadline" in said
        assert (most and attempts >= most) or late > (own.expire or retry.expire) or early
        assert (unknown and "given up after" not in said) == ("outcome unknown" in said)
        assert after(outcome.event, once=outcome.item.once, on_failed="bounce") is (
            Status.HOLD if unknown else Status.REPORT
        )
    else:
        expected = Event.UNKNOWN if unknown else Event.DEFER, answer.answer_class
        assert 0 <= outcome.delay <= (own.expire or retry.expire)
        assert attempts < (own.attempts or retry.attempts or 10**9)
        usual = delay(retry, attempts, chance, answer.answer_class)
        allowed = [delay(retry, attempts, chance, answer.answer_class, first=first), usual]
        if left is None:
            assert outcome.delay in allowed
        else:
            assert outcome.delay <= max(left, 0)
            assert outcome.delay in [*allowed, max(left, 0)]
    assert (outcome.event, outcome.answer_class) == expected
    final = final or "given up" in said
    if outcome.event in (Event.DELIVERED, Event.FAIL) or (unknown and final):
        assert outcome.delay == 0
    if not (unknown and final):
        assert outcome.item is row
    assert outcome.reply.code == code
    assert said.startswith("a b\ufffd")
    assert len(said.encode()) <= 1020
    assert (outcome.host, outcome.stage, outcome.ended) == ("h:25", stage, NOW)
    assert (Status.SENDING, outcome.event) in TRANSITIONS


def test_attempts_that_were_cut_off_and_those_that_never_began() -> None:
    assert judged(item(age=1), CUT_OFF).event is Event.UNKNOWN
    assert judged(item(age=1), NOT_BEGUN).event is Event.HAND_BACK
    for error, event in [
        (DeliveryError("5.1.2 no such domain", Stage.MX, permanent=True), Event.FAIL),
        (DeliveryError("connection reset", Stage.END_OF_DATA, unknown=True), Event.UNKNOWN),
    ]:
        result = Result.from_error(error, "h:25")
        assert judged(item(age=1), result).event is event
        assert (result.reply, result.host) == (Reply(0, error.line), "h:25")
        assert not error.retry_elsewhere


def test_a_row_is_put_off_until_its_time_or_its_deadline() -> None:
    result = postponed(90, "waits for its budget")
    found = judged(item(age=1), result)
    assert (found.event, found.delay, str(found.reply)) == (
        Event.POSTPONE,
        90,
        "waits for its budget",
    )
    soon = item(age=1)
    soon.metadata = json.dumps({"_deadline": (NOW + timedelta(seconds=20)).isoformat()})
    assert judged(soon, result).delay == 20
    assert judged(item(age=1), postponed(-1, "late")).delay == 0


def test_a_rule_that_says_that_the_code_lies() -> None:
    assert judged(item(), NO, lasting="temporary").event is Event.DEFER
    assert judged(item(), NO, lasting="temporary").delay == 60
    assert judged(item(), LATER, lasting="permanent").event is Event.FAIL
    old = judged(item(age=432001), NO, answer="spam", lasting="temporary")
    assert (old.event, old.answer_class) == (Event.FAIL, "expired")
    # a rule decides about deferrals and failures only
    for lasting, (result, event) in product(
        ("temporary", "permanent"), [(CUT_OFF, Event.UNKNOWN), (NOT_BEGUN, Event.HAND_BACK)]
    ):
        assert judged(item(), result, lasting=lasting).event is event


@pytest.mark.parametrize("policy", ["retry", "hold", "delivered"])
@pytest.mark.parametrize("on_failed", ["hold", "remove", "bounce"])
@pytest.mark.parametrize("once", [True, False])
def test_unknown_outcomes(policy: str, on_failed: str, once: bool) -> None:
    retry = Retry.model_validate({"unknown": policy})
    row = item(once=once, on_failed=on_failed)
    outcome = judged(row, CUT_OFF, retry)
    now = outcome.item
    found = after(outcome.event, once=now.once, on_failed=now.on_failed)
    held = None if on_failed == "remove" else Status.HOLD
    expected = {"retry": Status.DEFERRED, "hold": Status.HOLD, "delivered": None}[policy]
    assert outcome.event is Event.UNKNOWN
    assert found == (held if once else expected)
    assert (row.once, row.on_failed, now.id, now.token) == (once, on_failed, 1, 3)


def test_an_unknown_outcome_does_not_wait_for_a_deadline_that_would_fail_it() -> None:
    row = item(metadata=until(200))
    outcome = judged(row, CUT_OFF, Retry.model_validate({"intervals": ["300s"]}))
    assert (outcome.event, outcome.item.once, outcome.delay) == (Event.UNKNOWN, True, 0)
    assert "before the deadline" in outcome.reply.text
    soon = judged(row, CUT_OFF, Retry.model_validate({"intervals": ["100s"], "jitter": 0}))
    assert (soon.event, soon.item, soon.delay) == (Event.UNKNOWN, row, 100)


def test_greylisted_mail_has_its_own_first_wait() -> None:
    seen = FirstAnswers()

    def wait(row: Item, retry: Retry | None = None) -> float:
        outcome = judged(row, LATER, retry, "greylisted", chance=0.9,
                         first=seen.first(row.id, "greylisted"))  # fmt: skip
        assert (outcome.event, outcome.answer_class) == (Event.DEFER, "greylisted")
        return outcome.delay

    plain = Retry.model_validate({"jitter": 0})
    assert wait(item()) == GREYLISTED_WAIT_S  # never shorter: the host would refuse it again
    assert wait(item(attempts=2), plain) == 300
    assert wait(item(attempts=3), plain) == 900
    seen = FirstAnswers()
    assert wait(item(attempts=9), plain) == GREYLISTED_WAIT_S  # also if the host was down before
    # the usual wait leaves time for an attempt, the first one does not
    seen = FirstAnswers()
    assert wait(item(), Retry.model_validate({"jitter": 0, "expire": "2m"})) == 60


def test_first_answers_are_forgotten_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queued.worker.verdict._MAX_KNOWN_ROWS", 3)
    seen = FirstAnswers()
    assert [seen.first(row, "greylisted") for row in (1, 2, 1, 3, 4, 2, 1)] == [
        True, True, False, True, True, True, True,
    ]  # fmt: skip
    assert seen.first(1, "rate_limited")


DEADLINES = {
    "2026-01-02T03:04:05Z": NOW,
    "2026-01-02t04:04:05+01:00": NOW,
    "2026-01-01 19:34:05.000-07:30": NOW,
    "2026-01-02T03:04:04.999999999Z": NOW - timedelta(microseconds=1),
    "2016-12-31T23:59:60Z": datetime(2017, 1, 1, tzinfo=UTC),
}
BAD = (
    "tomorrow", "", "2026-01-02", "2026-01-02T03:04:05", "2026-02-30T00:00:00Z", "1767323045",
    "2026-01-02T24:00:00Z", "2026-01-02T03:04:05 Z",
    "0001-01-01T00:00:00+01:00", "٢٠٢٦-01-02T03:04:05Z",
    "9999-12-31T23:59:59-01:00", "x" * 5000, "\0",
)  # fmt: skip


@pytest.mark.parametrize("text", DEADLINES)
def test_deadlines_are_times_of_rfc_3339(text: str) -> None:
    assert parse_time(text) == DEADLINES[text]


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)), st.integers(-1439, 1439))
def test_any_time_with_any_zone(time: datetime, minutes: int) -> None:
    given_time = time.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert parse_time(given_time.isoformat()) == given_time


@pytest.mark.parametrize("value", [*BAD, 5, 1.5, True, [], {}, "9" * 6000, int("9" * 4000)])
def test_a_bad_deadline_is_named_and_ignored(value: Any) -> None:
    metadata = json.dumps({"_deadline": value})
    deadline, problem = deadline_of(metadata)
    assert deadline is None
    assert "_deadline" in problem
    assert problem.isascii()
    assert problem.isprintable()
    assert len(problem) < 200
    outcome = judged(item(metadata=metadata), LATER)
    assert (outcome.event, outcome.delay) == (Event.DEFER, 60)
    assert outcome.reply.text == f"4.3.0 Later ({problem})"


@pytest.mark.parametrize("metadata", ['{"_deadline": null}', '{"x": "_deadline"}', '["_deadline"]'])
def test_no_deadline(metadata: str) -> None:
    assert deadline_of(metadata) == (None, "")
    assert judged(item(metadata=metadata), LATER).reply.text == "4.3.0 Later"


def test_metadata_that_cannot_be_read() -> None:
    for metadata in ("_deadline", "[" * 100_000 + '"_deadline"'):
        deadline, problem = deadline_of(metadata)
        assert deadline is None
        assert "can't be read" in problem


def test_the_deadline_shortens_waits_and_ends_the_row() -> None:
    for left, expected in [(1000, 60), (60, 60), (20, 20), (0, 0), (-5, 0)]:
        outcome = judged(item(metadata=until(left)), LATER)
        assert (outcome.event, outcome.delay) == (Event.DEFER, expected)
    # before the deadline the age would not have ended it
    outcome = judged(item(age=432000 - 30, metadata=until(20)), LATER)
    assert (outcome.event, outcome.delay) == (Event.DEFER, 20)
    over = judged(item(metadata=until(-1)), DEADLINE_OVER, answer="other", lasting="temporary")
    assert (over.event, over.answer_class) == (Event.FAIL, "expired")
    assert over.reply.enhanced == "4.4.7"


def test_a_route_has_the_rest_from_the_section() -> None:
    base = Retry.model_validate(
        {"exponential": {"first": "10s"}, "attempts": 9, "unknown": "hold",
         "classes": {"spam": {"attempts": 2, "expire": "1h"}, "dns": {"first": "7s"}}}
    )  # fmt: skip
    route = Retry.model_validate(
        {"intervals": ["30s"], "expire": "1d",
         "classes": {"spam": {"expire": "2h"}, "dns": {"intervals": ["9s"]}}}
    )  # fmt: skip
    found = route.over(base)
    assert (found.after(1), found.expire, found.attempts, found.unknown) == (30, 86400, 9, "hold")
    assert (found.of_class("spam").expire, found.of_class("spam").attempts) == (7200, 2)
    assert (found.first_wait("dns"), found.of_class("dns").after(3)) == (None, 9)
    assert found.first_wait("greylisted") == GREYLISTED_WAIT_S
    assert found.shortest == 9
    assert Retry.model_validate({}).over(base) == base
    only = Retry.model_validate({"classes": {"greylisted": {"first": None}}}).over(Retry())
    assert only.first_wait("greylisted") is None
