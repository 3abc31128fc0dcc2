"""Mail with a rate waits for its time, or leaves the worker; slots of several workers."""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pgmta.errors import StoreUnavailable
from pgmta.model import Item, Message
from pgmta.states import Event
from pgmta.store.records.reservations import Budget, BudgetReservations, Reservation
from queued.config import QueuedConfig, Shaping
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.transport.begin_time import BeginTime
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.result import Result
from queued.outgoing import budget_line
from queued.outgoing.budget_line import PACE
from queued.outgoing.clock_bounds import ClockBounds
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.rate_stage import RateStage
from queued.outgoing.stage import StageContext
from queued.routing.routes import Routes
from tests.support.waiting import eventually

NOW = datetime.now(UTC)
AHEAD = 1e9  # seconds that the clock of the database is ahead


class Reservations(BudgetReservations):
    """Grants what the database would, from a row that each budget has."""

    def __init__(self) -> None:
        self.next_at: dict[str, float] = {}
        self.missing: set[str] = set()
        self.asked = 0
        self.away = False
        self.grants: list[float] = []

    async def reserve(self, budget: Budget, wanted: int, ahead: float) -> Reservation | None:
        self.asked += 1
        if self.away:
            raise StoreUnavailable("away")
        if budget.key in self.missing:
            return None
        present = time.monotonic() + AHEAD
        rate = (budget.rate or 20.0) * PACE
        burst = present + min(ahead - (budget.burst - 1) / rate, 0.0)
        first = max(self.next_at.get(budget.key, 0.0), burst)
        number = min(wanted, 1 + int((present + ahead - first) * rate))
        if first > present + ahead:
            return Reservation(first, 0, 1 / rate, present)
        self.next_at[budget.key] = first + number / rate
        self.grants += [first + n / rate - AHEAD for n in range(number)]
        return Reservation(first, number, 1 / rate, present)


class Stage(RateStage):
    """Collects what goes on and what ends."""

    def __init__(self, reservations: Reservations) -> None:
        self.went: list[tuple[float, Outgoing]] = []
        self.results: list[tuple[int, Result]] = []
        super().__init__(
            StageContext(
                contents=cast(Any, None), transports=cast(Any, None), attempts=None, signers=None,
                end=self.note, dispatch=lambda items, _: None, route=cast(Any, None), room=1000,
                reservations=reservations,
            )
        )  # fmt: skip
        self.context.go_on = lambda _, made: self.went.append((time.monotonic(), made))
        prepare = self.configured(QueuedConfig())
        assert prepare
        self.prepare_one = prepare

    def note(self, items: list[Item], result: Result, started: object) -> None:
        self.results += [(item.id, result) for item in items]

    async def until(self, number: int) -> None:
        await eventually(lambda: len(self.went) >= number)

    def begin(self, place: int = 0) -> BeginTime:
        begin = self.went[place][1].begin
        assert begin
        return begin


def outgoing(number: int, metadata: str | None = None, **route: Any) -> Outgoing:
    item = Item(number, number, "s@a.example", "r@b.example", "b.example", 1, NOW, 1)
    item.metadata = metadata
    message = Message(number, 4, False, "", 0, b"body", "<1@a.example>")
    rate = None
    if route:
        file = Shaping.model_validate({"routes": [{"name": "n", "to": "h.example", **route}]})
        rate = Routes({}, file).rate(item)
    destination = Destination("smtp", SmtpParameters())
    return Outgoing([item], message, destination, "s@a.example", b"", b"body", 4, False, False,
                    NOW, rate=rate)  # fmt: skip


@pytest.fixture
async def stage() -> Stage:
    return Stage(Reservations())


CREDENTIAL = '{"_budget": "credential:x"}'


async def test_mail_without_a_rate_goes_on(stage: Stage) -> None:
    for metadata in (None, '{"budget": 1}', '{"_budget": [5]}'):
        mail = outgoing(1, metadata)
        assert stage.prepare_one(mail) in (mail, mail._replace(items=mail.items))


async def test_each_row_has_its_own_time(stage: Stage) -> None:
    """Rows of one message come apart, and nothing of a plain one waits."""
    mail = outgoing(1, CREDENTIAL)
    plain = outgoing(9).items[0]
    items = [*mail.items, *outgoing(2, CREDENTIAL).items, plain, *outgoing(3, CREDENTIAL).items]
    made = stage.prepare_one(mail._replace(items=items))
    assert isinstance(made, Outgoing)
    assert made.items == [plain]
    await stage.until(3)
    assert [[item.id for item in each.items] for _, each in stage.went] == [[1], [2], [3]]
    step = 1 / (20 * PACE)
    times = [at for at, _ in stage.went]
    assert times[2] - times[0] == pytest.approx(2 * step, abs=0.03)
    assert await stage.begin(2).come()
    assert not await stage.begin(2).come(), "no time is used twice"
    assert stage.context.room == 1000
    assert stage.context.rates.load == 0


