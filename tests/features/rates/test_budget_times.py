"""Budgets: times are reserved once, in order, never above the rate or the sum of the month."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import ceil
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import errors as pg_errors

from tests.support.rows import fetch

type Grant = tuple[datetime, int, timedelta]


def reserve(
    db: psycopg.Connection, wanted: int, ahead: str = "1 s", *, together: bool = False
) -> Grant:
    query = "SELECT first, number, step FROM budget_reserve('k', %s, %s::interval, %s)"
    (row,) = db.execute(query, (wanted, ahead, together)).fetchall()
    return row


def make(db: psycopg.Connection, rate: float, most: int | None = None) -> bool:
    changed: tuple[Any, ...] = fetch(db, "SELECT budget_set('k', %s, %s)", rate, most)
    return bool(changed[0])


def test_times_follow_each_other_and_end_ahead(db: psycopg.Connection) -> None:
    make(db, 50)
    first, number, step = reserve(db, 3)
    assert (number, step) == (3, timedelta(milliseconds=20))
    after, number, _ = reserve(db, 1000, "2 s")
    assert after == first + 3 * step
    (present,) = fetch(db, "SELECT clock_timestamp()")
    assert number >= 95
    assert after + (number - 1) * step <= present + timedelta(seconds=2)
    again, number, _ = reserve(db, 5, "0")
    assert number == 0
    assert again > present


def test_times_that_are_over_are_lost(db: psycopg.Connection) -> None:
    make(db, 1000)
    first, _, _ = reserve(db, 1)
    db.execute("UPDATE budgets SET next_at = now() - interval '1 hour'")
    after, number, _ = reserve(db, 10_000, "0")
    assert number <= 2
    assert after > first


def test_a_batch_waits_until_its_predecessor_is_paid(db: psycopg.Connection) -> None:
    make(db, 1000)
    first, number, step = reserve(db, 500, "0", together=True)
    assert number == 20
    db.execute("SELECT budget_began('k', %s)", [first - timedelta(seconds=1)])
    again, number, _ = reserve(db, 10, "0", together=True)
    assert number == 0
    assert again - first >= 20 * step + timedelta(seconds=0.98)
    (wait, batch) = fetch(db, "SELECT wait, batch FROM budget_next('k')")
    assert 0.5 < wait < 1.1
    assert batch == 20


def test_the_month_is_that_of_utc_and_never_exceeded(db: psycopg.Connection) -> None:
    db.execute("SET timezone = 'Pacific/Kiritimati'")
    make(db, 100_000, 25)
    assert [reserve(db, 10)[1] for _ in range(4)] == [10, 10, 5, 0]
    first, _, _ = reserve(db, 10)
    present = datetime.now(UTC)
    month = (present.replace(day=28) + timedelta(days=4)).replace(day=1).date()
    assert first.astimezone(UTC) == datetime(month.year, month.month, 1, tzinfo=UTC)
    make(db, 5)  # another sum, and the month goes on
    assert fetch(db, "SELECT month_used FROM budgets") == (25,)
    make(db, 100_000, 26)
    assert reserve(db, 10)[1] == 1
    db.execute("UPDATE budgets SET month = month - interval '1 month'")
    assert reserve(db, 10)[1] == 10
    db.execute("UPDATE budgets SET month = month + interval '1 month', month_used = 26")
    assert reserve(db, 10)[1] == 0, "the clock went back, and its month is used up"


def test_a_note_forgets_no_time(db: psycopg.Connection) -> None:
    make(db, 0.1)
    reserve(db, 1, together=True)
    (before,) = fetch(db, "SELECT next_at FROM budgets")
    assert fetch(db, "SELECT budget_set('k', 0.1, NULL, 'why')") == (True,)
    assert fetch(db, "SELECT next_at, note FROM budgets") == (before, "why")
    make(db, 10)
    (after,) = fetch(db, "SELECT next_at FROM budgets")
    assert after < before


def test_sessions_share_a_budget(database: str, db: psycopg.Connection) -> None:
    make(db, 200)
    db.execute("UPDATE budgets SET reservations = 250")  # a new generation soon
    began = datetime.now(UTC)

    def work(_: int) -> list[Grant]:
        with psycopg.connect(database, autocommit=True, options="-c search_path=pgmta") as session:
            return [reserve(session, 7, "500 ms") for _ in range(30)]

    with ThreadPoolExecutor(4) as pool:
        grants = [grant for each in pool.map(work, range(4)) for grant in each]
    times = sorted(first + n * step for first, number, step in grants for n in range(number))
    assert len(times) >= 100
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) >= timedelta(microseconds=4999)
    assert times[-1] <= datetime.now(UTC) + timedelta(milliseconds=500)
    assert times[0] >= began - timedelta(seconds=1)


@pytest.mark.parametrize("key", ["key", "budget_of_route(key, 1000, 1)"], ids=["any", "route"])
def test_a_held_snapshot_makes_no_reservation_dear(
    database: str, db: psycopg.Connection, key: str
) -> None:
    """A look-up passes the versions of one generation at most, not all that the snapshot keeps."""
    make(db, 1000)
    reserving = f"""
        SELECT count(*) FROM generate_series(1, 700) AS n,
            LATERAL (SELECT 'k' || left(n::text, 0) AS key) AS k,
            LATERAL budget_reserve({key}, 1, used => 1)
    """
    with psycopg.connect(database) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT FROM pgmta.budgets")
        for _ in range(4):
            db.execute(reserving.encode())
        assert fetch(db, "SELECT reservations, generation FROM budgets") == (2800, 10)
        once = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)" + reserving.replace("700", "1")
        plans = [fetch(db, once) for _ in range(5)]
    # a version that leaves its page has its key compared with those of all others
    assert sorted(plan[0][0]["Plan"]["Shared Hit Blocks"] for plan in plans)[2] < 50


def test_a_change_of_the_rate_counts_within_a_second(db: psycopg.Connection) -> None:
    assert make(db, 0.001)
    first, _, _ = reserve(db, 1)
    assert reserve(db, 1)[1] == 0
    assert not make(db, 0.001)
    assert make(db, 100)
    after, number, _ = reserve(db, 1, "1.1 s")
    assert number == 1
    assert after < first + timedelta(seconds=2)


@pytest.mark.parametrize("change", ["budget_set('k', 100)", "budget_of_route('k', 100, 1)"])
def test_a_higher_rate_begins_behind_the_times_that_are_reserved(
    db: psycopg.Connection, change: str
) -> None:
    make(db, 50)
    first, number, step = reserve(db, 1000, "0.9 s")
    db.execute(f"SELECT {change}".encode())
    assert reserve(db, 1)[0] >= first + number * step


TIMES = """
SELECT t.budget::text AS budget, t.late, extract(epoch FROM t.first)::float8 AS first, t.number,
    extract(epoch FROM t.step)::float8 AS step
