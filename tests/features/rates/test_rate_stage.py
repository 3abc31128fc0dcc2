"""Mail with a rate waits for its time, or leaves the worker; slots of several workers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count, pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.errors import StoreUnavailable
from pgmta.model import Item, Message
from pgmta.postgres.database_time import DatabaseTime
from pgmta.states import Event
from pgmta_features.rates import budget_line
from pgmta_features.rates.rate_stage import RateStage
from pgmta_features.rates.recent_times import BOUNDS_S, RecentTimes
from pgmta_features.rates.reservations import Budget, BudgetReservations, Reservation, Wish
from queued.config import QueuedConfig, whole_shaping
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.transport.begin_time import LEAD_S, BeginTime
from queued.delivery.transport.destination import Destination
from queued.outgoing.outgoing import Outgoing
from queued.routing.routes import Routed, Routes
from tests.support.dispatcher import RecordingDispatcher, stage_context
from tests.support.leases import Always
from tests.support.waiting import PATIENCE, eventually

NOW = datetime.now(UTC)
AHEAD = 1e9  # seconds that the clock of the database is ahead


async def pass_time(seconds: float) -> None:
    """Take as long as a round trip, or a commit."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, future.set_result, None)
    await future


class Reservations(BudgetReservations):
    """Grants what the database would, from a row that each budget has."""

    def __init__(self) -> None:
        self.next_at: dict[str, float] = {}
        self.missing: set[str] = set()
        self.asked = 0
        self.away = False
        self.ahead = AHEAD
        self.more_late = 0.0  # seconds
        self.trip = 0.0
        self.wishes: list[Wish] = []
        self.grants: list[float] = []

    async def reserve(self, budgets: Sequence[Budget], wish: Wish) -> Reservation | None:
        (budget,) = budgets
        self.asked += 1
        self.wishes.append(wish)
        await pass_time(self.trip / 2)
        if self.away:
            raise StoreUnavailable("away")
        if budget.key in self.missing:
            return None
        present = time.monotonic() + self.ahead
        late = min(wish.late, 0.2)
        step = (1 + late) / (budget.rate or 20.0)
        more = (budget.burst - 1) * step
        ahead = wish.ahead - more
        first = max(self.next_at.get(budget.key, 0.0), present + min(ahead, wish.soonest))
        number = min(wish.number, 1 + int((present + wish.ahead - first) / step))
        if first > present + wish.ahead:
            number = 0
        if number:
            self.next_at[budget.key] = first + number * step
            self.grants += [first + n * step - self.ahead for n in range(number)]
        await pass_time(self.trip / 2)
        late += self.more_late + more
        return Reservation(first, number, step, late, first + number * step, present)


class Guard(Always):
    """Knows which rows are marked as begun; a commit takes `trip`."""

    def __init__(self) -> None:
        self.trip = 0.0
        self.marked: set[int] = set()

    async def begin(self, items: list[Item]) -> bool:
        await pass_time(self.trip)
        self.marked.update(item.id for item in items)
        return True

    async def withdraw(self, items: list[Item]) -> None:
        await pass_time(self.trip)
        self.marked.difference_update(item.id for item in items)


