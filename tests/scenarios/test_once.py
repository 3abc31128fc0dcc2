"""Rows with `once`: whatever dies, no recipient gets a second copy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.support.database import PrivateServer
from tests.support.nexthop import Do, NextHop, Script, Transaction, as_usual, holding_at
from tests.support.system import System
from tests.support.waiting import take_time, until

PHASES = ("connect", "EHLO", "MAIL", "RCPT", "DATA", "content", "end of data", "settle")
NOT_BEGUN = ("connect", "EHLO")  # MAIL was not sent
PAST_DOT = ("content", "end of data", "settle")  # the hop has the message, also if a worker dies
PROCESS = {"lease": "3s", "poll": "100ms"}
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "once": {"once": True},
    "both": {"once": True, "on_failed": "remove"},
}
UNCERTAIN = "outcome unknown: a release may send a second copy"


def wait_phase(phase: str, hop: NextHop) -> None:
    """Wait until all mail for the hop is in this phase, or waits for a connection."""
    if phase in ("connect", "EHLO"):
        hop.wait(lambda: hop.connections)
    elif phase in ("end of data", "settle"):
        hop.wait_kept(len(POLICIES))
    else:
        hop.wait(lambda: len(hop.transactions) == len(POLICIES))


@contextmanager
def blocked_settlements(system: System) -> Iterator[None]:
    """No outcome is written meanwhile; afterwards the statements that waited are gone."""
    with psycopg.connect(system.uri) as db:
        db.execute("LOCK TABLE attempts IN SHARE MODE")
        yield
        db.execute(
            "SELECT pg_terminate_backend(pid, 9999) FROM pg_stat_activity"
            " WHERE application_name LIKE 'pgmta queued%' AND datname = current_database()"
        )


@pytest.mark.slow
def test_a_worker_is_killed_in_each_phase(system: System) -> None:
    system.expected.add("outcome is kept until the database takes it")
    hops = {
        phase: system.hop(holding_at("end of data" if phase == "settle" else phase))
        for phase in PHASES
    }
    routes = {f"p{n}.example": hop.target for n, hop in enumerate(hops.values())}
    victim = system.queued(routes=routes, process=PROCESS)
    people = {
        (phase, policy): f"{policy}@p{n}.example"
        for n, phase in enumerate(PHASES)
        for policy in POLICIES
    }
    for (_, policy), person in people.items():
        system.enqueue(person, **POLICIES[policy])
    for phase, hop in hops.items():
        wait_phase(phase, hop)
    system.wait_queue(lambda rows: all(row["status"] == "SENDING" for row in rows))
    with blocked_settlements(system):
        hops["settle"].release()
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgmta queued%%settle'"
            " AND wait_event_type = 'Lock' AND datname = current_database()"
        )
        until(lambda: system.ask(waiting))
        victim.kill()
    assert system.attempts() == []
    for hop in hops.values():
        hop.script = as_usual
        hop.release()
    heir = system.queued(routes=routes, process=PROCESS)
    rows = system.wait_queue(
        lambda rows: (
            {row["recipient"] for row in rows}
            == {people[phase, "once"] for phase in PHASES if phase not in NOT_BEGUN}
            and all(row["status"] == "HOLD" for row in rows)
        )
    )
    for row in rows:
        assert row["hold_reason"] == UNCERTAIN
        assert row["held_by"].startswith("upkeep@")
        assert row["hold_until"] is None
        assert row["last_reply"].startswith("lease ran out")
    for (phase, policy), person in people.items():
        sent = hops[phase].deliveries()[person]
        free = policy == "plain" or phase in NOT_BEGUN
        assert sent == free + (phase in PAST_DOT), (phase, policy)
        unknown = policy == "plain" or phase not in NOT_BEGUN
        events = system.events(person)
        assert events == ["unknown"] * unknown + ["delivered"] * free, person
    begun = len(PHASES) - len(NOT_BEGUN)
    assert len(system.ask("SELECT id FROM messages")) == begun
    settled = heir.events("leases ran out, and these rows are not sent again")
    assert sum(entry["rows"] for entry in settled) == 2 * begun
    freed = heir.events("leases ran out before transactions began: rows are free again")
    assert sum(entry["rows"] for entry in freed) == 2 * len(NOT_BEGUN)
    doubled = {row["recipient"] for row in system.ask("SELECT recipient FROM duplicates")}
    assert doubled == {people[phase, "plain"] for phase in PHASES}


@pytest.mark.slow
def test_a_kill_holds_only_the_transactions_under_way(system: System) -> None:
    """The next worker sends rows that wait for a connection: their transactions had not begun."""
    hop = system.hop(holding_at("end of data"))
    settings: dict[str, Any] = {"process": PROCESS, "delivery": {"connections": 3}}
    people = [f"x{n}@hop.example" for n in range(40)]
    for person in people:
        system.enqueue(person, once=True)
    victim = system.queued(hop, **settings)
    hop.wait_kept(3)
    system.wait_queue(lambda rows: all(row["status"] == "SENDING" for row in rows))
    assert len(system.ask("SELECT id FROM queue WHERE begun = lease_token")) == 3
    victim.kill()
    hop.script = as_usual
    hop.release()
    system.queued(hop, **settings)
    held = system.wait_queue(
        lambda rows: len(rows) == 3 and {r["status"] for r in rows} == {"HOLD"}
    )
    assert hop.deliveries() == dict.fromkeys(people, 1)
    under_way = {row["recipient"] for row in held}
    for person in people:
        assert system.events(person) == (["unknown"] if person in under_way else ["delivered"])


def test_without_the_note_no_command_is_sent(system: System) -> None:
    """PostgreSQL refuses the note while a worker has the rows: they wait, and go out later."""
    hop = system.hop()
    system.ask("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'no note'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE OF begun ON queue
        FOR EACH ROW EXECUTE FUNCTION refuse()""")
    queued = system.queued(hop, process=PROCESS)
    system.enqueue("x@hop.example", once=True)
    queued.wait_log("rows with once can't begin")
    assert hop.transactions == []
    # DROP would lock the tables that the worker is using, in another order
    system.ask("""
        CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RETURN NEW; END $$""")
    system.wait_empty()
    assert hop.deliveries() == {"x@hop.example": 1}
    assert system.events("x@hop.example") == ["delivered"]