FROM budget_times(%s::text::budgets, to_timestamp(%s), %s, make_interval(secs => %s), '500 ms',
    false, %s) AS t
"""
NEW = """
SELECT b::text FROM jsonb_populate_record(NULL::budgets, jsonb_build_object(
    'key', 'k', 'rate', %s::float8, 'burst', %s::float8, 'next_at', '-infinity',
    'month', '-infinity', 'month_used', 0, 'reserved_at', '-infinity', 'late', 0, 'late_before', 0,
    'late_since', '-infinity', 'lost_share', 0)) AS b
"""


@dataclass(frozen=True)
class Call:
    """A worker reserves `number` times, `pause` seconds after the last one."""

    pause: float
    number: int
    soonest: float
    late: float


calls = st.builds(
    Call,
    st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0, 3.0]),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.floats(0.02, 0.3),
)


@settings(max_examples=60)
@given(
    rate=st.sampled_from([1.0, 2.0, 7.0, 20.0, 50.0, 333.0, 10 / 60, 0.5]),
    burst=st.sampled_from([1, 5]),
    several=st.lists(calls, min_size=2, max_size=25),
)
def test_no_window_has_more_than_the_rate(
    template_db: psycopg.Connection, rate: float, burst: int, several: list[Call]
) -> None:
    """Workers with any lateness; each mail begins when it makes a window the fullest."""
    (state,) = fetch(template_db, NEW, rate, burst)
    now, times = 1.8e9, list[tuple[float, float]]()
    for call in several:
        now += call.pause * max(1.0, 1 / rate)
        row = (state, now, call.number, call.soonest, call.late)
        state, late, first, number, step = fetch(template_db, TIMES, *row)
        times += [(first + n * step, first + n * step + late) for n in range(number)]
        assert all(a[0] < b[0] for a, b in pairwise(times))
    window = 1.0 if rate >= 1 else 60.0
    ends = [end for _, end in times]
    most = max(
        (sum(at < end + window - 1e-4 and last >= end for at, last in times) for end in ends),
        default=0,
    )
    assert most <= max(round(rate * window), 1) + burst - 1


BATCH = """
SELECT t.budget::text AS budget, extract(epoch FROM t.first)::float8 AS first, t.number
FROM budget_times(%s::text::budgets, to_timestamp(%s), %s, '0', '0', true, 0) AS t
"""
PUT_OFF = """
SELECT jsonb_populate_record(x.b, jsonb_build_object(
    'next_at', (x.b).next_at + make_interval(secs => %s)))::text
