"""Plans of claims: each stays on its index, whatever the statistics are."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.queue.claim import (
    FROM_BEGINNING,
    FROM_MARK,
    ORDINARY_PARTS,
    SESSION,
    URGENT_PARTS,
    Claims,
)
from pgmta.store.queue.labels import Labels
from pgmta.store.queue.lease import LEASE
from tests.support.rows import fetch, message


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The plan's nodes, flat."""
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes(child))]


@pytest.mark.parametrize("where", [FROM_BEGINNING, FROM_MARK], ids=["plain", "marked"])
@pytest.mark.parametrize(
    ("name", "parts", "index"),
    [
        ("claim_by_time", ORDINARY_PARTS, "priority_timezone_idx"),
        ("claim_by_domain", ORDINARY_PARTS, "queue_def_def_domain_priority_next_attempt"),
        ("claim_by_domain", URGENT_PARTS, "lower_priority_next_attempt"),
    ],
)
async def test_the_claim_stays_on_its_index_and_off_the_rows_on_hold(
    db: psycopg.Connection, name: str, parts: dict[str, str], index: str, where: dict[str, bytes]
) -> None:
    message(db, 0)
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, priority, next_attempt, status)"
        " SELECT 0, '', n || '@b.example', 'b.example', n % 10,"
        " now() - make_interval(secs => n % 7),"
        " CASE n % 2 WHEN 0 THEN 'HOLD' ELSE 'QUEUED' END FROM generate_series(1, 2000) AS n"
    )
    for setting, value in SESSION.items():
        db.execute("SELECT set_config(%s, %s, false)", (setting, value))
    params = {"limit": 50, "busy": ["x.example"], "owner": "w", "lease": 60.0, "version": 1,
              "priority": 9, "siblings": 0, "window": 114, "cursor": "", "steps": 64,
              "level": 10, "wide": False}  # fmt: skip
    params |= {"inline": 1000, "budget": 1000, "overdue": 0.0, "urgent": 1, "each": 5}
    params |= {"mark": 1.0, "ids": [1, 2], "domains": ["b.example"], "levels": [5], "floors": [1.0]}
    texts = queries("claim")
    claim = texts[name].fill(lease=LEASE, result=texts["result"], seen=parts["seen"])
    claim = claim.fill(**where).fill(free="")
    parts = Labels().parts() | parts | {"fits": texts["fits"].decode()}
    claim = claim.fill(where="true", partition="true", rules="", **parts)
    with db.transaction(force_rollback=True):
        explained = db.execute(b"EXPLAIN (ANALYZE, FORMAT JSON, COSTS OFF) " + claim, params)
    [(plan,)] = explained.fetchall()
    text = json.dumps(plan)
    assert "queue_hold" not in text
    scans = [node for node in nodes(plan[0]["Plan"]) if node["Node Type"] == "Seq Scan"]
    assert {node["Relation Name"] for node in scans} == {"rules_version"}
    assert index in text
    read = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "queue_def_def"]
    taken = sum(node["Actual Rows"] * node["Actual Loops"] for node in read)
    assert taken < 500, "reads little more than it takes"


@pytest.mark.parametrize("where", [None, "priority > 3", "domain = 'good.example'"])
async def test_a_claim_reads_no_other_due_rows_after_all_were_put_off(
    where: str | None, db: psycopg.Connection, link: Link
) -> None:
    """PostgreSQL 18 skips through an index by its later columns, if few rows seem due."""

    async def read() -> int:
        db.execute("SELECT pg_stat_force_next_flush()")
        await link.run("SELECT pg_stat_force_next_flush()")
        (tuples,) = fetch(
            db,
            "SELECT sum(idx_tup_read)::int FROM pg_stat_user_indexes"
            " WHERE relname = 'queue_def_def'",
        )
        return int(tuples)

    fill = (
        "WITH made AS (INSERT INTO messages (id, size, trace, body)"
        " SELECT nextval('message_ids'), 1, '', 'x' FROM generate_series(1, %s) RETURNING id)"
        " INSERT INTO queue (message_id, sender, recipient, domain, next_attempt)"
        " SELECT id, '', 'r', %s, now() + %s::interval FROM made"
    )
    db.execute(fill, (20_000, "bad.example", "5 days"))
    db.execute("VACUUM (ANALYZE) queue")
    db.execute(fill, (3000, "good.example", "-1 s"))
    claims = Claims(link, "worker", 60, where)
    for _ in range(10):  # by time, and by domain
        before = await read()
        assert len((await claims.claim(20, [])).items) == 20
        assert await read() - before < 500
