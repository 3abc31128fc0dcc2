"""Urgent mail beside bulk mail that takes everything, and rows that no worker takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.queuectl import main
from tests.support.nexthop import Do, Script, Transaction
from tests.support.system import System
from tests.support.waiting import until

PLACES = 20


@pytest.fixture
def command(database: str, tmp_path: Path) -> Any:
    config = tmp_path / "queuectl.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, [*words, "-c", str(config)])

    return run


def put(system: System, local: str, domain: str, number: int, priority: int) -> set[str]:
    """Queue this number of messages; return their recipients."""
    system.ask(
        "WITH numbers AS (SELECT n, nextval('message_ids') AS id FROM generate_series(1, %s) AS n),"
        " bodies AS (INSERT INTO messages (id, size, trace, body)"
        "  SELECT id, 7, E'Received: by test\\r\\n', E'X: y\\r\\n\\r\\n' FROM numbers)"
        " INSERT INTO queue (message_id, sender, recipient, domain, priority)"
        " SELECT id, 's@a.example', %s || n || '@' || %s, %s, %s FROM numbers",
        *(number, local, domain, domain, priority),
    )
    system.ask("NOTIFY pgmta_queue")
    return {f"{local}{n}@{domain}" for n in range(1, number + 1)}


def hanging_for(local: str) -> Script:
    def script(point: str, line: str, transaction: Transaction | None) -> Do | None:
        mine = transaction and any(r.startswith(local) for r in transaction.recipients)
        return Do(hold=True) if point == "end of data" and mine else None

    return script


def test_urgent_mail_passes_while_all_that_bulk_mail_may_use_hangs(system: System) -> None:
    hop, other = system.hop(hanging_for("bulk")), system.hop(hanging_for("bulk"))
    bulk = put(system, "bulk", "one.example", 200, 5) | put(system, "bulk", "two.example", 200, 5)
    system.queued(
        routes={"*": hop.target, "two.example": other.target, "free.example": other.target},
        workers=[{"concurrency": PLACES, "batch": 10}],
        delivery={"connections": 4},
        urgent={"share": 0.5},
    )
    hop.wait(lambda: len(hop.kept) == 2)
    other.wait(lambda: len(other.kept) == 2)
    taken = "SELECT count(*)::int AS n FROM queue WHERE status = 'SENDING'"
    until(lambda: system.ask(taken)[0]["n"] >= PLACES // 2)
    urgent = put(system, "urgent", "one.example", 30, 0)
    urgent |= put(system, "urgent", "free.example", 30, 1)
    later = put(system, "normal", "free.example", 1, 2)
    until(lambda: urgent <= {*hop.deliveries(), *other.deliveries()})
    assert len(hop.kept) + len(other.kept) == 4 + len(urgent), "bulk mail got no more"
    hop.release()
    other.release()
    system.wait_empty()
    both = hop.deliveries() + other.deliveries()
    assert both == dict.fromkeys(bulk | urgent | later, 1)


@pytest.mark.slow
def test_urgent_mail_of_one_slow_next_hop_leaves_room_for_others(system: System) -> None:
    slow, hop = system.hop(hanging_for("x")), system.hop(hanging_for("bulk"))
    bulk = put(system, "bulk", "hop.example", 100, 5)
    stuck = put(system, "x", "slow.example", 150, 0)  # more than a window shows
    for n in range(40):
        stuck |= put(system, "x", f"d{n}.slow.example", 1, 0)
    system.queued(
        routes={"*": hop.target, "slow.example": slow.target, "*.slow.example": slow.target},
        workers=[{"concurrency": PLACES, "batch": 10}],
        delivery={"connections": 4},
        urgent={"share": 0.5},
    )
    slow.wait(lambda: len(slow.kept) == 4)
    urgent = put(system, "urgent", "hop.example", 40, 0) | put(system, "u", "y.example", 40, 1)
    until(lambda: urgent <= {*hop.deliveries()})
    assert len(slow.kept) == 4
    slow.release()
    hop.release()
    system.wait_empty()
    assert slow.deliveries() + hop.deliveries() == dict.fromkeys(bulk | stuck | urgent, 1)


@pytest.mark.slow
def test_rows_that_no_worker_takes_are_told_everywhere(system: System, command: Any) -> None:
    hop = system.hop()
    put(system, "late", "a.example", 3, 7)
    system.ask("UPDATE queue SET next_attempt = now() - interval '5 minutes'")
    workers = [{"name": "early", "priority": 3}, {"name": "b", "where": "domain = 'b.example'"}]
    queued = system.queued(hop, workers=workers)
    warning = queued.wait_log("no worker takes rows that are due: see queuectl workers")
    (first, *_) = system.queue()
    assert (warning["level"], warning["rows_at_least"], warning["priority"]) == ("warning", 3, 7)
    assert warning["message"] in {row["message_id"] for row in system.queue()}
    (row,) = json.loads(command("explain", "--json", str(first["message_id"])).stdout)["recipients"]
    assert row["workers"] == []
    assert row["waits_for"] == (
        "a worker: none that runs takes it, with priority 7"
        " (b takes ( domain = 'b.example' ); early takes priority <= 3)"
    )
    checked = command("workers", "--check")
    assert checked.exit_code == 1
    assert "3 rows are matched by no worker" in checked.stderr
    told = json.loads(command("workers", "--json").stdout)
    assert {w["name"]: (w["matches"], w["takes"]) for w in told["workers"]}["early"] == (
        0,
        "priority <= 3",
    )
    system.queued(hop, workers=[{"name": "all"}])
    system.wait_empty()
    assert command("workers", "--check").exit_code == 0
