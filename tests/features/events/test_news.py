"""News of events: many readers that wait read so many times a second together, and no more."""

from __future__ import annotations

import asyncio
import time

import pytest

from pgmta.postgres.resources import Resources
from pgmta_features.events import news


async def test_many_readers_share_their_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "_READS_PER_S", 1000.0)
    told = news.EventNews(Resources("host=127.0.0.1 port=1", "test"))
    reads, begun, number = 0, time.monotonic(), 100

    async def read() -> None:
        nonlocal reads
        while True:
            mark = told.mark()
            reads += 1
            assert await told.wait(mark, 100)

    readers = [asyncio.create_task(read()) for _ in range(number)]
    while reads < 4 * number:
        told._tell()
        await asyncio.wait(readers, timeout=0)
    assert reads <= 1000 * (time.monotonic() - begun) + 2 * number
    for each in [*readers, told._task]:
        assert each
        each.cancel()
