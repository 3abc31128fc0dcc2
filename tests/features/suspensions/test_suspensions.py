"""Suspended mail is not tried, over several processes; it expires, gets notices, and comes back."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.queuectl import main as queuectl
from tests.support.name_server import Zone, serving_names
from tests.support.nexthop import NextHop
from tests.support.system import System
from tests.support.waiting import SLACK, take_time, until

KEYS = {
    "domain": ["--domain", "bad.example"],
    "next-hop": ["--next-hop", "HOP"],
    "sender": ["--sender", "Bad@b.example"],
    "sender-domain": ["--sender-domain", "bad.example"],
    "tenant": ["--tenant", "bad"],
    "condition": ["--where", "metadata->>'kind' = 'bad'"],
}


@pytest.fixture
def command(system: System) -> Any:
    """Run queuectl on the system's database."""
    path = system.folder / "queuectl.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": system.uri}}}))

    def run(*words: str, config: Path = path) -> Result:
        result = CliRunner().invoke(queuectl, [*words, "-c", str(config)])
        assert result.exit_code == 0, result.output
        return result

    return run


def bad_row(kind: str, number: int) -> dict[str, Any]:
    """Addresses and columns of mail that meets the suspension of a kind."""
    sender = {"sender": "bad@b.example", "sender-domain": "x@bad.example"}.get(kind, "s@b.example")
    domain = "bad.example" if kind in ("domain", "next-hop") else "a.example"
    columns: dict[str, Any] = {"tenant": "bad"} if kind == "tenant" else {}
    if kind == "condition":
        columns["metadata"] = json.dumps({"kind": "bad"})
    return {"recipient": f"x{number}@{domain}", "sender": sender, **columns}


class Flood:
    """Puts mail that is suspended, and other mail, into the queue until it is stopped."""

    def __init__(self, system: System, kind: str) -> None:
        self._system, self._kind = system, kind
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.number = 0

    def _run(self) -> None:
        while not self._end.is_set():
            self.number += 1
            row = bad_row(self._kind, self.number)
            self._system.enqueue(row.pop("recipient"), **row)
            self._system.enqueue(f"good{self.number}@good.example", sender="good@good.example")

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def good(hop: NextHop) -> int:
    """How many of the other messages the hop has."""
    return sum(t.sender == "good@good.example" for t in hop.transactions)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEYS)
def test_each_key_stops_new_attempts_within_a_second_over_four_processes(
    system: System, command: Any, kind: str
) -> None:
    hop, other = system.hop(), system.hop()
    routes = {"good.example": other.target, "*": hop.target}
    for number in range(4):
        system.queued(routes=routes, workers=[{"name": f"w{number}"}])
    words = [hop.target if word == "HOP" else word for word in KEYS[kind]]
    with Flood(system, kind) as flood:
        hop.wait_kept(5)
        made = command("suspend", *words, "--reason", "the provider is broken", "--tag", "t")
        assert f"suspension 1: {kind}" in made.stdout
        take_time(1.0 + SLACK)  # from then on no attempt begins
        begun, passed, came = len(hop.transactions), good(other), flood.number
        until(lambda: good(other) > passed + 20)
        assert flood.number > came
        assert len(hop.transactions) == begun
    system.wait_queue(lambda rows: rows and all(row["suspension"] == 1 for row in rows))
    waiting = system.queue()
    assert {(row["status"], row["lease_until"]) for row in waiting} <= {
        ("QUEUED", None), ("DEFERRED", None)
    }  # fmt: skip
    told = command("explain", str(waiting[0]["message_id"])).stdout
    assert f"waits for  the end of suspension 1 ({kind} " in told
    assert "tag t): the provider is broken" in told
    assert "`queuectl suspend --end 1`" in told
    assert "suspension 1 (" in command("show", str(waiting[0]["message_id"])).stdout
    for words in (["list", "--limit", "1"], ["find", "--recipient", waiting[0]["recipient"]]):
        assert "waits for the end of suspension 1" in command(*words).stdout
    (listed,) = json.loads(command("suspend", "--list", "--json").stdout)
    assert (listed["kind"], listed["rows"]) == (kind, len(waiting))
    command("suspend", "--end", "--tag", "t")
    system.wait_empty()
    assert len({a["recipient"] for a in system.attempts()}) == 2 * flood.number
    audit = system.ask("SELECT action, rows, details FROM audit ORDER BY id")
    assert [entry["action"] for entry in audit] == ["suspend", "resume"]
    assert audit[0]["details"]["reason"] == "the provider is broken"
    assert audit[1]["rows"] == len(waiting)


