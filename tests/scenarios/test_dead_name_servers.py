"""Domains whose name servers never answer, beside a domain whose name servers do."""

from __future__ import annotations

import pytest

from tests.support.name_server import Zone, serving_names
from tests.support.system import System
from tests.support.waiting import until

DEAD = [f"dead{n}.example" for n in range(20)]


@pytest.mark.slow
def test_dead_name_servers_do_not_stop_other_mail(system: System) -> None:
    """All older than the others, each with more mail than a worker may have under lease."""
    hop = system.hop()
    port = int(hop.target.rpartition(":")[2])
    zone: Zone = {
        "good.example": {"MX": ["10 mx.good.example."]},
        "mx.good.example": {"A": ["127.0.0.1"]},
        **{name: {"MX": None} for name in DEAD},
    }
    with serving_names(zone) as names:
        for domain in DEAD:
            system.enqueue(*(f"x{n}@{domain}" for n in range(600)))
        queued = system.queued(
            routes={"*": "mx"},
            delivery={
                "port": port,
                "forbidden": [],
                "dns": {"servers": [names.where], "timeout": "10m"},
            },
            process={"drain": "0s"},
        )
        until(lambda: all(names.asked[f"{name} MX"] for name in DEAD), describe="questions")
        system.enqueue(*(f"x{n}@good.example" for n in range(1000)))
        hop.wait(lambda: hop.deliveries().total() == 1000)
        system.wait_queue(lambda rows: all(row["domain"] in DEAD for row in rows))
        assert names.asked["good.example MX"] == 1, "all connections share an answer"
        assert not [each for each in system.attempts() if each["event"] != "delivered"]
        leased = "SELECT count(*) FROM queue WHERE lease_until IS NOT NULL"
        until(lambda: system.ask(leased)[0]["count"] <= 5 * len(DEAD), describe="slots")
        queued.stop()
