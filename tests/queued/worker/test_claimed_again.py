"""A worker claims a row again, whose lease ran out, while it has the outcome of its attempt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pgmta.store.mark.mark_keeper import MarkKeeper
from pgmta.store.queue.claim import Claim
from tests.queued.worker.test_owners import Site, site
from tests.support.nexthop import Do, as_usual
from tests.support.rows import column
from tests.support.waiting import eventually

SUBMIT = "SELECT submit('s@a.example', ARRAY[%s], E'Subject: x\\r\\n\\r\\nx\\r\\n', wake => true)"


async def hold(found: Site, line: str) -> None:
    """Submit mail, whose next hop answers its final dot with that line when it is released."""
    do = Do(hold=True, line=line)
    found.hop.script = lambda point, *_: do if point == "end of data" else None
    found.db.execute(SUBMIT, ["first@b.example"])
    await eventually(lambda: any(each.content for each in found.hop.transactions))


@pytest.mark.parametrize(
    ("line", "outcomes"),
    [("250 Ok", []), ("450 4.2.0 Later", ["deferred"])],
    ids=["delivered", "deferred"],
)
async def test_a_claim_is_answered_after_the_settlement_of_its_row(
    line: str,
    outcomes: list[str],
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are under way after an outage, and their answers come over two connections.

    A delivery is not repeated. After a deferral, which is late, the new attempt begins.
    """
    async with site(database, tmp_path, monkeypatch) as found:
        worker, hop, db = found.worker, found.hop, found.db
        await hold(found, line)
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
        hop.script = as_usual
        hop.release()
        await eventually(lambda: not worker.leased)
        read.set()
        db.execute(SUBMIT, ["last@b.example"])
        await eventually(lambda: len(hop.deliveries()) == 2 and not worker.leased)
        assert hop.deliveries() == {"first@b.example": 1, "last@b.example": 1}
        events = column(db, "SELECT event FROM attempts WHERE row_id = 1 ORDER BY ended_at")
        assert events == ["unknown", *outcomes, "delivered"]
    assert not worker._leases.claiming


async def test_a_row_that_was_put_off_meanwhile_is_handed_back(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deferral is late. The marks of both loops learn that the row is free."""
    told: list[list[int]] = []
    monkeypatch.setattr(MarkKeeper, "give_back", lambda _, ids: told.append([*ids]))
    async with site(database, tmp_path, monkeypatch) as found:
        worker, hop, db = found.worker, found.hop, found.db
        await hold(found, "450 4.2.0 Later")
        seen = asyncio.Event()
        worker.loops[0].claimed = lambda _: seen.set()
        db.execute("UPDATE queue SET lease_until = now() - interval '1s'")
        await seen.wait()
        hop.script = as_usual
        hop.release()
        await eventually(lambda: hop.deliveries()["first@b.example"] and not worker.leased)
        assert told == [[1], [1]]
        assert len(worker.loops) == 2
        events = column(db, "SELECT event FROM attempts ORDER BY ended_at")
        assert events == ["unknown", "deferred", "delivered"]