class Stage(RateStage):
    """Collects what goes on and what ends."""

    def __init__(self, reservations: Reservations) -> None:
        self.went: list[tuple[float, Outgoing]] = []
        self.dispatcher = RecordingDispatcher()
        self.results = self.dispatcher.ended
        self.reservations = reservations
        context = stage_context(self.dispatcher, free_octets=1000)
        context.guard = Guard()
        super().__init__(context)
        self._reservations = reservations
        self.context.go_on = lambda _, made: self.went.append((time.monotonic(), made))
        prepare = self.configured(QueuedConfig())
        assert prepare
        self.prepare_one = prepare

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
    routed = Routed(Destination("smtp", SmtpParameters()), "*")
    if route:
        file = whole_shaping().model_validate(
            {"routes": [{"name": "n", "to": "h.example", **route}]}
        )
        routed = replace(routed, limits=Routes({}, file).limits_of(item))
    return Outgoing([item], message, routed, "s@a.example", b"", b"body", 4, False, False, NOW)


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
    stage.reservations.more_late = PATIENCE
    mail = outgoing(1, CREDENTIAL)
    plain = outgoing(9).items[0]
    items = [*mail.items, *outgoing(2, CREDENTIAL).items, plain, *outgoing(3, CREDENTIAL).items]
    made = stage.prepare_one(mail._replace(items=items))
    assert isinstance(made, Outgoing)
    assert made.items == [plain]
    await stage.until(3)
    assert [[item.id for item in each.items] for _, each in stage.went] == [[1], [2], [3]]
    times = [stage.begin(place).at for place in range(3)]
    assert [b - a for a, b in pairwise(times)] == pytest.approx([1.04 / 20] * 2, abs=0.001)
    assert all(went > at - 2 * LEAD_S for (went, _), at in zip(stage.went, times, strict=True))
    assert await stage.begin(2).come()
    assert not await stage.begin(2).come(), "no time is used twice"
    assert stage.context.free_octets == 1000
    assert stage.context.timed.load == 0


async def test_without_its_budget_mail_has_no_limit(stage: Stage) -> None:
    stage.reservations.missing.add("credential:x")
    for number in range(50):
        stage.prepare_one(outgoing(number, CREDENTIAL))
    await stage.until(50)
    assert {each.begin for _, each in stage.went} == {None}


async def test_mail_waits_while_the_database_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_line, "_RETRY_PAUSE_S", 0.05)
    reservations = stage.reservations
    reservations.away = True
    stage.prepare_one(outgoing(1, CREDENTIAL))
    await eventually(lambda: reservations.asked >= 3)
    assert not stage.went
    reservations.away = False
    await stage.until(1)
    stage.prepare_one(outgoing(2, CREDENTIAL))
    assert [each.items[0].id for each in stage.drain()] == [2]
    assert stage.context.timed.load == 0


async def test_mail_beyond_two_seconds_is_handed_back_and_left_out(stage: Stage) -> None:
    woken = 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    stage.context.timed.wake = wake
    for number in range(50):
        stage.prepare_one(outgoing(number, rate="10/s"))
    assert [number for number, _ in stage.results] == [*range(20, 50)]
    assert {result.event for _, result in stage.results} == {Event.HAND_BACK}
    assert set(stage.context.timed.left_out) == {"rate n"}
    await stage.until(10)
    assert woken == 1
    assert not stage.context.timed.left_out
    stage.drain()


