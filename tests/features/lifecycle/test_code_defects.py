"""Defects that the program of mailroom had."""

from __future__ import annotations

import asyncio
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


@pytest.mark.parametrize("frame", [json_frame, csv_frame])
def test_no_login_makes_a_second_record_or_part_of_one(frame: Frame) -> None:
    hostile = LeasedToken(
        1, "activation", "u@b.example", "x,s,\n2,v@b.example,y", b"", None, False, 0
    )
    plain = LeasedToken(2, "activation", "w@b.example", "w", b"", None, False, 0)
    line, refused = frame([(hostile, "s"), (plain, "s")])
    assert "\n" not in line
    if refused:
        assert [token for token, _ in refused] == [1]
        assert line == "1,w@b.example,w,s,"
    else:
        assert line.count('"action"') == 2


def test_a_limit_below_one_is_refused() -> None:
    for limit in (0, -1):
        with pytest.raises(ValidationError, match="greater than or equal to 1"):
            Collector.model_validate({"limit": limit, "url": "https://a.example"})


async def test_a_collector_connects_again_ever_more_slowly_for_a_whole_night(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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

    collector = Collector.model_validate({"url": "https://a.example"})
    loop = CollectorLoop(collector, "w", connect, None)  # type: ignore[arg-type]
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with suppress(asyncio.CancelledError):
        await loop.run()
    monkeypatch.undo()
    assert tries == night
    assert waits[0] < 1
    assert all(20 < wait <= 30 * 1.25 for wait in waits[6:])