async def test_without_its_budget_mail_has_no_limit(stage: Stage) -> None:
    cast(Reservations, stage.context.reservations).missing.add("credential:x")
    for number in range(50):
        stage.prepare_one(outgoing(number, CREDENTIAL))
    await stage.until(50)
    assert {each.begin for _, each in stage.went} == {None}


async def test_mail_waits_while_the_database_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_line, "_AGAIN", 0.05)
    reservations = cast(Reservations, stage.context.reservations)
    reservations.away = True
    stage.prepare_one(outgoing(1, CREDENTIAL))
    await eventually(lambda: reservations.asked >= 3)
    assert not stage.went
    reservations.away = False
    await stage.until(1)
    stage.prepare_one(outgoing(2, CREDENTIAL))
    assert [each.items[0].id for each in stage.drain()] == [2]
    assert stage.context.rates.load == 0


async def test_mail_beyond_two_seconds_is_handed_back_and_left_out(stage: Stage) -> None:
    woken = 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    stage.context.rates.wake = wake
    for number in range(50):
        stage.prepare_one(outgoing(number, rate="10/s"))
    assert [number for number, _ in stage.results] == [*range(20, 50)]
    assert {result.event for _, result in stage.results} == {Event.HAND_BACK}
    assert set(stage.context.rates.left_out) == {"rate n"}
    await stage.until(10)
    assert woken == 1
    assert not stage.context.rates.left_out
    stage.drain()


