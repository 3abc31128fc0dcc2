"""The defects of mailroom that are in its program: each check fails on code that has the defect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from pydantic import ValidationError

from pgmta.errors import StoreUnavailable
from pgmta_features.lifecycle.collections import LeasedToken
from pgmta_features.lifecycle.collector_loop import CollectorLoop
from pgmta_features.lifecycle.config import Collector
from pgmta_features.lifecycle.outputs import Frame, csv_frame, json_frame
from pgmta_features.lifecycle.timing import Timing


def check_d2(timing: Callable[[int, float], Any]) -> None:
    """Five tokens of one transaction give one notification, and count as five."""
    each = timing(3, 5.0)
    each.see([1, 2, 3, 4, 5], 100.0)
    assert each.reason(100.0) == "limit"
    each.see([4, 5], 100.1)
    assert each.reason(104.9) == ""
    assert each.reason(105.0) == "timeout"


class CountsNotifications(Timing):
    """Counts the looks, as mailroom counts notifications."""

    def see(self, tokens: Iterable[int], now: float) -> None:
        super().see([*self._since, len(self._since)] if [*tokens] else [], now)


def check_d10(frame: Frame) -> None:
    """No login can make a second record, or part of one."""
    hostile = LeasedToken(1, "activation", "u@b.example", "x,s,\n2,v@b.example,y", b"", None, 0)
    plain = LeasedToken(2, "activation", "w@b.example", "w", b"", None, 0)
    line, refused = frame([(hostile, "s"), (plain, "s")])
    assert "\n" not in line
    if refused:
        assert [token for token, _ in refused] == [1]
        assert line == "1,w@b.example,w,s,"
    else:
        assert line.count('"action"') == 2


def naive_frame(tokens: list[tuple[LeasedToken, str]]) -> tuple[str, list[tuple[int, str]]]:
    """Join the values, as mailroom does."""
    return ",".join(f"1,{t.email},{t.login},{signed}," for t, signed in tokens), []


def check_d12(collector: Callable[..., Any]) -> None:
    """A limit below one ends the start, not the night."""
    for limit in (0, -1):
        with pytest.raises(ValidationError, match="greater than or equal to 1"):
            collector(limit=limit, url="https://a.example", activation={"template": "x"})


async def check_d13(run: Callable[[CollectorLoop], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away for a night ends no collector: it connects again, ever more slowly."""
    waits: list[float] = []
    tries, night = 0, 1_100

    async def connect() -> Any:
        nonlocal tries
        tries += 1
        raise StoreUnavailable("away") if tries % 2 else psycopg.OperationalError("starting up")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == night:
            raise asyncio.CancelledError

    collector = Collector.model_validate(
        {"url": "https://a.example", "activation": {"template": "x"}}
    )
    loop = CollectorLoop(collector, "w", connect, None)  # type: ignore[arg-type]
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with suppress(asyncio.CancelledError):
        await run(loop)
    monkeypatch.undo()
    assert tries == night
    assert waits[0] < 1
    assert all(20 < wait <= 30 * 1.25 for wait in waits[6:])


async def run_once(loop: CollectorLoop) -> None:
    """Connect, and end if that fails, as mailroom does."""
    with suppress(StoreUnavailable):
        await loop._session()


def test_notifications_are_not_counted() -> None:
    check_d2(Timing)
    with pytest.raises(AssertionError):
        check_d2(CountsNotifications)


def test_a_login_is_one_value() -> None:
    check_d10(json_frame)
    check_d10(csv_frame)
    with pytest.raises(AssertionError):
        check_d10(naive_frame)


def test_a_limit_is_one_or_more() -> None:
    check_d12(lambda **values: Collector.model_validate(values))
    with pytest.raises(pytest.fail.Exception):
        check_d12(Collector.model_construct)


async def test_an_absent_server_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    await check_d13(CollectorLoop.run, monkeypatch)
    with pytest.raises(AssertionError):
        await check_d13(run_once, monkeypatch)
