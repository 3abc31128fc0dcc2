"""Several workers by WHERE, standing rules, operators who change rows while mail flows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.quarantine_retention import main as retention
from queued.cli.queuectl import main as queuectl
from tests.support.nexthop import Do
from tests.support.system import System
from tests.support.waiting import until


@pytest.fixture
def command(system: System) -> Any:
    """Run queuectl on the system's database."""
    path = system.folder / "queuectl.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": system.uri}}}))

    def run(*words: str, tool: Any = queuectl) -> Result:
        name = 0 if tool is retention else {"rule": 2, "database": 3}.get(words[0], 1)
        return CliRunner().invoke(tool, [*words[:name], "-c", str(path), *words[name:]])

    return run


@pytest.mark.slow
def test_each_process_delivers_its_own_partitions_only(
    system: System, command: Any, db: psycopg.Connection
) -> None:
    made = command("database", "partition", "add", "123", "--partid", "1,2,3")
    assert made.exit_code == 0, made.output
    hop = system.hop()
    for number in range(30):
        system.enqueue(f"x{number}@a.example")
        db.execute(
            "UPDATE queue SET metadata = %s::jsonb WHERE recipient = %s",
            (json.dumps({"_partid": str(number % 3 * 3 + 1)} if number % 10 else {}),
             f"x{number}@a.example"),
        )  # fmt: skip
    first = "metadata->>'_partid' IN ('1', '2', '3')"
    system.queued(hop, environment={"database": {"where": first}}, workers=[{"name": "first"}])
    second = "metadata->>'_partid' IN ('4', '5', '6') OR metadata->>'_partid' IS NULL"
    system.queued(hop, environment={"database": {"where": second}}, workers=[{"name": "second"}])
    mine = {f"x{n}@a.example": "first" if n % 3 == 0 and n % 10 else "second"
            for n in range(30) if n % 3 != 2 or not n % 10}  # fmt: skip
    hop.wait_kept(len(mine))
    rest = {f"x{n}@a.example" for n in range(30)} - set(mine)
    rows = system.wait_queue(lambda rows: len(rows) == len(rest))
    assert {row["recipient"] for row in rows} == rest
    assert {a["recipient"]: a["worker"].partition("@")[0] for a in system.attempts()} == mine
    told = json.loads(command("workers", "--json").stdout)
    assert told["unmatched"] == len(rest)
    assert told["overlap"] == 0
    assert f"{len(rest)} rows are matched by no worker" in "".join(told["warnings"])
    system.queued(hop, workers=[{"name": "third", "where": "metadata->>'_partid' = '7'"}])
    system.wait_empty()


@pytest.mark.slow
def test_what_matches_a_standing_rule_is_never_delivered(system: System, command: Any) -> None:
    hop = system.hop()
    system.queued(hop)
    holding = {"name": "suspects", "action": "quarantine", "where": "sender LIKE 'sender@%' AND "
               "domain = 'bad.example'", "quarantine": "q1", "every": "1s"}  # fmt: skip
    system.queued(hop, workers=[holding])
    for number in range(50):
        system.enqueue(f"x{number}@{'bad' if number % 2 else 'good'}.example")
    hop.wait_kept(25)
    rows = system.wait_queue(lambda rows: [r["status"] for r in rows] == ["HOLD"] * 25)
    assert {r["metadata"]["_quarantineid"] for r in rows} == {"q1"}
    assert {r["hold_reason"] for r in rows} == {"worker suspects"}
    assert all(r["held_by"].startswith("suspects@") and r["held_at"] for r in rows)
    assert {a["recipient"].partition("@")[2] for a in system.attempts()} == {"good.example"}
    # an operator's rule counts at once, also for what comes later, and ends by itself
    made = command(
        *("rule", "add", "stop", "--domain", "other.example", "--reason", "ticket"),
        *("--expire", "2s", "--release-after", "2s"),
    )
    assert made.exit_code == 0, made.output
    system.enqueue("late@other.example")
    hop.wait_kept(26)
    until(lambda: not system.ask("SELECT name FROM rules WHERE name = 'stop'"))
    assert system.ask("SELECT action FROM audit") == [{"action": "rule add"}]
    # retention deletes rows that are old enough, and logs it
    out = command("q1", "--older", "0s", "--dry-run", tool=retention)
    assert out.stdout == "would have deleted 25 rows of quarantine q1\n", out.output
    assert command("q1", "--older", "1h", tool=retention).stdout.startswith("deleted 0 rows")
    assert command("q1", "--older", "0s", tool=retention).stdout.startswith("deleted 25 rows")
    system.wait_empty()
    assert [a["event"] for a in system.attempts()].count("deleted") == 25


