"""A short outage is waited for. A longer one, and what looks like one, keeps nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import psycopg
import pytest
from structlog.testing import capture_logs

from pgmta.errors import (
    AnswerLost,
    Blocked,
    LoginRefused,
    SchemaMismatch,
    StoreUnavailable,
    Undecided,
)
from pgmta.postgres import outage as outages
from pgmta.postgres.outage import Outage
from tests.support.waiting import PATIENCE, eventually, let_others_run

AWAY = StoreUnavailable("connection refused")


class Database:
    """Works, or answers with `error`."""

    error: Exception | None = None
    asked = 0

    async def ask(self) -> str:
        self.asked += 1
        if self.error:
            raise self.error
        return "answer"


@asynccontextmanager
async def outage_of(
    database: Database, patience: float
) -> AsyncIterator[tuple[Outage, list[StoreUnavailable]]]:
    """An outage that may come, and the errors with which it gives up."""
    given_up: list[StoreUnavailable] = []
    made = Outage(patience, database.ask, given_up.append)
    try:
        async with asyncio.timeout(PATIENCE):
            yield made, given_up
    finally:
        await made.stop()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PROBE_INTERVAL_S", "_LATE_PROBE_INTERVAL_S"):
        monkeypatch.setattr(outages, name, 0.01)


@pytest.mark.parametrize("error", [AWAY, AnswerLost("cut", (1, datetime.now(UTC)))])
async def test_all_who_ask_wait_for_the_end_of_a_short_outage(error: StoreUnavailable) -> None:
    database = Database()
    with capture_logs() as logs:
        async with outage_of(database, PATIENCE) as (outage, given_up):
            assert await outage.outlast(database.ask) == "answer"
            database.error = error
            asking = [asyncio.create_task(outage.outlast(database.ask)) for _ in range(20)]
            await eventually(lambda: database.asked > 40)  # 20 have failed, and probes since
            assert outage.waits
            assert not outage.refuses
            assert not any(task.done() for task in asking)
            database.error = None
            assert await asyncio.gather(*asking) == ["answer"] * 20
            outage.end()
    assert [log["event"] for log in logs] == ["database is away", "database is back"]
    assert given_up == []


async def test_an_outage_that_lasts_is_given_up_until_it_ends() -> None:
    database = Database()
    async with outage_of(database, 0.1) as (outage, given_up):
        database.error = AWAY
        asking = [asyncio.create_task(outage.outlast(database.ask)) for _ in range(3)]
        assert await asyncio.gather(*asking, return_exceptions=True) == [AWAY] * 3
        assert given_up == [AWAY]
        assert outage.refuses
        with pytest.raises(StoreUnavailable):
            await outage.outlast(database.ask)  # at once
        database.error = None
        await eventually(lambda: not outage.away)
        assert await outage.outlast(database.ask) == "answer"
    assert given_up == [AWAY]


def cancelled() -> StoreUnavailable:
    """The error of a statement that took too long."""
    error = StoreUnavailable("canceling statement due to statement timeout")
    error.__cause__ = psycopg.errors.QueryCanceled()
    return error


@pytest.mark.parametrize(
    "error",
    [Blocked(""), LoginRefused(""), SchemaMismatch(""), Undecided("no standby"), cancelled()],
    ids=lambda error: type(error).__name__,
)
async def test_nothing_waits_for_what_does_not_pass_by_itself(error: StoreUnavailable) -> None:
    database = Database()
    async with outage_of(database, PATIENCE) as (outage, given_up):
        database.error = error
        with pytest.raises(type(error)):
            await outage.outlast(database.ask)
        assert outage.refuses
        database.error = None
        await eventually(lambda: not outage.away)
    assert given_up == []  # other mail may be stored


async def test_without_patience_nothing_waits() -> None:
    database = Database()
    async with outage_of(database, 0.0) as (outage, _):
        database.error = AWAY
        with pytest.raises(StoreUnavailable):
            await outage.outlast(database.ask)
        assert outage.refuses


async def test_a_good_probe_alone_does_not_begin_the_patience_anew() -> None:
    """As while the disk is full: ids come, and no message can be stored."""
    database = Database()
    with capture_logs() as logs:
        async with outage_of(database, 0.2) as (outage, _):
            while outage.note(AWAY):
                await outage.wait()
            assert outage.refuses
            await eventually(lambda: not outage.away)
            outage.end()  # a message was stored
            assert outage.note(AWAY)
    assert [log["event"] for log in logs] == [
        "database is away",
        "database is back",
        "database is away",
    ]


async def test_an_outage_soon_after_a_lock_is_given_up_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=lambda: 0.0))
    database = Database()
    async with outage_of(database, 0.2) as (outage, given_up):
        outage.note(Blocked(""))
        await eventually(lambda: not outage.away)
        database.error = AWAY
        assert outage.note(AWAY)
        assert not await outage.wait()
        assert given_up == [AWAY]


async def test_its_end_lets_all_go() -> None:
    database = Database()
    async with outage_of(database, PATIENCE) as (outage, _):
        database.error = AWAY
        asking = asyncio.create_task(outage.outlast(database.ask))
        await eventually(lambda: outage.waits)
        await let_others_run()
    for late in (asking, outage.outlast(database.ask)):
        with pytest.raises(StoreUnavailable):
            await late
