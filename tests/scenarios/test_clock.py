"""The clock of the database is set back by an hour while daemons run."""

from __future__ import annotations

import pytest

from tests.support.nexthop import as_usual, holding_at
from tests.support.system import System

BACK = "the clock of the database was set back: waits are shortened"


@pytest.mark.slow
def test_mail_goes_out_after_a_step_back(system: System) -> None:
    """Each stored time is an hour late, as PostgreSQL sees it after the step.

    A worker in the middle of an attempt keeps its lease, and nothing goes out twice.
    """
    system.expected.add(BACK)
    hop = system.hop(holding_at("end of data"))
    queued = system.queued(hop, process={"lease": "6s", "poll": "100ms"})
    system.enqueue("first@hop.example")
    hop.wait_kept(1)
    system.enqueue("fresh@hop.example", next_attempt="2999-01-01")
    with_hour = "UPDATE queue SET {0} = now() + interval '1 h' + ({0} - now())"
    system.ask(with_hour.format("lease_until") + " WHERE recipient LIKE 'first%%'")
    system.ask(
        "UPDATE queue SET next_attempt = now() + interval '1 h' WHERE recipient LIKE 'fresh%%'"
    )
    system.ask("UPDATE database_clock SET seen_at = now() + interval '1 h'")
    assert queued.wait_log(BACK)["seconds"] > 3500
    hop.wait_kept(2)
    (lease,) = system.ask("SELECT lease_until < now() + interval '1 min' AS soon FROM queue"
                          " WHERE recipient LIKE 'first%%'")  # fmt: skip
    assert lease["soon"]
    hop.script = as_usual
    hop.release()
    system.wait_empty()
    assert hop.deliveries() == {"first@hop.example": 1, "fresh@hop.example": 1}
    assert {event["event"] for event in system.attempts()} == {"delivered"}
