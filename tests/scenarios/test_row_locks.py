"""An operator's open transaction holds a row that is in delivery: no other mail is concerned."""

from __future__ import annotations

import psycopg
import pytest

from tests.scenarios.test_refused_outcomes import PEOPLE, answered_together
from tests.support.system import System
from tests.support.waiting import until


@pytest.mark.slow
def test_a_row_that_is_locked_keeps_no_other_outcome(system: System) -> None:
    kept = "outcome is kept until the database takes it"
    system.expected.add(kept)
    with psycopg.connect(system.uri) as operator:
        with answered_together(system, process={"lease": "5s", "poll": "100ms"}) as (hop, queued):
            system.queued(hop, process={"lease": "5s", "poll": "100ms"})  # would send them again
            operator.execute(
                "UPDATE queue SET metadata = '{\"a\": 1}' WHERE recipient = %s", (PEOPLE[3],)
            )
        system.wait_queue(lambda rows: [row["recipient"] for row in rows] == [PEOPLE[3]])
        queued.wait_log(kept)
        system.enqueue("next@hop.example")
        until(lambda: system.events("next@hop.example") == ["delivered"])
        operator.rollback()
    system.wait_empty()
    others = {*PEOPLE, "next@hop.example"} - {PEOPLE[3]}
    deliveries = hop.deliveries()
    assert {person: deliveries[person] for person in others} == dict.fromkeys(others, 1)
    assert [system.events(person) for person in others] == [["delivered"]] * len(others)


@pytest.mark.slow
def test_leases_are_prolonged_beside_a_row_that_is_locked(system: System) -> None:
    process = {"lease": "3s", "poll": "100ms"}
    with (
        psycopg.connect(system.uri) as operator,
        answered_together(system, process=process) as (hop, _),
    ):
        system.queued(hop, process=process)  # would send them again
        operator.execute("SELECT FROM queue WHERE recipient = %s FOR UPDATE", (PEOPLE[3],))
        until(
            lambda: system.ask(
                "SELECT min(id) FROM queue WHERE recipient <> %s"
                " HAVING min(lease_until) > min(lease_since) + interval '8s'",
                PEOPLE[3],
            )
        )
        operator.rollback()
    system.wait_empty()
    others = set(PEOPLE) - {PEOPLE[3]}
    assert [system.events(person) for person in others] == [["delivered"]] * len(others)


@pytest.mark.slow
def test_a_claim_without_an_answer_keeps_no_worker_from_stopping(system: System) -> None:
    hop = system.hop()
    process = {"lease": "3s", "poll": "100ms"}
    queued = system.queued(hop, process=process)
    with psycopg.connect(system.uri) as operator:
        operator.execute("LOCK TABLE queue")
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND application_name IN ('pgmta queued deliver claim', 'pgmta queued deliver urgent')"
            " AND datname = current_database()"
        )
        until(lambda: len(system.ask(waiting)) == 2)
        queued.stop()
        assert queued.events("a claim under way is given up")
        operator.rollback()
    system.enqueue("next@hop.example")
    system.queued(hop, process=process)
    hop.wait_kept(1)
    system.wait_empty()
