"""Conditions that fail on a row with an error that blames the statement, or nothing known."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import psycopg
import pytest
from structlog.testing import capture_logs

from pgmta.action import Action
from pgmta.model import Outcome, Reply
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.settle import Settlements
from tests.pgmta.store.queue.test_faults import CAST, claim_all, rule
from tests.support.rows import column, fetch, message, refuse_entries, row
from tests.support.waiting import PATIENCE

FUNCTION = """CREATE FUNCTION judge(metadata jsonb) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF metadata->>'v' = 'bad' THEN {} END IF;
    RETURN false;
END $$"""
CONDITIONS = {
    "regconfig": ("", "(metadata->>'v')::regconfig = 'simple'::regconfig", "42704"),
    "tsquery": ("", "to_tsvector('simple', recipient) @@ ('a & ' || (metadata->>'v'))::tsquery",
                "42601"),
    "branch": ("RETURN EXISTS (SELECT FROM gone);", "judge(metadata)", "42P01"),
    "raise": ("RAISE EXCEPTION 'no judge knows' USING ERRCODE = 'MY001';", "judge(metadata)",
              "MY001"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("before", [3, 200])  # rows
@pytest.mark.parametrize("own", [False, True])
async def test_a_row_is_blamed_whatever_the_error(
    db: psycopg.Connection, link: Link, name: str, before: int, own: bool
) -> None:
    body, condition, error = CONDITIONS[name]
    if body and not own:
        return  # no rule may call a function of others
    if body:
        db.execute(FUNCTION.format(body).encode())
    good = "english" if name == "regconfig" else "b"
    message(db, 1)
    rows = [row(db, 1, metadata={"v": good}) for _ in range(before)]
    bad = row(db, 1, metadata={"v": "a & &" if name == "tsquery" else "bad"})
    rows += [row(db, 1, metadata={"v": good}) for _ in range(30)]
    if not own:
        rule(db, "r", condition)
    claims = Claims(link, "w@h", 60, f"({condition}) IS NOT NULL" if own else None)
    with capture_logs() as logs:
        assert await claim_all(claims) == rows
    assert [(log["event"], log["row"]) for log in logs] == [("a condition fails", bad)]
    (mark,) = column(db, "SELECT faults::text FROM queue WHERE faults IS NOT NULL")
    assert f"SQLSTATE {error}" in mark


async def test_a_hold_holds_a_row_that_it_cannot_judge(db: psycopg.Connection, link: Link) -> None:
    message(db, 1)
    good = row(db, 1, metadata={"v": "english"})
    bad = row(db, 1, metadata={"v": "bad"})
    where = CONDITIONS["regconfig"][1]
    change = RowChange(Action.HOLD, where, "rule r", "why", owner="rule r")
    assert await WorkerChanges(link).run(change) == 1
    assert column(db, "SELECT id FROM queue WHERE status = 'HOLD'") == [bad]
    assert column(db, "SELECT id FROM queue WHERE status = 'QUEUED'") == [good]


async def test_a_lost_attempt_that_the_log_refuses_stops_no_claim(
    db: psycopg.Connection, link: Link
) -> None:
    refuse_entries(db)
    message(db, 1)
    lost = [
        row(db, 1, recipient=f"{name}@b.example", status="SENDING", lease=-1, attempts=2)
        for name in ("x1", "y", "x2")
    ]
    free = row(db, 1)
    with capture_logs() as logs:
        assert await claim_all(Claims(link, "w@h", 60)) == sorted([lost[1], free])
    assert [log["row"] for log in logs] == [lost[0], lost[2]]
    assert column(db, "SELECT id FROM queue WHERE status = 'HOLD' ORDER BY id") == lost[::2]
    (reason,) = fetch(db, "SELECT hold_reason FROM queue WHERE id = %s", lost[0])
    assert reason.startswith("lease ran out, but the database refuses to log that: no entry for x1")
    assert column(db, "SELECT row_id FROM attempts WHERE event = 'unknown'") == [lost[1]]


async def test_attempts_that_an_operator_has_reset_stop_no_hand_back(
    db: psycopg.Connection, link: Link
) -> None:
    message(db, 1)
    reset = row(db, 1)
    claims = Claims(link, "w@h", 60)
    assert await claim_all(claims) == [reset]
    db.execute("UPDATE queue SET attempts = 0")
    assert await claims.leases.give_back([]) == 1
    (item,) = (await claims.claim(1, [])).items
    db.execute("UPDATE queue SET attempts = 0")
    now = datetime.now(UTC)
    outcome = Outcome(item, Event.HAND_BACK, Reply(0, ""), started=now, ended=now)
    assert await Settlements(link, "w").settle([outcome]) == {reset}
    assert column(db, "SELECT attempts FROM queue") == [0]


async def test_a_claim_waits_for_no_lock_on_a_row_that_fails(
    db: psycopg.Connection, database: str, link: Link
) -> None:
    message(db, 1)
    bad = row(db, 1, metadata={"n": "alpha"})
    rows = [row(db, 1, metadata={"n": "1"}) for _ in range(3)]
    rule(db, "r", CAST)
    claims = Claims(link, "w@h", 60)
    with psycopg.connect(database) as operator:  # is about to mend the row
        operator.execute("SELECT FROM queue WHERE id = %s FOR UPDATE", (bad,))
        async with asyncio.timeout(PATIENCE):
            assert await claim_all(claims) == rows
            later = row(db, 1, metadata={"n": "2"})
            assert await claim_all(claims) == [later]
        assert column(db, "SELECT faults FROM queue") == [None] * 5
    claims._rules.guard._until = 1.0  # a minute later
    assert await claim_all(claims) == []
    (mark,) = column(db, "SELECT faults::text FROM queue WHERE faults IS NOT NULL")
    with psycopg.connect(database) as operator:
        operator.execute('UPDATE queue SET metadata = \'{"n": "2"}\' WHERE id = %s', (bad,))
        claims._rules.guard._until = 1.0
        async with asyncio.timeout(PATIENCE):
            assert await claim_all(claims) == []
    claims._rules.guard._until = 1.0
    assert await claim_all(claims) == [bad], mark


async def test_a_condition_may_have_words_in_braces(db: psycopg.Connection, link: Link) -> None:
    message(db, 1)
    good = row(db, 1, metadata={"v": "{rules}"})
    row(db, 1, metadata={"v": "{reach}"})
    rule(db, "r", "metadata->>'v' = '{reach}'")
    where = "metadata->>'v' = ANY ('{\"{rules}\", \"{reach}\"}')"
    assert await claim_all(Claims(link, "w@h", 60, where)) == [good]
