"""Several workers on one queue, and workers that die."""

from __future__ import annotations

import time

import pytest

from tests.support.nexthop import Do, Transaction
from tests.support.system import System
from tests.support.waiting import SLACK, until


@pytest.mark.slow
def test_another_worker_takes_over_from_a_killed_one(system: System) -> None:
    lease = 6
    people = [f"x{n}@hop.example" for n in range(200)]
    for person in people:
        system.enqueue(person)

    def slow_after_80(point: str, line: str, transaction: Transaction | None) -> Do | None:
        return Do(hold=True) if point == "end of data" and len(hop.kept) >= 80 else None

    hop = system.hop(slow_after_80)
    settings = {"concurrency": 60, "batch": 30}
    victim = system.queued(
        hop,
        process={"lease": f"{lease}s"},
        workers=[{"name": "victim", **settings}],
        delivery={"connections": 4},
    )
    hop.wait_kept(84)
    system.wait_queue(lambda rows: len(rows) <= 120)  # the others are settled
    victim.kill()
    # a statement under way still ends: a claim, perhaps
    backends = (
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgmta queued victim%%'"
        " AND datname = current_database()"
    )
    until(lambda: not system.ask(backends))
    sending = {row["recipient"] for row in system.queue() if row["status"] == "SENDING"}
    assert len(sending) > 4
    hop.script = lambda point, line, transaction: None
    hop.release()
    system.queued(hop, workers=[{"name": "heir", **settings}])
    ready = time.monotonic()
    system.wait_empty()
    assert time.monotonic() - ready < lease + SLACK
    delivered = hop.deliveries()
    assert set(delivered) == set(people)
    doubled = {person for person, count in delivered.items() if count > 1}
    assert doubled  # the four that had their dot
    assert doubled <= sending
    assert max(delivered.values()) == 2
    for person in sending:
        unknown, done = system.attempts(person)
        assert (unknown["event"], done["event"]) == ("unknown", "delivered")
        assert unknown["worker"].startswith("victim@")
        assert done["worker"].startswith("heir@")
        assert (unknown["attempt"], done["attempt"]) == (1, 2)
        assert unknown["started_at"] < unknown["ended_at"] <= done["ended_at"]
    for person in set(people) - sending:
        assert system.events(person) == ["delivered"]


@pytest.mark.slow
def test_mail_does_not_wait_for_the_turns_of_the_dead(system: System) -> None:
    turn, dead = 5, 5
    (now,) = system.ask("SELECT extract(epoch FROM clock_timestamp())::float8 AS s")
    place = (int(now["s"] / turn) - 1) % (dead + 1)  # its turn comes last, in 20 s or more
    for n in range(dead):
        system.ask(
            "INSERT INTO workers (owner, name, action, reach, seen_at)"
            " VALUES (%s, 'deliver', 'deliver', 'true', now() + interval '1h')",
            f"{'a' if n < place else 'z'}{n}",
        )
    hop = system.hop()
    queued = system.queued(hop, process={"poll": "1h"})
    queued.wait_log("workers share rows")
    for n in range(2):
        began = time.monotonic()
        system.enqueue(f"x{n}@hop.example")
        hop.wait_kept(n + 1)
        assert time.monotonic() - began < SLACK
    system.wait_empty()


@pytest.mark.slow
def test_a_lost_lease_ends_the_attempt_before_the_dot(system: System) -> None:
    def slow_at_first(point: str, line: str, transaction: Transaction | None) -> Do | None:
        return Do(hold=True) if point == "DATA" and hop.connections == 1 else None

    hop = system.hop(slow_at_first)
    queued = system.queued(hop, process={"lease": "3s"})
    system.enqueue("x@hop.example")
    hop.wait(lambda: "DATA" in hop.commands)
    system.ask(
        "UPDATE queue SET lease_owner = 'another worker', lease_token = nextval('lease_tokens'),"
        " lease_until = now() + interval '1h'"
    )
    queued.wait_log("lease lost")
    hop.release()
    hop.wait(lambda: not hop.open)
    assert hop.kept == []
    # the outcome of an attempt under the old lease changes nothing
    queued.wait_log("row had moved on")
    (row,) = system.queue()
    assert (row["status"], row["lease_owner"]) == ("SENDING", "another worker")
    system.ask("UPDATE queue SET lease_until = now() - interval '1s'")
    hop.wait_kept(1)
    system.wait_empty()
    assert hop.deliveries() == {"x@hop.example": 1}
    assert system.events("x@hop.example") == ["deferred", "unknown", "delivered"]