async def test_beyond_the_known_labels_mail_is_put_off(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else claims would have it again at once."""
    monkeypatch.setattr("pgmta_features.rates.rate_stage._MAX_LABELS", 0)
    for number in range(3):
        stage.prepare_one(outgoing(number, rate="10/min"))
    ((number, result),) = stage.results
    assert (number, result.event) == (2, Event.POSTPONE)
    assert not stage.context.timed.left_out
    stage.drain()


async def test_a_fast_rate_that_fills_its_slots_is_claimed_again_when_half_are_free(
    stage: Stage,
) -> None:
    """Not only a second later: one process would send 100 per second."""
    stage.context.timed.most = 100
    for number in range(150):
        stage.prepare_one(outgoing(number, rate="1000/s"))
    assert [number for number, _ in stage.results] == [*range(100, 150)]
    assert set(stage.context.timed.left_out) == {"rate n"}
    began = time.monotonic()
    await stage.until(51)
    assert time.monotonic() - began < 0.8
    assert not stage.context.timed.left_out
    stage.drain()


async def test_rows_that_come_although_they_are_left_out_are_put_off(stage: Stage) -> None:
    """They came with other recipients of their message, long after the label was left out."""
    for number in range(5):
        stage.prepare_one(outgoing(number, rate="10/min"))
    (period,) = stage.context.timed.left_out.values()
    stage.context.timed.left_out["rate n"] = period._replace(since=period.since - 2)
    stage.prepare_one(outgoing(5, rate="10/min"))
    assert stage.results[-1][1].event is Event.POSTPONE
    assert stage.results[-1][1].reply.text == "waits for a time of budget route:n"
    stage.drain()


async def test_many_slow_budgets_leave_slots_to_others(stage: Stage) -> None:
    """The rows whose time is far away go back as soon as half of the slots are taken."""
    stage.context.timed.most = 100
    mails = [outgoing(number, rate="1/min", name=f"n{number // 2}") for number in range(170)]
    for number, mail in enumerate(mails):
        stage.prepare_one(mail)
        if number == 99:
            await stage.until(50)  # each of the 50 budgets has had its first time
    assert stage.context.timed.load <= 100
    assert sum(label.startswith("rate n") for label in stage.context.timed.left_out) >= 45
    assert not [result for _, result in stage.results if result.event is not Event.HAND_BACK]
    stage.drain()


async def test_a_backlog_of_a_credential_leaves_slots_to_others(stage: Stage) -> None:
    """Claims can't leave it out, so it comes again at the rate, however much of it there is."""
    for number in range(300):
        stage.prepare_one(outgoing(number, CREDENTIAL))
    await stage.until(1)
    stage.prepare_one(outgoing(300, CREDENTIAL))
    step = 1.04 / 20
    assert stage.context.timed.load <= (2 + 0.5) / step + 2
    assert {result.event for _, result in stage.results} == {Event.POSTPONE}
    again = sorted(result.wait for _, result in stage.results if result.wait)
    assert len(again) >= 250
    assert again[0] == pytest.approx(2, abs=0.5)
    assert again[-1] - again[0] == pytest.approx(len(again) * step, rel=0.1)
    assert stage.results[-1][0] == 300, "what comes later goes later"
    stage.drain()


async def test_mail_of_an_exhausted_budget_takes_no_slots(stage: Stage) -> None:
    """Whenever it comes: its budget has its next time at the end of the month."""
    stage.reservations.next_at["credential:x"] = time.monotonic() + AHEAD + 1e6
    for number in range(3):
        stage.prepare_one(outgoing(number, CREDENTIAL))
        assert stage.context.timed.load == 1
        await eventually(lambda: stage.context.timed.load == 0)
    assert [result.event for _, result in stage.results] == [Event.POSTPONE] * 3


async def test_a_forward_step_of_the_clock_gives_a_worker_no_time_twice(stage: Stage) -> None:
    reservations = stage.reservations
    for number in range(30):
        stage.prepare_one(outgoing(number, CREDENTIAL))
    await stage.until(2)
    granted = len(reservations.grants)
    reservations.ahead += 10.0
    await stage.until(30)
    assert reservations.grants[granted] < reservations.grants[granted - 1], "it stepped"
    times = sorted(stage.begin(place).at for place in range(30))
    close = [b - a for a, b in pairwise(times) if b - a < 0.04]
    assert len(close) <= 1, "one may be where the times meet"


async def test_a_time_that_is_lost_is_not_used_later(stage: Stage) -> None:
    """An early connection gives mail back until its time; after it the mail gets another one."""
    stage.dispatcher.has_connections = False
    reservations = stage.reservations
    reservations.next_at["credential:x"] = time.monotonic() + AHEAD + 0.3
    stage.prepare_one(outgoing(1, CREDENTIAL))
    await stage.until(1)
    early = stage.begin()
    assert not early.arrive()
    early.give_back()
    await stage.until(2)
    assert stage.begin(1).arrive()
    at = reservations.grants[0]
    await eventually(lambda: time.monotonic() > at + 0.05)
    assert not stage.begin(1).arrive()
    assert not await stage.begin(1).come()
    stage.begin(1).give_back()
    await stage.until(3)
    assert len(reservations.grants) == 2
    assert stage.context.timed.load == 0


async def test_lines_of_destinations_that_are_gone_are_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgmta_features.rates.rate_stage._EMPTY_LINE_S", 0.0)
    for number in range(3):
        stage.prepare_one(outgoing(number, f'{{"_budget": "credential:{number}"}}'))
    await stage.until(3)
    await eventually(lambda: all(line.idle for line in stage._lines.values()))
    stage.prepare_one(outgoing(3, CREDENTIAL))
    assert [budget.key for (budget,) in stage._lines] == ["credential:x"]
    await stage.until(4)


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
    clock = DatabaseTime()
    for offset, asked, present, answered in answers(random.Random(seed)):
        clock.see(asked, answered, present)
        true = present + 0.25 - offset
        assert clock.earliest(present + 0.25) <= true + 1e-6
        assert clock.latest(present + 0.25) >= true - 1e-6


def once(number: int, **route: Any) -> Outgoing:
    mail = outgoing(number, **route)
    mail.items[0].once = True
    return mail


async def test_far_from_the_database_few_times_are_lost(stage: Stage) -> None:
    """A steady round trip leaves the clock unsure, and each commit needs it before the time."""
    reservations = stage.reservations
    guard = cast(Guard, stage.context.guard)
    reservations.trip = guard.trip = 0.05
    for number in range(60):
        stage.prepare_one(once(number, rate="40/s"))
    used: list[bool] = []
    for number in range(60):
        await stage.until(number + 1)
        begin = stage.begin(number)
        used.append(begin.arrive() and await begin.come())
        if not used[-1]:
            begin.give_back()
    # the first ones, before it is known how long a commit takes
    assert sum(used) >= 45
    assert 0.07 < reservations.wishes[-1].late < 0.16
    stage.drain()


async def test_a_row_that_lost_its_time_is_not_marked_as_begun(stage: Stage) -> None:
    guard = cast(Guard, stage.context.guard)
    stage.prepare_one(once(1, rate="20/s"))
    await stage.until(1)
    assert guard.marked == {1}
    begin = stage.begin()
    await eventually(lambda: time.monotonic() > begin.until)
    assert not begin.arrive()
    guard.trip = 0.05
    begin.give_back()
    await eventually(lambda: not guard.marked)
    guard.trip = 0.0
    await stage.until(2)
    assert guard.marked == {1}
    for number in count(1):  # a busy machine may lose its next times, too
        begin = stage.begin(number)
        if await begin.come():
            break
        begin.give_back()
        await stage.until(number + 2)
    stage.drain()


async def test_mail_for_a_jammed_destination_is_not_marked(stage: Stage) -> None:
    """It waits for another time here, and says why; it goes on once the connections are free."""
    stage.dispatcher.is_jammed = True
    guard = cast(Guard, stage.context.guard)
    reservations = stage.reservations
    stage.prepare_one(once(1, rate="20/s"))
    await eventually(lambda: any(wish.lost for wish in reservations.wishes))
    assert {wish.why for wish in reservations.wishes if wish.lost} == {"next hop"}
    assert not guard.marked
    stage.dispatcher.is_jammed = False
    await stage.until(1)
    assert guard.marked == {1}
    stage.drain()


async def test_without_a_chance_no_times_are_reserved(stage: Stage) -> None:
    """Other workers can use them; the budget learns that this one can't."""
    reservations = stage.reservations
    reservations.trip = 0.3
    stage.prepare_one(outgoing(1, rate="20/s"))
    await eventually(lambda: any(wish.lost for wish in reservations.wishes))
    assert {wish.why for wish in reservations.wishes if wish.lost} == {"database"}
    granted = len(reservations.grants)
    assert granted <= 1
    reservations.trip = 0.0
    await stage.until(1)
    assert len(reservations.grants) > granted
    stage.drain()


@given(
    times=st.lists(st.floats(0, 1), max_size=60),
    most=st.floats(0.005, 0.2),
    price=st.floats(0.5, 3),
)
def test_the_cheapest_bound_is_known_and_no_other_is_cheaper(
    times: list[float], most: float, price: float
) -> None:
    recent = RecentTimes()
    for each in times:
        recent.note(each)
    found = recent.cheapest(most, price)
    known = [bound for bound in BOUNDS_S if bound <= most]
    assert found in known

    def cost(bound: float) -> float:
        longer = sum(each > bound for each in times) + 10 * (bound < 0.01)
        return bound + price * longer / (len(times) + 10)

    assert cost(found) <= min(cost(bound) for bound in known) + 1e-9
    assert recent.quantile(0) <= recent.quantile(0.5) <= recent.quantile(1)
