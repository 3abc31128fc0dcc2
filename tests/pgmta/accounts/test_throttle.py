"""The throttle: properties of the counts, and bounded writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.accounts import users
from pgmta.accounts.login import AuthUnavailable
from pgmta.accounts.networks import NETWORK_FACTOR
from pgmta.accounts.throttle import PERIOD_S, Notes, Throttle
from pgmta.config.authentication import Failures
from tests.support.waiting import let_others_run

LIMITS = Failures(address=3, user=4)
BOUNDS = {"address": 3, "network": 3 * NETWORK_FACTOR, "user": 4}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 5), st.integers(1, 4), st.floats(0, 360)),
        max_size=40,
    )
)
def test_no_more_guesses_than_the_limits_in_any_order(
    rounds: list[tuple[int, int, int, float]],
) -> None:
    """Guesses side by side and one after the other, from 12 addresses of 2 networks."""
    clock = Clock()
    throttle = Throttle(LIMITS, clock)
    guesses: dict[str, list[float]] = {}

    async def guess(client: str, user: str) -> None:
        units = [*throttle.places(client), f"user {user}"]
        if not await throttle.enter(units):
            assert throttle.blocked(units)
            return
        await let_others_run()
        for unit in units:
            guesses.setdefault(unit, []).append(clock.now)
            throttle.add_failure(unit)
        throttle.leave(units)

    async def play() -> None:
        for address, user, number, pause in rounds:
            client = f"192.0.{address % 2}.{address}"
            await asyncio.gather(*(guess(client, f"u{user}") for _ in range(number)))
            clock.now += pause

    asyncio.run(play())
    for unit, times in guesses.items():
        limit = BOUNDS[unit.split(" ")[0]]
        for first in times:  # of one period, and failures forgotten meanwhile
            assert len([t for t in times if first <= t < first + PERIOD_S]) <= 2 * limit
            assert len([t for t in times if t == first]) <= limit


async def test_right_passwords_wait_for_each_other_and_are_not_refused() -> None:
    throttle = Throttle(LIMITS)
    units = [*throttle.places("192.0.2.1"), "user ann"]
    inside = most = 0

    async def login() -> bool:
        nonlocal inside, most
        entered = await throttle.enter(units)
        inside += 1
        most = max(most, inside)
        await let_others_run()
        inside -= 1
        throttle.leave(units)
        return entered

    assert all(await asyncio.gather(*(login() for _ in range(50))))
    assert most == LIMITS.address
    assert not throttle.blocked(units)


async def test_what_other_processes_know_counts_and_an_operator_may_forget_it() -> None:
    throttle = Throttle(LIMITS, Clock())
    assert throttle.unread(["user a"], 1.0) == ["user a"]
    throttle.learn(["user a"], {"user a": 540.0}, {})
    assert throttle.blocked(["user a"])
    assert throttle.unread(["user a"], 1.0) == []
    throttle.learn(["user a"], {}, {"user a": 1})
    assert not throttle.blocked(["user a"])
    assert Throttle(Failures.model_validate({"exempt": ["192.0.2.0/24"]})).places("192.0.2.1") == ()


async def test_an_address_that_floods_waits_behind_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []

    def matches(_: str, password: bytes) -> bool:
        checked.append(password)
        return True

    monkeypatch.setattr(users, "matches", matches)
    monkeypatch.setattr(users, "_MAX_WAITING_PASSWORDS", 5)
    found = users.Passwords(1)
    logins = [*((f"flood {n}", "192.0.2.1") for n in range(9)), ("stranger", "192.0.2.2"),
              *((f"other {n}", "192.0.2.3") for n in range(2))]  # fmt: skip
    answers = await asyncio.gather(
        *(found.match("", name.encode(), address, first=False) for name, address in logins),
        return_exceptions=True,
    )
    found.close()
    pairs = zip(logins, answers, strict=True)
    refused = [name for (name, _), answer in pairs if isinstance(answer, AuthUnavailable)]
    assert refused == [f"flood {n}" for n in range(3, 9)]
    assert answers.count(True) == 6
    assert b" ".join(checked) == b"flood 0 flood 1 stranger other 0 flood 2 other 1"


async def test_a_login_that_loses_its_place_and_ends_frees_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(users, "matches", lambda *_: True)
    monkeypatch.setattr(users, "_MAX_WAITING_PASSWORDS", 2)
    found = users.Passwords(1)
    under_way = [
        asyncio.create_task(found.match("", b"", address, first=False))
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2")
    ]
    await let_others_run()  # the last one takes the place of the third
    under_way[2].cancel()
    await asyncio.wait(under_way)
    found.close()
    assert found._free == 1


class Store:
    """Counts the writes."""

    def __init__(self) -> None:
        self.writes: list[int] = []
        self.failures: dict[str, int] = {}

    async def add_failures(self, failures: Sequence[tuple[str, int, float]], most: float) -> Any:
        self.writes.append(len(failures))
        for unit, count, _ in failures:
            self.failures[unit] = self.failures.get(unit, 0) + count
        return {}

    async def add_networks(self, logins: Any) -> None:
        self.writes.append(len(logins))

    async def forget_failures(self) -> int:
        return 0


async def test_writes_are_bounded_whatever_comes() -> None:
    store: Any = Store()
    notes = Notes(store, Throttle(Failures()))
    for number in range(30_000):
        notes.add_failure(f"address 10.{number % 20_000}")
    assert len(notes.failures) == 10_000
    for _ in range(3):
        await notes.write_due()
    assert store.writes == [64, 64, 64]
    assert all(count == 2 for count in store.failures.values())  # the most come first
    await notes.close()