def test_operators_change_rows_while_they_are_sent(system: System, command: Any) -> None:
    hop = system.hop(lambda point, line, transaction: Do(hold=point == "end of data"))
    system.queued(hop)
    for name in ("hold", "delete", "back", "free"):
        system.enqueue(f"{name}@a.example")
    until(lambda: hop.open >= 4 and len(system.rows()) == 4)
    system.wait_queue(lambda rows: {r["status"] for r in rows} == {"SENDING"})
    system.ask(
        "UPDATE queue SET status = 'HOLD' WHERE recipient IN ('hold@a.example', 'back@a.example')"
    )
    system.ask("UPDATE queue SET status = 'DELETE' WHERE recipient = 'delete@a.example'")
    system.ask("UPDATE queue SET status = 'QUEUED' WHERE recipient = 'back@a.example'")
    explained = json.loads(
        command("explain", "--json", str(system.queue()[0]["message_id"])).stdout
    )
    assert explained["recipients"][0]["waits_for"]
    hop.script = lambda point, line, transaction: None
    hop.release()
    system.wait_empty()
    # every attempt in flight delivered, each once, and is recorded
    assert sorted(hop.deliveries().values()) == [1, 1, 1, 1]
    assert [a["event"] for a in system.attempts()] == ["delivered"] * 4