@pytest.mark.slow
def test_an_mx_host_stops_before_mail_and_by_what_the_log_knows(
    system: System, command: Any
) -> None:
    hop = system.hop()
    port = int(hop.target.rpartition(":")[2])
    host = {"A": ["127.0.0.1"], "AAAA": []}
    zone: Zone = {
        "logged.example": {"MX": ["10 mx1.provider.example."]},
        "new.example": {"MX": ["10 mx2.provider.example."]},
        "other.example": {"MX": ["10 mx.other.example."]},
        "mx1.provider.example": host, "mx2.provider.example": host, "mx.other.example": host,
    }  # fmt: skip
    with serving_names(zone) as names:
        delivery = {"port": port, "forbidden": [], "tls": {"mode": "none"},
                    "dns": {"servers": [names.where]}}  # fmt: skip
        for number in range(2):
            system.queued(delivery=delivery, workers=[{"name": f"w{number}"}])
        system.enqueue("a@logged.example")
        system.wait_empty()
        command("suspend", "--mx", "*.provider.example", "--reason", "down")
        take_time(1.0 + SLACK)  # from then on no attempt begins
        connections = hop.connections
        ids = [system.enqueue(f"b@{name}.example") for name in ("logged", "new", "other")]
        system.wait_queue(lambda rows: [row["suspension"] for row in rows] == [1, 1])
        told = command("explain", str(ids[1])).stdout
        assert "suspension 1 (mx *.provider.example): down" in told
        known = "SELECT array_agg(domain ORDER BY domain) AS names FROM suspension_domains"
        both = ["logged.example", "new.example"]
        until(lambda: system.ask(known) == [{"names": both}])  # with the next look of a process
        hop.wait_kept(2)
        assert hop.connections == connections + 1
        assert system.events("b@new.example") == []
        command("suspend", "--end", "1")
        system.wait_empty()


@pytest.mark.slow
def test_suspended_mail_expires_meets_its_deadline_and_gets_notices(
    system: System, command: Any, db: psycopg.Connection
) -> None:
    hop = system.hop()
    command("suspend", "--domain", "bad.example", "--reason", "down")
    bounces = {"delay": ["2s"], "gather": "0s"}
    settings: dict[str, Any] = {"retry": {"expire": "20s"}, "bounces": bounces}
    system.queued(hop, **settings)
    system.queued(hop, **settings, workers=[{"name": "second"}])
    system.enqueue("expires@bad.example", on_failed="bounce")
    deadline = db.execute("SELECT to_json(now() + interval '20 s')").fetchone()
    assert deadline
    system.enqueue("late@bad.example", metadata=json.dumps({"_deadline": deadline[0]}))
    rows = system.wait_queue(lambda rows: [row["suspension"] for row in rows] == [1, 1])
    assert {row["attempts"] for row in rows} == {0}
    db.execute(
        "UPDATE queue SET metadata = jsonb_build_object('_deadline', now()), next_attempt = now()"
        " WHERE recipient = 'late@bad.example'"
    )
    until(lambda: system.events("late@bad.example") == ["failed"])
    assert system.attempts("late@bad.example")[0]["class"] == "expired"
    until(lambda: system.ask("SELECT 1 FROM reports WHERE kind = 'delayed'"))
    assert len(system.queue()) >= 1
    until(lambda: system.events("expires@bad.example") == ["failed"])
    (failed,) = system.attempts("expires@bad.example")
    assert failed["class"] == "expired"
    assert "suspended" in failed["reply"]
    until(lambda: system.ask("SELECT 1 FROM reports WHERE kind = 'failed'"))
    assert {t.recipients[0] for t in hop.transactions} <= {"sender@example.org"}
    assert (failed["ended_at"] - rows[0]["ts"]).total_seconds() >= 20