async def test_beyond_the_known_labels_mail_is_put_off(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else claims would have it again at once."""
    monkeypatch.setattr("queued.outgoing.rate_stage._KNOWN", 0)
    for number in range(3):
        stage.prepare_one(outgoing(number, rate="10/min"))
    ((number, result),) = stage.results
    assert (number, result.event) == (2, Event.POSTPONE)
    assert not stage.context.rates.left_out
    stage.drain()


async def test_a_fast_rate_that_fills_its_slots_is_claimed_again_when_half_are_free(
    stage: Stage,
) -> None:
    """Not only a second later: one process would send 100 per second."""
    stage.context.rates.most = 100
    for number in range(150):
        stage.prepare_one(outgoing(number, rate="1000/s"))
    assert [number for number, _ in stage.results] == [*range(100, 150)]
    assert set(stage.context.rates.left_out) == {"rate n"}
    began = time.monotonic()
    await stage.until(51)
    assert time.monotonic() - began < 0.8
    assert not stage.context.rates.left_out
    stage.drain()


async def test_rows_that_come_although_they_are_left_out_are_put_off(stage: Stage) -> None:
    """They came with other recipients of their message, long after the label was left out."""
    for number in range(5):
        stage.prepare_one(outgoing(number, rate="10/min"))
    (period,) = stage.context.rates.left_out.values()
    stage.context.rates.left_out["rate n"] = period._replace(since=period.since - 2)
    stage.prepare_one(outgoing(5, rate="10/min"))
    assert stage.results[-1][1].event is Event.POSTPONE
    assert stage.results[-1][1].reply.text == "waits for a time of budget route:n"
    stage.drain()


async def test_many_slow_budgets_leave_slots_to_others(stage: Stage) -> None:
    """The rows whose time is far away go back as soon as half of the slots are taken."""
    stage.context.rates.most = 100
    for number in range(170):
        stage.prepare_one(outgoing(number, rate="1/min", name=f"n{number // 2}"))
        if number == 99:
            await stage.until(50)  # each of the 50 budgets has had its first time
    assert stage.context.rates.load <= 100
    assert sum(label.startswith("rate n") for label in stage.context.rates.left_out) >= 45
    assert not [result for _, result in stage.results if result.event is not Event.HAND_BACK]
    stage.drain()


async def test_a_backlog_of_a_credential_leaves_slots_to_others(stage: Stage) -> None:
    """Claims can't leave it out, so it comes again at the rate, however much of it there is."""
    for number in range(300):
        stage.prepare_one(outgoing(number, CREDENTIAL))
    await stage.until(1)
    stage.prepare_one(outgoing(300, CREDENTIAL))
    step = 1 / (20 * PACE)
    assert stage.context.rates.load <= (2 + 0.5) / step + 2
    assert {result.event for _, result in stage.results} == {Event.POSTPONE}
    again = sorted(result.until for _, result in stage.results if result.until)
    assert len(again) >= 250
    assert (again[0] - datetime.now(UTC)).total_seconds() == pytest.approx(2, abs=0.5)
    assert (again[-1] - again[0]).total_seconds() == pytest.approx(len(again) * step, rel=0.1)
    assert stage.results[-1][0] == 300, "what comes later goes later"
    stage.drain()


async def test_a_time_that_is_lost_is_not_used_later(stage: Stage) -> None:
    """An early connection gives mail back until its time; after it the mail gets another one."""
    stage.context.connected = lambda _: False
    reservations = cast(Reservations, stage.context.reservations)
    reservations.next_at["credential:x"] = time.monotonic() + AHEAD + 0.3
    stage.prepare_one(outgoing(1, CREDENTIAL))
    await stage.until(1)
    early = stage.begin()
    assert not early.soon
    early.give_back()
    await stage.until(2)
    assert stage.begin(1).soon
    at = reservations.grants[0]
    await eventually(lambda: time.monotonic() > at + 0.05)
    assert not stage.begin(1).soon
    assert not await stage.begin(1).come()
    stage.begin(1).give_back()
    await stage.until(3)
    assert len(reservations.grants) == 2
    assert stage.context.rates.load == 0


async def test_mail_with_two_budgets_has_a_time_of_each(stage: Stage) -> None:
    for number in range(8):
        stage.prepare_one(outgoing(number, CREDENTIAL, rate="8/s"))
    await stage.until(8)
    reservations = cast(Reservations, stage.context.reservations)
    assert set(reservations.next_at) == {"route:n", "credential:x"}
    gaps = [b[0] - a[0] for a, b in zip(stage.went, stage.went[1:], strict=False)]
    assert min(gaps) > 0.08
    stage.drain()


async def test_a_burst_can_wait_for_a_connection(stage: Stage) -> None:
    """Its first row has half a second, and each further one a step more."""
    for number in range(6):
        stage.prepare_one(outgoing(number, rate="2/s", burst=6))
    await stage.until(5)
    await eventually(lambda: time.monotonic() > stage.went[0][0] + 0.4)
    assert [await stage.begin(place).come() for place in range(5)] == [True] * 5
    await eventually(lambda: time.monotonic() > stage.went[0][0] + 0.6)
    assert len(stage.went) == 6
    stage.drain()


def answers(dice: random.Random) -> Iterator[tuple[float, float, float, float]]:
    """Yield the offset of the database's clock, and what a question and its answer say."""
    now, offset = 0.0, dice.uniform(-1e9, 1e9)
    for _ in range(200):
        now += dice.choice([0.05, 0.5, 5.0])
        if set_now := dice.random() < 0.02:
            offset += dice.choice([-3600, -2, 2, 3600])
        offset += dice.uniform(-0.0005, 0.0005) * 0.05
        # a slow answer does not show that a clock was set
        slow = [0.0002, 0.001, 0.02] if set_now else [0.0002, 0.001, 0.02, 5.0]
        there, back = dice.choice(slow) * dice.random(), dice.choice(slow) * dice.random()
        yield offset, now, now + there + offset, now + there + back
        now += there + back


@pytest.mark.parametrize("seed", range(20))
def test_a_time_of_the_database_is_never_early_here(seed: int) -> None:
    """Whatever answers take, and whenever a clock is set: what it says is between the bounds."""
    clock = ClockBounds()
    for offset, asked, present, answered in answers(random.Random(seed)):
        clock.see(asked, answered, present)
        true = present + 0.25 - offset
        assert clock.earliest(present + 0.25) <= true + 1e-6
        assert clock.latest(present + 0.25) >= true - 1e-6


@pytest.mark.parametrize("burst", [1, 5, 40])
@pytest.mark.parametrize("rate", [1.0, 2.0, 3.0, 10.0, 50.0, 333.0, 500.0, 1000.0, 10 / 60, 1 / 60])
def test_no_window_has_more_than_the_rate(rate: float, burst: int) -> None:
    """Times at the pace, each late by as much as is allowed, or not at all; a burst is on top."""
    dice = random.Random(7)
    step = 1 / (rate * PACE)
    window = 1.0 if rate >= 1 else 60.0
    late = budget_line.lateness(step) + (burst - 1) * step
    for _ in range(5):
        count = int(20 * window / step) + 5
        times = sorted(n * step + late * dice.choice([0, 1, dice.random()]) for n in range(count))
        most = max(bisect_left(times, at + window) - n for n, at in enumerate(times))
        assert most <= max(round(rate * window), 1) + burst - 1