@pytest.mark.slow
def test_flips_of_status_lose_and_double_nothing(system: System, db: psycopg.Connection) -> None:
    """Four clients flip statuses at random while two workers deliver."""
    hop = system.hop()
    count = 600
    system.enqueue(*(f"x{n}@d{n % 7}.example" for n in range(count // 2)))
    for n in range(count // 2, count):
        system.enqueue(f"x{n}@d{n % 7}.example")
    ids = [row["id"] for row in system.queue()]
    for name in ("one", "two"):
        system.queued(hop, workers=[{"name": name, "concurrency": 20}])

    def flip(seed: int) -> None:
        with psycopg.connect(system.uri, autocommit=True) as own:
            for turn in range(250):
                status = ("HOLD", "QUEUED", "HOLD")[(turn + seed) % 3]
                some = [ids[(turn * 37 + seed * 11 + k * 101) % count] for k in range(1 + turn % 5)]
                try:
                    own.execute("UPDATE queue SET status = %s WHERE id = ANY(%s)", (status, some))
                except psycopg.errors.SerializationFailure:
                    continue  # documented: a plain UPDATE that meets a moving row is repeated

    threads = [threading.Thread(target=flip, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    db.execute("UPDATE queue SET status = 'QUEUED' WHERE status = 'HOLD'")
    system.wait_empty()
    delivered = [a["recipient"] for a in system.attempts() if a["event"] == "delivered"]
    assert sorted(delivered) == sorted(f"x{n}@d{n % 7}.example" for n in range(count))
    assert system.ask(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ) == [{"deadlocks": 0}]


def test_bulk_commands_ask_and_count(system: System, command: Any) -> None:
    system.enqueue(*(f"x{n}@a.example" for n in range(20)), *(f"y{n}@b.example" for n in range(5)))
    assert "say --yes" in command("hold", "--domain", "a.example", "--reason", "r").output
    assert command("hold", "--reason", "r", "--yes").exit_code == 2
    dry = command("hold", "--domain", "*.example", "--reason", "r", "--dry-run")
    assert dry.stdout == "hold: would change 25 rows\n"
    held = command("hold", "--domain", "a.example", "--reason", "r", "--yes", "--json")
    assert json.loads(held.stdout)["changed"] == 20
    assert {r["hold_reason"] for r in system.queue() if r["status"] == "HOLD"} == {"r"}
    counts = json.loads(command("list", "--count", "--by", "status", "--json").stdout)
    assert {c["status"]: c["count"] for c in counts} == {"HOLD": 20, "QUEUED": 5}
    command("set", "--recipient", "y*", "--set", "_partid=2", "--priority", "1", "--yes")
    assert {r["priority"] for r in system.queue() if r["metadata"] == {"_partid": "2"}} == {1}
    command("release", "--where", "recipient < 'x5'", "--yes")
    assert command("list", "--where", "nope = 1").exit_code == 2
    assert command("delete", "--age", ">0s", "--reason", "end", "--yes").exit_code == 0
    audit = system.ask(
        "SELECT action, rows, finished_at IS NOT NULL AS done FROM audit ORDER BY id"
    )
    assert [(a["action"], a["done"]) for a in audit] == [
        ("hold", True), ("set", True), ("release", True), ("delete", True)
    ]  # fmt: skip
    assert audit[-1]["rows"] == 25
    system.queued(system.hop())
    system.wait_empty()


def test_what_is_held_says_why_and_what_stays_on_hold(
    system: System, command: Any, db: psycopg.Connection
) -> None:
    message = system.enqueue("malformed@a.example", "fine@a.example", "refused@a.example")
    db.execute(
        "UPDATE queue SET status = 'HOLD', last_reply = '550 5.1.1 No such user',"
        " hold_reason = CASE recipient WHEN 'refused@a.example' THEN 'undeliverable' ELSE 'why' END"
    )
    db.execute("UPDATE queue SET recipient = E'mal\nformed@a.example' WHERE recipient ~ '^mal'")
    listed = [line.split("  ")[-1].strip() for line in command("list").stdout.splitlines()[1:]]
    assert sorted(listed) == ["550 5.1.1 No such user", "why", "why"]
    shown = command("show", str(message)).stdout.split("recipients\n")[1].splitlines()
    assert shown[0].split()[-4:] == ["ON", "HOLD", "LAST", "REPLY"]
    assert {" ".join(line.split()[4:]) for line in shown[1:4]} == {
        "why 550 5.1.1 No such user", "undeliverable 550 5.1.1 No such user"
    }  # fmt: skip
    stay = (
        "release: 1 more rows stay on hold: "
        "an address holds control characters, they can only be deleted\n"
    )
    dry = command("release", "--all", "--dry-run")
    assert (dry.stdout, dry.stderr) == ("release: would change 2 rows\n", stay)
    done = command("release", "--all", "--yes")
    assert (done.stdout, done.stderr) == ("release: 2 rows\n", stay)
    again = json.loads(command("release", "--all", "--json").stdout)
    assert (again["matched"], again["changed"], again["stay"]) == (1, 0, 1)
    shown = command("show", str(message)).stdout
    assert "the row can only be deleted" in shown


def test_interrupted_bulk_command_says_how_far_it_came(
    system: System, db: psycopg.Connection
) -> None:
    total = 5000
    db.execute(
        """
        WITH bodies AS (
            INSERT INTO messages (id, size, trace, body)
            SELECT n, 20, 'Received: by test', 'Subject: x' FROM generate_series(1, %s) AS n
        )
        INSERT INTO queue (message_id, sender, recipient, domain, status, hold_reason, held_by)
        SELECT n, 'a@example.org', n || '@a.example', 'a.example', 'HOLD', 'test', 'test'
        FROM generate_series(1, %s) AS n
        """,
        (total, total),
    )
    path = system.folder / "queuectl.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": system.uri}}}))
    with psycopg.connect(system.uri) as blocker:
        # the third batch waits for this row, and with it the command, until it is interrupted
        blocker.execute(
            "SELECT FROM queue WHERE id = (SELECT id FROM queue ORDER BY id OFFSET 2500 LIMIT 1)"
            " FOR UPDATE"
        )
        script = "from queued.cli.queuectl import main; main()"
        command = [sys.executable, "-c", script, "release", "--all", "--yes", "-c", str(path)]
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as run:
            until(lambda: system.ask(waiting + "current_database()"))
            run.send_signal(signal.SIGINT)
            blocker.rollback()
            out, err = run.communicate()
    assert run.returncode == 130, err
    assert out == "release: stopped after 3000 of 5000 rows; the rest is as it was\n"
    counts = system.ask("SELECT status, count(*) FROM queue GROUP BY 1 ORDER BY 1")
    assert [(c["status"], c["count"]) for c in counts] == [("HOLD", 2000), ("QUEUED", 3000)]
    assert system.ask("SELECT rows, finished_at FROM audit") == [
        {"rows": 3000, "finished_at": None}
    ]