def losing(dice: random.Random) -> Script:
    """A next hop that loses connections here and there, also after it has taken the message."""

    def script(point: str, line: str, transaction: Transaction | None) -> Do | None:
        chance = dice.random()
        if point == "end of data":
            return Do(drop=True) if chance < 0.1 else Do(line="451 4.3.0 Later" * (chance < 0.2))
        return Do(drop=True) if chance < 0.01 else None

    return script


@pytest.mark.slow
def test_workers_are_killed_at_any_moment(system: System) -> None:
    """Each mail leaves at most one copy; each that is not certainly delivered is on hold."""
    seed = random.randrange(10**6)
    print("seed", seed)
    dice = random.Random(seed)
    hop = system.hop(losing(dice))
    settings: dict[str, Any] = {"process": PROCESS, "retry": {"intervals": ["0.2s"]}}
    people: set[str] = set()
    for turn in range(6):
        workers = [system.queued(hop, **settings) for _ in range(2)]
        for n in range(60):
            more = [f"x{turn}.{n}.{i}@d{n % 3}.example" for i in range(n % 3 + 1)]
            people.update(more)
            system.enqueue(*more, once=True)
        take_time(dice.uniform(0.0, 0.4))
        for worker in workers:
            worker.kill()
    system.queued(hop, **settings)
    held = system.wait_queue(lambda rows: all(row["status"] == "HOLD" for row in rows))
    delivered = hop.deliveries()
    assert max(delivered.values()) == 1
    left = {row["recipient"] for row in held}
    assert people - left <= set(delivered) <= people
    finals: dict[str, list[str]] = {}
    for attempt in system.attempts():
        if attempt["event"] != "deferred":
            finals.setdefault(attempt["recipient"], []).append(attempt["event"])
    assert finals == {person: ["unknown"] if person in left else ["delivered"] for person in people}
    assert {row["hold_reason"] for row in held} <= {UNCERTAIN}
    assert system.ask("SELECT recipient FROM duplicates") == []


@pytest.mark.slow
@pytest.mark.parametrize("lease", ["60s", "3s"], ids=["within the lease", "longer than the lease"])
def test_outcomes_that_wait_for_the_database_are_written(
    private_server: PrivateServer, private_system: System, lease: str
) -> None:
    """PostgreSQL dies during the attempts, and the worker knows the outcomes when it is back."""
    system = private_system
    hop = system.hop(holding_at("end of data"))
    queued = system.queued(hop, process={"lease": lease, "poll": "100ms"})
    people = [f"x{n}@hop.example" for n in range(16)]
    for person in people:
        system.enqueue(person, once=True, on_failed="remove" if person > "x2" else "hold")
    hop.wait_kept(len(people))
    private_server.crash()
    hop.release()
    queued.wait_log("can't settle")
    if lease == "3s":
        take_time(3.5)  # longer than the lease
    private_server.start()
    system.wait_empty()
    assert hop.deliveries() == dict.fromkeys(people, 1)
    assert [attempt["event"] for attempt in system.attempts()] == ["delivered"] * len(people)


@pytest.mark.slow
def test_a_stop_in_the_middle_leaves_nothing_to_be_sent_twice(system: System) -> None:
    """A drain hands back rows that had not begun; a row cut off after the dot is unknown."""
    hop, slow = system.hop(holding_at("end of data")), system.hop(holding_at("MAIL"))
    routes = {"hop.example": hop.target, "slow.example": slow.target}
    first = system.queued(
        routes=routes, process={**PROCESS, "drain": "1s"}, delivery={"connections": 2}
    )
    for n in range(6):
        system.enqueue(f"x{n}@hop.example", f"x{n}@slow.example", once=True)
    hop.wait_kept(2)
    slow.wait(lambda: len(slow.transactions) == 2)
    first.stop()
    rows = system.queue()
    cut = {person for t in hop.kept for person in t.recipients}
    assert {row["recipient"] for row in rows if row["status"] == "HOLD"} == cut
    assert {row["status"] for row in rows if row["recipient"] not in cut} <= {"QUEUED", "DEFERRED"}
    for each in (hop, slow):
        each.script = as_usual
        each.release()
    system.ask("UPDATE queue SET next_attempt = now() WHERE status = 'DEFERRED'")
    system.queued(routes=routes, process=PROCESS)
    system.wait_queue(lambda rows: len(rows) == 2)
    assert set((hop.deliveries() + slow.deliveries()).values()) == {1}
    assert {row["recipient"] for row in system.queue()} == cut