@pytest.mark.slow
def test_overlapping_suspensions_and_ends_by_time(
    system: System, command: Any, db: psycopg.Connection
) -> None:
    hop = system.hop()
    system.queued(hop)
    command("suspend", "--domain", "bad.example", "--reason", "one", "--for", "1h")
    command("suspend", "--tenant", "bad", "--reason", "two")
    command("suspend", "--where", "(metadata->>'n')::int > 1", "--reason", "three")
    take_time(1.0 + SLACK)
    system.enqueue("one@bad.example")
    system.enqueue("two@bad.example", tenant="bad")
    system.enqueue("three@a.example", metadata='{"n": "2"}')
    system.enqueue("fails@a.example", metadata='{"n": "x"}')
    system.enqueue("free@a.example", metadata='{"n": "1"}')
    hop.wait_kept(1)
    system.wait_queue(lambda rows: [row["suspension"] for row in rows] == [1, 1, 3, 3])
    db.execute("UPDATE suspensions SET until = now() WHERE id = 1")
    system.wait_queue(lambda rows: [row["suspension"] for row in rows] == [2, 3, 3])
    (ended,) = system.ask("SELECT who FROM audit WHERE action = 'resume'")
    assert ended["who"].startswith("upkeep@")
    command("suspend", "--end", "--all")
    system.wait_empty()
    assert len(system.attempts()) == 5


def marked(db: psycopg.Connection) -> int:
    """How many rows were put off for suspension 1."""
    return db.execute("SELECT FROM queue WHERE suspension = 1").rowcount


@pytest.mark.slow
def test_a_worker_that_dies_while_it_puts_off_leaves_nothing_behind(
    system: System, command: Any, db: psycopg.Connection
) -> None:
    hop = system.hop()
    first = system.queued(hop, process={"lease": "5s"})
    db.execute(
        "WITH m AS (INSERT INTO messages (id, size, trace, body)"
        " SELECT nextval('message_ids'), 1, 'T: t' || E'\\r\\n', 'x' FROM generate_series(1, 20000)"
        " RETURNING id)"
        " INSERT INTO queue (message_id, sender, recipient, domain, tenant, sender_domain)"
        " SELECT id, 's@a.example', 'r@bad.example', 'bad.example', 'many', 'a.example' FROM m"
    )
    command("suspend", "--tenant", "many", "--reason", "a flood")
    until(lambda: marked(db) > 2000)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    some = marked(db)
    began = len(hop.transactions)
    system.queued(hop, process={"lease": "5s"})
    until(lambda: db.execute("SELECT FROM queue WHERE suspension IS NULL").rowcount == 0, 120)
    assert 0 < some < marked(db)
    assert len(hop.transactions) == began
    command("suspend", "--end", "1")
    until(lambda: db.execute("SELECT FROM queue WHERE suspension IS NOT NULL").rowcount == 0, 60)
    assert db.execute("SELECT FROM queue WHERE next_attempt > now()").rowcount == 0


@pytest.mark.slow
def test_mail_goes_back_while_conditions_can_not_be_looked_at(
    system: System, command: Any, db: psycopg.Connection
) -> None:
    failing = "conditions of suspensions fail: mail waits"
    system.expected.add(failing)
    (found,) = system.ask("SELECT pg_get_functiondef('suspended_under'::regproc) AS text")
    db.execute(
        "CREATE OR REPLACE FUNCTION suspended_under(ids bigint[]) RETURNS TABLE (row_id bigint,"
        " suspension bigint) LANGUAGE plpgsql STABLE AS $$ BEGIN"
        " RAISE EXCEPTION 'too much' USING ERRCODE = 'program_limit_exceeded'; END $$"
    )
    command("suspend", "--where", "tenant = 'bad'", "--reason", "down")
    hop = system.hop()
    queued = system.queued(hop)
    system.enqueue("x@bad.example", tenant="bad")
    system.enqueue("x@good.example")
    queued.wait_log(failing)
    system.wait_queue(lambda rows: [row["status"] for row in rows] == ["QUEUED", "QUEUED"])
    assert hop.transactions == []
    db.execute(found["text"])
    hop.wait_kept(1)
    system.wait_queue(lambda rows: [row["suspension"] for row in rows] == [1])
    assert [t.recipients for t in hop.transactions] == [["x@good.example"]]
    assert system.queue()[0]["attempts"] == 0
