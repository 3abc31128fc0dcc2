"""Budgets: times are reserved once, in order, never above the rate or the sum of the month."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg_errors

from tests.support.rows import fetch

type Grant = tuple[datetime, int, timedelta]


def reserve(
    db: psycopg.Connection, wanted: int, ahead: str = "1 s", *, together: bool = False
) -> Grant:
    query = "SELECT * FROM budget_reserve('k', %s, %s::interval, %s)"
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
    assert 95 <= number <= 98
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
    make(db, 0.38)
    first, number, _ = reserve(db, 10, "0", together=True)
    assert number == 10
    again, number, _ = reserve(db, 10, "0", together=True)
    assert number == 0
    assert again - first == timedelta(seconds=10 / 0.38)


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
    reserve(db, 5, together=True)
    (before,) = fetch(db, "SELECT next_at FROM budgets")
    assert fetch(db, "SELECT budget_set('k', 0.1, NULL, 'why')") == (True,)
    assert fetch(db, "SELECT next_at, note FROM budgets") == (before, "why")
    make(db, 10)
    (after,) = fetch(db, "SELECT next_at FROM budgets")
    assert after < before


def test_sessions_share_a_budget(database: str, db: psycopg.Connection) -> None:
    make(db, 200)
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
def test_refused(db: psycopg.Connection, statement: str, state: type[Exception]) -> None:
    with pytest.raises(state):
        db.execute(statement.encode())
