"""Partitions made, split and dropped while mail flows; what `check` finds; the documented SQL."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgmta.errors import PartitionError
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queue.partitions import check, opened, tree
from pgmta.store.queue.repartition import Repartition
from queued.cli.installation.partition import partition
from tests.features.lifecycle.conftest import owned, root
from tests.support.traffic import FILL, STILL, Traffic
from tests.support.waiting import PATIENCE, until

__all__ = ["owned", "root"]

DOCS = Path(__file__).parents[4] / "docs" / "operate" / "partitions.md"
ODD = 'o\'clock \\ "x", {%s} %(a)s;--'
Database = psycopg.Connection[Any]


def change(uri: str, wait: float = 60.0) -> Callable[..., Any]:
    """Call one method of Repartition by its name."""

    async def work(method: str, args: tuple[Any, ...]) -> Any:
        async with opened(uri) as db:
            return await getattr(Repartition(db, wait), method)(*args)

    return lambda method, *args: asyncio.run(work(method, args))


def look[T](uri: str, what: Callable[[OperatorConnection], Coroutine[Any, Any, T]]) -> T:
    async def work() -> T:
        async with opened(uri) as db:
            return await what(db)

    return asyncio.run(work())


def leaves(uri: str) -> dict[str, str]:
    return {p.name: p.takes for p in look(uri, tree) if p.parent == "queue_def"}


def findings(uri: str) -> list[tuple[str, str, str]]:
    found = look(uri, lambda db: check(db, 100))
    return [(f.severity, f.object, f.finding) for f in found]


def one(db: Database, query: str) -> Any:
    row = db.execute(query.encode()).fetchone()
    return row[0] if row and len(row) == 1 else row


def test_check_names_a_leaf_of_another_owner(
    root: psycopg.Connection, owned: tuple[str, str]
) -> None:
    """As a superuser makes one; the owner of queue may not read it."""
    uri = make_conninfo(root.info.dsn, user=owned[1])
    root.execute("CREATE TABLE pgmta.queue_x PARTITION OF pgmta.queue_def FOR VALUES IN ('x')")
    root.execute("ALTER TABLE pgmta.queue_def_def OWNER TO CURRENT_USER")
    found = [each for each in look(uri, lambda db: check(db, 1)) if "belongs to" in each.finding]
    assert {partition.name for partition in look(uri, tree)} >= {"queue_x", "queue_def_def"}
    assert [each.object for each in found] == ["queue_def_def", "queue_x"]
    for each in found:
        root.execute(each.remedy.encode())
    assert not [each for each in findings(uri) if "belongs to" in each[2]]


@pytest.mark.slow
def test_changes_under_load_lose_double_and_hide_nothing(database: str, db: Database) -> None:
    db.execute(FILL, (1, STILL, 9999))
    # a lease that outlives the change, with every column set
    db.execute("""
        UPDATE queue SET status = 'SENDING', lease_owner = 'w', lease_token = 7, attempts = 3,
            lease_since = now(), lease_until = now() + interval '1 hour', last_reply = '450 no',
            priority = 2, metadata = metadata || '{"k": [1, null]}' WHERE message_id % 4 = 2""")
    content = f"SELECT array_agg(to_jsonb(q) ORDER BY id) FROM queue q WHERE message_id <= {STILL}"
    before = one(db, content)
    traffic, call = Traffic(database), change(database)
    try:
        for turn in range(1, 4):
            until(lambda n=turn: traffic.moved > 40 * n or traffic.errors)  # type: ignore[misc]
            assert call("add_partition", "def_123", ["1", "2", "3"]).rows >= STILL * 3 // 5
            assert call("split", "queue_def_123", ["2"], "queue_def_2").rows >= STILL // 5
            assert call("add_partition", "queue_def_null", ["4", None]).rows >= STILL * 2 // 5
            assert leaves(database) == {
                "queue_def_123": "_partid IN ('1', '3')",
                "queue_def_2": "_partid IN ('2')",
                "queue_def_null": "_partid IN ('4') and rows without _partid",
                "queue_def_def": "default",
            }
            assert one(db, "SELECT count(*) FROM queue_def_def") == 0
            assert [f for f in findings(database) if f[0] == "problem"] == []
            for leaf in ("def_2", "def_123", "queue_def_null"):
                call("drop", leaf)
    finally:
        traffic.end()
    assert traffic.lost == []
    assert one(db, content) == before
    assert set(traffic.delivered.values()) == {1}
    left = one(db, f"SELECT count(*), count(DISTINCT id) FROM queue WHERE message_id > {STILL}")
    assert left == (traffic.accepted - len(traffic.delivered),) * 2
    # bodies: those of waiting rows all there and whole, those of delivered ones gone
    assert one(db, "SELECT count(*) FROM messages WHERE body = ('body ' || id)::bytea") == one(
        db, "SELECT count(DISTINCT message_id) FROM queue"
    )
    assert leaves(database) == {"queue_def_def": "default"}


def test_new_leaf_is_complete_and_claims_touch_it_alone(database: str, db: Database) -> None:
    db.execute(FILL, (1, STILL, 0))
    change(database)("add_partition", "def_123", ["1", "2", "3"])
    change(database)("split", "def_123", ["1"], "def_1")
    define = "SELECT regexp_replace(pg_get_indexdef(indexrelid), '.*USING', '') FROM pg_index WHERE"
    default = set(db.execute(f"{define} indrelid = 'queue_def_def'::regclass".encode()))
    for leaf in ("queue_def_123", "queue_def_1"):
        assert set(db.execute(f"{define} indrelid = '{leaf}'::regclass".encode())) == default
        options = "SELECT reloptions FROM pg_class WHERE relname = '{}'"
        assert one(db, options.format(leaf)) == one(db, options.format("queue_def_def"))
        constraints = (
            "SELECT array_agg(conname ORDER BY 1) FROM pg_constraint WHERE contype IN ('c', 'f') "
            "AND conrelid = '{}'::regclass"
        )
        assert len(one(db, constraints.format(leaf))) == len(
            one(db, constraints.format("queue_def_def"))
        )
    plan = (
        "EXPLAIN SELECT FROM queue WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') "
        "AND metadata->>'_partid' IN ('2', '3')"
    )
    scanned = set(re.findall(r" on (queue\w*)", "\n".join(r[0] for r in db.execute(plan.encode()))))
    assert scanned == {"queue_def_123"}
    # deletion of the last row still takes the body; a body that is referred to can't go
    db.execute("DELETE FROM queue WHERE message_id <= 10")
    assert one(db, "SELECT count(*) FROM messages WHERE id <= 10") == 0
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        db.execute("DELETE FROM messages WHERE id = 13")


def test_a_change_that_fails_or_is_interrupted_leaves_nothing(
    database: str, db: Database, tmp_path: Path
) -> None:
    db.execute(FILL, (1, 50, 0))
    state = "SELECT array_agg(relname ORDER BY relname) FROM pg_class WHERE relname LIKE 'queue%'"
    before = one(db, state)
    with psycopg.connect(database) as blocker:
        blocker.execute("SELECT FROM queue LIMIT 1")  # a transaction left open
        with pytest.raises(PartitionError, match=rf"held by pid {blocker.info.backend_pid} .*idle"):
            change(database, 0.5)("add_partition", "def_1", ["1"])
        config = tmp_path / "queued.yaml"
        config.write_text(f"environment: {{database: {{uri: {json.dumps(database)}}}}}\n")
        script = "from queued.cli.installation.partition import partition; partition()"
        args = ["add", "def_1", "--partid", "1", "-c", str(config)]
        with subprocess.Popen([sys.executable, "-c", script, *args], stderr=subprocess.PIPE) as run:
            waiting = (
                "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database "
                "WHERE datname = current_database() AND NOT granted AND mode LIKE 'AccessExcl%'"
            )
            until(lambda: one(db, waiting) or run.poll() is not None)
            assert run.poll() is None
            run.send_signal(signal.SIGINT)
            assert run.wait(PATIENCE) == 1
    assert one(db, state) == before
    call = change(database)
    call("add_partition", "def_12", ["1", "2"])
    refused: dict[str, tuple[Any, ...]] = {
        r"queue_def_12 has _partid IN \('1'\)": ("add_partition", "def_1", ["1", "5"]),
        "there is a table queue_def_12 already": ("add_partition", "def_12", ["5"]),
        "is no name": ("add_partition", 'def"1', ["5"]),
        "can't contain NUL": ("add_partition", "def_5", ["\0"]),
        "no value": ("add_partition", "def_5", []),
        r"does not take _partid IN \('3'\)": ("split", "def_12", ["3"], "def_3"),
        "nothing to split": ("split", "def_12", ["1", "2"], "def_3"),
        "default leaf": ("drop", "queue_def_def"),
        "queue_hold is no leaf": ("drop", "queue_hold"),
        "queue_delete is no leaf": ("drop", "queue_delete"),
        "queue_def is no leaf": ("drop", "queue_def"),
        "there is no partition queue_x": ("drop", "x"),
    }
    for reason, arguments in refused.items():
        with pytest.raises(PartitionError, match=reason):
            call(*arguments)
    assert leaves(database) == {"queue_def_12": "_partid IN ('1', '2')", "queue_def_def": "default"}


def test_values_are_any_text(database: str, db: Database, tmp_path: Path) -> None:
    db.execute(FILL, (1, 5, 0))
    db.execute(
        "UPDATE queue SET metadata = jsonb_build_object('_partid', %s::text) WHERE message_id = 1",
        (ODD,),
    )
    config = tmp_path / "queued.yaml"
    config.write_text(f"environment: {{database: {{uri: {json.dumps(database)}}}}}\n")

    def queuectl(*args: str, status: int = 0) -> Any:
        result = CliRunner().invoke(partition, [*args, "-c", str(config), "--json"])
        assert result.exit_code == status, result.output
        return json.loads(result.output)

    quoted = '"' + ODD.replace('"', '""') + '"'
    assert queuectl("add", "odd", "--partid", f"{quoted},x, y", "--partid", "")["rows"] == 1
    (odd,) = (p for p in queuectl("list", "--exact") if p["name"] == "queue_odd")
    assert (odd["values"], odd["rows"], odd["problems"]) == ([ODD, "x", "y", ""], 1, [])
    assert queuectl("split", "odd", "--partid", "x,y,", "--into", "xy")["rows"] == 0
    assert queuectl("drop", "odd")["rows"] == 1
    assert queuectl("check") == []
    db.execute("DROP TRIGGER messages_refcount ON queue")
    assert [f["object"] for f in queuectl("check", status=1)] == ["queue"]


def test_check_finds_what_is_wrong(database: str, db: Database) -> None:
    assert findings(database) == []
    db.execute(FILL, (1, STILL, 0))
    today = one(db, "SELECT to_char(now() AT TIME ZONE 'UTC', '\"attempts_\"YYYYMMDD')")
    db.execute("CREATE TABLE queue_def_789 PARTITION OF queue_def FOR VALUES IN ('7', '8', '9')")
    db.execute(
        "CREATE TRIGGER messages_refcount AFTER INSERT OR DELETE ON queue_def_789 "
        "FOR EACH ROW EXECUTE PROCEDURE messages_refcount_func()"
    )
    db.execute("CREATE TABLE queue_old (LIKE queue)")
    db.execute("CREATE INDEX lonely ON ONLY queue (sender)")
    db.execute("ALTER TABLE queue_def_def DISABLE TRIGGER queue_hold_stamp")
    db.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(today)))
    db.execute(
        "INSERT INTO attempts SELECT now(), now(), 1, 1, 1, 1, 0, 'unknown', "
        "'', '', '', '', '', '', '', ''"
    )
    found = findings(database)
    for wanted in (
        ("problem", "queue_def_789", "lacks the settings autovacuum_analyze_scale_factor, "),
        ("problem", "queue_def_789", "has a trigger messages_refcount"),
        ("problem", "queue_old", "looks like a partition of queue and is none"),
        ("problem", "queue_hold", "lacks the index lonely of queue"),
        ("problem", "queue_def_def", "the trigger queue_hold_stamp of queue_def is missing"),
        ("problem", today, "this day's partition is missing"),
        ("problem", "attempts_default", "1 rows of days without a partition"),
        ("hint", "queue_def_def", f"{STILL // 5} rows have _partid '4': worth a leaf"),
    ):
        assert any(f[:2] == wanted[:2] and f[2].startswith(wanted[2]) for f in found), wanted
    db.execute("DROP TABLE queue_def_def")
    assert (
        "problem",
        "queue_def",
        "has no default partition: other values are refused",
    ) in findings(database)


def test_documented_sql_runs_as_printed(database: str, db: Database) -> None:
    db.execute(FILL, (1, STILL, 0))
    blocks = re.findall(
        r"^```sql\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) >= 4
    for block in blocks:
        db.execute(block.encode())
        assert one(db, "SELECT count(*), count(DISTINCT message_id) FROM queue") == (STILL, STILL)
        assert one(db, "SELECT count(*) FROM messages") == STILL
        assert [f for f in findings(database) if f[0] == "problem"] == []