FROM (SELECT %s::text::budgets AS b) AS x
"""


@settings(max_examples=60)
@given(
    rate=st.sampled_from([0.38, 1.0, 2.5, 38.0, 100.0, 333.0, 5000.0]),
    several=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.001, 0.015, 0.03, 0.5, 3.0]),
            st.integers(1, 500),
            st.sampled_from([0.0, 0.004, 0.02, 0.3, 2.0]),
        ),
        min_size=2,
        max_size=60,
    ),
)
def test_no_window_has_more_batches_than_the_rate(
    template_db: psycopg.Connection, rate: float, several: list[tuple[float, int, float]]
) -> None:
    """Collectors ask late, for batches of any size, and each batch may hang."""
    (state,) = fetch(template_db, NEW, rate, 1)
    now, times = 1.8e9, list[tuple[float, int]]()
    for pause, wanted, hangs in several:
        after, first, number = fetch(template_db, BATCH, state, now, wanted)
        if number == 0:  # as a collector, it comes back in time, or a little late
            now = first + pause / 10
            state, first, number = fetch(template_db, BATCH, state, now, wanted)
        else:
            state = after
        assert 0 < number <= max(1, rate * 0.02)
        now += hangs  # the others wait for the lock of the row
        times.append((now, number))
        allowed = 0.02 if rate >= 1 else 0.0
        (state,) = fetch(template_db, PUT_OFF, max(now - first - allowed, 0.0), state)
        now += pause
    window = max(1.0, 1 / rate)
    most = max(
        sum(number for at, number in times[place:] if at < begin + window - 1e-5)
        for place, (begin, _) in enumerate(times)
    )
    assert most <= ceil(rate * window - 1e-9)


COMMON = """
SELECT t.several::text[], t.late, extract(epoch FROM t.first)::float8, t.number,
    extract(epoch FROM t.step)::float8, extract(epoch FROM t.next)::float8
FROM budget_common_times(%s::text[]::budgets[], to_timestamp(%s), %s, make_interval(secs => %s),
    '200 ms', '500 ms', %s) AS t
