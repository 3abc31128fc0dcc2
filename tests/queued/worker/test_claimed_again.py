"""A worker claims a row again, whose lease ran out, and settles its delivery meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pgmta.store.queue.claim import Claim
from tests.queued.worker.test_owners import site
from tests.support.nexthop import holding_at
from tests.support.waiting import eventually

SUBMIT = "SELECT submit('s@a.example', ARRAY[%s], E'Subject: x\\r\\n\\r\\nx\\r\\n', wake => true)"


async def test_a_claim_is_answered_after_the_delivery_of_its_row(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are under way after an outage, and their answers come over two connections."""
    async with site(database, tmp_path, monkeypatch) as found:
        worker, hop, db = found.worker, found.hop, found.db
        hop.script = holding_at("end of data")
        db.execute(SUBMIT, ["first@b.example"])
        await eventually(lambda: len(hop.kept) == 1)

        claims = worker.loops[0].claims
        claim, answered, read = claims.claim, asyncio.Event(), asyncio.Event()

        async def late(*args: Any) -> Claim:
            claimed = await claim(*args)
            if claimed.items and not read.is_set():
                answered.set()
                await read.wait()
            return claimed

        monkeypatch.setattr(claims, "claim", late)
        db.execute("UPDATE queue SET lease_until = now() - interval '1s'")
        await answered.wait()
        hop.release()
        await eventually(lambda: not worker.leased)
        read.set()
        db.execute(SUBMIT, ["last@b.example"])
        await eventually(lambda: hop.deliveries()["last@b.example"] and not worker.leased)
        assert hop.deliveries() == {"first@b.example": 1, "last@b.example": 1}
        events = db.execute(
            "SELECT event FROM attempts WHERE recipient LIKE 'first%' ORDER BY ended_at"
        )
        assert [event for (event,) in events] == ["unknown", "delivered"]
