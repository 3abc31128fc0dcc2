"""Standing rules that PostgreSQL refuses after they were made: they are passed over and named."""

from __future__ import annotations

import psycopg
from structlog.testing import capture_logs

from pgmta.postgres.link import Link
from pgmta.store.admin.workers import Registry
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.queue.claim import Claims
from queued.upkeep import requests
from tests.pgmta.store.queue.test_faults import CAST, claim_all, rule
from tests.support.queuectl import Command
from tests.support.rows import column, message, row


async def test_a_rule_that_is_refused_later_stops_nothing(
    db: psycopg.Connection, database: str, link: Link, command: Command
) -> None:
    db.execute(
        "CREATE FUNCTION blocked(text) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT false'"
    )
    db.execute("ALTER TABLE rules DISABLE TRIGGER rules_valid")  # as a superuser could
    db.execute("ALTER TABLE queue ADD listed text")
    db.execute("CREATE SCHEMA ops")
    db.execute("CREATE FUNCTION ops.f(text) RETURNS boolean LANGUAGE sql AS 'SELECT false'")
    rule(db, "away", "ops.f(domain)")
    rule(db, "gone", "blocked(domain)")
    rule(db, "list", "listed IS NULL")
    rule(db, "other", "domain = 'held.example'")
    rule(db, "cast", CAST)
    db.execute(
        "INSERT INTO workers (owner, name, action, condition, reach)"
        " VALUES ('h:1', 'w', 'deliver', 'blocked(sender)', 'true')"
    )
    db.execute("DROP FUNCTION blocked(text)")
    db.execute("ALTER TABLE queue DROP listed")
    db.execute("DROP SCHEMA ops CASCADE")
    claims = Claims(link, "w@h", 60, "priority <= 9")
    with capture_logs() as logs:
        assert await claim_all(claims) == []
        message(db, 7)
        free = [row(db, 7, domain="free.example") for _ in range(3)]
        held = row(db, 7, domain="held.example")
        bad = row(db, 7, metadata={"n": "alpha"})
        assert await claim_all(claims) == free
    told = {log["condition"]: log for log in logs}
    assert told.keys() == {"rule away", "rule gone", "rule list", "rule cast"}
    assert len(logs) == 4, logs
    assert told["rule away"]["reason"] == (
        "ops. is not allowed in a condition: columns have no prefix, functions and types only "
        "pg_catalog"
    )
    assert told["rule gone"]["reason"] == "function blocked is not allowed in a condition"
    assert "listed is not allowed in a condition" in told["rule list"]["reason"]
    for name in ("workers", "explain"):
        out = command(name, *(["7"] if name == "explain" else []))
        assert out.exit_code == 0, out.output
        for who, what in (
            ("rule gone", "function blocked is not allowed in a condition"),
            ("worker w", "function blocked(text) does not exist"),
            ("rule list", "listed is not allowed in a condition"),
        ):
            assert f"{who} is passed over, its condition is refused: {what}" in out.stderr
    assert "rule gone is passed over" in command("rule", "list").stderr
    # the other rules hold, and the other workers are asked
    registry = Registry(link, "h:1")
    await requests.apply_rules(WorkerChanges(link), registry)
    assert sorted(column(db, "SELECT id FROM queue WHERE status = 'HOLD'")) == [held, bad]
    row(db, 7, domain="free.example", due=-3600)
    assert await registry.untaken() == [(7, 5)]
    # the rule counts again as soon as it can be asked
    db.execute("ALTER TABLE queue ADD listed text")
    db.execute("DELETE FROM rules WHERE name IN ('away', 'gone')")
    claims._rules._aside_until = 0.0  # a minute later
    with capture_logs() as logs:
        assert await claim_all(claims) == []
    assert [log["conditions"] for log in logs] == [["rule list"]]