"""


@settings(max_examples=60)
@given(
    rates=st.lists(st.sampled_from([7.0, 20.0, 60.0, 333.0, 10 / 60]), min_size=2, max_size=2),
    burst=st.sampled_from([1, 5]),
    several=st.lists(
        st.tuples(calls, st.sampled_from([(0,), (1,), (0, 1)])), min_size=2, max_size=25
    ),
)
def test_mail_with_two_budgets_exceeds_neither(
    template_db: psycopg.Connection,
    rates: list[float],
    burst: int,
    several: list[tuple[Call, tuple[int, ...]]],
) -> None:
    """Beside mail with one of them."""
    bursts = (burst, 1)
    states = [fetch(template_db, NEW, *each)[0] for each in zip(rates, bursts, strict=True)]
    now = 1.8e9
    times: tuple[list[tuple[float, float]], ...] = ([], [])
    for call, places in several:
        now += call.pause
        if len(places) > 1:
            row = (states, now, call.number, call.soonest, call.late)
            states, late, first, number, step, following = fetch(template_db, COMMON, *row)
            if number:
                assert first >= now + call.soonest - 1e-4
                assert following >= first
        else:
            place = places[0]
            row = (states[place], now, call.number, call.soonest, call.late)
            states[place], late, first, number, step = fetch(template_db, TIMES, *row)
        # a time of a burst may be over
        made = [(first + n * step, first + n * step + late) for n in range(number)]
        for place in places:
            times[place].extend(made)
    for rate, own, mails in zip(rates, bursts, times, strict=True):
        window = 1.0 if rate >= 1 else 60.0
        most = max(
            (
                sum(at < end + window - 1e-4 and last >= end for at, last in mails)
                for end in (last for _, last in mails)
            ),
            default=0,
        )
        assert most <= max(round(rate * window), 1) + own - 1


def common(db: psycopg.Connection, *keys: str) -> Grant:
    query = """
        SELECT first, number, step
        FROM budget_reserve_common(%s, '{NULL,NULL}', '{1,1}', 5, '0', '200 ms', '500 ms', 0.03,
            0, 0, NULL)
    """
    (row,) = db.execute(query.encode(), (list(keys),)).fetchall()
    return row


def test_sessions_share_two_budgets_in_any_order(database: str, db: psycopg.Connection) -> None:
    """No deadlock, and each budget has every time once, also of mail with one of them."""
    db.execute("SELECT budget_set('k', 400), budget_set('a', 200)")

    def work(worker: int) -> list[Grant]:
        with psycopg.connect(database, autocommit=True, options="-c search_path=pgmta") as session:
            keys = ("k", "a") if worker % 2 else ("a", "k")
            return [
                reserve(session, 2, "500 ms") if worker == 3 else common(session, *keys)
                for _ in range(60)
            ]

    with ThreadPoolExecutor(4) as pool:
        grants = list(pool.map(work, range(4)))

    def gaps(several: list[list[Grant]]) -> list[timedelta]:
        made = (grant for each in several for grant in each)
        times = sorted(first + n * step for first, number, step in made for n in range(number))
        return [b - a for a, b in pairwise(times)]

    assert len(gaps(grants[:3])) > 50
    assert min(gaps(grants[:3])) >= timedelta(microseconds=5149)
    assert min(gaps(grants)) >= timedelta(microseconds=2499)


def test_a_month_that_is_used_up_stops_mail_with_two_budgets(db: psycopg.Connection) -> None:
    """The other budget loses nothing, and one that does not exist is no limit."""
    db.execute("SELECT budget_set('k', 100000, 7), budget_set('a', 50000)")
    assert [common(db, "a", "k")[1] for _ in range(3)] == [5, 2, 0]
    assert fetch(db, "SELECT array_agg(month_used ORDER BY key) FROM budgets") == ([7, 7],)
    assert common(db, "a", "none")[1] == 5


def move(db: psycopg.Connection, seconds: float) -> None:
    """Have all times of budgets be so much later, as after a step back of the clock."""
    query = "UPDATE budgets SET " + ", ".join(
        f"{name} = {name} + make_interval(secs => {seconds})"
        for name in ("next_at", "late_since", "reserved_at")
    )
    db.execute(query.encode())


def test_a_burst_is_whole(db: psycopg.Connection) -> None:
    for rate, burst in ((1, 10), (10 / 60, 5), (1000, 1000), (0.01, 3)):
        db.execute("DELETE FROM budgets")
        db.execute("SELECT budget_of_route('k', %s, %s)", (rate, burst))
        query = "SELECT number, late FROM budget_reserve('k', 5000, '500 ms', late => 0.03)"
        number, late = fetch(db, query)
        assert number == burst
        assert late >= (burst - 1) / rate


def test_a_late_worker_slows_the_others_for_two_windows(db: psycopg.Connection) -> None:
    """And a worker that knows the clock well costs little."""
    make(db, 100)

    def step(late: float) -> float:
        (seconds,) = fetch(
            db,
            "SELECT extract(epoch FROM step)::float8 FROM budget_reserve('k', 1, late => %s)",
            late,
        )
        assert isinstance(seconds, float)
        return seconds

    def later(seconds: float) -> None:
        move(db, -seconds)

    assert step(0.03) == pytest.approx(0.0103)
    assert step(0.5) == pytest.approx(0.012), "0.2 s at most"
    later(1.1)
    assert step(0.03) == pytest.approx(0.012)
    later(1.3)
    step(0.03)
    later(1.3)
    assert step(0.03) == pytest.approx(0.0103)


def test_after_a_step_back_of_the_clock_times_are_as_far_away_as_before(
    db: psycopg.Connection,
) -> None:
    """Nobody has to notice the step: an hour back is not an hour of silence, nor a burst."""
    make(db, 50)
    reserve(db, 10)
    move(db, 3600)
    (present,) = fetch(db, "SELECT clock_timestamp()")
    first, number, _ = reserve(db, 1)
    assert number == 1
    assert timedelta(milliseconds=100) <= first - present < timedelta(seconds=1)
    make(db, 1 / 3600)
    db.execute("UPDATE budgets SET next_at = '-infinity', reserved_at = '-infinity'")
    reserve(db, 1)
    move(db, 3 * 3600)
    assert reserve(db, 1)[1] == 0
    (waits,) = fetch(db, "SELECT next_at - clock_timestamp() FROM budgets")
    assert timedelta(minutes=59) < waits < timedelta(minutes=61)


def test_lost_times_are_counted_with_their_reason(db: psycopg.Connection) -> None:
    make(db, 1000)
    for _ in range(20):
        db.execute("SELECT budget_reserve('k', 1, used => 5, lost => 5, why => 'host')")
    share, why, at = fetch(db, "SELECT lost_share, lost_why, lost_at FROM budgets")
    assert share == pytest.approx(0.43, abs=0.02)
    assert (why, at is None) == ("host", False)
    for _ in range(40):
        db.execute("SELECT budget_reserve('k', 1, used => 10)")
    assert fetch(db, "SELECT lost_share < 0.02, lost_why FROM budgets") == (True, "host")


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("SELECT budget_reserve('unknown', 1)", pg_errors.NoDataFound),
        ("SELECT budget_set('k', 0)", pg_errors.CheckViolation),
        ("SELECT budget_set('k', 'NaN')", pg_errors.CheckViolation),
        ("SELECT budget_set('k', 'Infinity')", pg_errors.CheckViolation),
        ("SELECT budget_set('two words', 1)", pg_errors.CheckViolation),
        ("SELECT budget_set('k', 1, -1)", pg_errors.CheckViolation),
    ],
)
def test_refused(template_db: psycopg.Connection, statement: str, state: type[Exception]) -> None:
    with pytest.raises(state):
        template_db.execute(statement.encode())
